"""Matrix product with a weight, float32 accumulation."""

from typing import Any

from ops.compute import for_weight


def linear(ttnn: Any, x: Any, weight: Any, *, bias: Any = None, dtype: Any = None) -> Any:
    """x @ weight + bias.

    x       [..., K] bfloat16, TILE
    weight  [K, N] bfloat16, bfloat8_b, bfloat4_b or float32, TILE (the checkpoint's [N, K], transposed)
    bias    [1, N] or None
    returns [..., N] in `dtype` (a ttnn dtype; x's when None)
    """
    config = for_weight(ttnn, x.device(), weight)
    return ttnn.linear(x, weight, bias=bias, dtype=dtype, compute_kernel_config=config)
