"""A tensor: a handle on a cell of data, with ttnn's view of it (shape, padded shape, dtype, layout, memory).

Tensor ---- lease ---- a range of the device's memory; several views share it; freed with the last of them
   |
   +------- cell ----- the values, as a torch tensor of the PADDED shape; a trace keeps cells, not leases
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ttkern.targets.emulated.block_float import round_to_block_float
from ttkern.targets.emulated.types import TILE, DataType, Layout, MemoryConfig, StorageType, TtnnError

if TYPE_CHECKING:
    from ttkern.targets.emulated.allocator import Range
    from ttkern.targets.emulated.device import Device

Shape = tuple[int, ...]


class Cell:
    """The values of a buffer. `computed` says that an op made them: nobody writes them in place, so another op's
    output may share their memory."""

    __slots__ = ("computed", "data")

    def __init__(self, data: torch.Tensor, *, computed: bool = False) -> None:
        self.data, self.computed = data, computed

    @property
    def base(self) -> Cell:
        """The cell that owns the memory."""
        return self


class ViewCell:
    """The same values under another shape: what `ttnn.reshape` returns when nothing has to move."""

    __slots__ = ("base", "shape")

    def __init__(self, base: Cell, shape: Shape) -> None:
        self.base, self.shape = base, shape

    @property
    def data(self) -> torch.Tensor:
        """A torch view of the owner's memory."""
        return self.base.data.view(self.shape)

    @property
    def computed(self) -> bool:
        """As the owner."""
        return self.base.computed


class Lease:
    """A device allocation; given back when the last tensor on it goes, or by `deallocate`."""

    def __init__(self, device: Device, range_: Range, cell: Cell) -> None:
        self.device, self.range, self.cell = device, range_, cell
        self.live = True
        self.serial = 0  # order of allocation, set by the device
        device.leases[id(self)] = self

    def free(self) -> None:
        """Give the range back, once."""
        if self.live:
            self.live = False
            self.device.free(self)

    def __del__(self) -> None:
        self.free()


class HostBuffer:
    """A host tensor's memory by chip; here there is one."""

    def __init__(self, data: torch.Tensor) -> None:
        self._data = data

    def get_shard(self, coordinate: Any) -> torch.Tensor:
        """Bytes of a chip, uint8, sharing memory with the tensor."""
        return self._data.view(-1).view(torch.uint8)


class Tensor:
    """What ops pass around. `shape` is logical; `padded_shape` is what lies in memory."""

    def __init__(
        self,
        cell: Cell | ViewCell,
        shape: Shape,
        dtype: DataType,
        layout: Layout,
        *,
        exact: bool,
        lease: Lease | None = None,
        device: Device | None = None,
        memory_config: MemoryConfig | None = None,
    ) -> None:
        self.cell, self.shape, self.dtype, self.layout = cell, shape, dtype, layout
        self.exact, self.lease, self._device = exact, lease, device
        self._memory_config = memory_config or MemoryConfig()
        self.padded_shape = padded(shape, layout)
        self.aligned = self.padded_shape == shape
        self.spec_key = (shape, dtype, layout, self._memory_config, device is not None)

    def device(self) -> Device | None:
        """The device it lies on; None for a host tensor."""
        return self._device

    def storage_type(self) -> StorageType:
        """HOST or DEVICE."""
        return StorageType.HOST if self._device is None else StorageType.DEVICE

    def memory_config(self) -> MemoryConfig:
        """Layout over banks."""
        return self._memory_config

    def is_allocated(self) -> bool:
        """False once deallocated, directly or through a view that shared its buffer."""
        return self.lease is None or self.lease.live

    def is_sharded(self) -> bool:
        """Whether each core holds a piece."""
        return self._memory_config.is_sharded()

    def host_buffer(self) -> HostBuffer:
        """The bytes of a host tensor, as they lie in memory."""
        if self._device is not None:
            raise TtnnError(f"host_buffer: {self} must lie on the host")
        return HostBuffer(self.cell.data)

    @property
    def logical(self) -> torch.Tensor:
        """The values without padding, in storage dtype; a view where possible."""
        data = self.cell.data
        if self.aligned:
            return data
        if len(self.shape) > 1:
            return data[..., : self.shape[-2], : self.shape[-1]]
        return data[0, : self.shape[0]] if self.shape else data.view(-1)[0]

    @property
    def f32(self) -> torch.Tensor:
        """The values without padding, as float32."""
        return self.logical.float()

    def without_lease(self) -> Tensor:
        """The same tensor as a trace remembers it: data, not ownership."""
        twin = object.__new__(Tensor)
        twin.__dict__.update(self.__dict__)
        twin.lease = None
        return twin

    def __repr__(self) -> str:
        place = "device" if self._device is not None else "host"
        return f"Tensor(shape={list(self.shape)}, {self.dtype.name}, {self.layout.name}, {place})"


def padded(shape: Shape, layout: Layout) -> Shape:
    """The shape that lies in memory."""
    if layout is Layout.ROW_MAJOR:
        return shape or (1,)
    rows = (1, 1, *shape)[-2:]  # a vector is one row of a tile
    return (*shape[:-2], *(-(-n // TILE) * TILE for n in rows))


def poison_value(dtype: DataType, poison: float) -> Any:
    """What padding holds: `poison` in floats, a number no index or count can be in integers."""
    return poison if dtype.is_float else -(2**31) + 7


def store(values: torch.Tensor, dtype: DataType, layout: Layout, *, exact: bool, poison: float) -> torch.Tensor:
    """Logical values as a buffer holds them: rounded to the dtype, padded with poison. Shares memory where it can."""
    shape = tuple(values.shape)
    full = padded(shape, layout)
    if dtype.is_block_float and layout is not Layout.TILE:
        raise TtnnError(f"{dtype} exists in TILE layout only; got {layout.name}")
    if not dtype.is_float:
        rounded = values.to(torch.int32)
    elif exact:
        rounded = values.float()
    elif dtype.is_block_float:
        # Blocks end at a tile's edge: padding takes part as zero while rounding, and is poisoned after.
        rows = values.float().reshape(shape or (1,))
        wide = torch.nn.functional.pad(rows, (0, full[-1] - rows.shape[-1]))
        bits = 7 if dtype is DataType.BFLOAT8_B else 3
        rounded = round_to_block_float(wide, bits)[..., : rows.shape[-1]].to(torch.bfloat16)
    else:
        rounded = values.to(dtype.storage)
    if full == shape:
        return rounded
    buffer = rounded.new_full(full, poison_value(dtype, poison))
    if len(shape) > 1:
        buffer[..., : shape[-2], : shape[-1]] = rounded
    else:
        buffer.view(-1)[: math.prod(shape)] = rounded
    return buffer


def pages_of(shape: Shape, dtype: DataType, layout: Layout) -> tuple[int, int]:
    """Number of pages of a buffer and their bytes: a tile each, or a row each."""
    full = padded(shape, layout)
    count = 1
    for n in full:
        count *= n
    if layout is Layout.TILE:
        return max(1, count // (TILE * TILE)), dtype.tile_bytes
    row = full[-1] if full else 1
    return max(1, count // max(1, row)), row * dtype.element_bytes
