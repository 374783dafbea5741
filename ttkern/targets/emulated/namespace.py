"""The object that ops see as `ttnn`: the same names, on torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from ttkern.targets.emulated import ops_attention, ops_data, ops_delta, ops_math, types
from ttkern.targets.emulated.device import Device
from ttkern.targets.emulated.dispatch import OPS, Out, call, new_tensor, writable
from ttkern.targets.emulated.tensor import Cell, Tensor, store
from ttkern.targets.emulated.types import DataType, Layout, MemoryConfig, StorageType, TtnnError

_MODULES = (ops_attention, ops_data, ops_delta, ops_math)  # imported so that their ops are registered
_TYPES = (
    types.BufferType,
    types.CoreCoord,
    types.CoreRangeSet,
    types.DataType,
    types.Layout,
    types.MathFidelity,
    types.MemoryConfig,
    types.MeshCoordinate,
    types.QkvCausalConv1dSiluProgramConfig,
    types.SDPAProgramConfig,
    types.ShardStrategy,
    types.StorageType,
    types.TensorMemoryLayout,
    types.UnaryOpType,
    types.UnaryWithParam,
)


class Namespace:
    """One emulated ttnn: its numerics (exact or rounded), what its padding holds, and its ops."""

    def __init__(self, *, exact: bool = False, poison: float = math.nan) -> None:
        self.exact, self.poison = exact, poison
        for dtype in DataType:
            setattr(self, dtype.name.lower(), dtype)
        self.ROW_MAJOR_LAYOUT, self.TILE_LAYOUT = Layout.ROW_MAJOR, Layout.TILE
        self.DRAM_MEMORY_CONFIG = MemoryConfig()
        self.L1_MEMORY_CONFIG = MemoryConfig(buffer_type=types.BufferType.L1)
        self.TILE_SIZE = types.TILE
        for kind in _TYPES:
            setattr(self, kind.__name__, kind)
        self.transformer = SimpleNamespace()
        self.experimental = SimpleNamespace(kda=SimpleNamespace())
        for dotted, implementation in OPS.items():
            self._bind(dotted, implementation)
        for alias, name in (("mul", "multiply"), ("sub", "subtract")):
            self._bind(alias, OPS[name], name)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the emulated device has no ttnn.{name}; add it under ttkern/targets/emulated")

    def _bind(self, dotted: str, implementation: Any, name: str | None = None) -> None:
        *path, last = dotted.split(".")
        place: Any = self
        for step in path:
            place = getattr(place, step)

        @functools.wraps(implementation)
        def bound(*args: Any, **kwargs: Any) -> Any:
            return call(name or dotted, implementation, args, kwargs)

        setattr(place, last, bound)

    # devices and traces

    def open_device(self, device_id: int = 0, trace_region_size: int = 0, **_: Any) -> Device:
        """A device of its own; nothing is shared with another one."""
        return Device(exact=self.exact, poison=self.poison, trace_region_size=trace_region_size)

    def close_device(self, device: Device) -> None:
        """Refuse whatever comes after."""
        device.open = False

    def synchronize_device(self, device: Device) -> None:
        """Wait for the device. Everything here has run when its call returns."""
        device.refuse_in_capture("synchronize_device")

    def begin_trace_capture(self, device: Device, cq_id: int = 0) -> int:
        """Record calls instead of running them, until `end_trace_capture`."""
        return device.begin_trace()

    def end_trace_capture(self, device: Device, trace_id: int, cq_id: int = 0) -> None:
        """The trace is complete."""
        device.end_trace(trace_id)

    def execute_trace(self, device: Device, trace_id: int, cq_id: int = 0, blocking: bool = True) -> None:
        """Replay."""
        device.execute_trace(trace_id)

    def release_trace(self, device: Device, trace_id: int) -> None:
        """Forget."""
        device.release_trace(trace_id)

    def record_event(self, device: Device, cq_id: int = 0) -> types.Event:
        """A mark in the queue. Everything before it has run when its call returns."""
        if cq_id:
            raise TtnnError(f"record_event: cq_id {cq_id} is out of range")
        device.refuse_in_capture("record_event")
        return types.Event()

    def event_synchronize(self, event: types.Event) -> None:
        """Wait for a mark."""

    # making, moving and reading tensors

    def from_torch(
        self,
        tensor: torch.Tensor,
        dtype: DataType | None = None,
        *,
        layout: Layout | None = None,
        device: Device | None = None,
        memory_config: MemoryConfig | None = None,
    ) -> Tensor:
        """A host tensor, or with `device` a device tensor, holding a copy of a torch tensor."""
        if dtype is None:
            if tensor.dtype not in _DTYPES:
                raise TtnnError(f"from_torch: {tensor.dtype} has no ttnn dtype of its own here; give one")
            dtype = _DTYPES[tensor.dtype]
        if layout is None:
            layout = Layout.TILE if dtype.is_block_float else Layout.ROW_MAJOR
        held = store(tensor, dtype, layout, exact=self.exact, poison=self.poison)
        if held.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            held = held.clone()
        shape = tuple(tensor.shape)
        if device is None:
            return Tensor(Cell(held), shape, dtype, layout, exact=self.exact, memory_config=memory_config)
        device.refuse_in_capture("from_torch to a device")
        return self._place(device, Cell(held), shape, dtype, layout, memory_config)

    def _place(
        self,
        device: Device,
        cell: Cell,
        shape: tuple[int, ...],
        dtype: DataType,
        layout: Layout,
        memory_config: MemoryConfig | None,
    ) -> Tensor:
        config = memory_config or MemoryConfig()
        lease = device.allocate(cell, shape, dtype, layout, config)
        device.count(host_writes=1, host_write_bytes=cell.data.numel() * cell.data.element_size())
        return Tensor(cell, shape, dtype, layout, exact=self.exact, lease=lease, device=device, memory_config=config)

    def to_torch(self, tensor: Tensor) -> torch.Tensor:
        """The logical values: float32 for every float dtype but bfloat16."""
        self._live("to_torch", tensor)
        device = tensor.device()
        if device is not None:
            device.refuse_in_capture("to_torch")
            device.count(host_reads=1)
        values = tensor.logical
        if tensor.dtype.is_float and tensor.dtype is not DataType.BFLOAT16:
            return values.to(torch.float32, copy=True)
        return values.to(torch.uint32 if tensor.dtype is DataType.UINT32 else values.dtype, copy=True)

    def to_device(self, tensor: Tensor, device: Device, memory_config: MemoryConfig | None = None) -> Tensor:
        """A device copy of a host tensor; one that is there already is returned as it is."""
        if tensor.device() is device:
            return tensor
        device.refuse_in_capture("to_device")
        cell = Cell(tensor.cell.data.clone())
        return self._place(device, cell, tensor.shape, tensor.dtype, tensor.layout, memory_config)

    def from_device(self, tensor: Tensor) -> Tensor:
        """A host copy of a device tensor, layout kept; a host tensor is returned as it is."""
        self._live("from_device", tensor)
        device = tensor.device()
        if device is None:
            return tensor
        device.refuse_in_capture("from_device")
        device.count(host_reads=1)
        return Tensor(Cell(tensor.cell.data.clone()), tensor.shape, tensor.dtype, tensor.layout, exact=self.exact)

    def copy_host_to_device_tensor(self, host_tensor: Tensor, device_tensor: Tensor, cq_id: int = 0) -> None:
        """Overwrite a device tensor with a host tensor of the same spec."""
        self._live("copy_host_to_device_tensor", device_tensor)
        device = self._on_device("copy_host_to_device_tensor", device_tensor)
        device.refuse_in_capture("copy_host_to_device_tensor")
        self._same_spec("copy_host_to_device_tensor", host_tensor, device_tensor)
        writable(device_tensor)
        device_tensor.cell.data.copy_(host_tensor.cell.data)
        data = host_tensor.cell.data
        device.count(host_writes=1, host_write_bytes=data.numel() * data.element_size())

    def copy_device_to_host_tensor(
        self, device_tensor: Tensor, host_tensor: Tensor, blocking: bool = True, cq_id: int = 0
    ) -> None:
        """Overwrite a host tensor with a device tensor of the same spec."""
        self._live("copy_device_to_host_tensor", device_tensor)
        device = self._on_device("copy_device_to_host_tensor", device_tensor)
        device.refuse_in_capture("copy_device_to_host_tensor")
        self._same_spec("copy_device_to_host_tensor", host_tensor, device_tensor)
        host_tensor.cell.data.copy_(device_tensor.cell.data)
        device.count(host_reads=1)

    def _same_spec(self, name: str, host: Tensor, on_device: Tensor) -> None:
        if host.storage_type() is not StorageType.HOST:
            raise TtnnError(f"{name}: {host} must lie on the host")
        for what in ("shape", "dtype", "layout"):
            if getattr(host, what) != getattr(on_device, what):
                raise TtnnError(f"{name}: {what} differs: {getattr(host, what)}, {getattr(on_device, what)}")

    def _live(self, name: str, tensor: Tensor) -> None:
        if not tensor.is_allocated():
            raise TtnnError(f"{name}: {tensor} was deallocated")

    def _on_device(self, name: str, tensor: Tensor) -> Device:
        device = tensor.device()
        if device is None:
            raise TtnnError(f"{name}: {tensor} must lie on a device")
        return device

    def full(
        self,
        shape: Sequence[int],
        fill_value: float,
        *,
        dtype: DataType = DataType.BFLOAT16,
        layout: Layout = Layout.ROW_MAJOR,
        device: Device | None = None,
        memory_config: MemoryConfig | None = None,
    ) -> Tensor:
        """A tensor of one value."""
        storage = torch.float32 if self.exact and dtype.is_float else dtype.storage
        # torch.zeros takes pages only when they are written: a KV pool costs what is used of it.
        values = (
            torch.zeros(tuple(shape), dtype=storage)
            if fill_value == 0
            else torch.full(tuple(shape), fill_value, dtype=storage)
        )
        if device is None:
            return self.from_torch(values, dtype, layout=layout)
        device.refuse_in_capture("full")
        return new_tensor(device, Out(values, dtype, layout, memory_config))

    def zeros(self, shape: Sequence[int], **kwargs: Any) -> Tensor:
        """A tensor of zeros."""
        return self.full(shape, 0, **kwargs)

    def empty(self, shape: Sequence[int], **kwargs: Any) -> Tensor:
        """A device tensor whose values nobody may rely on: poison."""
        if kwargs.get("device") is None:
            raise TtnnError("empty: give the device")
        is_float = kwargs.get("dtype", DataType.BFLOAT16).is_float
        return self.full(shape, self.poison if is_float else -1, **kwargs)

    def deallocate(self, tensor: Tensor, force: bool = True) -> None:
        """Free a buffer; every view of it is gone too."""
        self._live("deallocate", tensor)
        if tensor.lease is not None:
            tensor.lease.free()

    # configurations

    def init_device_compute_kernel_config(self, arch: Any, **settings: Any) -> types.ComputeKernelConfig:
        """How a kernel computes."""
        return types.ComputeKernelConfig(**settings)

    def num_cores_to_corerangeset(
        self, cores: int, grid: types.CoreCoord, row_wise: bool = False
    ) -> types.CoreRangeSet:
        """So many cores of a grid."""
        if cores > grid.x * grid.y:
            raise TtnnError(f"num_cores_to_corerangeset: {cores} cores asked for, the grid has {grid.x * grid.y}")
        return types.CoreRangeSet(cores)

    def create_sharded_memory_config(
        self,
        shape: Sequence[int],
        core_grid: types.CoreRangeSet,
        strategy: types.ShardStrategy,
        *,
        use_height_and_width_as_shard_shape: bool = False,
    ) -> MemoryConfig:
        """Height sharding in L1, by shard shape."""
        if not use_height_and_width_as_shard_shape:
            raise TtnnError("create_sharded_memory_config: give the shard's own height and width")
        return MemoryConfig(
            types.TensorMemoryLayout.HEIGHT_SHARDED, types.BufferType.L1, (shape[0], shape[1]), core_grid.num_cores()
        )


# What real ttnn makes of a torch dtype where none is given, as far as the emulated device has it; of float64 it makes
# the end of the process.
_DTYPES = {
    torch.bfloat16: DataType.BFLOAT16,
    torch.float16: DataType.BFLOAT16,
    torch.float32: DataType.FLOAT32,
    torch.int32: DataType.INT32,
    torch.uint32: DataType.UINT32,
    torch.int64: DataType.UINT32,
}
