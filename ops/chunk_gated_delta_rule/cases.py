"""Shapes of the chunked delta rule, with a state that is not zero."""

import torch

from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec, constant, normal, uniform


def gates(shape: tuple[int, ...]) -> dict[str, TensorSpec]:
    """g from nothing to almost everything forgotten, beta over its whole range."""
    return {
        "g": TensorSpec(shape, "float32", fill=uniform(-2.0, -0.001)),
        "beta": TensorSpec(shape, "float32", fill=uniform(0.0, 1.0)),
    }


def constants() -> dict[str, TensorSpec]:
    """The kernel's constant tiles, as `make_constants` makes them."""
    low = torch.arange(32) < 16
    masks = torch.cat([low[:, None] & low, ~low[:, None] & ~low, ~low[:, None] & low], dim=1)
    ones = torch.ones(32, 32)
    tiles = {"eye": torch.eye(32), "tril": ones.tril(), "ones": ones, "masks": masks.float()}
    return {
        name: TensorSpec((1, 1, *tile.shape), "float32", fill=constant(tile.reshape(1, 1, *tile.shape)))
        for name, tile in tiles.items()
    }


def case(name: str, s: ModelShape) -> Case:
    """One sequence's step."""
    return Case(
        name,
        {
            "q": TensorSpec((1, s.tokens, s.key_dim)),
            "k": TensorSpec((1, s.tokens, s.key_dim)),
            "v": TensorSpec((1, s.tokens, s.value_dim)),
            **gates((1, s.tokens, s.value_heads)),
            "state": TensorSpec((1, s.value_heads, s.gdn_dim, s.gdn_dim), "float32", fill=normal(0.3)),
            **constants(),
        },
    )


CASES = [case(name, shape) for name, shape in SHAPES.items()]
