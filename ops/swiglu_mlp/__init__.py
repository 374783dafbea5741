"""SwiGLU feed-forward."""

from ops.registry import Op, Output
from ops.swiglu_mlp import reference
from ops.swiglu_mlp.cases import CASES
from ops.swiglu_mlp.op import swiglu_mlp

OPS = (
    Op(
        "swiglu_mlp",
        reference.swiglu_mlp,
        {"ttnn": lambda ttnn, x, gate, up, down: (swiglu_mlp(ttnn, x, gate, up, down),)},
        CASES,
        (Output("y", {"token": 1}),),
    ),
)
