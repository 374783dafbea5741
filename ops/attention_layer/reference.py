"""A gated full-attention decoder layer. Source: transformers `Qwen3_5DecoderLayer` with `Qwen3_5Attention`."""

from __future__ import annotations

from typing import Any

import torch

from ops.attention_layer.op import AttentionShape
from ops.gated_attention import reference as gated_attention
from ops.gdn_layer.reference import feed_forward
from ops.rms_norm.reference import rms_norm


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate whole heads, whose entries are in the op's order; x [1, heads, T, D], cos and sin [1, 1, T, D]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def _layer(x: torch.Tensor, shape: AttentionShape, attend: Any, w: dict[str, Any], **tables: Any) -> tuple[Any, ...]:
    h = rms_norm(x, w["norm"], eps=shape.eps)[0]
    dim = w["q_norm"].shape[-1]
    heads = (h @ w["qkv"]).reshape(x.shape[1], -1, dim).transpose(0, 1).unsqueeze(0)
    q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
    q, k = (rms_norm(t, w[name], eps=shape.eps)[0] for t, name in ((q, "q_norm"), (k, "k_norm")))
    q, k = (_rotate(t, w["cos"], w["sin"]) for t in (q, k))
    out, k_cache, v_cache = attend(q, k, v, h @ w["gate_weight"], w["k_cache"], w["v_cache"], **tables)
    return feed_forward(x + out @ w["out"], w, shape.eps), k_cache, v_cache


def prefill(x: torch.Tensor, *, shape: AttentionShape, **w: Any) -> tuple[torch.Tensor, ...]:
    """One step: its output, and the caches with its K and V in them."""
    names = ("page_table", "fill_table", "chunk_start_idx")
    return _layer(x, shape, gated_attention.prefill, w, **{name: w[name] for name in names})


def decode(x: torch.Tensor, *, shape: AttentionShape, **w: Any) -> tuple[torch.Tensor, ...]:
    """One token of each row."""
    return _layer(x, shape, gated_attention.decode, w, page_table=w["page_table"], positions=w["positions"])
