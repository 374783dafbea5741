"""`ttkern check`: from options to a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track as show_progress

from ttkern.errors import TtkernError
from ttkern.evidence.legality import Report, check
from ttkern.evidence.legality_table import show, show_traces
from ttkern.evidence.stored import fingerprint, load, save
from ttkern.evidence.tracing import check_traces
from ttkern.model.config import ModelConfig
from ttkern.model.presets import preset
from ttkern.model.work import state_bytes
from ttkern.output import draw, own_stdout, write
from ttkern.serve.options import ServeOptions
from ttkern.serve.sizes import runner_config
from ttkern.targets import abilities, open_target
from ttkern.targets.real.library import find_ttnn

# What is asked of each target: the mock board about legality and memory, a simulator about traces.
CHECKS: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "mock": (check, show),
    "simulated": (check_traces, show_traces),
}
WEIGHT_DTYPES = ("bfloat16", "bfloat8_b", "bfloat4_b")


def run_check(
    model: str, sizes: ServeOptions, weight_dtype: str, *, as_json: bool = False, fresh: bool = False
) -> bool:
    """Check and print; whether everything was accepted.

    model  preset name or checkpoint folder
    sizes  target, and how the device is laid out, as it would be for serving; the KV pool: one longest sequence

    On the mock board a report is kept and shown again while nothing that it was made from has changed; `fresh` checks
    again. Raises TtkernError for options that cannot be checked.
    """
    if sizes.target not in CHECKS:
        raise TtkernError(f"--target is {sizes.target!r}; what can be checked on is {' and '.join(CHECKS)}")
    if weight_dtype not in WEIGHT_DTYPES:
        raise TtkernError(f"--weight-dtype is {weight_dtype!r}; it must be one of {', '.join(WEIGHT_DTYPES)}")
    console = Console(stderr=True)
    config = ModelConfig.from_folder(Path(model)) if model and Path(model).is_dir() else preset(model)
    if sizes.kv_cache_tokens is None:
        one = sizes.max_model_len or config.max_position_embeddings
        sizes = replace(sizes, kv_cache_tokens=-(-one // sizes.block_size) * sizes.block_size)
    if sizes.target == "mock":
        sizes = replace(sizes, trace_region_size=0)  # it cannot capture
    limits = replace(
        runner_config(sizes, config),
        snapshot_bytes=state_bytes(config),  # prefix caching as it is served, with one state of each kind
        snapshot_device_bytes=state_bytes(config) if sizes.target == "simulated" else 0,
    )
    if sizes.target == "simulated" and not abilities(sizes.target).has_trace:
        raise TtkernError("the simulator that TT_METAL_SIMULATOR names has no traces; ttsim's libttsim.so has")

    def track(items: Iterable[Any], what: str) -> Iterator[Any]:
        yield from show_progress(list(items), what, console=console)

    run, table = CHECKS[sizes.target]
    out = own_stdout()
    key = fingerprint(find_ttnn(sizes.target), model, sizes, weight_dtype, config)
    report = None if fresh or sizes.target != "mock" else load(Report, key)
    if report is not None:
        console.print(f"sources and options are those of {report.measured}: its report; --fresh checks again")
    else:
        target = open_target(sizes.target, trace_region_size=sizes.trace_region_size)
        try:
            report = run(target, model, config, limits, weight_dtype, track)
        finally:
            target.close()
        if sizes.target == "mock":
            save(report, key)
    if as_json:
        write(json.dumps(report.as_dict()), out)
    else:
        draw(partial(table, report), out)
    return bool(report.ok)
