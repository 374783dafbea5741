"""States kept beside the working ones: places on the device, and places in host memory with checksums.

    working state --traced copy--> device place --DMA--> host place
                  ------------DMA----------------------> host place     (checksum made beside what follows)
    place -> working state the same way back                            (and verified beside what follows)

A place's tensors are made at its first use and kept, so that in steady state nothing is allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import xxhash

from ops.gdn_layer.op import GdnPrefillState
from ops.gdn_snapshot.op import WAYS, extract_row
from ttkern.engine.device_inputs import DeviceInput
from ttkern.engine.traces import Trace
from ttkern.model.decoder import Decoder, DecoderState

_DMA, _COPY = WAYS["dma"], WAYS["device_copy"]


class DecodeRowState:
    """One decode row's state, taken out of all rows' by one trace, in the form in which prefill works on it."""

    def __init__(self, decoder: Decoder, state: DecoderState, rows: int) -> None:
        target = decoder.target
        self._rows, shape = rows, decoder.gdn_shape
        self._end = (shape.value_heads, shape.head_dim, shape.head_dim)
        self._inputs = [DeviceInput(target, dims, "uint32") for dims in ((4,), (4,), (1, 3))]
        self._taken = [decoder.empty_prefill_state() for _ in state.decode]
        self.states = flatten(self._taken)
        self._name(0)
        self.trace = Trace("extract", target, lambda: self._body(target.ttnn, state))

    def _body(self, ttnn: Any, state: DecoderState) -> None:
        begin, end, carry_rows = (entry.tensor for entry in self._inputs)
        for rows, taken in zip(state.decode, self._taken, strict=True):
            carry = rows.conv_state
            recurrent, history = taken.recurrent_state, taken.conv_state
            extract_row(ttnn, rows.recurrent_state, carry, begin, end, carry_rows, recurrent, history)

    def _name(self, row: int) -> None:
        begin, end, carry_rows = self._inputs
        begin.refresh([row, 0, 0, 0])
        end.refresh([row + 1, *self._end])
        carry_rows.refresh([i * self._rows + row for i in range(3)])

    def take(self, row: int) -> list[Any]:
        """The states of a row; overwritten by the next call."""
        self._name(row)
        self.trace.replay()
        return self.states


def flatten(states: Iterable[GdnPrefillState]) -> list[Any]:
    """Tensors of all layers."""
    return [tensor for state in states for tensor in (state.recurrent_state, state.conv_state)]


class Snapshots:
    """Places 0 .. num_device-1 on the device, then num_host in host memory, for copies of `states`.

    states  the working state: tensors of all layers, of one sequence
    """

    def __init__(self, target: Any, states: Sequence[Any], num_device: int, num_host: int) -> None:
        self._target, self._states = target, list(states)
        self.num_device, self.num_host = num_device, num_host
        self._device = [_COPY.allocate(target.ttnn, self._states) for _ in range(num_device)]
        self._host: dict[int, list[Any]] = {}
        self._sums: dict[int, Future[bytes]] = {}
        self._pool = ThreadPoolExecutor(1, "checksum")
        self._loaded: tuple[int, Future[bool]] | None = None  # from host memory, and whether its bytes are good
        self._save = [self._trace(f"save_{i}", self._states, kept) for i, kept in enumerate(self._device)]
        self._load = [self._trace(f"load_{i}", kept, self._states) for i, kept in enumerate(self._device)]

    @property
    def traces(self) -> list[Trace]:
        """To be compiled and captured with the others."""
        return [*self._save, *self._load]

    def _trace(self, name: str, sources: list[Any], targets: list[Any]) -> Trace:
        return Trace(name, self._target, lambda: _COPY.capture(self._target.ttnn, sources, targets))

    def save(self, place: int) -> None:
        """The working state goes to a place."""
        if place < self.num_device:
            self._save[place].replay()
        else:
            self._to_host(self._states, place)

    def save_from(self, states: Sequence[Any], place: int) -> None:
        """Another state of the same shapes goes to a place."""
        if place < self.num_device:
            _COPY.capture(self._target.ttnn, states, self._device[place])
        else:
            self._to_host(states, place)

    def forget(self) -> None:
        """The working state is no copy of a place."""
        self._loaded = None

    def load(self, place: int) -> None:
        """The working state is what a place holds; `corrupt` tells whether that is what was saved."""
        self.forget()
        if place < self.num_device:
            self._load[place].replay()
            return
        kept, written = self._host[place], self._sums[place]
        _DMA.restore(self._target.ttnn, kept, self._states)
        self._loaded = place, self._pool.submit(lambda: self._checksum(kept) == written.result())

    def corrupt(self) -> int | None:
        """The place last loaded, if its bytes were not those that had been saved. Waits for the verdict."""
        if self._loaded is None:
            return None
        place, good = self._loaded
        return None if good.result() else place

    def move(self, source: int, target: int) -> None:
        """From a place on the device to one in host memory."""
        self._to_host(self._device[source], target)

    def _to_host(self, states: Sequence[Any], place: int) -> None:
        if place in self._sums:
            self._sums[place].result()  # whoever reads the old bytes has done so
        if place not in self._host:
            self._host[place] = _DMA.allocate(self._target.ttnn, states)
        kept = self._host[place]
        _DMA.capture(self._target.ttnn, states, kept)
        self._sums[place] = self._pool.submit(self._checksum, kept)

    def _checksum(self, kept: Sequence[Any]) -> bytes:
        digest, here = xxhash.xxh3_128(), self._target.ttnn.MeshCoordinate(0, 0)
        for tensor in kept:
            digest.update(torch.from_dlpack(tensor.host_buffer().get_shard(here)).numpy())
        return digest.digest()
