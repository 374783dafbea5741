"""One op, variant and case before the gate: what a test asserts and what a benchmark asks before it times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ops.registry import Case, Op, Output, make_inputs, run_variant
from ttkern.evidence.compare import BFLOAT16, EQUAL, FLOAT32, Finding, Tolerance, check
from ttkern.evidence.gate import OutputSpec, Report, gate

# Two products and two norms deep, a layer's output carries a few bfloat16 roundings more than a single op's.
LAYER = Tolerance(rel_rms=0.03, max_over_rms=0.15, pcc=0.999)


def gate_op(target: Any, op: Op, variant: str, case: Case, *, exact: bool) -> Report:
    """Judge a variant against its op's reference, on two seeds; `exact` where the target computes in float32."""

    def run(inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        outputs = run_variant(target, op, variant, case, inputs)
        return [_real_rows(o, got, want) for o, got, want in zip(op.outputs, outputs, reference(inputs), strict=True)]

    def reference(inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return op.reference(**{name: value.clone() for name, value in inputs.items()}, **case.params)

    return gate(
        run,
        reference,
        lambda seed: make_inputs(case, seed),
        name=f"{op.name}/{variant}/{case.name}",
        outputs=[OutputSpec(o.name, o.slices, _tolerance(op, o, exact)) for o in op.outputs],
    )


def check_outputs(
    op: Op, case: Case, got: Sequence[torch.Tensor], inputs: Mapping[str, torch.Tensor], *, exact: bool
) -> list[Finding]:
    """Outputs that are there already, against the reference on the same inputs."""
    wants = op.reference(**{name: value.clone() for name, value in inputs.items()}, **case.params)
    return [
        check(_real_rows(o, g, want), want, tolerance=_tolerance(op, o, exact), slices=o.slices)
        for o, g, want in zip(op.outputs, got, wants, strict=True)
    ]


def _tolerance(op: Op, output: Output, exact: bool) -> Tolerance:
    if "int" in output.dtype:
        return EQUAL
    if exact:
        return FLOAT32
    return LAYER if "layer" in op.name else BFLOAT16


def _real_rows(output: Output, got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """A padded output with what lies on padding zeroed, as the reference has it."""
    if output.rows is None:
        return got
    others = [axis for axis in range(want.ndim) if axis != output.rows]
    return torch.where(want.abs().amax(dim=others, keepdim=True) > 0, got.float(), 0.0)
