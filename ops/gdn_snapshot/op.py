"""Keeping copies of GDN states and bringing them back: three ways under one interface, over all layers at once.

    host_roundtrip   to torch and back: untilized and tilized on the host, what the others are compared with
    dma              kept host tensors in the device's own layout: bytes move, nothing is converted
    device_copy      kept device tensors

What is kept is made once, by `allocate`; `capture` and `restore` then allocate nothing (host_roundtrip does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Way:
    """One way to keep states.

    allocate  (ttnn, states) -> kept, one entry for each state, without their content
    capture   (ttnn, states, kept): kept holds what the states hold
    restore   (ttnn, kept, states): the states hold what kept holds
    States are device tensors of any dtype and layout.
    """

    allocate: Callable[[Any, Sequence[Any]], list[Any]]
    capture: Callable[[Any, Sequence[Any], list[Any]], None]
    restore: Callable[[Any, Sequence[Any], Sequence[Any]], None]


def _roundtrip_capture(ttnn: Any, states: Sequence[Any], kept: list[Any]) -> None:
    kept[:] = [ttnn.to_torch(state) for state in states]


def _roundtrip_restore(ttnn: Any, kept: Sequence[Any], states: Sequence[Any]) -> None:
    for value, state in zip(kept, states, strict=True):
        ttnn.copy_host_to_device_tensor(ttnn.from_torch(value, dtype=state.dtype, layout=state.layout), state)


def _dma_capture(ttnn: Any, states: Sequence[Any], kept: list[Any]) -> None:
    for state, host in zip(states, kept, strict=True):
        ttnn.copy_device_to_host_tensor(state, host)


def _dma_restore(ttnn: Any, kept: Sequence[Any], states: Sequence[Any]) -> None:
    for host, state in zip(kept, states, strict=True):
        ttnn.copy_host_to_device_tensor(host, state)


def _copy(ttnn: Any, sources: Sequence[Any], targets: Sequence[Any]) -> None:
    for source, target in zip(sources, targets, strict=True):
        ttnn.copy(source, target)


def _on_device(ttnn: Any, states: Sequence[Any]) -> list[Any]:
    return [ttnn.empty(s.shape, dtype=s.dtype, layout=s.layout, device=s.device()) for s in states]


WAYS = {
    "host_roundtrip": Way(lambda ttnn, states: [None] * len(states), _roundtrip_capture, _roundtrip_restore),
    "dma": Way(lambda ttnn, states: [ttnn.from_device(s) for s in states], _dma_capture, _dma_restore),
    "device_copy": Way(_on_device, _copy, _copy),
}


def extract_row(
    ttnn: Any, recurrent: Any, carry: Any, begin: Any, end: Any, carry_rows: Any, state: Any, history: Any
) -> None:
    """Copy one decode row's state to where prefill would have it.

    recurrent   [B, HV, K, V] float32, TILE; carry [1, 3, B, C] bfloat16, TILE: all rows
    begin, end  [4] uint32, ROW_MAJOR: (row, 0, 0, 0) and (row + 1, HV, K, V)
    carry_rows  [1, 3] uint32, ROW_MAJOR: row, B + row, 2 B + row
    state       [1, HV, K, V] float32, TILE; history [1, 3, C] bfloat16, ROW_MAJOR: overwritten
    """
    rows, channels = recurrent.shape[0], carry.shape[3]
    ttnn.copy(ttnn.slice(recurrent, begin, end, slice_dim=0, num_devices=rows), state)
    columns = ttnn.reshape(ttnn.to_layout(carry, ttnn.ROW_MAJOR_LAYOUT), (1, 1, 3 * rows, channels))
    ttnn.copy(ttnn.embedding(carry_rows, columns), history)
