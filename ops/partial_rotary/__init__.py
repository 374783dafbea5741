"""Rotary embedding of a part of each head."""

from typing import Any

from ops.partial_rotary import reference
from ops.partial_rotary.cases import CASES
from ops.partial_rotary.op import look_up, rotate
from ops.registry import Op, Output


def whole_head(ttnn: Any, x: Any, positions: Any, cos_table: Any, sin_table: Any, **_: Any) -> tuple[Any]:
    """One rotation over reordered entries."""
    return (rotate(ttnn, x, look_up(ttnn, positions, cos_table), look_up(ttnn, positions, sin_table)),)


OPS = (
    Op(
        "partial_rotary",
        reference.partial_rotary,
        {"whole_head": whole_head},
        CASES,
        (Output("x", {"head": 1, "token": 2}),),
    ),
)
