"""Shapes of one layer's state, of one sequence and of all decode rows."""

from __future__ import annotations

import torch

from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec, constant, normal


def snapshot_case(name: str, s: ModelShape) -> Case:
    """A state, and the one that overwrites it."""
    recurrent = TensorSpec((1, s.value_heads, s.gdn_dim, s.gdn_dim), "float32", fill=normal(0.3))
    conv = TensorSpec((1, 3, s.conv_dim), layout="row_major")
    return Case(
        name,
        {"recurrent_state": recurrent, "conv_state": conv, "later_recurrent": recurrent, "later_conv": conv},
    )


def extract_case(name: str, s: ModelShape) -> Case:
    """The last row but one."""
    row, heads, k = s.rows - 2, s.value_heads, s.gdn_dim
    index = {"dtype": "uint32", "layout": "row_major"}
    return Case(
        name,
        {
            "recurrent_state": TensorSpec((s.rows, heads, k, k), "float32", fill=normal(0.3)),
            "conv_state": TensorSpec((1, 3, s.rows, s.conv_dim)),
            "begin": TensorSpec((4,), fill=constant(torch.tensor([row, 0, 0, 0])), **index),
            "end": TensorSpec((4,), fill=constant(torch.tensor([row + 1, heads, k, k])), **index),
            "carry_rows": TensorSpec((1, 3), fill=constant(torch.arange(3).view(1, 3) * s.rows + row), **index),
            "state": TensorSpec((1, heads, k, k), "float32"),
            "history": TensorSpec((1, 3, s.conv_dim), layout="row_major"),
        },
    )


SNAPSHOT = tuple(snapshot_case(name, shape) for name, shape in SHAPES.items())
EXTRACT = tuple(extract_case(name, shape) for name, shape in SHAPES.items())
