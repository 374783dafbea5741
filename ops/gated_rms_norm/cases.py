"""Shapes of the gated norm, after a prefill step and after a decode step."""

from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec, normal


def params(s: ModelShape) -> dict[str, float]:
    """Heads, and where z lies in the fused projection."""
    return {"value_heads": s.value_heads, "z_offset": s.conv_dim, "eps": s.eps}


def prefill_case(name: str, s: ModelShape) -> Case:
    """Head-major rows, as the chunked delta rule leaves them."""
    return Case(
        name,
        {
            "o": TensorSpec((s.value_heads, s.tokens, s.gdn_dim), "float32"),
            "projected": TensorSpec((1, s.tokens, s.conv_dim + s.value_dim)),
            "gamma": TensorSpec((s.gdn_dim,), fill=normal(0.2, mean=1.0)),
        },
        params(s),
    )


def decode_case(name: str, s: ModelShape) -> Case:
    """One row per sequence."""
    return Case(
        name,
        {
            "o": TensorSpec((s.rows, 1, s.value_heads, s.gdn_dim), "float32"),
            "projected": TensorSpec((1, s.rows, s.conv_dim + s.value_dim)),
            "gamma_rows": TensorSpec((1, s.gdn_dim), "float32", fill=normal(0.2, mean=1.0)),
        },
        params(s),
    )


PREFILL_CASES = [prefill_case(name, shape) for name, shape in SHAPES.items()]
DECODE_CASES = [decode_case(name, shape) for name, shape in SHAPES.items()]
