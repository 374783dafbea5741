"""Where buffers lie: first fit over one bank, because an interleaved buffer takes the same range of every bank."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

from ttkern.targets.emulated.types import BufferType, TtnnError

# A p150 as ttnn reports it: 8 DRAM banks; 130 worker cores. L1 is what is left above firmware and kernel configuration.
DRAM_BANKS, DRAM_BANK_BYTES, DRAM_ALIGN = 8, 4_268_752_768, 64
L1_BANKS, L1_BANK_BYTES, L1_ALIGN = 130, 1_461_120, 16


@dataclass(frozen=True)
class Range:
    """Bytes [start, start + size) of each bank."""

    memory: BufferType
    start: int
    size: int

    def overlaps(self, other: Range) -> bool:
        """Whether both take a byte of the same bank."""
        return (
            self.memory is other.memory
            and self.start < other.start + other.size
            and other.start < self.start + self.size
        )


class BankAllocator:
    """First-fit allocator of one kind of memory; sizes are per bank."""

    def __init__(self, memory: BufferType, banks: int, bank_bytes: int, align: int, reserved: int = 0) -> None:
        self.memory, self.banks, self.bank_bytes, self.align = memory, banks, bank_bytes - reserved, align
        self._starts: list[int] = []  # of live ranges, sorted
        self._live: dict[int, int] = {}  # start -> size
        self.in_use = 0
        self.peak = 0

    def allocate(self, pages: int, page_bytes: int) -> Range:
        """A range that holds `pages` pages spread over the banks, or TtnnError with the sizes."""
        page = math.ceil(page_bytes / self.align) * self.align
        size = max(math.ceil(pages / self.banks) * page, self.align)
        cursor = 0
        for start in self._starts:
            if start - cursor >= size:
                break
            cursor = start + self._live[start]
        if cursor + size > self.bank_bytes:
            raise TtnnError(
                f"out of memory: {size * self.banks} B of {self.memory.value} asked for, {size} B per bank; of"
                f" {self.bank_bytes} B a bank has {self.bank_bytes - self.in_use} free"
                f" ({self.bank_bytes - self._end()} contiguous at the end)"
            )
        bisect.insort(self._starts, cursor)
        self._live[cursor] = size
        self.in_use += size
        self.peak = max(self.peak, self.in_use)
        return Range(self.memory, cursor, size)

    def free(self, range_: Range) -> None:
        """Give a range back."""
        self._starts.remove(range_.start)
        self.in_use -= self._live.pop(range_.start)

    def _end(self) -> int:
        return self._starts[-1] + self._live[self._starts[-1]] if self._starts else 0
