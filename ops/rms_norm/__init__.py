"""RMSNorm with a zero-centred weight."""

from ops.registry import Op, Output
from ops.rms_norm import reference
from ops.rms_norm.cases import CASES
from ops.rms_norm.op import rms_norm

OPS = (
    Op(
        "rms_norm",
        reference.rms_norm,
        {"ttnn": lambda ttnn, x, gamma, eps: (rms_norm(ttnn, x, gamma, eps=eps),)},
        CASES,
        (Output("y", {"token": 1}),),
    ),
)
