"""Shapes of the feed-forward."""

from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec, normal


def weights(s: ModelShape) -> dict[str, TensorSpec]:
    """The three matrices."""
    wide = TensorSpec((s.hidden, s.intermediate), s.weight_dtype, fill=normal(s.hidden**-0.5))
    back = TensorSpec((s.intermediate, s.hidden), s.weight_dtype, fill=normal(s.intermediate**-0.5))
    return {"gate": wide, "up": wide, "down": back}


CASES = [Case(name, {"x": TensorSpec((1, s.tokens, s.hidden)), **weights(s)}) for name, s in SHAPES.items()]
