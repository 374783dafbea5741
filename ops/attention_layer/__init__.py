"""A gated full-attention decoder layer."""

from __future__ import annotations

from typing import Any

from ops.attention_layer import op, reference
from ops.attention_layer.cases import CASES, DECODE_CASES
from ops.gdn_layer.op import MlpWeights
from ops.registry import Op, Output


def _weights(w: dict[str, Any]) -> op.AttentionWeights:
    return op.AttentionWeights(
        **{name: w[name] for name in ("norm", "qkv", "q_norm", "k_norm", "out")},
        gate=w["gate_weight"],
        mlp=MlpWeights(w["mlp_norm"], w["gate"], w["up"], w["down"]),
    )


def prefill(ttnn: Any, x: Any, *, shape: op.AttentionShape, **w: Any) -> tuple[Any, ...]:
    """One step."""
    tables = op.PrefillTables(w["page_table"], w["fill_table"], w["chunk_start_idx"], w["cos"], w["sin"])
    cache = op.KvCache(w["k_cache"], w["v_cache"])
    return op.prefill(ttnn, x, _weights(w), shape, cache, tables), cache.k, cache.v


def decode(ttnn: Any, x: Any, *, shape: op.AttentionShape, **w: Any) -> tuple[Any, ...]:
    """One token of each row."""
    tables = op.DecodeTables(w["page_table"], w["positions"], w["cos"], w["sin"])
    cache = op.KvCache(w["k_cache"], w["v_cache"])
    return op.decode(ttnn, x, _weights(w), shape, cache, tables), cache.k, cache.v


CACHES = (Output("k_cache", {"block": 0}), Output("v_cache", {"block": 0}))
OPS = (
    Op(
        "attention_layer_prefill",
        reference.prefill,
        {"paged": prefill},
        CASES,
        (Output("x", {"token": 1}), *CACHES),
    ),
    Op(
        "attention_layer_decode",
        reference.decode,
        {"paged": decode},
        DECODE_CASES,
        (Output("x", {"sequence": 1}), *CACHES),
    ),
)
