"""The gated delta rule for one token of each sequence."""

from typing import Any

from ops.recurrent_gated_delta_rule import reference
from ops.recurrent_gated_delta_rule.cases import CASES
from ops.recurrent_gated_delta_rule.op import recurrent_gated_delta_rule
from ops.registry import Op, Output


def grouped(ttnn: Any, state: Any, **tensors: Any) -> tuple[Any, Any]:
    """As many sequences per call as the card has cores for."""
    return recurrent_gated_delta_rule(ttnn, state=state, **tensors), state


OPS = (
    Op(
        "recurrent_gated_delta_rule",
        reference.recurrent,
        {"grouped": grouped},
        CASES,
        (Output("o", {"sequence": 0, "head": 2}, "float32"), Output("state", {"sequence": 0, "head": 1}, "float32")),
    ),
)
