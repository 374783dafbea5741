"""Index of the largest logit, on the device and on the host."""

from ops.argmax import reference
from ops.argmax.cases import CASES
from ops.argmax.op import argmax, host_argmax
from ops.registry import Op, Output

OPS = (
    Op(
        "argmax",
        reference.argmax,
        {
            "device": lambda ttnn, logits: (argmax(ttnn, logits),),
            "host": lambda ttnn, logits: (host_argmax(ttnn, logits),),
        },
        CASES,
        (Output("tokens", dtype="uint32"),),
    ),
)
