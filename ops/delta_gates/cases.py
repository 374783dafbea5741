"""Shapes of the gates, with and without padding."""

import torch

from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec, constant, normal, uniform


def weights(s: ModelShape) -> dict[str, TensorSpec]:
    """The two projections, and A and dt in the range that models have."""
    narrow = TensorSpec((s.hidden, s.value_heads), fill=normal(s.hidden**-0.5))
    return {
        "w_beta": narrow,
        "w_decay": narrow,
        "dt_bias": TensorSpec((1, s.value_heads), "float32", fill=uniform(-4.0, 1.0)),
        "neg_a": TensorSpec((1, 1, s.value_heads), "float32", fill=uniform(-4.0, -0.1)),
    }


def masked(s: ModelShape) -> dict[str, TensorSpec]:
    """The last quarter and one token is padding."""
    real = (torch.arange(s.tokens) < valid_len(s)).float().reshape(1, -1, 1)
    return {"mask": TensorSpec((1, s.tokens, 1), "float32", fill=constant(real))}


def valid_len(s: ModelShape) -> int:
    """Real tokens of the padded cases."""
    return 3 * s.tokens // 4 - 1


CASES = [Case(name, {"x": TensorSpec((1, s.tokens, s.hidden)), **weights(s)}) for name, s in SHAPES.items()]
MASKED_CASES = [Case(case.name, {**case.tensors, **masked(SHAPES[case.name])}) for case in CASES]
