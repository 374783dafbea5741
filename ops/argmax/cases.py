"""Shapes of the greedy choice: the head's rows."""

from ops.model_shapes import SHAPES
from ops.registry import Case, TensorSpec

CASES = [Case(name, {"logits": TensorSpec((1, 32, s.vocab), "float32", "row_major")}) for name, s in SHAPES.items()]
