"""Shapes of the convolution: a full step, a padded step, a decode step, and the hand-over between them."""

import torch

from ops.delta_gates.cases import valid_len
from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec, constant, normal


def prefill_case(name: str, s: ModelShape) -> Case:
    """A step of q | k | v | z, and the history before it."""
    tap = TensorSpec((1, 1, s.conv_dim), fill=normal(0.5))
    return Case(
        name,
        {
            "projected": TensorSpec((1, s.tokens, s.conv_dim + s.value_dim)),
            "history": TensorSpec((1, 3, s.conv_dim), layout="row_major"),
            **{f"tap{i}": tap for i in range(4)},
            "zero": TensorSpec((1,), "uint32", "row_major", constant(0)),
        },
        {"key_dim": s.key_dim, "value_dim": s.value_dim},
    )


def masked_case(name: str, s: ModelShape) -> Case:
    """The same with padding at its end."""
    full = prefill_case(name, s)
    rows = TensorSpec((1, 3), "uint32", "row_major", constant(torch.arange(3).reshape(1, 3) + valid_len(s)))
    return Case(name, {**full.tensors, "carry_rows": rows}, full.params)


def decode_case(name: str, s: ModelShape) -> Case:
    """One column of each row."""
    return Case(
        name,
        {
            "x": TensorSpec((1, 1, s.rows, s.conv_dim)),
            "carry": TensorSpec((1, 3, s.rows, s.conv_dim)),
            "early_taps": TensorSpec((1, 3, 1, s.conv_dim), fill=normal(0.5)),
            "last_tap": TensorSpec((1, 1, 1, s.conv_dim), fill=normal(0.5)),
        },
    )


def store_case(name: str, s: ModelShape) -> Case:
    """The last row but one takes a prefilled history over."""
    mask = (torch.arange(s.rows) == s.rows - 2).float().reshape(1, 1, -1, 1)
    return Case(
        name,
        {
            "history": TensorSpec((1, 3, s.conv_dim), layout="row_major"),
            "carry": TensorSpec((1, 3, s.rows, s.conv_dim)),
            "row_mask": TensorSpec((1, 1, s.rows, 1), fill=constant(mask)),
        },
    )


CASES = [prefill_case(name, shape) for name, shape in SHAPES.items()]
MASKED_CASES = [masked_case(name, shape) for name, shape in SHAPES.items()]
DECODE_CASES = [decode_case(name, shape) for name, shape in SHAPES.items()]
STORE_CASES = [store_case(name, shape) for name, shape in SHAPES.items()]
