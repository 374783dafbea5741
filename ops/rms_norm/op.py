"""RMSNorm with a zero-centred weight, as Qwen3.5 stores it."""

from typing import Any

from ops.compute import precise


def rms_norm(ttnn: Any, x: Any, gamma: Any, *, eps: float) -> Any:
    """x / sqrt(mean(x^2) + eps) * gamma over the last axis.

    x      [..., D] bfloat16 or float32, TILE
    gamma  [1, D] float32, TILE: 1 + the checkpoint's weight (bfloat16 would drop the low bits of the sum)
    returns [..., D] in x's dtype
    Source: transformers `Qwen3_5RMSNorm`.
    """
    return ttnn.rms_norm(x, epsilon=eps, weight=gamma, compute_kernel_config=precise(ttnn, x.device()))
