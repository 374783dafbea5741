"""A gated full-attention decoder layer: paged attention as token mixer, then the feed-forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ops.gated_attention import op as gated_attention
from ops.gdn_layer.op import MlpWeights, feed_forward
from ops.linear.op import linear
from ops.partial_rotary.op import rotate
from ops.rms_norm.op import rms_norm


@dataclass(frozen=True)
class AttentionWeights:
    """Weights of the token mixer. Head entries of q, k and their norms are in `partial_rotary.head_order`.

    qkv     [D, (heads + 2 kv_heads) * head_dim]: q | k | v
    gate    [D, heads * head_dim]
    q_norm, k_norm  [1, head_dim] float32, TILE
    out     [heads * head_dim, D]
    """

    norm: Any
    qkv: Any
    gate: Any
    q_norm: Any
    k_norm: Any
    out: Any
    mlp: MlpWeights


@dataclass(frozen=True)
class AttentionShape:
    """Head counts of the layer, and how many tokens the attention kernels work on at once."""

    heads: int
    kv_heads: int
    eps: float
    chunk_size: int


@dataclass(frozen=True)
class KvCache:
    """k, v: [blocks, kv_heads, block_size, head_dim] each, TILE."""

    k: Any
    v: Any


@dataclass(frozen=True)
class PrefillTables:
    """What one prefill step reads of the request: all device tensors, refreshed before a replay.

    page_table [1, W] int32; fill_table [1, F] int32; chunk_start_idx [1] int32; cos, sin [1, 1, T, head_dim]
    """

    page_table: Any
    fill_table: Any
    chunk_start_idx: Any
    cos: Any
    sin: Any


@dataclass(frozen=True)
class DecodeTables:
    """page_table [B, W] int32; positions [B] int32; cos, sin [1, 1, B, head_dim]."""

    page_table: Any
    positions: Any
    cos: Any
    sin: Any


def prefill(
    ttnn: Any, x: Any, weights: AttentionWeights, shape: AttentionShape, cache: KvCache, tables: PrefillTables
) -> Any:
    """One prefill step: [1, T, D] bfloat16, TILE in and out; K and V of its tokens are in the cache afterwards."""
    h = rms_norm(ttnn, x, weights.norm, eps=shape.eps)
    q, k, v = _rotated_heads(ttnn, h, weights, shape, tables.cos, tables.sin)
    gated_attention.fill_cache(ttnn, k, v, cache.k, cache.v, tables.fill_table)
    out = gated_attention.prefill(
        ttnn, q, cache.k, cache.v, tables.page_table, tables.chunk_start_idx, chunk_size=shape.chunk_size
    )
    return _close(ttnn, x, h, out, weights, shape)


def decode(
    ttnn: Any, x: Any, weights: AttentionWeights, shape: AttentionShape, cache: KvCache, tables: DecodeTables
) -> Any:
    """One token of each of B sequences: [1, B, D] bfloat16, TILE in and out."""
    h = rms_norm(ttnn, x, weights.norm, eps=shape.eps)
    q, k, v = _rotated_heads(ttnn, h, weights, shape, tables.cos, tables.sin)
    out = gated_attention.decode(
        ttnn, q, k, v, cache.k, cache.v, tables.page_table, tables.positions, k_chunk_size=shape.chunk_size
    )
    return _close(ttnn, x, h, out, weights, shape)


def _rotated_heads(
    ttnn: Any, h: Any, weights: AttentionWeights, shape: AttentionShape, cos: Any, sin: Any
) -> tuple[Any, Any, Any]:
    projected = linear(ttnn, h, weights.qkv)
    q, k, v = gated_attention.split_heads(ttnn, projected, heads=shape.heads, kv_heads=shape.kv_heads)
    q, k = rms_norm(ttnn, q, weights.q_norm, eps=shape.eps), rms_norm(ttnn, k, weights.k_norm, eps=shape.eps)
    return rotate(ttnn, q, cos, sin), rotate(ttnn, k, cos, sin), v


def _close(ttnn: Any, x: Any, h: Any, out: Any, weights: AttentionWeights, shape: AttentionShape) -> Any:
    gated = gated_attention.gate(ttnn, out, linear(ttnn, h, weights.gate))
    return feed_forward(ttnn, ttnn.add(x, linear(ttnn, gated, weights.out)), weights.mlp, eps=shape.eps)
