"""Persistent inputs of the decode step, and of handing a prefilled state over to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttkern.engine.device_inputs import DeviceInput
from ttkern.engine.runner_protocol import DecodeRow
from ttkern.model.decoder import DecodeInputs, StoreInputs

if TYPE_CHECKING:
    from ttkern.engine.runner import RunnerConfig

MAX_IDLE = 31  # steps that a row without a sequence moves on before its position is set back; a block has 32 at least


class DecodeBuffers:
    """Inputs of the decode step. A row without a sequence decodes some token into the scratch block.

    The step leaves its greedy tokens and the positions after them where it read its own, so that the next step needs
    nothing from the host unless a row was sampled there, came or went.
    """

    def __init__(self, target: Any, config: RunnerConfig, scratch_block: int) -> None:
        rows, width = config.max_num_seqs, config.page_table_width
        self.scratch_block = scratch_block
        self.token_ids = DeviceInput(target, (1, rows), "uint32")
        self.positions = DeviceInput(target, (1, rows), "uint32")
        self.cache_positions = DeviceInput(target, (rows,), "int32")
        self.page_table = DeviceInput(target, (rows, width), "int32")
        self._table = np.full((rows, width), scratch_block, dtype=np.int32)
        self._filled = [0] * rows  # blocks of each row that the table holds
        self._changed = True
        self._next: dict[int, int] = {}  # position of each sequence in the step to come, as the device has it
        self._idle_position = 0
        self.inputs = DecodeInputs(
            self.token_ids.tensor, self.positions.tensor, self.cache_positions.tensor, self.page_table.tensor
        )

    def clear(self, row: int) -> None:
        """Point a row at scratch."""
        if self._filled[row]:
            self._table[row] = self.scratch_block
            self._filled[row], self._changed = 0, True

    def refresh(self, rows: Sequence[DecodeRow]) -> None:
        """Bring to the device what it does not have: tokens and positions, and the page table where it changed."""
        count = len(self._filled)
        wanted = {row.slot: row.position for row in rows}
        for row in rows:
            known, now = self._filled[row.slot], len(row.block_table)
            if now > known:
                self._table[row.slot, known:now] = row.block_table[known:now]
                self._filled[row.slot], self._changed = now, True
        resident = all(row.token is None for row in rows)
        if resident and wanted != self._next:
            raise ValueError(f"rows at {wanted} are to go on from the device's own tokens, which are for {self._next}")
        # A row without a sequence moves on with the others, and must not leave what the scratch block can answer for.
        if not resident or self._idle_position >= MAX_IDLE:
            positions = np.zeros(count, dtype=np.int32)
            for row in rows:
                positions[row.slot] = row.position
            self.positions.refresh(positions)
            self.cache_positions.refresh(positions)
            self._idle_position = 0
        if not resident:
            tokens = np.zeros(count, dtype=np.int32)
            for row in rows:
                if row.token is None:
                    raise ValueError(f"row {row.slot} goes on from the device's own token, and others do not")
                tokens[row.slot] = row.token
            self.token_ids.refresh(tokens)
        if self._changed:
            self.page_table.refresh(self._table)
            self._changed = False

    def advance(self, rows: Sequence[DecodeRow]) -> None:
        """The step has been launched."""
        self._next = {row.slot: row.position + 1 for row in rows}
        self._idle_position += 1


class StoreBuffers:
    """Which decode row takes the prefilled states over."""

    def __init__(self, target: Any, config: RunnerConfig) -> None:
        rows = config.max_num_seqs
        self.slot = DeviceInput(target, (1, 1), "int32")
        eye = DeviceInput(target, (1, 1, rows, rows), "bfloat16")
        eye.refresh(torch.eye(rows))
        self.inputs = StoreInputs(self.slot.tensor, eye.tensor)

    def refresh(self, slot: int) -> None:
        """Name the row."""
        self.slot.refresh([slot])
