"""Logits of a few rows."""

from ops.lm_head import reference
from ops.lm_head.cases import CASES
from ops.lm_head.op import lm_head
from ops.registry import Op, Output

OPS = (
    Op(
        "lm_head",
        reference.lm_head,
        {"ttnn": lambda ttnn, x, gamma, weight, eps: (lm_head(ttnn, x, gamma, weight, eps=eps),)},
        CASES,
        (Output("logits", {"token": 1}, "float32"),),
    ),
)
