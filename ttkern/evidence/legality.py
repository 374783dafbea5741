"""What the real library says of every op and of the whole decoder: accepted or refused, memory, and host cost.

On the mock board nothing computes. Host time is Python, argument checks and program lookup; writing the command queue
is mocked, so it is a LOWER BOUND of a card's dispatch cost.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from ops import all_ops
from ops.registry import Op, to_device
from ttkern.engine.runner import DeviceRunner, RunnerConfig
from ttkern.errors import TtkernError
from ttkern.model.config import ModelConfig
from ttkern.model.decoder import Decoder
from ttkern.model.device_weights import NoData, load_decoder_weights
from ttkern.targets import Target
from ttkern.targets.proxy import Proxy
from ttkern.targets.real.library import reason
from ttkern.targets.real.overlay import cache_folder

WARM_CALLS = 5
# Reading the allocator takes 2 ms. Layers of a kind use the same memory, and so many calls hold every kind of layer.
WATCHED_CALLS = 512
# ttnn's words where its compiler failed or its cache folder could not be written, which is nothing about the call.
BUILD_FAILED = ("jit_build", "Failed to generate binaries", "No space left on device", "filesystem error")
GIB = 1 << 30
Track = Callable[[Iterable[Any], str], Iterable[Any]]


@dataclass(frozen=True)
class OpRow:
    """One op, variant and case: `error` is ttnn's own message, None where the call was accepted."""

    op: str
    variant: str
    case: str
    error: str | None
    outputs: list[str]
    host_us: float | None


@dataclass(frozen=True)
class CallRow:
    """One ttnn function over one run of a path: how often it is called, the median time of a call, and the total."""

    name: str
    calls: int
    host_us: float
    total_us: float


@dataclass(frozen=True)
class PathRow:
    """One trace's body, run eagerly and warm."""

    path: str
    calls: int
    host_ms: float
    ops: list[CallRow]


@dataclass(frozen=True)
class Memory:
    """DRAM of one chip in bytes, as ttnn's allocator counts it."""

    total: int
    weights: int
    kv_cache: int
    states_and_inputs: int
    peak: int
    kv_cache_tokens: int
    largest_kv_cache_tokens: int


@dataclass
class Report:
    """Everything that `ttkern check` found.

    measured    when, as an ISO 8601 time
    layers      how many layers the paths ran: the model's, or one of each kind where the whole does not fit
    refused     ttnn's own words for what the decoder was refused, None where it was accepted
    does_not_fit  ttnn's own words for what the whole model asked of memory, None where it fits
    """

    model: str
    measured: str
    layers: int
    ops: list[OpRow]
    paths: list[PathRow]
    memory: Memory | None
    refused: str | None
    does_not_fit: str | None

    @property
    def ok(self) -> bool:
        """Nothing was refused, and the model fits."""
        return self.refused is None and self.does_not_fit is None and all(row.error is None for row in self.ops)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "ok": self.ok, "host_time": "lower bound: command-queue writes are mocked"}


def check(
    target: Target, name: str, config: ModelConfig, limits: RunnerConfig, weight_dtype: str, track: Track
) -> Report:
    """Ops first, then the decoder; where the whole does not fit, one layer of each kind.

    Raises TtkernError where ttnn could not ask its compiler: that is no verdict on a call.
    """
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    report = Report(name, now, config.num_hidden_layers, check_ops(target, track), [], None, None, None)
    try:
        report.paths, report.memory = check_decoder(target, config, limits, weight_dtype, track)
        return report
    except Exception as error:
        said = refusal(error)
    if "out of memory" not in said.lower():
        report.refused = said
        return report
    report.does_not_fit = said
    kinds = tuple(dict.fromkeys(config.layer_types))
    report.layers = len(kinds)
    small = replace(config, num_hidden_layers=len(kinds), layer_types=kinds)
    few = replace(limits, num_blocks=-(-limits.max_model_len // limits.block_size))
    try:
        report.paths, _ = check_decoder(target, small, few, weight_dtype, track)
    except Exception as error:
        report.refused = refusal(error)
    return report


def refusal(error: Exception) -> str:
    """What ttnn, or an op's own code, says against a call.

    Raises TtkernError for what says nothing of the call: bad input, a compiler that could not run.
    """
    if isinstance(error, TtkernError):
        raise error
    if any(word in str(error) for word in BUILD_FAILED):
        free = shutil.disk_usage(cache_folder()).free / GIB
        raise TtkernError(
            f"ttnn could not build a kernel in {cache_folder()} ({free:.1f} GiB free there): {reason(error)}"
        ) from error
    return reason(error)


def check_ops(target: Target, track: Track) -> list[OpRow]:
    """Every registered op, variant and case on tensors without data."""
    todo = [(op, variant, case) for op in all_ops().values() for variant in op.variants for case in op.cases]
    return [_check_op(target, *row) for row in track(todo, "checking ops") if row[1] != "host"]


def _check_op(target: Target, op: Op, variant: str, case: Any) -> OpRow:
    ttnn = target.ttnn
    try:
        tensors = {name: to_device(ttnn, target.device, spec, None) for name, spec in case.tensors.items()}

        def call() -> Any:
            return op.variants[variant](ttnn, **tensors, **case.params)

        outputs = [f"{list(t.shape)} {t.dtype.name} {t.layout.name}" for t in call()]
        return OpRow(op.name, variant, case.name, None, outputs, 1e3 * _warm_ms(call))
    except Exception as error:
        return OpRow(op.name, variant, case.name, refusal(error), [], None)


def _warm_ms(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(WARM_CALLS):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def check_decoder(
    target: Target, config: ModelConfig, limits: RunnerConfig, weight_dtype: str, track: Track
) -> tuple[list[PathRow], Memory]:
    """The whole decoder: weights allocated without data, every path compiled, run warm and counted.

    Raises RuntimeError, ttnn's own, for the first call that is refused.
    """
    spy = Spy(target.ttnn)
    watched = replace(target, ttnn=spy.ttnn)
    total, empty = _dram(target)
    weights = load_decoder_weights(
        watched, config, NoData(config), positions=limits.max_model_len, weight_dtype=weight_dtype, track=track
    )
    weight_bytes = _dram(target)[1] - empty
    decoder = Decoder(watched, config, weights, attention_chunk=limits.attention_chunk)
    runner = DeviceRunner(decoder, limits)
    runner.start(track)
    resting = _dram(target)[1]
    paths, peak = [], resting
    for trace in track(runner.traces, "timing paths"):
        if trace.name.endswith("_rows"):
            continue
        host_ms = _warm_ms(trace.replay)
        spy.start(lambda: _dram(target)[1])
        trace.replay()
        calls, highest = spy.stop()
        peak = max(peak, highest)
        paths.append(PathRow(trace.name, sum(row.calls for row in calls), host_ms, calls))
    cache = runner.state.kv[0].k if runner.state.kv else None
    per_block = _block_bytes(target, cache, config.num_attention_layers)
    kv_bytes = per_block * limits.device_blocks
    spare = (total - peak) // per_block * limits.block_size if per_block else 0
    tokens = limits.num_blocks * limits.block_size
    memory = Memory(
        total=total,
        weights=weight_bytes,
        kv_cache=kv_bytes,
        states_and_inputs=resting - empty - weight_bytes - kv_bytes,
        peak=peak,
        kv_cache_tokens=tokens,
        largest_kv_cache_tokens=tokens + spare,
    )
    return paths, memory


def _dram(target: Target) -> tuple[int, int]:
    view = target.ttnn.get_memory_view(target.device, target.ttnn.BufferType.DRAM)
    return view.total_bytes_per_bank * view.num_banks, view.total_bytes_allocated_per_bank * view.num_banks


def _block_bytes(target: Target, cache: Any, layers: int) -> int:
    """K and V of one block over all attention layers."""
    if cache is None:
        return 0
    tiles = cache.shape[1] * -(-cache.shape[2] // 32) * -(-cache.shape[3] // 32)
    tile_bytes = {"BFLOAT16": 2048, "BFLOAT8_B": 1088, "BFLOAT4_B": 576}[cache.dtype.name]
    return 2 * layers * tiles * tile_bytes


class Spy:
    """Every call of a ttnn counted and timed while it is told to; `ttnn` is what the calls are made on."""

    def __init__(self, real: Any) -> None:
        self.ttnn = Proxy(real, self._around)
        self._times: dict[str, list[float]] | None = None
        self._watch: Callable[[], int] = lambda: 0
        self._highest = self._watched = 0

    def start(self, watch: Callable[[], int]) -> None:
        """Begin; `watch` reads the memory in use, after each of the first WATCHED_CALLS calls, outside their time."""
        self._times, self._watch, self._highest, self._watched = {}, watch, 0, 0

    def stop(self) -> tuple[list[CallRow], int]:
        """Rows by total time, and the most memory that was seen in use."""
        times, self._times = self._times or {}, None
        rows = [CallRow(n, len(t), statistics.median(t) * 1e6, sum(t) * 1e6) for n, t in times.items()]
        return sorted(rows, key=lambda row: -row.total_us), self._highest

    def _around(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._times is None:
            return function(*args, **kwargs)
        begin = time.perf_counter()
        result = function(*args, **kwargs)
        self._times.setdefault(name, []).append(time.perf_counter() - begin)
        if self._watched < WATCHED_CALLS:
            self._watched += 1
            self._highest = max(self._highest, self._watch())
        return result
