"""A Gated DeltaNet decoder layer. Source: transformers `Qwen3_5DecoderLayer` with `Qwen3_5GatedDeltaNet`."""

from __future__ import annotations

from typing import Any

import torch

from ops.causal_conv.reference import convolve
from ops.chunk_gated_delta_rule.reference import gated_delta_rule
from ops.delta_gates.reference import delta_gates
from ops.gated_rms_norm.reference import gated_rms_norm
from ops.gdn_layer.op import GdnShape
from ops.rms_norm.reference import rms_norm
from ops.swiglu_mlp.reference import swiglu_mlp

Weights = dict[str, torch.Tensor]


def mix(
    x: torch.Tensor, recurrent_state: torch.Tensor, conv_state: torch.Tensor, w: Weights, shape: GdnShape
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x [T, D], recurrent_state [HV, K, V], conv_state [3, C]: the layer's output and the states after it."""
    h = rms_norm(x, w["norm"], eps=shape.eps)[0]
    projected = h @ w["qkvz"]
    taps = torch.stack([w[f"tap{i}"].reshape(-1) for i in range(4)])
    qkv = convolve(projected[:, : shape.conv_dim], conv_state, taps)
    q, k, v = (
        t.reshape(len(x), -1, shape.head_dim) for t in qkv.split([shape.key_dim, shape.key_dim, shape.value_dim], 1)
    )
    g, beta = delta_gates(h.unsqueeze(0), w["beta"], w["decay"], w["dt_bias"], w["neg_a"])
    o, recurrent_state = gated_delta_rule(q, k, v, g[0], beta[0], recurrent_state)
    o = gated_rms_norm(
        o, projected.unsqueeze(0), w["out_norm"], value_heads=shape.value_heads, z_offset=shape.conv_dim, eps=shape.eps
    )[0]
    y = x + o[0] @ w["out"]
    conv_state = torch.cat([conv_state, projected[:, : shape.conv_dim]])[-3:]
    return feed_forward(y, w, shape.eps), recurrent_state, conv_state


def feed_forward(x: torch.Tensor, w: Weights, eps: float) -> torch.Tensor:
    """x + MLP(norm(x))."""
    return x + swiglu_mlp(rms_norm(x, w["mlp_norm"], eps=eps)[0], w["gate"], w["up"], w["down"])[0]


def prefill(
    x: torch.Tensor, recurrent_state: torch.Tensor, conv_state: torch.Tensor, *, shape: GdnShape, **w: Any
) -> tuple[torch.Tensor, ...]:
    """One step of one sequence; what comes after `mask` is padding and comes back as 0."""
    valid = int(w["mask"].sum()) if "mask" in w else x.shape[1]
    out, state, conv = mix(x[0, :valid], recurrent_state[0], conv_state[0], w, shape)
    padded = torch.zeros_like(x)
    padded[0, :valid] = out
    return padded, state.unsqueeze(0), conv.unsqueeze(0)


def decode(
    x: torch.Tensor, recurrent_state: torch.Tensor, conv_state: torch.Tensor, *, shape: GdnShape, **w: Any
) -> tuple[torch.Tensor, ...]:
    """x [1, B, D], recurrent_state [B, HV, K, V], conv_state [1, 3, B, C]: one token of each row."""
    rows = [mix(x[0, b : b + 1], recurrent_state[b], conv_state[0, :, b], w, shape) for b in range(x.shape[1])]
    out, states, convs = zip(*rows, strict=True)
    return torch.stack(out, dim=1), torch.stack(states), torch.stack(convs, dim=1).unsqueeze(0)
