"""Shapes of a decode step's delta rule."""

from ops.chunk_gated_delta_rule.cases import gates
from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec, constant, normal


def case(name: str, s: ModelShape) -> Case:
    """One token of each row."""
    dim = s.gdn_dim
    return Case(
        name,
        {
            "q": TensorSpec((s.rows, 1, s.key_heads, dim)),
            "k": TensorSpec((s.rows, 1, s.key_heads, dim)),
            "v": TensorSpec((s.rows, 1, s.value_heads, dim)),
            **gates((s.rows, 1, s.value_heads)),
            "state": TensorSpec((s.rows, s.value_heads, dim, dim), "float32", fill=normal(0.3)),
            "inverse_root": TensorSpec((1, dim), "float32", fill=constant(dim**-0.5)),
        },
    )


CASES = [case(name, shape) for name, shape in SHAPES.items()]
