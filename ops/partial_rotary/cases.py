"""Shapes of the rotary embedding: the query heads of a prefill step."""

import torch

from ops.model_shapes import SHAPES, ModelShape
from ops.partial_rotary.op import head_order, rotary_tables
from ops.registry import Case, Fill, TensorSpec, constant


def table_fill(s: ModelShape, which: int) -> Fill:
    """cos (0) or sin (1), made only when a case is run with data."""

    def fill(_: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
        return rotary_tables(shape[2], s.head_dim, s.rotary_dim, s.theta)[which].reshape(shape)

    return fill


def case(name: str, s: ModelShape) -> Case:
    """Positions of a step that begins at `start`."""
    table = (1, 1, s.blocks * s.block, s.head_dim)
    positions = torch.arange(s.start, s.start + s.tokens).reshape(1, -1)
    return Case(
        name,
        {
            "x": TensorSpec((1, s.heads, s.tokens, s.head_dim)),
            "positions": TensorSpec((1, s.tokens), "uint32", "row_major", constant(positions)),
            "cos_table": TensorSpec(table, layout="row_major", fill=table_fill(s, 0)),
            "sin_table": TensorSpec(table, layout="row_major", fill=table_fill(s, 1)),
        },
        {"order": head_order(s.head_dim, s.rotary_dim), "rotary_dim": s.rotary_dim, "theta": s.theta},
    )


CASES = [case(name, shape) for name, shape in SHAPES.items()]
