"""What the real library says of the traces: captured or refused, how long a replay keeps the host, and the memory.

On a simulator with real command queues and without a compiler for compute kernels: the commands are a card's, the
numbers are nobody's, and device time means nothing.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from ttkern.engine.runner import DeviceRunner, RunnerConfig
from ttkern.engine.runner_protocol import DecodeRow, PrefillCall, PrefillStep, SampleSpec
from ttkern.engine.traces import Trace
from ttkern.evidence.legality import refusal
from ttkern.model.config import ModelConfig
from ttkern.model.decoder import Decoder
from ttkern.model.device_weights import DecoderWeights, NoData, load_decoder_weights
from ttkern.targets import Target

Track = Callable[[Iterable[Any], str], Iterable[Any]]
REPLAYS = 3
# A model of more layers is represented by one of each kind.
WHOLE = 8
GREEDY = SampleSpec(temperature=0, top_p=1, top_k=0, seed=0, step=0, logprobs=None, forbidden=())


@dataclass(frozen=True)
class TraceRow:
    """One trace: host ms of its body run eagerly, of refreshing its inputs and of a replay (medians of three).

    trace_bytes  of the layers that were captured; full_model_bytes: of all layers of the model
    """

    path: str
    eager_ms: float
    refresh_ms: float
    replay_ms: float
    trace_bytes: int
    full_model_bytes: int


@dataclass
class TraceReport:
    """Everything that `ttkern check --target simulated` found.

    layers      layers that were captured
    refused     ttnn's own words for what was refused, None where all was accepted
    allocated   bytes that were allocated between the first replay and the last (DRAM and L1)
    region      bytes of DRAM that the whole model's traces take: what --trace-region-size must be at least
    """

    model: str
    layers: int
    rows: list[TraceRow] = field(default_factory=list)
    refused: str | None = None
    allocated: int = 0
    region: int = 0

    @property
    def ok(self) -> bool:
        """Everything was captured, and replays allocate nothing."""
        return self.refused is None and self.allocated == 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "ok": self.ok}


def check_traces(
    target: Target, name: str, config: ModelConfig, limits: RunnerConfig, weight_dtype: str, track: Track
) -> TraceReport:
    """Capture every trace of the model, or of one layer of each kind, and replay it on refreshed inputs."""
    kinds = tuple(dict.fromkeys(config.layer_types))
    layer_types = config.layer_types if config.num_hidden_layers <= WHOLE else kinds
    report = TraceReport(name, len(layer_types))
    try:
        _fill(report, target, config, layer_types, limits, weight_dtype, track)
    except Exception as error:
        report.refused = refusal(error)
    return report


def _fill(
    report: TraceReport,
    target: Target,
    config: ModelConfig,
    layer_types: tuple[str, ...],
    limits: RunnerConfig,
    weight_dtype: str,
    track: Track,
) -> None:
    few = replace(config, num_hidden_layers=len(layer_types), layer_types=layer_types)
    weights = load_decoder_weights(
        target, few, NoData(few), positions=limits.max_model_len, weight_dtype=weight_dtype, track=track
    )
    sizes: dict[str, int] = {}

    def weigh(traces: Iterable[Any], what: str) -> Iterator[Any]:
        """Read ttnn's allocator around each capture."""
        for trace in track(traces, what):
            before = _used(target, "TRACE")
            yield trace
            sizes[trace.name] = _used(target, "TRACE") - before

    runner = DeviceRunner(Decoder(target, few, weights, attention_chunk=limits.attention_chunk), limits)
    runner.start(weigh)
    full = dict(sizes)
    for kind in dict.fromkeys(layer_types):
        missing = config.layer_types.count(kind) - layer_types.count(kind)
        if missing:
            for path, size in _layer_bytes(target, few, weights, limits, kind, sizes).items():
                full[path] += missing * size
    gc.collect()  # buffers of the layers captured a second time; nothing may come or go between the replays
    report.region = sum(full.values())
    before = _used(target, "DRAM") + _used(target, "L1")
    for path, trace, call in track(_steps(runner), "replaying"):
        eager, refresh, replay = _time(target, trace, call)
        report.rows.append(TraceRow(path, eager, refresh, replay, sizes[path], full[path]))
    report.allocated = _used(target, "DRAM") + _used(target, "L1") - before


def _layer_bytes(
    target: Target, config: ModelConfig, weights: DecoderWeights, limits: RunnerConfig, kind: str, sizes: dict[str, int]
) -> dict[str, int]:
    """What one more layer of a kind adds to each trace: the same layer captured twice, its programs known by now."""
    at = config.layer_types.index(kind)
    more = replace(config, num_hidden_layers=len(config.layer_types) + 1, layer_types=(*config.layer_types, kind))
    twice = replace(weights, layers=(*weights.layers, weights.layers[at]))
    runner = DeviceRunner(Decoder(target, more, twice, attention_chunk=limits.attention_chunk), limits)
    added = {}
    for trace in runner.traces:
        before = _used(target, "TRACE")
        trace.capture()
        added[trace.name] = _used(target, "TRACE") - before - sizes[trace.name]
        trace.release()
    return added


def _used(target: Target, memory: str) -> int:
    view = target.ttnn.get_memory_view(target.device, getattr(target.ttnn.BufferType, memory))
    return view.total_bytes_allocated_per_bank * view.num_banks


def _steps(runner: DeviceRunner) -> list[tuple[str, Trace, Callable[[int], None]]]:
    """The traces that a request waits for, and what brings their inputs: of the nth replay, the nth place."""
    traces = {trace.name: trace for trace in runner.traces}
    table = list(range(runner.num_blocks))
    steps: list[tuple[str, Trace, Callable[[int], None]]] = []
    for size, masked in runner.steps:
        name = runner.steps[size, masked].body.name

        def refresh(n: int, size: int = size, masked: bool = masked) -> None:
            length = size - 1 - n if masked else size
            start = n * runner.chunk_tokens
            step = PrefillStep("masked_bucket" if masked else "traced_bucket", start, length, size)
            runner.steps[size, masked].refresh(
                PrefillCall(0, step, [n] * length, table, n == 0, False, None, None, None)
            )

        steps.append((name, traces[name], refresh))

    def refresh_decode(n: int) -> None:
        rows = range(runner.max_num_seqs)
        runner.decode_inputs.refresh([DecodeRow(row, n, 100 + n, table[: 2 + n], GREEDY) for row in rows])

    steps.append(("decode", traces["decode"], refresh_decode))
    return steps


def _time(target: Target, trace: Trace, refresh: Callable[[int], None]) -> tuple[float, float, float]:
    """Host ms of a warm eager run of the body, of a refresh and of a replay; each starts on an idle device."""

    def timed(function: Callable[[], Any]) -> float:
        target.ttnn.synchronize_device(target.device)
        begin = time.perf_counter()
        function()
        return (time.perf_counter() - begin) * 1e3

    refreshes, replays = [], []
    for n in range(REPLAYS):
        refreshes.append(timed(partial(refresh, n)))
        replays.append(timed(trace.replay))
    eager = timed(trace.body)
    target.ttnn.synchronize_device(target.device)
    return eager, statistics.median(refreshes), statistics.median(replays)
