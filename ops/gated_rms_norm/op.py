"""Per-head RMSNorm of the delta rule's output, times SiLU(z)."""

from typing import Any

from ops.compute import precise


def fused(ttnn: Any, o: Any, projected: Any, gamma: Any, *, value_heads: int, z_offset: int, eps: float) -> Any:
    """norm(o) * gamma * SiLU(z), read where it lies: one kernel that also brings head-major rows back to token-major.

    SiLU(z) is sigmoid(z) * z, and ttnn has the norm with the sigmoid gate as one op, so one multiply is left.

    o          [HV, T, V] float32, TILE, head-major; T a multiple of 32
    projected  [1, T, W] bfloat16, TILE; z in columns [z_offset, z_offset + HV * V), z_offset a multiple of 32
    gamma      [V] bfloat16, TILE (plain weight, not zero-centred)
    returns    [1, T, HV * V] bfloat16
    Source: transformers `Qwen3_5RMSNormGated`.
    """
    tokens, width = o.shape[1], value_heads * o.shape[2]
    normed = ttnn.experimental.kda.sigmoid_gated_rms_norm(
        o, projected, gamma, value_heads, epsilon=eps, gate_column_offset=z_offset, output_dtype=ttnn.bfloat16
    )
    z = ttnn.slice(projected, [0, 0, z_offset], [1, tokens, z_offset + width])
    return ttnn.mul(normed, z)


def composed(ttnn: Any, o: Any, projected: Any, gamma_rows: Any, *, value_heads: int, z_offset: int, eps: float) -> Any:
    """The same from a norm and a multiply, for token-major rows of any number (decode).

    o           [B, 1, HV, V] float32, TILE
    projected   [1, B, W] bfloat16, TILE; z as in `fused`
    gamma_rows  [1, V] float32, TILE
    returns     [1, B, HV * V] bfloat16
    """
    rows, width = o.shape[0], value_heads * o.shape[3]
    normed = ttnn.rms_norm(o, epsilon=eps, weight=gamma_rows, compute_kernel_config=precise(ttnn, o.device()))
    z = ttnn.slice(projected, [0, 0, z_offset], [1, rows, z_offset + width])
    flat = ttnn.reshape(normed, (1, rows, width))
    return ttnn.mul(flat, z, input_tensor_b_activations=[ttnn.UnaryOpType.SILU], dtype=ttnn.bfloat16)
