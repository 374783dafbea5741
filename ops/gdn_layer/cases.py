"""Shapes of a Gated DeltaNet layer: a prefill step full and padded, and a decode step."""

from dataclasses import replace

import torch

from ops.chunk_gated_delta_rule.cases import constants
from ops.delta_gates.cases import masked, valid_len
from ops.delta_gates.cases import weights as gate_weights
from ops.gdn_layer.op import GdnShape
from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec, constant, normal
from ops.swiglu_mlp.cases import weights as mlp_weights

GAMMA = normal(0.2, mean=1.0)


def layer_shape(s: ModelShape) -> GdnShape:
    """As the op wants it."""
    return GdnShape(s.key_heads, s.value_heads, s.gdn_dim, s.eps)


def mlp(s: ModelShape) -> dict[str, TensorSpec]:
    """The feed-forward and its norm, calm enough that the layer's output is not the feed-forward's alone."""
    matrices = {name: replace(spec, fill=normal(0.5 * spec.shape[0] ** -0.5)) for name, spec in mlp_weights(s).items()}
    return {"mlp_norm": TensorSpec((1, s.hidden), "float32", fill=GAMMA), **matrices}


def weights(s: ModelShape) -> dict[str, TensorSpec]:
    """The token mixer's weights."""
    gates = gate_weights(s)
    tap = TensorSpec((1, 1, s.conv_dim), fill=normal(0.5))
    return {
        "norm": TensorSpec((1, s.hidden), "float32", fill=GAMMA),
        "qkvz": TensorSpec((s.hidden, s.conv_dim + s.value_dim), s.weight_dtype, fill=normal(s.hidden**-0.5)),
        "beta": gates["w_beta"],
        "decay": gates["w_decay"],
        "dt_bias": gates["dt_bias"],
        "neg_a": gates["neg_a"],
        **{f"tap{i}": tap for i in range(4)},
        "out_norm": TensorSpec((s.gdn_dim,), fill=GAMMA),
        "out": TensorSpec((s.value_dim, s.hidden), s.weight_dtype, fill=normal(s.value_dim**-0.5)),
        **mlp(s),
    }


def prefill_case(name: str, s: ModelShape, padded: bool = False) -> Case:
    """One step of one sequence that has a past."""
    padding: dict[str, TensorSpec] = {}
    if padded:
        rows = constant(torch.arange(3).reshape(1, 3) + valid_len(s))
        padding = {**masked(s), "carry_rows": TensorSpec((1, 3), "uint32", "row_major", rows)}
    return Case(
        name,
        {
            "x": TensorSpec((1, s.tokens, s.hidden)),
            "recurrent_state": TensorSpec((1, s.value_heads, s.gdn_dim, s.gdn_dim), "float32", fill=normal(0.3)),
            "conv_state": TensorSpec((1, 3, s.conv_dim), layout="row_major"),
            **weights(s),
            **constants(),
            "zero": TensorSpec((1,), "uint32", "row_major", constant(0)),
            **padding,
        },
        {"shape": layer_shape(s)},
    )


def decode_case(name: str, s: ModelShape) -> Case:
    """One token of each row."""
    return Case(
        name,
        {
            "x": TensorSpec((1, s.rows, s.hidden)),
            "recurrent_state": TensorSpec((s.rows, s.value_heads, s.gdn_dim, s.gdn_dim), "float32", fill=normal(0.3)),
            "conv_state": TensorSpec((1, 3, s.rows, s.conv_dim)),
            **weights(s),
            "inverse_root": TensorSpec((1, s.gdn_dim), "float32", fill=constant(s.gdn_dim**-0.5)),
        },
        {"shape": layer_shape(s)},
    )


CASES = [prefill_case(name, shape) for name, shape in SHAPES.items()]
MASKED_CASES = [prefill_case(name, shape, padded=True) for name, shape in SHAPES.items()]
DECODE_CASES = [decode_case(name, shape) for name, shape in SHAPES.items()]
