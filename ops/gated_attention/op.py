"""Causal attention over a paged KV cache, with a sigmoid-gated output.

Who owns which tokens of one sequence, at a prefill step of `T` tokens that starts at `start`:

    page_table   | block 7 | block 2 | block 9 | block 4 | scratch ... |   the sequence's blocks, at a fixed width
    positions    0 ........................ start ....... start + T
    fill_table                             | block 9 | block 4 |           THIS step's blocks, scratch past its end

Everything that differs between requests (start, tables) is data in a device tensor, so one trace serves all of them.
"""

from __future__ import annotations

from typing import Any

from ops.compute import precise


def split_heads(ttnn: Any, projected: Any, *, heads: int, kv_heads: int) -> tuple[Any, Any, Any]:
    """[1, T, (heads + 2 kv_heads) * D] -> q [1, heads, T, D], k and v [1, kv_heads, T, D]; columns are q | k | v."""
    tokens, width = projected.shape[1], projected.shape[2]
    return ttnn.experimental.nlp_create_qkv_heads(
        ttnn.reshape(projected, (1, 1, tokens, width)), num_heads=heads, num_kv_heads=kv_heads, transpose_k_heads=False
    )


def fill_cache(ttnn: Any, k: Any, v: Any, k_cache: Any, v_cache: Any, fill_table: Any) -> None:
    """Write this step's K and V into its own blocks.

    k, v        [1, kv_heads, T, D] bfloat16, TILE; cast first, because the op copies tiles as they are
    caches      [blocks, kv_heads, block_size, D] bfloat16, bfloat8_b or bfloat4_b, TILE
    fill_table  [1, >= T / block_size] int32, ROW_MAJOR
    """
    for new, cache in ((k, k_cache), (v, v_cache)):
        cast = new if new.dtype == cache.dtype else ttnn.typecast(new, cache.dtype)
        ttnn.experimental.paged_fill_cache(cache, cast, fill_table, batch_idx=0)


def prefill(
    ttnn: Any, q: Any, k_cache: Any, v_cache: Any, page_table: Any, chunk_start_idx: Any, *, chunk_size: int
) -> Any:
    """Attention of one prefill step over everything cached so far, the step included.

    q                [1, heads, T, D] bfloat16, TILE
    page_table       [1, W] int32, ROW_MAJOR; W a multiple of 8
    chunk_start_idx  [1] int32, ROW_MAJOR: position of the step's first token, a multiple of `chunk_size`
    chunk_size       tokens of q and of k that the kernel works on at once
    returns          [1, T, heads * D] bfloat16

    The scale is ttnn's default, D^-0.5: as an argument it would have to be a float32 exactly.
    """
    device = q.device()
    out = ttnn.transformer.chunked_scaled_dot_product_attention(
        q,
        k_cache,
        v_cache,
        page_table,
        chunk_start_idx_tensor=chunk_start_idx,
        program_config=ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=device.compute_with_storage_grid_size(),
            q_chunk_size=min(chunk_size, q.shape[2]),
            k_chunk_size=min(chunk_size, q.shape[2]),
            exp_approx_mode=False,
        ),
        compute_kernel_config=precise(ttnn, device),
    )
    return ttnn.reshape(ttnn.experimental.nlp_concat_heads(out), (1, q.shape[2], q.shape[1] * q.shape[3]))


def decode(
    ttnn: Any, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any, page_table: Any, positions: Any, *, k_chunk_size: int
) -> Any:
    """One token per sequence: write its K and V at `positions`, attend over everything up to it.

    q           [1, heads, B, D]; k, v [1, kv_heads, B, D]; bfloat16, TILE (rows are sequences)
    page_table  [B, W] int32, ROW_MAJOR
    positions   [B] int32, ROW_MAJOR; a row without a sequence has position 0 and a scratch block
    returns     [1, B, heads * D] bfloat16
    """
    device, rows, head_dim = q.device(), q.shape[2], q.shape[3]
    grid = device.compute_with_storage_grid_size()
    # The update reads each sequence's row from a core of its own.
    one_core_per_row = ttnn.create_sharded_memory_config(
        (32, head_dim),
        core_grid=ttnn.num_cores_to_corerangeset(rows, grid, True),
        strategy=ttnn.ShardStrategy.HEIGHT,
        use_height_and_width_as_shard_shape=True,
    )
    for new, cache in ((k, k_cache), (v, v_cache)):
        by_row = ttnn.to_memory_config(ttnn.transpose(new, 1, 2), one_core_per_row)
        ttnn.experimental.paged_update_cache(cache, by_row, update_idxs_tensor=positions, page_table=page_table)
    out = ttnn.transformer.paged_scaled_dot_product_attention_decode(
        ttnn.transpose(q, 1, 2),
        k_cache,
        v_cache,
        page_table,
        cur_pos_tensor=positions,
        program_config=ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=grid, q_chunk_size=0, k_chunk_size=k_chunk_size, exp_approx_mode=False
        ),
        compute_kernel_config=precise(ttnn, device),
    )
    return ttnn.reshape(out, (1, rows, q.shape[1] * head_dim))


def gate(ttnn: Any, out: Any, gate_logits: Any) -> Any:
    """out * sigmoid(gate_logits); both [1, T, heads * D] bfloat16, TILE. Source: transformers `Qwen3_5Attention`."""
    return ttnn.mul(out, gate_logits, input_tensor_b_activations=[ttnn.UnaryOpType.SIGMOID])
