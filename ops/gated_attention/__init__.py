"""Causal attention over a paged KV cache, with a sigmoid-gated output."""

from typing import Any

from ops.gated_attention import op, reference
from ops.gated_attention.cases import CASES, DECODE_CASES
from ops.registry import Op, Output


def fill_then_attend(
    ttnn: Any,
    q: Any,
    k: Any,
    v: Any,
    gate_logits: Any,
    k_cache: Any,
    v_cache: Any,
    page_table: Any,
    fill_table: Any,
    chunk_start_idx: Any,
    chunk_size: int,
) -> tuple[Any, Any, Any]:
    """Write the step's blocks, then attend over all of them."""
    op.fill_cache(ttnn, k, v, k_cache, v_cache, fill_table)
    out = op.prefill(ttnn, q, k_cache, v_cache, page_table, chunk_start_idx, chunk_size=chunk_size)
    return op.gate(ttnn, out, gate_logits), k_cache, v_cache


def update_then_attend(
    ttnn: Any, q: Any, k: Any, v: Any, gate_logits: Any, k_cache: Any, v_cache: Any, **tables: Any
) -> tuple[Any, Any, Any]:
    """Write each row's token, then attend."""
    return op.gate(ttnn, op.decode(ttnn, q, k, v, k_cache, v_cache, **tables), gate_logits), k_cache, v_cache


CACHES = (Output("k_cache", {"block": 0}), Output("v_cache", {"block": 0}))
OPS = (
    Op(
        "gated_attention_prefill",
        reference.prefill,
        {"paged": fill_then_attend},
        CASES,
        (Output("out", {"token": 1}), *CACHES),
    ),
    Op(
        "paged_attention_decode",
        reference.decode,
        {"paged": update_then_attend},
        DECODE_CASES,
        (Output("out", {"sequence": 1}), *CACHES),
    ),
)
