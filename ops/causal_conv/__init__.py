"""Causal convolution over q | k | v with a carry."""

from typing import Any

from ops.causal_conv import op, reference
from ops.causal_conv.cases import CASES, DECODE_CASES, MASKED_CASES, STORE_CASES
from ops.registry import Op, Output


def full(
    ttnn: Any, projected: Any, history: Any, tap0: Any, tap1: Any, tap2: Any, tap3: Any, zero: Any, **params: Any
) -> tuple[Any, ...]:
    """Every token is real."""
    q, k, v = op.prefill(ttnn, projected, history, (tap0, tap1, tap2, tap3), zero, **params)
    op.carry_full(ttnn, projected, history)
    return q, k, v, history


def masked(
    ttnn: Any,
    projected: Any,
    history: Any,
    tap0: Any,
    tap1: Any,
    tap2: Any,
    tap3: Any,
    zero: Any,
    carry_rows: Any,
    **params: Any,
) -> tuple[Any, ...]:
    """The last tokens are padding: the carry comes from before them, and nobody reads their own outputs."""
    q, k, v = op.prefill(ttnn, projected, history, (tap0, tap1, tap2, tap3), zero, **params)
    op.carry_masked(ttnn, projected, history, carry_rows)
    return q, k, v, history


def decode(ttnn: Any, x: Any, carry: Any, early_taps: Any, last_tap: Any) -> tuple[Any, Any]:
    """One column per row."""
    return op.decode(ttnn, x, carry, early_taps, last_tap), carry


def store(ttnn: Any, history: Any, carry: Any, row_mask: Any) -> tuple[Any]:
    """One row takes a prefilled history over."""
    op.store(ttnn, history, carry, row_mask)
    return (carry,)


def _outputs(tokens: int | None) -> tuple[Output, ...]:
    return (*(Output(name, {"token": 1}, rows=tokens) for name in "qkv"), Output("history", {"column": 1}))


OPS = (
    Op("causal_conv", reference.prefill, {"fused": full}, CASES, _outputs(None)),
    Op("causal_conv_masked", reference.prefill, {"fused": masked}, MASKED_CASES, _outputs(1)),
    Op(
        "causal_conv_decode",
        reference.decode,
        {"composed": decode},
        DECODE_CASES,
        (Output("y", {"sequence": 2}), Output("carry", {"column": 1, "sequence": 2})),
    ),
    Op("causal_conv_store", reference.store, {"where": store}, STORE_CASES, (Output("carry", {"sequence": 2}),)),
)
