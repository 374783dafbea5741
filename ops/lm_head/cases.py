"""Shapes of the head: a tile of rows."""

from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec, normal


def case(name: str, s: ModelShape) -> Case:
    """32 rows."""
    return Case(
        name,
        {
            "x": TensorSpec((1, 32, s.hidden)),
            "gamma": TensorSpec((1, s.hidden), "float32", fill=normal(0.2, mean=1.0)),
            "weight": TensorSpec((s.hidden, s.vocab), s.weight_dtype, fill=normal(s.hidden**-0.5)),
        },
        {"eps": s.eps},
    )


CASES = [case(name, shape) for name, shape in SHAPES.items()]
