"""Eager host time of one 64-layer prefill step of the 27B on the mock board, against the naive composition.

    python -m tests.targets.real.bench_host_time

Interleaved pairs in one process. The naive side runs one GDN layer's weights 48 times and one attention layer's 16
times: 64 layers of both sides do not fit a chip, and host time does not depend on which weights they are.
Exit code 1 if the median of the ratios is over the bound.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.targets.real.naive_layers import Naive
from ttkern.engine.runner import DeviceRunner, RunnerConfig
from ttkern.evidence.legality_table import LOWER_BOUND
from ttkern.model.decoder import Decoder
from ttkern.model.device_weights import NoData, load_decoder_weights
from ttkern.model.presets import preset
from ttkern.targets import open_target

PAIRS, TOKENS, BOUND = 25, 2048, 0.6


def main() -> int:
    """Measure and print; the exit code."""
    console = Console(stderr=True)
    target, config = open_target("mock"), preset("qwen3.6-27b")
    limits = RunnerConfig(max_model_len=4096, chunk_tokens=TOKENS, num_blocks=64)
    weights = load_decoder_weights(
        target, config, NoData(config), positions=limits.max_model_len, weight_dtype="bfloat8_b"
    )
    runner = DeviceRunner(Decoder(target, config, weights, attention_chunk=limits.attention_chunk), limits)
    step = next(trace for trace in runner.traces if trace.name == f"prefill_{TOKENS}")
    naive = Naive(target.ttnn, target.device, TOKENS)

    def composition() -> None:
        x = naive.x
        for kind in config.layer_types:
            x = naive.gdn(x) if kind == "linear_attention" else naive.attention(x)

    for _ in range(2):
        composition()
        step.body()
    pairs = np.array([(timed(composition), timed(step.body)) for _ in track(range(PAIRS), "pairs", console=console)])
    layers = {
        kind: np.median([timed(lambda run=run: run(naive.x)) for _ in range(PAIRS)])  # type: ignore[misc]
        for kind, run in (("GDN", naive.gdn), ("attention", naive.attention))
    }
    ratios = pairs[:, 1] / pairs[:, 0]
    rng = np.random.default_rng(0)
    low, high = np.percentile(np.median(rng.choice(ratios, (10_000, PAIRS)), axis=1), [2.5, 97.5])
    title = f"one prefill step of {TOKENS} tokens, 64 layers, eager on the mock board"
    table = Table(title=title, caption=LOWER_BOUND, min_width=72)
    table.add_column("")
    table.add_column("host ms", justify="right")
    table.add_row("naive composition", f"{np.median(pairs[:, 0]):.1f}")
    for kind, ms in layers.items():
        table.add_row(f"  its {kind} layer", f"{ms:.2f}")
    table.add_row("ttkern", f"{np.median(pairs[:, 1]):.1f}")
    table.add_row("ratio, median of pairs", f"{np.median(ratios):.2f}")
    table.add_row("95% interval", f"{low:.2f} to {high:.2f}")
    Console().print(table)
    target.close()
    return int(np.median(ratios) > BOUND)


def timed(function: Callable[[], Any]) -> float:
    """Milliseconds."""
    begin = time.perf_counter()
    function()
    return (time.perf_counter() - begin) * 1e3


if __name__ == "__main__":
    sys.exit(main())
