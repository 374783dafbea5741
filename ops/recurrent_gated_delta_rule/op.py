"""The gated delta rule for one token of each of B sequences."""

from __future__ import annotations

from typing import Any

from ops.compute import precise

L2_EPS = 1e-6


def sequences_per_call(device: Any, value_heads: int) -> int:
    """The kernel gives each head of each sequence a core of its own: a p150 has 130."""
    grid = device.compute_with_storage_grid_size()
    return max(1, (grid.x * grid.y) // value_heads)


def l2_norm(ttnn: Any, x: Any, inverse_root: Any) -> Any:
    """x / sqrt(sum(x^2) + 1e-6) over the last axis, through RMSNorm: sum = K mean, so eps / K and a weight of K^-0.5.

    x             [B, 1, H, K] bfloat16, TILE
    inverse_root  [1, K] float32, TILE, filled with K^-0.5
    Source: transformers `l2norm`.
    """
    return ttnn.rms_norm(
        x, epsilon=L2_EPS / x.shape[3], weight=inverse_root, compute_kernel_config=precise(ttnn, x.device())
    )


def recurrent_gated_delta_rule(
    ttnn: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, inverse_root: Any
) -> Any:
    """Advance every sequence's state by its token.

    q, k     [B, 1, H, K] bfloat16, TILE, raw
    v        [B, 1, HV, V] bfloat16; g, beta [B, 1, HV] float32; TILE
    state    [B, HV, K, V] float32, TILE, overwritten
    returns  [B, 1, HV, V] float32
    Source: transformers `torch_recurrent_gated_delta_rule`.
    """
    rows, value_heads = v.shape[0], v.shape[2]
    q, k = l2_norm(ttnn, q, inverse_root), l2_norm(ttnn, k, inverse_root)
    group = sequences_per_call(state.device(), value_heads)
    outs, states = [], []
    for first in range(0, rows, group):
        part = [_rows(ttnn, t, first, min(first + group, rows)) for t in (q, k, v, g, beta, state)]
        out, new_state = ttnn.transformer.fused_recurrent_gated_delta_rule(
            *part[:5], initial_state=part[5], output_final_state=True
        )
        outs.append(out)
        states.append(new_state)
    if len(outs) == 1:
        ttnn.copy(states[0], state)
        return outs[0]
    ttnn.copy(ttnn.concat(states, dim=0), state)
    return ttnn.concat(outs, dim=0)


def _rows(ttnn: Any, tensor: Any, first: int, end: int) -> Any:
    if (first, end) == (0, tensor.shape[0]):
        return tensor
    rest = list(tensor.shape)[1:]
    return ttnn.slice(tensor, [first] + [0] * len(rest), [end, *rest])
