"""Shapes of a full-attention layer: a prefill step that has a past, and a decode step."""

import torch

from ops.attention_layer.op import AttentionShape
from ops.gated_attention.cases import caches, decode_tables, prefill_tables
from ops.gdn_layer.cases import GAMMA, mlp
from ops.model_shapes import SHAPES, ModelShape
from ops.partial_rotary.op import rotary_tables
from ops.registry import Case, Fill, TensorSpec, normal


def layer_shape(s: ModelShape) -> AttentionShape:
    """As the op wants it."""
    return AttentionShape(s.heads, s.kv_heads, s.eps, s.attention_chunk)


def weights(s: ModelShape) -> dict[str, TensorSpec]:
    """The token mixer's weights and the feed-forward's."""
    width, fan = s.heads * s.head_dim, normal(s.hidden**-0.5)
    return {
        "norm": TensorSpec((1, s.hidden), "float32", fill=GAMMA),
        "qkv": TensorSpec((s.hidden, (s.heads + 2 * s.kv_heads) * s.head_dim), s.weight_dtype, fill=fan),
        "gate_weight": TensorSpec((s.hidden, width), s.weight_dtype, fill=fan),
        "q_norm": TensorSpec((1, s.head_dim), "float32", fill=GAMMA),
        "k_norm": TensorSpec((1, s.head_dim), "float32", fill=GAMMA),
        "out": TensorSpec((width, s.hidden), s.weight_dtype, fill=normal(width**-0.5)),
        **mlp(s),
    }


def rotations(s: ModelShape, positions: torch.Tensor) -> dict[str, TensorSpec]:
    """cos and sin of these positions."""

    def fill(which: int) -> Fill:
        def rows(_: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
            table = rotary_tables(int(positions.max()) + 1, s.head_dim, s.rotary_dim, s.theta)[which]
            return table[positions].reshape(shape)

        return rows

    shape = (1, 1, len(positions), s.head_dim)
    return {"cos": TensorSpec(shape, fill=fill(0)), "sin": TensorSpec(shape, fill=fill(1))}


def prefill_case(name: str, s: ModelShape) -> Case:
    """A step that begins at `start`."""
    return Case(
        name,
        {
            "x": TensorSpec((1, s.tokens, s.hidden)),
            **weights(s),
            **caches(s),
            **prefill_tables(s),
            **rotations(s, torch.arange(s.start, s.start + s.tokens)),
        },
        {"shape": layer_shape(s)},
    )


def decode_case(name: str, s: ModelShape) -> Case:
    """Rows at positions of their own."""
    tables = decode_tables(s)
    positions = tables["positions"].fill(torch.Generator(), (s.rows,))
    return Case(
        name,
        {
            "x": TensorSpec((1, s.rows, s.hidden)),
            **weights(s),
            **caches(s),
            **tables,
            **rotations(s, positions),
        },
        {"shape": layer_shape(s)},
    )


CASES = [prefill_case(name, shape) for name, shape in SHAPES.items()]
DECODE_CASES = [decode_case(name, shape) for name, shape in SHAPES.items()]
