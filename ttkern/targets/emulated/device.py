"""The device: memory, program cache, traces, and counters of what was spent."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from ttkern.targets.emulated.allocator import (
    DRAM_ALIGN,
    DRAM_BANK_BYTES,
    DRAM_BANKS,
    L1_ALIGN,
    L1_BANK_BYTES,
    L1_BANKS,
    BankAllocator,
    Range,
)
from ttkern.targets.emulated.tensor import Cell, Lease, pages_of
from ttkern.targets.emulated.types import BufferType, CoreCoord, DataType, Layout, MemoryConfig, TtnnError

COMMAND_BYTES_PER_CALL = 4096  # a rough size of one program launch in a trace; the real figure is measured on ttsim


_NOTHING = torch.empty(0)


@dataclass(frozen=True)
class Counters:
    """What a device has done so far; subtract two to see what lies between."""

    programs_compiled: int = 0
    program_cache_hits: int = 0
    allocations: int = 0
    eager_calls: int = 0
    trace_replays: int = 0
    host_writes: int = 0
    host_write_bytes: int = 0
    host_reads: int = 0

    def __sub__(self, other: Counters) -> Counters:
        return Counters(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(self)})


@dataclass
class Record:
    """One call of a trace: replaying is calling `run` again, which fills `outputs` anew."""

    name: str
    run: Callable[[], None]
    used: tuple[Cell, ...]
    drop: tuple[Cell, ...] = ()


class TraceState:
    """A captured trace: its calls, the memory they write, and the buffers that must still be there."""

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.records: list[Record] = []
        self.ranges: list[Range] = []
        self.created: list[tuple[Cell, weakref.ref[Lease]]] = []
        self.needed: dict[int, tuple[str, weakref.ref[Lease]]] = {}
        self.victims: tuple[int, list[weakref.ref[Lease]]] = (-1, [])

    def close(self, poisoned: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Work out which intermediates can be dropped after which call, and which buffers the trace leans on.

        What the calls computed while they were recorded is nobody's result: outputs are poisoned, the rest let go.
        """
        kept = set()
        for cell, lease in self.created:
            held = lease()
            if held is not None and held.live:
                kept.add(id(cell))
                self.needed[id(held)] = ("an output", lease)
        for cell, _ in self.created:
            cell.data = poisoned(cell.data) if id(cell) in kept else _NOTHING
        temporary = {id(cell): cell for cell, _ in self.created if id(cell) not in kept}
        last: dict[int, int] = {}
        for index, record in enumerate(self.records):
            for cell in record.used:
                if id(cell) in temporary:
                    last[id(cell)] = index
        drops: dict[int, list[Cell]] = {}
        for key, index in last.items():
            drops.setdefault(index, []).append(temporary[key])
        for index, cells in drops.items():
            self.records[index].drop = tuple(cells)


class Device:
    """A p150 as far as ops can tell, with everything they cannot see counted."""

    def __init__(self, *, exact: bool, poison: float, trace_region_size: int = 0) -> None:
        self.exact, self.poison = exact, poison
        self.trace_region_size = trace_region_size
        banks = -(-trace_region_size // DRAM_BANKS)
        self.memory = {
            BufferType.DRAM: BankAllocator(BufferType.DRAM, DRAM_BANKS, DRAM_BANK_BYTES, DRAM_ALIGN, banks),
            BufferType.L1: BankAllocator(BufferType.L1, L1_BANKS, L1_BANK_BYTES, L1_ALIGN),
        }
        self.leases: weakref.WeakValueDictionary[int, Lease] = weakref.WeakValueDictionary()
        self.capturing: TraceState | None = None
        self._programs: set[Any] = set()
        self._misses_allowed = True
        self._counters = Counters()
        self._traces: dict[int, TraceState] = {}
        self._serial = 0
        self._memory_version = 0
        self.open = True

    # what ops and the runner ask, under ttnn's names

    def arch(self) -> str:
        """Architecture of the card."""
        return "blackhole"

    def compute_with_storage_grid_size(self) -> CoreCoord:
        """Worker cores: 130."""
        return CoreCoord(13, 10)

    def get_num_devices(self) -> int:
        """Chips."""
        return 1

    def set_program_cache_misses_allowed(self, allowed: bool) -> None:
        """Whether a call that no program was compiled for is an error."""
        self._misses_allowed = allowed

    def num_program_cache_entries(self) -> int:
        """Programs compiled."""
        return len(self._programs)

    def counters(self) -> Counters:
        """What was spent so far."""
        return self._counters

    def count(self, **spent: int) -> None:
        """Add to counters."""
        now = self._counters
        self._counters = replace(now, **{name: getattr(now, name) + n for name, n in spent.items()})

    # programs

    def look_up_program(self, name: str, key: Any) -> None:
        """Find or compile the program of a call."""
        entry = (name, key)
        if entry in self._programs:
            self.count(program_cache_hits=1, eager_calls=1)
            return
        if not self._misses_allowed:
            raise TtnnError(f"{name}: program cache miss, and misses are not allowed: {key}")
        self._programs.add(entry)
        self.count(programs_compiled=1, eager_calls=1)

    # memory

    def allocate(
        self, cell: Cell, shape: tuple[int, ...], dtype: DataType, layout: Layout, config: MemoryConfig
    ) -> Lease:
        """Lay a buffer."""
        pages, page_bytes = pages_of(shape, dtype, layout)
        range_ = self.memory[config.buffer_type].allocate(pages, page_bytes)
        self._serial += 1
        self._memory_version += 1
        lease = Lease(self, range_, cell)
        lease.serial = self._serial
        self.count(allocations=1)
        if self.capturing is not None:
            self.capturing.ranges.append(range_)
            self.capturing.created.append((cell, weakref.ref(lease)))
        return lease

    def free(self, lease: Lease) -> None:
        """Take a buffer back."""
        self._memory_version += 1
        self.memory[lease.range.memory].free(lease.range)

    # traces

    def refuse_in_capture(self, what: str) -> None:
        """Host traffic and waiting cannot be part of a trace."""
        if self.capturing is not None:
            raise TtnnError(f"{what} is not supported during trace capture")

    def begin_trace(self) -> int:
        """Start recording."""
        if self.capturing is not None:
            raise TtnnError("begin_trace_capture: a capture is already under way on this device")
        self._serial += 1
        self.capturing = TraceState(self._serial)
        return self._serial

    def end_trace(self, trace_id: int) -> None:
        """Stop recording. A capture does not execute: in-place writes did not happen, outputs hold poison."""
        trace = self.capturing
        if trace is None or trace.serial != trace_id:
            raise TtnnError(f"end_trace_capture: trace {trace_id} is not being captured")
        self.capturing = None
        trace.close(self._poisoned)
        size = COMMAND_BYTES_PER_CALL * len(trace.records)
        used = sum(COMMAND_BYTES_PER_CALL * len(t.records) for t in self._traces.values())
        if self.trace_region_size and used + size > self.trace_region_size:
            raise TtnnError(
                f"end_trace_capture: trace needs {size} B, the trace region of {self.trace_region_size} B has"
                f" {self.trace_region_size - used} B left"
            )
        self._traces[trace_id] = trace

    def execute_trace(self, trace_id: int) -> None:
        """Run every call of a trace again on what its buffers hold now."""
        self.refuse_in_capture("execute_trace")
        if trace_id not in self._traces:
            raise TtnnError(f"execute_trace: no trace {trace_id} on this device (never captured, or released)")
        trace = self._traces[trace_id]
        for what, ref in trace.needed.values():
            lease = ref()
            if lease is None or not lease.live:
                raise TtnnError(f"execute_trace: {what} of trace {trace_id} was deallocated after its capture")
        for ref in self._overwritten_by(trace):
            lease = ref()
            if lease is not None and lease.live:
                lease.cell.data = self._poisoned(lease.cell.data)
        for record in trace.records:
            record.run()
            for cell in record.drop:
                cell.data = _NOTHING
        self.count(trace_replays=1)

    def release_trace(self, trace_id: int) -> None:
        """Forget a trace."""
        self._traces.pop(trace_id, None)

    def _poisoned(self, data: torch.Tensor) -> torch.Tensor:
        return torch.full_like(data, self.poison if data.is_floating_point() else -1)

    def _overwritten_by(self, trace: TraceState) -> list[weakref.ref[Lease]]:
        """Buffers that came after the capture and lie where the trace writes its intermediates."""
        version, victims = trace.victims
        if version != self._memory_version:
            own = {id(ref()) for _, ref in trace.created}
            victims = [
                weakref.ref(lease)
                for lease in list(self.leases.values())
                if lease.serial > trace.serial
                and id(lease) not in own
                and any(lease.range.overlaps(written) for written in trace.ranges)
            ]
            trace.victims = (self._memory_version, victims)
        return victims
