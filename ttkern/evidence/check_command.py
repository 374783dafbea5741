"""`ttkern check`: from options to a report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import track as show_progress

from ttkern.engine.runner import RunnerConfig
from ttkern.errors import TtkernError
from ttkern.evidence.legality import Report, Track, check
from ttkern.evidence.legality_table import show, show_traces
from ttkern.evidence.stored import fingerprint, load, save
from ttkern.evidence.tracing import check_traces
from ttkern.model.config import ModelConfig
from ttkern.model.presets import preset
from ttkern.model.work import state_bytes
from ttkern.targets import open_target
from ttkern.targets.real.library import find_ttnn

# What is asked of each target: the mock board about legality and memory, a simulator about traces.
CHECKS: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "mock": (check, show),
    "simulated": (check_traces, show_traces),
}
WEIGHT_DTYPES = ("bfloat16", "bfloat8_b", "bfloat4_b")


@dataclass(frozen=True)
class CheckOptions:
    """What is checked, and how the device is laid out for it."""

    model: str
    target: str
    weight_dtype: str
    max_model_len: int
    max_num_seqs: int
    chunk_tokens: int
    block_size: int
    kv_cache_dtype: str
    kv_cache_tokens: int
    trace_region_size: int

    def __post_init__(self) -> None:
        if self.target not in CHECKS:
            raise TtkernError(f"--target is {self.target!r}; what can be checked on is {' and '.join(CHECKS)}")
        if self.weight_dtype not in WEIGHT_DTYPES:
            raise TtkernError(f"--weight-dtype is {self.weight_dtype!r}; it must be one of {', '.join(WEIGHT_DTYPES)}")
        for option in ("max_model_len", "max_num_seqs", "kv_cache_tokens"):
            if getattr(self, option) < 1:
                name = option.replace("_", "-")
                raise TtkernError(f"--{name} is {getattr(self, option)}; it must be at least 1")


def run_check(options: CheckOptions, *, as_json: bool, fresh: bool = False) -> bool:
    """Check and print; whether everything was accepted.

    On the mock board a report is kept and shown again while nothing that it was made from has changed; `fresh` checks
    again. Raises TtkernError for options that cannot be checked.
    """
    console = Console(stderr=True)
    folder = Path(options.model)
    config = ModelConfig.from_folder(folder) if folder.is_dir() else preset(options.model)
    limits = RunnerConfig(
        max_model_len=options.max_model_len,
        chunk_tokens=options.chunk_tokens,
        block_size=options.block_size,
        num_blocks=max(1, options.kv_cache_tokens // options.block_size),
        max_num_seqs=options.max_num_seqs,
        kv_cache_dtype=options.kv_cache_dtype,
        snapshot_bytes=state_bytes(config),  # prefix caching as it is served, with one state of each kind
        snapshot_device_bytes=state_bytes(config) if options.target == "simulated" else 0,
    )

    def track(items: Iterable[Any], what: str) -> Iterator[Any]:
        yield from show_progress(list(items), what, console=console)

    run, table = CHECKS[options.target]
    out = _own_stdout()
    key = fingerprint(find_ttnn(options.target), options, config)
    report = None if fresh or options.target != "mock" else load(Report, key)
    if report is not None:
        console.print(f"sources and options are those of {report.measured}: its report; --fresh checks again")
    else:
        report = _run(options, run, config, limits, track)
        if options.target == "mock":
            save(report, key)
    if as_json:
        print(json.dumps(report.as_dict()), file=out, flush=True)
    else:
        table(report, Console(file=out))
    return bool(report.ok)


def _run(
    options: CheckOptions, run: Callable[..., Any], config: ModelConfig, limits: RunnerConfig, track: Track
) -> Any:
    target = open_target(options.target, trace_region_size=options.trace_region_size)
    try:
        if options.target == "simulated" and not target.has_trace:
            raise TtkernError("the simulator that TT_METAL_SIMULATOR names has no traces; ttsim's libttsim.so has")
        return run(target, options.model, config, limits, options.weight_dtype, track)
    finally:
        target.close()


def _own_stdout() -> TextIO:
    """stdout for the report alone: what the library or a simulator prints there goes to stderr from now on."""
    sys.stdout.flush()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out
