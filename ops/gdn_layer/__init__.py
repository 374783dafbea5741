"""A Gated DeltaNet decoder layer."""

from __future__ import annotations

from typing import Any

from ops.chunk_gated_delta_rule.op import Constants
from ops.gdn_layer import op, reference
from ops.gdn_layer.cases import CASES, DECODE_CASES, MASKED_CASES
from ops.registry import Op, Output


def _weights(ttnn: Any, w: dict[str, Any]) -> op.GdnWeights:
    taps = tuple(w[f"tap{i}"] for i in range(4))
    channels = taps[0].shape[-1]
    as_rows = [ttnn.reshape(tap, (1, 1, 1, channels)) for tap in taps]
    return op.GdnWeights(
        **{name: w[name] for name in ("norm", "qkvz", "beta", "decay", "dt_bias", "neg_a", "out_norm", "out")},
        taps=taps,
        early_taps=ttnn.concat(as_rows[:3], dim=1),
        last_tap=as_rows[3],
        out_norm_rows=ttnn.typecast(ttnn.reshape(w["out_norm"], (1, w["out_norm"].shape[-1])), ttnn.float32),
        mlp=op.MlpWeights(w["mlp_norm"], w["gate"], w["up"], w["down"]),
    )


def prefill(
    ttnn: Any, x: Any, recurrent_state: Any, conv_state: Any, *, shape: op.GdnShape, **w: Any
) -> tuple[Any, ...]:
    """One step of one sequence; padded where the case has a mask."""
    out = op.prefill(
        ttnn,
        x,
        _weights(ttnn, w),
        shape,
        op.GdnPrefillState(recurrent_state, conv_state),
        Constants(w["eye"], w["tril"], w["ones"], w["masks"]),
        w["zero"],
        mask=w.get("mask"),
        carry_rows=w.get("carry_rows"),
    )
    return out, recurrent_state, conv_state


def decode(
    ttnn: Any, x: Any, recurrent_state: Any, conv_state: Any, *, shape: op.GdnShape, **w: Any
) -> tuple[Any, ...]:
    """One token of each row."""
    state = op.GdnDecodeState(recurrent_state, conv_state)
    out = op.decode(ttnn, x, _weights(ttnn, w), shape, state, w["inverse_root"])
    return out, recurrent_state, conv_state


STATE = Output("recurrent_state", {"sequence": 0, "head": 1}, "float32")
OPS = (
    Op(
        "gdn_layer_prefill",
        reference.prefill,
        {"exact": prefill},
        CASES,
        (Output("x", {"token": 1}), STATE, Output("conv_state", {"column": 1})),
    ),
    Op(
        "gdn_layer_masked",
        reference.prefill,
        {"masked": prefill},
        MASKED_CASES,
        (Output("x", {"token": 1}, rows=1), STATE, Output("conv_state", {"column": 1})),
    ),
    Op(
        "gdn_layer_decode",
        reference.decode,
        {"batched": decode},
        DECODE_CASES,
        (Output("x", {"sequence": 1}), STATE, Output("conv_state", {"column": 1, "sequence": 2})),
    ),
)
