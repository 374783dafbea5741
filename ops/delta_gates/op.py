"""The delta rule's two gates: beta (how much a token writes) and g (log of how much of the state survives it)."""

from __future__ import annotations

from typing import Any

from ops.linear.op import linear


def delta_gates(
    ttnn: Any, x: Any, w_beta: Any, w_decay: Any, dt_bias: Any, neg_a: Any, *, mask: Any = None
) -> tuple[Any, Any]:
    """beta = sigmoid(x W_b), g = -exp(A_log) * softplus(x W_a + dt_bias), both neutral (0) where `mask` is 0.

    Sigmoid and softplus ride on a multiply: as ops of their own they cost ~10x as much host time.

    x                [1, T, D] bfloat16, TILE
    w_beta, w_decay  [D, HV] bfloat16, TILE; dt_bias [1, HV] float32; neg_a [1, 1, HV] float32: -exp(A_log)
    mask             [1, T, 1] float32, TILE, 1 for a real token and 0 for padding; None when all are real
    returns          g, beta [1, T, HV] float32, TILE
    Source: transformers `Qwen3_5GatedDeltaNet.forward`.
    """
    softplus = ttnn.UnaryWithParam(ttnn.UnaryOpType.SOFTPLUS, 1.0, 20.0)
    write = linear(ttnn, x, w_beta, dtype=ttnn.float32)
    decay = ttnn.add(linear(ttnn, x, w_decay, dtype=ttnn.float32), dt_bias, activations=[softplus])
    beta = ttnn.mul(write, 1.0 if mask is None else mask, input_tensor_a_activations=[ttnn.UnaryOpType.SIGMOID])
    g = ttnn.mul(decay, neg_a)
    return (g if mask is None else ttnn.mul(g, mask)), beta
