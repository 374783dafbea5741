"""Shapes of the embedding."""

from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec, integers


def case(name: str, s: ModelShape) -> Case:
    """A prefill step's tokens."""
    return Case(
        name,
        {
            "ids": TensorSpec((1, s.tokens), "uint32", "row_major", integers(0, s.vocab)),
            "table": TensorSpec((1, 1, s.vocab, s.hidden), layout="row_major"),
        },
    )


CASES = [case(name, shape) for name, shape in SHAPES.items()]
