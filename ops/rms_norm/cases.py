"""Shapes of the norm: a layer's input."""

from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec, normal


def case(name: str, s: ModelShape) -> Case:
    """The hidden states of a prefill step."""
    return Case(
        name,
        {
            "x": TensorSpec((1, s.tokens, s.hidden)),
            "gamma": TensorSpec((1, s.hidden), "float32", fill=normal(0.2, mean=1.0)),
        },
        {"eps": s.eps},
    )


CASES = [case(name, shape) for name, shape in SHAPES.items()]
