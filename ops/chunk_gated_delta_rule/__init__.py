"""The gated delta rule over a run of tokens."""

from typing import Any

from ops.chunk_gated_delta_rule import reference
from ops.chunk_gated_delta_rule.cases import CASES
from ops.chunk_gated_delta_rule.op import Constants, chunk_gated_delta_rule
from ops.registry import Op, Output


def flat(ttnn: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, **tiles: Any) -> tuple[Any, Any]:
    """ttnn's own op on flat inputs."""
    return chunk_gated_delta_rule(ttnn, q, k, v, g, beta, state, Constants(**tiles)), state


OPS = (
    Op(
        "chunk_gated_delta_rule",
        reference.chunk,
        {"flat": flat},
        CASES,
        (Output("o", {"head": 0, "token": 1}, "float32"), Output("state", {"head": 1}, "float32")),
    ),
)
