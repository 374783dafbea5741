"""Attention over a paged cache, its cache writes, heads and rotary embedding."""

from __future__ import annotations

from typing import Any

import torch

from ttkern.targets.emulated.block_float import round_to_block_float
from ttkern.targets.emulated.dispatch import InPlace, Out, need_dtype, need_layout, op, require, writable
from ttkern.targets.emulated.ops_data import FLOATS, like
from ttkern.targets.emulated.tensor import Tensor
from ttkern.targets.emulated.types import TILE, DataType, Layout, MemoryConfig, SDPAProgramConfig

STICK = 8  # a page table's row is read in units of 32 bytes


@op("experimental.nlp_create_qkv_heads")
def nlp_create_qkv_heads(
    input: Tensor,
    input_kv: Tensor | None = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    transpose_k_heads: bool = True,
    memory_config: MemoryConfig | None = None,
) -> list[Out]:
    """[B, 1, S, (q + 2 kv) * D] into heads."""
    name = "nlp_create_qkv_heads"
    need_layout(name, "input", input, Layout.TILE)
    kv = num_kv_heads or num_heads
    batch, one, tokens, width = input.shape
    require(name, one == 1, f"input is {list(input.shape)}; axis 1 must be 1")
    require(name, width % (num_heads + 2 * kv) == 0, f"width {width} does not split into {num_heads} + 2 x {kv} heads")
    dim = width // (num_heads + 2 * kv)
    require(name, dim % TILE == 0, f"head_dim is {dim}; it must be a multiple of {TILE}")
    heads = input.logical.view(batch, tokens, num_heads + 2 * kv, dim).transpose(1, 2)
    q, k, v = heads.split([num_heads, kv, kv], dim=1)
    return [like(input, t, memory_config) for t in (q, k.transpose(-1, -2) if transpose_k_heads else k, v)]


@op("experimental.nlp_concat_heads")
def nlp_concat_heads(input: Tensor, *, memory_config: MemoryConfig | None = None) -> Out:
    """[B, H, S, D] into [B, 1, S, H * D]."""
    need_layout("nlp_concat_heads", "input", input, Layout.TILE)
    batch, heads, tokens, dim = input.shape
    return like(input, input.logical.transpose(1, 2).reshape(batch, 1, tokens, heads * dim), memory_config)


@op("experimental.rotary_embedding_hf")
def rotary_embedding_hf(
    input_tensor: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    is_decode_mode: bool = False,
    memory_config: MemoryConfig | None = None,
    compute_kernel_config: Any = None,
) -> Out:
    """x * cos + rotate_half(x) * sin over the whole head."""
    name = "rotary_embedding_hf"
    for argument, tensor in (("input_tensor", input_tensor), ("cos_cache", cos_cache), ("sin_cache", sin_cache)):
        need_layout(name, argument, tensor, Layout.TILE)
    require(name, not is_decode_mode, "decode mode is not emulated; treat the batch as a sequence")
    dim = input_tensor.padded_shape[-1]
    require(
        name, dim == TILE or dim % (2 * TILE) == 0, f"head_dim is {dim}; it must be {TILE} or a multiple of {2 * TILE}"
    )
    wanted = (1, 1, input_tensor.shape[2], input_tensor.shape[3])
    for argument, tensor in (("cos_cache", cos_cache), ("sin_cache", sin_cache)):
        require(name, tensor.shape == wanted, f"{argument} is {list(tensor.shape)}; wanted {list(wanted)}")
    x, half = input_tensor.f32, input_tensor.shape[3] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return like(input_tensor, torch.addcmul(x * cos_cache.f32, turned, sin_cache.f32), memory_config)


@op("experimental.paged_fill_cache")
def paged_fill_cache(
    cache_tensor: Tensor,
    input_tensor: Tensor,
    page_table: Tensor,
    *,
    batch_idx: int = 0,
    batch_idx_tensor: Tensor | None = None,
) -> InPlace:
    """Copy whole tiles of K or V into the blocks that a page table names."""
    name = "paged_fill_cache"
    _page_table(name, page_table)
    need_dtype(name, "input_tensor", input_tensor, cache_tensor.dtype)
    need_layout(name, "cache_tensor", cache_tensor, Layout.TILE)
    need_layout(name, "input_tensor", input_tensor, Layout.TILE)
    blocks, heads, block, dim = cache_tensor.shape
    require(name, batch_idx_tensor is None, "batch_idx_tensor is not emulated")
    require(
        name,
        input_tensor.shape[0] == 1 and input_tensor.shape[1] == heads and input_tensor.padded_shape[3] == dim,
        f"input is {list(input_tensor.shape)}; wanted [1, {heads}, S, {dim}]",
    )
    # The kernel moves tiles as they lie, padding included.
    data = input_tensor.cell.data[0]
    tokens = data.shape[1]
    need = -(-tokens // block)
    require(name, page_table.shape[1] >= need, f"page table has {page_table.shape[1]} entries for {need} blocks")
    table = page_table.logical[batch_idx]

    def write() -> None:
        ids = table[:need].long()
        require(
            name, bool(((ids >= 0) & (ids < blocks)).all()), f"a block outside the cache's {blocks}: {ids.tolist()}"
        )
        cache = writable(cache_tensor)
        full = tokens // block
        if full:
            cache[ids[:full]] = data[:, : full * block].view(heads, full, block, dim).transpose(0, 1)
        if full < need:
            cache[ids[full], :, : tokens - full * block] = data[:, full * block :]

    return InPlace(cache_tensor, write)


@op("experimental.paged_update_cache")
def paged_update_cache(
    cache_tensor: Tensor,
    input_tensor: Tensor,
    *,
    update_idxs_tensor: Tensor,
    page_table: Tensor,
    share_cache: bool | None = None,
) -> InPlace:
    """Write one token per sequence."""
    name = "paged_update_cache"
    _page_table(name, page_table)
    need_dtype(name, "input_tensor", input_tensor, DataType.FLOAT32, DataType.BFLOAT16)
    need_dtype(name, "update_idxs_tensor", update_idxs_tensor, DataType.INT32)
    require(name, input_tensor.is_sharded(), "input_tensor must be height sharded, one sequence per core")
    blocks, heads, block, dim = cache_tensor.shape
    one, rows, kv, width = input_tensor.shape
    require(
        name,
        page_table.shape[-1] <= blocks,
        f"the page table has {page_table.shape[-1]} blocks a row, the cache {blocks} in all",
    )
    require(
        name, (one, kv, width) == (1, heads, dim), f"input is {list(input_tensor.shape)}; wanted [1, B, {heads}, {dim}]"
    )
    values = input_tensor.logical[0]

    def write() -> None:
        positions = update_idxs_tensor.logical.long()
        require(name, bool((positions < page_table.shape[1] * block).all()), "a position beyond the page table")
        ids = page_table.logical.long()[torch.arange(rows), positions.clamp(min=0) // block]
        cache = writable(cache_tensor)
        for row in range(rows):
            if positions[row] >= 0:
                _write_row(cache_tensor, cache, int(ids[row]), int(positions[row]) % block, values[row])

    return InPlace(cache_tensor, write)


def _write_row(tensor: Tensor, cache: torch.Tensor, block: int, offset: int, values: torch.Tensor) -> None:
    """One token's heads into a block, packed in the cache's dtype."""
    if tensor.dtype.is_block_float and not tensor.exact:
        values = round_to_block_float(values.float(), 7 if tensor.dtype is DataType.BFLOAT8_B else 3)
    cache[block, :, offset] = values.to(cache.dtype)


def _page_table(name: str, page_table: Tensor) -> None:
    need_dtype(name, "page_table", page_table, DataType.INT32)
    need_layout(name, "page_table", page_table, Layout.ROW_MAJOR)


def _gather(cache: Tensor, blocks: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` tokens of a sequence: [kv_heads, length, D] float32."""
    pages = cache.logical[blocks]
    count, heads, block, dim = pages.shape
    return pages.transpose(0, 1).reshape(heads, count * block, dim)[:, :length].float()


@op("transformer.chunked_scaled_dot_product_attention")
def chunked_scaled_dot_product_attention(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    page_table_tensor: Tensor,
    chunk_start_idx: int | None = None,
    *,
    chunk_start_idx_tensor: Tensor | None = None,
    scale: float | None = None,
    memory_config: MemoryConfig | None = None,
    program_config: SDPAProgramConfig | None = None,
    compute_kernel_config: Any = None,
) -> Out:
    """Causal attention of a chunk of queries over the cache up to and including it."""
    name = "chunked_scaled_dot_product_attention"
    q, k, v = input_tensor_q, input_tensor_k, input_tensor_v
    _page_table(name, page_table_tensor)
    for argument, tensor in (("input_tensor_q", q), ("input_tensor_k", k), ("input_tensor_v", v)):
        need_layout(name, argument, tensor, Layout.TILE)
        need_dtype(name, argument, tensor, *FLOATS)
    width = page_table_tensor.shape[1]
    require(
        name, width % STICK == 0, f"page table is {width} wide; page table stick size must be a multiple of 32 bytes"
    )
    if chunk_start_idx_tensor is not None:
        need_dtype(name, "chunk_start_idx_tensor", chunk_start_idx_tensor, DataType.INT32)
        start = int(chunk_start_idx_tensor.logical[0])
    else:
        require(name, chunk_start_idx is not None, "give chunk_start_idx or chunk_start_idx_tensor")
        start = int(chunk_start_idx or 0)
    batch, heads, tokens, dim = q.shape
    require(name, batch == 1, f"batch is {batch}; one sequence at a time is emulated")
    for argument, size in (
        ("q_chunk_size", program_config.q_chunk_size if program_config else TILE),
        ("k_chunk_size", program_config.k_chunk_size if program_config else TILE),
    ):
        require(name, size > 0 and size % TILE == 0, f"{argument} is {size}; it must be a multiple of {TILE}")
        require(name, start % size == 0, f"chunk start {start} is not a multiple of {argument} {size}")
    kv_heads, block = k.shape[1], k.shape[2]
    end = start + tokens
    require(name, end <= width * block, f"chunk ends at {end}, the page table holds {width * block} tokens")
    blocks = page_table_tensor.logical[0, : -(-end // block)].long()
    require(name, bool(((blocks >= 0) & (blocks < k.shape[0])).all()), f"a block outside the cache's {k.shape[0]}")
    scale = dim**-0.5 if scale is None else scale
    keys, values, queries = _gather(k, blocks, end), _gather(v, blocks, end), q.f32
    out = _causal(queries, keys, values, start, heads // kv_heads, scale)
    return like(q, out, memory_config)


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, group: int, scale: float) -> torch.Tensor:
    """q [1, H, T, D] at positions start..; k, v [kv, start + T, D]: [1, H, T, D].

    The tokens before the chunk need no mask, the chunk's own are plainly causal; the two parts are put together by
    their log-sum-exp. That takes two thirds of the time of one call with a mask.
    """
    if group > 1:
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    k, v = k.unsqueeze(0), v.unsqueeze(0)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    own, own_sum = flash(q, k[:, :, start:], v[:, :, start:], 0.0, True, scale=scale)
    if start == 0:
        return own
    earlier, earlier_sum = flash(q, k[:, :, :start], v[:, :, :start], 0.0, False, scale=scale)
    return torch.lerp(own, earlier, torch.sigmoid(earlier_sum - own_sum).unsqueeze(-1))


@op("transformer.paged_scaled_dot_product_attention_decode")
def paged_scaled_dot_product_attention_decode(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    page_table_tensor: Tensor,
    *,
    is_causal: bool = True,
    cur_pos_tensor: Tensor,
    scale: float | None = None,
    memory_config: MemoryConfig | None = None,
    program_config: SDPAProgramConfig | None = None,
    compute_kernel_config: Any = None,
) -> Out:
    """One query token per sequence over its cache; a position of -1 skips the row."""
    name = "paged_scaled_dot_product_attention_decode"
    q, k, v = input_tensor_q, input_tensor_k, input_tensor_v
    _page_table(name, page_table_tensor)
    need_dtype(name, "cur_pos_tensor", cur_pos_tensor, DataType.INT32)
    require(name, is_causal, "only causal decode is emulated")
    _, rows, heads, dim = q.shape
    kv_heads, block = k.shape[1], k.shape[2]
    scale = dim**-0.5 if scale is None else scale
    queries = q.f32[0].view(rows, kv_heads, heads // kv_heads, dim) * scale
    out = torch.zeros(rows, kv_heads, heads // kv_heads, dim)
    for row, position in enumerate(cur_pos_tensor.logical.tolist()):
        if position < 0:
            continue
        blocks = page_table_tensor.logical[row, : position // block + 1].long()
        keys, values = _gather(k, blocks, position + 1), _gather(v, blocks, position + 1)
        out[row] = torch.softmax(queries[row] @ keys.transpose(-1, -2), dim=-1) @ values
    return like(q, out.reshape(1, rows, heads, dim), memory_config)
