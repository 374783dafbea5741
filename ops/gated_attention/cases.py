"""Shapes of paged attention. Blocks lie in no order; the last block is scratch and belongs to no sequence."""

import torch

from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec, constant


def shuffled(s: ModelShape) -> torch.Tensor:
    """The blocks that sequences own, in an order of no meaning."""
    return torch.randperm(s.blocks, generator=torch.Generator().manual_seed(7))


def table(s: ModelShape, blocks: torch.Tensor) -> TensorSpec:
    """Page tables [rows, W] that end in scratch."""
    rows = torch.full((blocks.shape[0], s.table_width), s.blocks, dtype=torch.int64)
    rows[:, : blocks.shape[1]] = blocks
    return TensorSpec(tuple(rows.shape), "int32", "row_major", constant(rows))


def caches(s: ModelShape, dtype: str = "bfloat16") -> dict[str, TensorSpec]:
    """K and V with what came before."""
    cache = TensorSpec((s.blocks + 1, s.kv_heads, s.block, s.head_dim), dtype)
    return {"k_cache": cache, "v_cache": cache}


def prefill_tables(s: ModelShape) -> dict[str, TensorSpec]:
    """A step that begins at `start`."""
    blocks = shuffled(s)[: (s.start + s.tokens) // s.block]
    fill = blocks[s.start // s.block :].reshape(1, -1)
    return {
        "page_table": table(s, blocks.reshape(1, -1)),
        "fill_table": TensorSpec(tuple(fill.shape), "int32", "row_major", constant(fill)),
        "chunk_start_idx": TensorSpec((1,), "int32", "row_major", constant(s.start)),
    }


def decode_tables(s: ModelShape) -> dict[str, TensorSpec]:
    """Rows at positions of their own; the last row has no sequence: position 0 of scratch."""
    each = s.blocks // s.rows
    blocks = shuffled(s)[: each * s.rows].reshape(s.rows, each).clone()
    blocks[-1] = s.blocks
    positions = (torch.arange(s.rows) * 37 + 5) % (each * s.block)
    positions[-1] = 0
    return {
        "page_table": table(s, blocks),
        "positions": TensorSpec((s.rows,), "int32", "row_major", constant(positions)),
    }


def heads(s: ModelShape, tokens: int) -> dict[str, TensorSpec]:
    """q, k, v and the gate's logits."""
    return {
        "q": TensorSpec((1, s.heads, tokens, s.head_dim)),
        "k": TensorSpec((1, s.kv_heads, tokens, s.head_dim)),
        "v": TensorSpec((1, s.kv_heads, tokens, s.head_dim)),
        "gate_logits": TensorSpec((1, tokens, s.heads * s.head_dim)),
    }


CASES = [
    Case(name, {**heads(s, s.tokens), **caches(s), **prefill_tables(s)}, {"chunk_size": s.attention_chunk})
    for name, s in SHAPES.items()
]
DECODE_CASES = [
    Case(name, {**heads(s, s.rows), **caches(s), **decode_tables(s)}, {"k_chunk_size": s.attention_chunk})
    for name, s in SHAPES.items()
]
