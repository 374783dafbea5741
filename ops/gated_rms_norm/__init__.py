"""Per-head RMSNorm times SiLU(z)."""

from ops.gated_rms_norm import reference
from ops.gated_rms_norm.cases import DECODE_CASES, PREFILL_CASES
from ops.gated_rms_norm.op import composed, fused
from ops.registry import Op, Output

OUTPUTS = (Output("y", {"token": 1}),)
OPS = (
    Op(
        "gated_rms_norm",
        reference.prefill,
        {"fused": lambda ttnn, o, projected, gamma, **p: (fused(ttnn, o, projected, gamma, **p),)},
        PREFILL_CASES,
        OUTPUTS,
    ),
    Op(
        "gated_rms_norm_decode",
        reference.decode,
        {"composed": lambda ttnn, o, projected, gamma_rows, **p: (composed(ttnn, o, projected, gamma_rows, **p),)},
        DECODE_CASES,
        OUTPUTS,
    ),
)
