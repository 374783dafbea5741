"""The names of ttnn's own vocabulary that ops use: dtypes, layouts, memory and kernel configurations."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import torch

TILE = 32


class TtnnError(RuntimeError):
    """What the real library refuses, this one refuses: op, argument, what it got and what it wants."""


class DataType(enum.Enum):
    """Element types. The value is what a device stores per element, in bits (block floats: exponents shared by 16)."""

    BFLOAT16 = "BFLOAT16"
    FLOAT32 = "FLOAT32"
    UINT32 = "UINT32"
    INT32 = "INT32"
    BFLOAT8_B = "BFLOAT8_B"
    BFLOAT4_B = "BFLOAT4_B"

    def __str__(self) -> str:
        return f"DataType.{self.name}"

    @property
    def is_float(self) -> bool:
        """Not an integer type."""
        return self not in (DataType.UINT32, DataType.INT32)

    @property
    def is_block_float(self) -> bool:
        """One shared exponent for 16 neighbours of a row: TILE layout only."""
        return self in (DataType.BFLOAT8_B, DataType.BFLOAT4_B)

    @property
    def tile_bytes(self) -> int:
        """Bytes of a 32 x 32 tile; block floats add one exponent byte for each 16 elements."""
        return _TILE_BYTES[self]

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in ROW_MAJOR layout."""
        if self.is_block_float:
            raise TtnnError(f"{self} exists in TILE layout only")
        return self.tile_bytes // (TILE * TILE)

    @property
    def storage(self) -> torch.dtype:
        """The torch dtype that holds these values exactly; block-float values fit bfloat16's 8 significant bits."""
        if not self.is_float:
            return torch.int32
        return torch.float32 if self is DataType.FLOAT32 else torch.bfloat16


_TILE_BYTES = {
    DataType.BFLOAT16: 2048,
    DataType.FLOAT32: 4096,
    DataType.UINT32: 4096,
    DataType.INT32: 4096,
    DataType.BFLOAT8_B: 1024 + 64,
    DataType.BFLOAT4_B: 512 + 64,
}


class Layout(enum.Enum):
    """ROW_MAJOR, or TILE: the last two axes padded to multiples of 32."""

    ROW_MAJOR = "ROW_MAJOR"
    TILE = "TILE"


class StorageType(enum.Enum):
    """Where a tensor lies."""

    HOST = "HOST"
    DEVICE = "DEVICE"


class BufferType(enum.Enum):
    """Which memory of a card."""

    DRAM = "DRAM"
    L1 = "L1"


class TensorMemoryLayout(enum.Enum):
    """How a buffer is spread over banks or cores."""

    INTERLEAVED = "INTERLEAVED"
    HEIGHT_SHARDED = "HEIGHT_SHARDED"


class ShardStrategy(enum.Enum):
    """How `create_sharded_memory_config` cuts a tensor."""

    HEIGHT = "HEIGHT"


class MathFidelity(enum.Enum):
    """Passes of the matrix engine over a product's mantissas."""

    LoFi = 0
    HiFi2 = 2
    HiFi3 = 3
    HiFi4 = 4


class UnaryOpType(enum.Enum):
    """Activations that a binary op can carry."""

    SIGMOID = "SIGMOID"
    SILU = "SILU"
    SOFTPLUS = "SOFTPLUS"


@dataclass(frozen=True)
class UnaryWithParam:
    """An activation with its parameters (softplus: beta and threshold)."""

    op_type: UnaryOpType
    params: tuple[float, ...] = ()

    def __init__(self, op_type: UnaryOpType, *params: float) -> None:
        object.__setattr__(self, "op_type", op_type)
        object.__setattr__(self, "params", tuple(params))


@dataclass(frozen=True)
class CoreCoord:
    """A core, or the extent of a grid."""

    x: int
    y: int


class MeshCoordinate:
    """A chip's place in a mesh."""

    def __init__(self, *coordinates: int) -> None:
        self.coordinates = coordinates


@dataclass(frozen=True)
class CoreRangeSet:
    """A set of cores, here by their number."""

    cores: int

    def num_cores(self) -> int:
        """How many."""
        return self.cores


@dataclass(frozen=True)
class MemoryConfig:
    """Layout over banks, memory, and for sharded buffers the shard's shape and cores."""

    memory_layout: TensorMemoryLayout = TensorMemoryLayout.INTERLEAVED
    buffer_type: BufferType = BufferType.DRAM
    shard_shape: tuple[int, int] | None = None
    shard_cores: int = 0

    def is_sharded(self) -> bool:
        """Whether each core holds a piece of its own."""
        return self.memory_layout is not TensorMemoryLayout.INTERLEAVED


@dataclass(frozen=True)
class ComputeKernelConfig:
    """Arithmetic of a kernel. Here every op computes in float32 and rounds once, which HiFi4 with float32
    accumulation comes closest to."""

    math_fidelity: MathFidelity = MathFidelity.HiFi4
    math_approx_mode: bool = False
    fp32_dest_acc_en: bool = False
    packer_l1_acc: bool = False


@dataclass(frozen=True)
class SDPAProgramConfig:
    """Geometry of the attention kernels, in tokens."""

    compute_with_storage_grid_size: Any
    q_chunk_size: int = 0
    k_chunk_size: int = 0
    exp_approx_mode: bool | None = None


@dataclass(frozen=True)
class QkvCausalConv1dSiluProgramConfig:
    """Channels that the convolution kernel keeps in L1 at once."""

    channel_chunk_size: int


class Event:
    """A mark in a command queue."""
