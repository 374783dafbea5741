"""Logits of a few rows."""

from typing import Any

from ops.linear.op import linear
from ops.rms_norm.op import rms_norm


def lm_head(ttnn: Any, x: Any, gamma: Any, weight: Any, *, eps: float) -> Any:
    """Final norm and projection onto the vocabulary.

    x       [1, N, D] bfloat16, TILE
    gamma   [1, D] float32, TILE; weight [D, vocab] TILE
    returns [1, N, vocab] float32, ROW_MAJOR: bfloat16 would tie the best two tokens every few steps; row-major is what
            argmax is fast on and what the host reads without untilizing
    """
    logits = linear(ttnn, rms_norm(ttnn, x, gamma, eps=eps), weight, dtype=ttnn.float32)
    return ttnn.to_layout(logits, ttnn.ROW_MAJOR_LAYOUT)
