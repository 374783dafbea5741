"""Host work of keeping and restoring the 27B's GDN states (48 layers) on the mock board, each way.

    python -m tests.targets.real.bench_snapshot

The transfer itself is free there: what is timed is what the host does for it. Interleaved in one process. Exit code 1
if `dma` takes more than a fiftieth of `host_roundtrip`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ops.gdn_snapshot.op import WAYS
from ttkern.engine.snapshots import flatten
from ttkern.model.decoder import GdnPrefillState
from ttkern.model.presets import preset
from ttkern.model.work import state_bytes
from ttkern.targets import open_target

ROUNDS, BOUND = 15, 1 / 50


def main() -> int:
    """Measure and print; the exit code."""
    target, config = open_target("mock"), preset("qwen3.6-27b")
    ttnn, layers = target.ttnn, config.layer_types.count("linear_attention")

    def empty(shape: tuple[int, ...], dtype: Any, layout: Any) -> Any:
        return ttnn.empty(shape, dtype=dtype, layout=layout, device=target.device)

    heads, dim = config.linear_num_value_heads, config.linear_key_head_dim
    channels = 2 * config.linear_num_key_heads * dim + heads * dim
    states = flatten(
        GdnPrefillState(
            empty((1, heads, dim, dim), ttnn.float32, ttnn.TILE_LAYOUT),
            empty((1, 3, channels), ttnn.bfloat16, ttnn.ROW_MAJOR_LAYOUT),
        )
        for _ in range(layers)
    )
    kept = {name: way.allocate(ttnn, states) for name, way in WAYS.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for n in track(range(ROUNDS + 1), "rounds", console=Console(stderr=True)):
        for name, way in WAYS.items():
            begin = time.perf_counter()
            way.capture(ttnn, states, kept[name])
            middle = time.perf_counter()
            way.restore(ttnn, kept[name], states)
            if n:
                times[name].append((middle - begin, time.perf_counter() - middle))
    table = Table(title=f"host ms for one state of {state_bytes(config) / 2**20:.0f} MiB, {layers} layers")
    for column in ("way", "capture", "restore", "both", "of host_roundtrip"):
        table.add_column(column, justify="left" if column == "way" else "right")
    both = {name: np.array(spent).sum(axis=1) for name, spent in times.items()}
    ratio = {name: float(np.median(spent / both["host_roundtrip"])) for name, spent in both.items()}
    for name, spent in times.items():
        capture, restore = np.median(np.array(spent) * 1e3, axis=0)
        total = f"{np.median(both[name]) * 1e3:.2f}"
        table.add_row(name, f"{capture:.2f}", f"{restore:.2f}", total, f"{ratio[name]:.4f}")
    Console().print(table)
    target.close()
    return int(ratio["dma"] > BOUND)


if __name__ == "__main__":
    sys.exit(main())
