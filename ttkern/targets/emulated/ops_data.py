"""Ops that move data: layouts, shapes, slices, lookups, copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ttkern.targets.emulated.dispatch import (
    InPlace,
    Out,
    View,
    need_dtype,
    need_layout,
    op,
    overwrite,
    require,
    writable,
)
from ttkern.targets.emulated.tensor import Tensor
from ttkern.targets.emulated.types import TILE, DataType, Layout, MemoryConfig

FLOATS = (DataType.BFLOAT16, DataType.FLOAT32, DataType.BFLOAT8_B, DataType.BFLOAT4_B)


def like(source: Tensor, values: torch.Tensor, memory_config: MemoryConfig | None = None) -> Out:
    """An output of the source's dtype and layout."""
    return Out(values, source.dtype, source.layout, memory_config)


def unchanged(source: Tensor, memory_config: MemoryConfig | None) -> View | None:
    """What real ttnn returns where nothing would change: the input's own memory, unless that is wanted elsewhere."""
    return View(source, source.shape) if memory_config in (None, source.memory_config()) else None


@op("to_layout")
def to_layout(
    tensor: Tensor, layout: Layout, dtype: DataType | None = None, *, memory_config: MemoryConfig | None = None
) -> Any:
    """Tilize or untilize; a tensor that has the layout already is returned as it is, whatever dtype is asked for."""
    if tensor.layout is layout:
        return View(tensor, tensor.shape)
    if layout is Layout.TILE:
        return Out(tensor.logical, dtype or tensor.dtype, layout, memory_config)
    rows = DataType.BFLOAT16 if tensor.dtype.is_block_float else tensor.dtype
    require("to_layout", dtype in (None, tensor.dtype, rows), f"{tensor.dtype} to rows cannot also become {dtype}")
    return Out(tensor.logical, rows, layout, memory_config)


@op("typecast")
def typecast(input_tensor: Tensor, dtype: DataType, *, memory_config: MemoryConfig | None = None) -> Out:
    """Another dtype, the same layout. Nothing negative is a uint32: it becomes 0."""
    values = input_tensor.logical
    if dtype is DataType.UINT32 and input_tensor.dtype is not DataType.UINT32:
        values = values.clamp(min=0)
    return Out(values, dtype, input_tensor.layout, memory_config)


@op("to_memory_config")
def to_memory_config(tensor: Tensor, memory_config: MemoryConfig, dtype: DataType | None = None) -> Any:
    """Another place; a tensor that is there already is returned as it is, whatever its dtype."""
    if same := unchanged(tensor, memory_config):
        return same
    if memory_config.is_sharded():
        height, width = memory_config.shard_shape or (0, 0)
        rows = 1
        for n in tensor.padded_shape[:-1]:
            rows *= n
        require(
            "to_memory_config",
            width == tensor.padded_shape[-1] and height * memory_config.shard_cores >= rows,
            f"shards of {height} x {width} on {memory_config.shard_cores} cores do not hold {rows} rows of"
            f" {tensor.padded_shape[-1]}",
        )
    return Out(tensor.logical, dtype or tensor.dtype, tensor.layout, memory_config)


@op("clone")
def clone(input: Tensor, *, dtype: DataType | None = None, memory_config: MemoryConfig | None = None) -> Out:
    """A copy in a buffer of its own."""
    return Out(input.logical.clone(), dtype or input.dtype, input.layout, memory_config)


@op("copy")
def copy(input_a: Tensor, input_b: Tensor) -> InPlace:
    """Overwrite `input_b` with `input_a`."""
    require("copy", input_a.shape == input_b.shape, f"shapes differ: {list(input_a.shape)}, {list(input_b.shape)}")
    need_layout("copy", "input_a", input_a, input_b.layout)
    need_dtype("copy", "input_a", input_a, input_b.dtype)
    return overwrite(input_b, input_a.logical)


@op("reshape")
def reshape(input_tensor: Tensor, shape: Sequence[int], *, memory_config: MemoryConfig | None = None) -> Any:
    """Another shape. Nothing moves and the buffer is shared when rows keep their width and no padding lies between."""
    shape = _resolve(input_tensor, tuple(shape))
    source = input_tensor
    same_rows = bool(shape) and shape[-1] == source.shape[-1]
    if source.layout is Layout.ROW_MAJOR:
        in_place = same_rows
    else:
        rows, new_rows = ((1, *dims)[-2] for dims in (source.shape, shape))
        in_place = same_rows and (rows == new_rows or (rows % TILE == 0 and new_rows % TILE == 0))
    if in_place and memory_config is None:
        return View(source, shape)
    return like(source, source.logical.reshape(shape), memory_config)


def _resolve(source: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    known, count = 1, 1
    for n in source.shape:
        count *= n
    for n in shape:
        known *= n if n != -1 else 1
    if -1 in shape:
        shape = tuple(count // known if n == -1 else n for n in shape)
        known = count
    require("reshape", known == count, f"{list(source.shape)} has {count} elements, {list(shape)} has {known}")
    return shape


@op("slice")
def slice_(
    input_tensor: Tensor,
    slice_start: Sequence[int] | Tensor,
    slice_end: Sequence[int] | Tensor,
    slice_step: Sequence[int] | None = None,
    *,
    memory_config: MemoryConfig | None = None,
    slice_dim: int | None = None,
    num_devices: int | None = None,
) -> Any:
    """Elements [start, end) along every axis; bounds on the device cut axis `slice_dim` in `num_devices` parts."""
    rank = len(input_tensor.shape)
    if isinstance(slice_start, Tensor) and isinstance(slice_end, Tensor):
        slice_start, slice_end = _device_bounds(input_tensor, slice_start, slice_end, slice_dim, num_devices)
    assert not isinstance(slice_start, Tensor)
    assert not isinstance(slice_end, Tensor)
    require(
        "slice",
        len(slice_start) == rank and len(slice_end) == rank,
        f"start {list(slice_start)} and end {list(slice_end)} must have {rank} entries",
    )
    for axis, (start, end) in enumerate(zip(slice_start, slice_end, strict=True)):
        require(
            "slice",
            0 <= start < end <= input_tensor.shape[axis],
            f"[{start}, {end}) is not within axis {axis} of {list(input_tensor.shape)}",
        )
    steps = slice_step or [1] * rank
    whole = tuple(slice_end) == input_tensor.shape and not any(slice_start) and set(steps) <= {1}
    if whole and (same := unchanged(input_tensor, memory_config)):
        return same
    index = tuple(slice(a, b, c) for a, b, c in zip(slice_start, slice_end, steps, strict=True))
    # What does not start at a tile is cut from rows, which a block float has as bfloat16 only.
    whole_tiles = all(start % TILE == 0 for start in slice_start[-2:])
    dtype = DataType.BFLOAT16 if input_tensor.dtype.is_block_float and not whole_tiles else input_tensor.dtype
    return Out(input_tensor.logical[index], dtype, input_tensor.layout, memory_config)


def _device_bounds(
    tensor: Tensor, start: Tensor, end: Tensor, axis: int | None, parts: int | None
) -> tuple[list[int], list[int]]:
    rank = len(tensor.shape)
    for argument, bound in (("slice_start", start), ("slice_end", end)):
        need_dtype("slice", argument, bound, DataType.UINT32)
        need_layout("slice", argument, bound, Layout.ROW_MAJOR)
        require("slice", bound.shape == (rank,), f"{argument} is {list(bound.shape)}; it must be [{rank}]")
    require("slice", axis is not None and parts is not None, "bounds on the device need slice_dim and num_devices")
    assert axis is not None
    assert parts is not None
    low, high = start.logical.tolist(), end.logical.tolist()
    size = tensor.shape[axis] // parts
    # The program is compiled for the shape alone: only where the part lies may be data.
    wanted = [size if i == axis else n for i, n in enumerate(tensor.shape)]
    got = [b - a for a, b in zip(low, high, strict=True)]
    require("slice", got == wanted, f"bounds {low} to {high} are not one of {parts} parts of axis {axis}")
    return low, high


@op("concat")
def concat(tensors: Sequence[Tensor], dim: int = 0, *, memory_config: MemoryConfig | None = None) -> Any:
    """One after the other along an axis."""
    first = tensors[0]
    if len(tensors) == 1 and (same := unchanged(first, memory_config)):
        return same
    for index, tensor in enumerate(tensors):
        need_layout("concat", f"tensors[{index}]", tensor, first.layout)
        need_dtype("concat", f"tensors[{index}]", tensor, first.dtype)
        cut = (
            tensor.dtype.is_block_float and dim % len(first.shape) >= len(first.shape) - 2 and tensor.shape[dim] % TILE
        )
        require(
            "concat",
            not cut,
            f"tensors[{index}]: {tensor.dtype} is joined by whole tiles only, not {tensor.shape[dim]}",
        )
    return like(first, torch.cat([t.logical for t in tensors], dim=dim), memory_config)


@op("permute")
def permute(input_tensor: Tensor, dims: Sequence[int], *, memory_config: MemoryConfig | None = None) -> Any:
    """Axes in another order. Axes of length 1 move without anything moving, unless they are a tile's."""
    rank = len(input_tensor.shape)
    moved = [axis for axis, source in enumerate(dims) if axis != source % rank]
    tiled = input_tensor.layout is Layout.TILE
    still = all(input_tensor.shape[axis] == 1 and not (tiled and axis >= rank - 2) for axis in moved)
    if still and (same := unchanged(input_tensor, memory_config)):
        return same
    return like(input_tensor, input_tensor.logical.permute(*dims), memory_config)


@op("transpose")
def transpose(input_tensor: Tensor, dim1: int, dim2: int, *, memory_config: MemoryConfig | None = None) -> Any:
    """Two axes swapped."""
    axes = list(range(len(input_tensor.shape)))
    require("transpose", len(axes) > 1 or input_tensor.layout is not Layout.TILE, "a vector in tiles has two axes")
    axes[dim1], axes[dim2] = axes[dim2], axes[dim1]
    if input_tensor.dtype.is_block_float and axes == sorted(axes):  # a copy of its own, of all things
        return like(input_tensor, input_tensor.logical.permute(*axes), memory_config)
    return permute(input_tensor, axes, memory_config=memory_config)


@op("embedding")
def embedding(
    input_tensor: Tensor,
    weight: Tensor,
    *,
    layout: Layout | None = None,
    dtype: DataType | None = None,
    memory_config: MemoryConfig | None = None,
) -> Out:
    """Rows of `weight` by index."""
    need_dtype("embedding", "input_tensor", input_tensor, DataType.UINT32, DataType.BFLOAT16)
    need_dtype("embedding", "weight", weight, DataType.BFLOAT16)
    need_layout("embedding", "weight", weight, Layout.ROW_MAJOR)
    table = weight.logical.reshape(weight.shape[-2], weight.shape[-1])
    ids = input_tensor.logical.reshape(input_tensor.shape[0], input_tensor.shape[-1])
    require(
        "embedding",
        bool(((ids >= 0) & (ids < table.shape[0])).all()),
        f"an index lies outside the table's {table.shape[0]} rows",
    )
    return Out(
        torch.nn.functional.embedding(ids, table), dtype or weight.dtype, layout or Layout.ROW_MAJOR, memory_config
    )


@op("plus_one")
def plus_one(input_tensor: Tensor, *, skip_negative_entries: bool = False) -> InPlace:
    """Every entry one more, in place; or only those from 0 up to the last that can be."""
    need_dtype("plus_one", "input_tensor", input_tensor, DataType.INT32, DataType.UINT32)
    need_layout("plus_one", "input_tensor", input_tensor, Layout.ROW_MAJOR)

    def write() -> None:
        values = writable(input_tensor)
        values += ((values >= 0) & (values < 2**31 - 1)).to(values.dtype) if skip_negative_entries else 1

    return InPlace(input_tensor, write)


@op("argmax")
def argmax(
    input_tensor: Tensor, dim: int | None = None, keepdim: bool = False, *, memory_config: MemoryConfig | None = None
) -> Out:
    """Index of the largest element of each row; the first among equals."""
    if dim is None or dim not in (-1, len(input_tensor.shape) - 1):
        need_layout("argmax", "input_tensor", input_tensor, Layout.ROW_MAJOR)
    need_dtype("argmax", "input_tensor", input_tensor, DataType.BFLOAT16, DataType.FLOAT32)
    values = input_tensor.f32
    index = values.argmax() if dim is None else values.argmax(dim=dim, keepdim=keepdim)
    if dim is None and keepdim:
        index = index.view([1] * values.ndim)
    return Out(index, DataType.UINT32, Layout.ROW_MAJOR, memory_config)
