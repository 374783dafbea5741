"""The delta rule's gates."""

from ops.delta_gates import reference
from ops.delta_gates.cases import CASES, MASKED_CASES
from ops.delta_gates.op import delta_gates
from ops.registry import Op, Output

OUTPUTS = (Output("g", {"token": 1}, "float32"), Output("beta", {"token": 1}, "float32"))
OPS = (
    Op("delta_gates", reference.delta_gates, {"ttnn": delta_gates}, CASES, OUTPUTS),
    Op("delta_gates_masked", reference.delta_gates, {"ttnn": delta_gates}, MASKED_CASES, OUTPUTS),
)
