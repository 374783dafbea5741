"""A Gated DeltaNet decoder layer: the delta rule as token mixer, then the feed-forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ops.causal_conv import op as causal_conv
from ops.chunk_gated_delta_rule.op import Constants, chunk_gated_delta_rule
from ops.delta_gates.op import delta_gates
from ops.gated_rms_norm import op as gated_rms_norm
from ops.linear.op import linear
from ops.recurrent_gated_delta_rule.op import recurrent_gated_delta_rule
from ops.rms_norm.op import rms_norm
from ops.swiglu_mlp.op import swiglu_mlp


@dataclass(frozen=True)
class MlpWeights:
    """norm [1, D] float32 TILE; gate, up [D, F]; down [F, D] TILE."""

    norm: Any
    gate: Any
    up: Any
    down: Any


@dataclass(frozen=True)
class GdnWeights:
    """Weights of the token mixer. C = 2 key_dim + value_dim channels go through the convolution.

    qkvz            [D, C + value_dim]: q | k | v | z in one product, read in place by the ops that follow
    beta, decay     [D, HV]; dt_bias [1, HV] float32; neg_a [1, 1, HV] float32
    taps            four of [1, 1, C]; early_taps [1, 3, 1, C]; last_tap [1, 1, 1, C]: the same, for decode
    out_norm        [V] bfloat16 TILE; out_norm_rows [1, V] float32 TILE: the same, for decode
    out             [value_dim, D]
    """

    norm: Any
    qkvz: Any
    beta: Any
    decay: Any
    dt_bias: Any
    neg_a: Any
    taps: tuple[Any, Any, Any, Any]
    early_taps: Any
    last_tap: Any
    out_norm: Any
    out_norm_rows: Any
    out: Any
    mlp: MlpWeights


@dataclass(frozen=True)
class GdnShape:
    """Head counts and widths of the layer."""

    key_heads: int
    value_heads: int
    head_dim: int
    eps: float

    @property
    def key_dim(self) -> int:
        """Width of q, and of k."""
        return self.key_heads * self.head_dim

    @property
    def value_dim(self) -> int:
        """Width of v, z and the output."""
        return self.value_heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.key_dim + self.value_dim


@dataclass(frozen=True)
class GdnPrefillState:
    """One sequence being prefilled: recurrent_state [1, HV, K, V] float32 TILE, conv_state [1, 3, C] ROW_MAJOR."""

    recurrent_state: Any
    conv_state: Any


@dataclass(frozen=True)
class GdnDecodeState:
    """All sequences being decoded: recurrent_state [B, HV, K, V] float32, conv_state [1, 3, B, C]; TILE."""

    recurrent_state: Any
    conv_state: Any


def prefill(
    ttnn: Any,
    x: Any,
    weights: GdnWeights,
    shape: GdnShape,
    state: GdnPrefillState,
    constants: Constants,
    zero: Any,
    *,
    mask: Any = None,
    carry_rows: Any = None,
) -> Any:
    """One prefill step. With `mask` and `carry_rows`, padding reaches neither the state nor the carry.

    x           [1, T, D] bfloat16, TILE
    mask        [1, T, 1] float32 and carry_rows [1, 3] uint32 of a masked bucket; None where every token is real
    returns     [1, T, D]
    """
    h = rms_norm(ttnn, x, weights.norm, eps=shape.eps)
    projected = linear(ttnn, h, weights.qkvz)
    g, beta = delta_gates(ttnn, h, weights.beta, weights.decay, weights.dt_bias, weights.neg_a, mask=mask)
    q, k, v = causal_conv.prefill(
        ttnn, projected, state.conv_state, weights.taps, zero, key_dim=shape.key_dim, value_dim=shape.value_dim
    )
    if carry_rows is None:
        causal_conv.carry_full(ttnn, projected, state.conv_state)
    else:
        causal_conv.carry_masked(ttnn, projected, state.conv_state, carry_rows)
    o = chunk_gated_delta_rule(ttnn, q, k, v, g, beta, state.recurrent_state, constants)
    o = gated_rms_norm.fused(
        ttnn, o, projected, weights.out_norm, value_heads=shape.value_heads, z_offset=shape.conv_dim, eps=shape.eps
    )
    return feed_forward(ttnn, ttnn.add(x, linear(ttnn, o, weights.out)), weights.mlp, eps=shape.eps)


def decode(ttnn: Any, x: Any, weights: GdnWeights, shape: GdnShape, state: GdnDecodeState, inverse_root: Any) -> Any:
    """One token of each of B sequences. Rows without a sequence compute too; what they leave is overwritten by `store`.

    x [1, B, D] bfloat16, TILE; inverse_root [1, K] float32 TILE filled with K^-0.5; returns [1, B, D]
    """
    rows, key, channels = x.shape[1], shape.key_dim, shape.conv_dim
    h = rms_norm(ttnn, x, weights.norm, eps=shape.eps)
    projected = linear(ttnn, h, weights.qkvz)
    g, beta = delta_gates(ttnn, h, weights.beta, weights.decay, weights.dt_bias, weights.neg_a)
    qkv = ttnn.reshape(ttnn.slice(projected, [0, 0, 0], [1, rows, channels]), (1, 1, rows, channels))
    qkv = causal_conv.decode(ttnn, qkv, state.conv_state, weights.early_taps, weights.last_tap)

    def heads(begin: int, end: int) -> Any:
        part = ttnn.slice(qkv, [0, 0, 0, begin], [1, 1, rows, end])
        return ttnn.reshape(part, (rows, 1, (end - begin) // shape.head_dim, shape.head_dim))

    o = recurrent_gated_delta_rule(
        ttnn,
        heads(0, key),
        heads(key, 2 * key),
        heads(2 * key, channels),
        ttnn.reshape(g, (rows, 1, shape.value_heads)),
        ttnn.reshape(beta, (rows, 1, shape.value_heads)),
        state.recurrent_state,
        inverse_root,
    )
    o = gated_rms_norm.composed(
        ttnn, o, projected, weights.out_norm_rows, value_heads=shape.value_heads, z_offset=channels, eps=shape.eps
    )
    return feed_forward(ttnn, ttnn.add(x, linear(ttnn, o, weights.out)), weights.mlp, eps=shape.eps)


def store(ttnn: Any, prefilled: GdnPrefillState, decoding: GdnDecodeState, slot: Any, row_mask: Any) -> None:
    """Hand a prefilled sequence's state over to its decode row.

    slot [1, 1] int32 ROW_MAJOR; row_mask [1, 1, B, 1] bfloat16 TILE, 1 in that row
    """
    # The decode states are a paged cache of one block per sequence: heads, K rows, V columns.
    ttnn.experimental.paged_fill_cache(decoding.recurrent_state, prefilled.recurrent_state, slot, batch_idx=0)
    causal_conv.store(ttnn, prefilled.conv_state, decoding.conv_state, row_mask)


def feed_forward(ttnn: Any, x: Any, mlp: MlpWeights, *, eps: float) -> Any:
    """x + MLP(norm(x)); [1, T, D] bfloat16, TILE."""
    h = rms_norm(ttnn, x, mlp.norm, eps=eps)
    return ttnn.add(x, swiglu_mlp(ttnn, h, mlp.gate, mlp.up, mlp.down))
