"""Defects planted between the engine and the device: a state or a cache that is wrong where a request resumes.

Nothing is planted unless asked: an engine is given a `Defective` runner in place of the runner itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ttkern.engine.runner import DeviceRunner
from ttkern.engine.runner_protocol import DecodeRow, PrefillCall, PrefillResult, Sampled


class Defective:
    """A runner with one defect at a time; everything else is the runner's own.

    lost_layer   the recurrent state of this GDN layer is zero wherever a state is restored (None: of none)
    stale_block  this block of a sequence's table is another one of its own blocks (None: none is)
    early        a restored state is the one kept a border before
    """

    def __init__(self, runner: DeviceRunner) -> None:
        self._runner = runner
        self.heal()
        self._kept: dict[int, int] = {}  # place of the state kept at each border of the prompt prefilled last
        restore = runner._snapshots.load

        def load(place: int) -> None:
            restore(place)
            if self.lost_layer is not None:
                state = runner.state.prefill[self.lost_layer].recurrent_state
                runner.target.ttnn.copy(runner._zeros.recurrent_state, state)
                self.planted += 1

        runner._snapshots.load = load  # type: ignore[method-assign]

    def heal(self) -> None:
        """No defect, and none has been planted."""
        self.lost_layer: int | None = None
        self.stale_block: int | None = None
        self.early = False
        self.planted = 0  # how often the defect took place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def prefill(self, call: PrefillCall) -> PrefillResult:
        """As the runner's."""
        if call.fresh_state:
            self._kept.clear()
        if self.early and call.restore_from is not None:
            borders = [end for end in self._kept if end < call.step.start]
            if borders:
                call = replace(call, restore_from=self._kept[max(borders)])
                self.planted += 1
        if call.save_to is not None:
            self._kept[call.step.end] = call.save_to
        return self._runner.prefill(replace(call, block_table=self._table(call.block_table)))

    def decode(self, rows: Sequence[DecodeRow]) -> list[Sampled]:
        """As the runner's."""
        return self.launch_decode(rows)()

    def launch_decode(self, rows: Sequence[DecodeRow]) -> Callable[[], list[Sampled]]:
        """As the runner's."""
        return self._runner.launch_decode([replace(row, block_table=self._table(row.block_table)) for row in rows])

    def _table(self, table: Sequence[int]) -> Sequence[int]:
        at = self.stale_block
        if at is None or not 0 <= at < len(table) - 1:
            return table
        self.planted += 1
        return [*table[:at], table[at - 1] if at else table[1], *table[at + 1 :]]
