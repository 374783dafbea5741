"""Shapes of the widest projection: q | k | v | z of a GDN layer."""

from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec, normal


def case(name: str, s: ModelShape) -> Case:
    """The fused projection of a prefill step."""
    width = s.conv_dim + s.value_dim
    return Case(
        name,
        {
            "x": TensorSpec((1, s.tokens, s.hidden)),
            "weight": TensorSpec((s.hidden, width), s.weight_dtype, fill=normal(s.hidden**-0.5)),
        },
    )


CASES = [case(name, shape) for name, shape in SHAPES.items()]
