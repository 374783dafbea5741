"""Every call goes through here: checks that hold for all ops, the program cache, allocation, rounding, traces.

An op is a plain function of tensors that returns what it computed (`Out`), what it would write in place (`InPlace`), or
another shape of its input (`View`). It never allocates, rounds or records.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ttkern.targets.emulated.device import Device, Record
from ttkern.targets.emulated.tensor import Cell, Tensor, ViewCell, store
from ttkern.targets.emulated.types import DataType, Layout, MemoryConfig, StorageType, TtnnError


@dataclass
class Out:
    """A new tensor: logical values, and what they are declared as."""

    values: torch.Tensor
    dtype: DataType
    layout: Layout
    memory_config: MemoryConfig | None = None


@dataclass
class InPlace:
    """An effect on `target`'s buffer, and the tensor returned for it."""

    target: Tensor
    write: Callable[[], None]


@dataclass
class View:
    """`source` under another shape, in the same buffer."""

    source: Tensor
    shape: tuple[int, ...]


Result = Out | InPlace | View | Sequence[Out]
Implementation = Callable[..., Any]
OPS: dict[str, Implementation] = {}


def op(name: str) -> Callable[[Implementation], Implementation]:
    """Register a device op under ttnn's dotted name."""

    def register(function: Implementation) -> Implementation:
        OPS[name] = function
        return function

    return register


def fail(name: str, message: str) -> None:
    """Refuse a call."""
    raise TtnnError(f"{name}: {message}")


def require(name: str, condition: bool, message: str) -> None:
    """Refuse a call unless."""
    if not condition:
        raise TtnnError(f"{name}: {message}")


def need_layout(name: str, argument: str, tensor: Tensor, layout: Layout) -> None:
    """Refuse a tensor of another layout."""
    if tensor.layout is not layout:
        raise TtnnError(f"{name}: {argument} has layout {tensor.layout.name}; it must be {layout.name}")


def need_dtype(name: str, argument: str, tensor: Tensor, *allowed: DataType) -> None:
    """Refuse a tensor of another dtype."""
    if tensor.dtype not in allowed:
        wanted = " or ".join(dtype.name for dtype in allowed)
        raise TtnnError(f"{name}: {argument} has dtype {tensor.dtype.name}; it must be {wanted}")


def writable(tensor: Tensor) -> torch.Tensor:
    """The logical values of a tensor, to be written in place; memory shared with another op's output is left to it."""
    base = tensor.cell.base
    if base.computed:
        base.data, base.computed = base.data.clone(), False
    return tensor.logical


def overwrite(target: Tensor, values: torch.Tensor) -> InPlace:
    """The effect of writing logical values over a whole tensor."""

    def write() -> None:
        writable(target).copy_(values)

    return InPlace(target, write)


def call(name: str, implementation: Implementation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one op on the device its tensors lie on."""
    tensors = [t for t in _flat((*args, *kwargs.values())) if isinstance(t, Tensor)]
    if not tensors:
        raise TtnnError(f"{name}: no tensor among the arguments")
    device = _one_device(name, tensors)
    try:
        result = implementation(*args, **kwargs)
    except IndexError as error:
        raise TtnnError(f"{name}: {error}") from error
    if not isinstance(result, View):
        device.look_up_program(name, _key((*args, *sorted(kwargs.items()))))
    outputs = _materialise(device, result, tensors)
    if device.capturing is not None and not isinstance(result, View):
        _record(name, device, implementation, args, kwargs, outputs, tensors)
    returned = tuple(outputs)
    return returned[0] if isinstance(result, (Out, InPlace, View)) else returned


def _one_device(name: str, tensors: list[Tensor]) -> Device:
    device = None
    for tensor in tensors:
        if tensor.storage_type() is StorageType.HOST:
            raise TtnnError(f"{name}: {tensor} lies on the host; the op takes device tensors")
        if not tensor.is_allocated():
            raise TtnnError(f"{name}: {tensor} was deallocated")
        if device is not None and tensor.device() is not device:
            raise TtnnError(f"{name}: tensors lie on different devices")
        device = tensor.device()
    assert device is not None
    if not device.open:
        raise TtnnError(f"{name}: the device is closed")
    return device


def _materialise(device: Device, result: Any, tensors: list[Tensor]) -> list[Tensor]:
    if isinstance(result, View):
        source = result.source
        cell = ViewCell(source.cell.base, _view_shape(source, result.shape))
        return [
            Tensor(
                cell,
                result.shape,
                source.dtype,
                source.layout,
                exact=device.exact,
                lease=source.lease,
                device=device,
                memory_config=source.memory_config(),
            )
        ]
    if isinstance(result, InPlace):
        if device.capturing is None:
            result.write()
        return [result.target]
    return [new_tensor(device, out, tensors) for out in ([result] if isinstance(result, Out) else result)]


def _view_shape(source: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    return Tensor(Cell(source.cell.data), shape, source.dtype, source.layout, exact=source.exact).padded_shape


def new_tensor(device: Device, out: Out, inputs: Sequence[Tensor] = ()) -> Tensor:
    """Allocate a device tensor and fill it."""
    cell = Cell(held(device, out, inputs), computed=bool(inputs))
    shape = tuple(out.values.shape)
    config = out.memory_config or MemoryConfig()
    lease = device.allocate(cell, shape, out.dtype, out.layout, config)
    return Tensor(
        cell, shape, out.dtype, out.layout, exact=device.exact, lease=lease, device=device, memory_config=config
    )


def held(device: Device, out: Out, inputs: Sequence[Tensor]) -> torch.Tensor:
    """The values as the buffer holds them, sharing no memory with a buffer that may be written in place."""
    data = store(out.values, out.dtype, out.layout, exact=device.exact, poison=device.poison)
    address = data.untyped_storage().data_ptr()
    for tensor in inputs:
        if not tensor.cell.computed and tensor.cell.data.untyped_storage().data_ptr() == address:
            return data.clone()
    return data


def _record(
    name: str,
    device: Device,
    implementation: Implementation,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outputs: list[Tensor],
    tensors: list[Tensor],
) -> None:
    trace = device.capturing
    assert trace is not None
    created = {id(cell) for cell, _ in trace.created}
    for tensor in tensors:
        if id(tensor.cell.base) not in created and tensor.lease is not None:
            trace.needed[id(tensor.lease)] = (f"a buffer that {name} uses", weakref.ref(tensor.lease))
    args = tuple(_map(arg, Tensor.without_lease) for arg in args)
    kwargs = {key: _map(arg, Tensor.without_lease) for key, arg in kwargs.items()}
    cells = [t.cell.base for t in outputs]
    inputs = [t for t in _flat((*args, *kwargs.values())) if isinstance(t, Tensor)]

    def run() -> None:
        result = implementation(*args, **kwargs)
        if isinstance(result, InPlace):
            result.write()
            return
        for cell, out in zip(cells, [result] if isinstance(result, Out) else result, strict=True):
            cell.data, cell.computed = held(device, out, inputs), True

    used = tuple({id(c): c for c in (*(t.cell.base for t in inputs), *cells)}.values())
    trace.records.append(Record(name, run, used))


def _flat(values: Any) -> list[Any]:
    out: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            out.extend(_flat(value))
        else:
            out.append(value)
    return out


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map(item, change) for item in value)
    return value


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.spec_key
    if isinstance(value, (list, tuple)):
        return tuple(_key(item) for item in value)
    return value
