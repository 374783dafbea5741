"""Matrix product with a weight."""

from ops.linear import reference
from ops.linear.cases import CASES
from ops.linear.op import linear
from ops.registry import Op, Output

OPS = (
    Op(
        "linear",
        reference.linear,
        {"ttnn": lambda ttnn, x, weight: (linear(ttnn, x, weight),)},
        CASES,
        (Output("y", {"token": 1}),),
    ),
)
