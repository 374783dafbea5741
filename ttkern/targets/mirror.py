"""The emulated device with every call replayed on the mock board: real ttnn looks over its shoulder.

A call runs on the emulated device; then the real library gets the same call on tensors of the same specs. What it
refuses is an error, and so is an output whose shape, padded shape, dtype, layout or memory config is another than the
emulated device gave. Traces are replayed on the emulated device only: their calls were mirrored when captured.
"""

from __future__ import annotations

import dataclasses
import enum
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ttkern.targets.emulated import Namespace, types
from ttkern.targets.emulated.device import Device
from ttkern.targets.emulated.tensor import Tensor
from ttkern.targets.emulated.types import TtnnError
from ttkern.targets.proxy import Proxy
from ttkern.targets.real.library import RealDevice

# Calls that the mock has no part in: it cannot capture.
_EMULATED_ONLY = ("begin_trace_capture", "end_trace_capture", "execute_trace", "release_trace")


class MirrorError(RuntimeError):
    """Real ttnn refuses a call that the emulated device accepts, or gives another output."""


class Mirror:
    """An emulated ttnn and a real one side by side; `ttnn` is what calls are made on."""

    def __init__(self, emulated: Namespace, device: Device, real: RealDevice) -> None:
        self.ttnn = Proxy(emulated, self._around)
        self.calls = 0
        self._emulated, self._device = emulated, device
        self._real, self._mock, self._release = real.ttnn, real.device, real.close
        self._twins: weakref.WeakKeyDictionary[Tensor | types.Event, Any] = weakref.WeakKeyDictionary()

    def close(self) -> None:
        """Close both devices."""
        self._emulated.close_device(self._device)
        self._twins.clear()
        self._mock = None
        self._release()

    def _around(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._mock is None:
            raise TtnnError(f"{name}: the device is closed")
        if name in _EMULATED_ONLY:
            return function(*args, **kwargs)
        before = self._translate((args, kwargs))
        ours = function(*args, **kwargs)
        self.calls += 1
        theirs = self._replay(name, before, (args, kwargs))
        if isinstance(ours, torch.Tensor):
            self._compare_values(name, ours, theirs)
            return ours
        if isinstance(ours, types.Event):
            self._twins[ours] = theirs
            return ours
        mine, others = _tensors(ours), _tensors(theirs)
        if len(mine) != len(others):
            raise MirrorError(f"{name}: {len(mine)} outputs on the emulated device, {len(others)} in real ttnn")
        given = _tensors([*args, *kwargs.values()])
        for i, (tensor, other) in enumerate(zip(mine, others, strict=True)):
            what = f"{name}, output {i}"
            self._compare(what, tensor, other)
            if tensor not in self._twins:
                for source in given:
                    self._compare_memory(what, (tensor, source), (other, self._twins[source]))
                self._twins[tensor] = other
        return ours

    def _replay(self, name: str, call: Any, original: Any) -> Any:
        target: Any = self._real
        for step in name.split("."):
            if not hasattr(target, step):
                raise MirrorError(f"real ttnn has no {name}")
            target = getattr(target, step)
        args, kwargs = call
        try:
            return target(*args, **kwargs)
        except (RuntimeError, TypeError) as error:
            specs = ", ".join(map(repr, _tensors([*original[0], *original[1].values()])))
            raise MirrorError(f"real ttnn refuses {name}({specs}): {error}") from error

    def _compare_values(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """What is read; its values are the emulated device's alone."""
        if ours.shape != theirs.shape:
            raise MirrorError(f"{name}: {list(ours.shape)} on the emulated device, {list(theirs.shape)} in real ttnn")
        if ours.dtype != theirs.dtype and not (self._emulated.exact and theirs.is_floating_point()):
            raise MirrorError(f"{name}: {ours.dtype} on the emulated device, {theirs.dtype} in real ttnn")

    def _compare_memory(self, what: str, ours: tuple[Tensor, Tensor], theirs: tuple[Any, Any]) -> None:
        """Whether an output lies in the memory of an input."""
        if any(tensor.device() is None for tensor in ours):
            return
        mine = ours[0].lease is ours[1].lease
        if mine != (theirs[0].buffer_address() == theirs[1].buffer_address()):
            place = ("memory of its own", "an input's memory")
            raise MirrorError(f"{what}: {place[mine]} on the emulated device, {place[not mine]} in real ttnn")

    def _compare(self, what: str, ours: Tensor, theirs: Any) -> None:
        mine, other = _spec(ours), _spec(theirs)
        for field, value in mine.items():
            if other[field] != value:
                raise MirrorError(f"{what}: {field} is {value} on the emulated device, {other[field]} in real ttnn")

    def _twin(self, tensor: Tensor) -> Any:
        """The real tensor that stands for an emulated one; made here for one that came about another way."""
        if tensor not in self._twins:
            real = self._real
            dtype, layout = self._translate(tensor.dtype), self._translate(tensor.layout)
            if tensor.device() is None:
                kind = torch.float32 if tensor.dtype.is_float else torch.int32
                twin = real.from_torch(torch.zeros(tensor.shape, dtype=kind), dtype=dtype, layout=layout)
            else:
                config = self._translate(tensor.memory_config())
                twin = real.empty(tensor.shape, dtype=dtype, layout=layout, device=self._mock, memory_config=config)
            self._compare("a new tensor", tensor, twin)
            self._twins[tensor] = twin
        return self._twins[tensor]

    def _translate(self, value: Any) -> Any:
        """An argument in the real library's words."""
        real = self._real
        if isinstance(value, Tensor):
            return self._twin(value)
        if isinstance(value, types.Event):
            return self._twins[value]
        if isinstance(value, Device):
            return self._mock
        if isinstance(value, (list, tuple)):
            return type(value)(self._translate(item) for item in value)
        if isinstance(value, dict):
            return {key: self._translate(item) for key, item in value.items()}
        if isinstance(value, enum.Enum):
            return getattr(getattr(real, type(value).__name__), value.name)
        if isinstance(value, types.CoreRangeSet):
            return real.num_cores_to_corerangeset(value.cores, self._mock.compute_with_storage_grid_size(), True)
        if isinstance(value, types.CoreCoord):
            return real.CoreCoord(value.x, value.y)
        if isinstance(value, types.UnaryWithParam):
            return real.UnaryWithParam(self._translate(value.op_type), *value.params)
        if isinstance(value, types.MemoryConfig) and value.is_sharded():
            return real.create_sharded_memory_config(
                value.shard_shape,
                core_grid=self._translate(types.CoreRangeSet(value.shard_cores)),
                strategy=real.ShardStrategy.HEIGHT,
                use_height_and_width_as_shard_shape=True,
            )
        if isinstance(value, types.MemoryConfig):
            return real.MemoryConfig(self._translate(value.memory_layout), self._translate(value.buffer_type))
        if dataclasses.is_dataclass(value):
            fields = {f.name: self._translate(getattr(value, f.name)) for f in dataclasses.fields(value)}
            if isinstance(value, types.ComputeKernelConfig):
                return real.init_device_compute_kernel_config(self._mock.arch(), **fields)
            return getattr(real, type(value).__name__)(**fields)
        return value


def _tensors(result: Any) -> list[Any]:
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in _tensors(item)]
    return [result] if hasattr(result, "padded_shape") else []


def _spec(tensor: Any) -> dict[str, Any]:
    """What can be told of a tensor of either library, in plain values."""
    config = tensor.memory_config()
    shard = None
    if config.is_sharded():
        spec = getattr(config, "shard_spec", None)
        shard = (config.shard_shape, config.shard_cores) if spec is None else (tuple(spec.shape), spec.grid.num_cores())
    return {
        "shape": list(tensor.shape),
        "padded shape": list(tensor.padded_shape),
        "dtype": tensor.dtype.name,
        "layout": tensor.layout.name,
        "storage": tensor.storage_type().name,
        "memory": (config.memory_layout.name, config.buffer_type.name, shard),
    }
