"""Every op, variant and small case on the emulated device through the gate, in exact mode and in bfloat16."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from ops import registry
from ops.registry import Case, Op, Output, make_inputs, run_variant
from ttkern.evidence.compare import BFLOAT16, EQUAL, FLOAT32, Tolerance, Verdict
from ttkern.evidence.gate import OutputSpec, gate
from ttkern.targets import Target, open_target

CASES = ("tiny", "small")
# Two products and two norms deep, a layer's output carries a few bfloat16 roundings more than a single op's.
LAYER = Tolerance(rel_rms=0.03, max_over_rms=0.15, pcc=0.999)


@lru_cache(maxsize=2)
def target(exact: bool) -> Target:
    return open_target("emulated", exact=exact)


def specs(op: Op, exact: bool) -> list[OutputSpec]:
    def tolerance(output: Output) -> Tolerance:
        if output.dtype.startswith(("uint", "int")):
            return EQUAL
        return FLOAT32 if exact else LAYER if "layer" in op.name else BFLOAT16

    return [OutputSpec(output.name, output.slices, tolerance(output)) for output in op.outputs]


def only_real_rows(op: Op, outputs: list[torch.Tensor], wanted: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Outputs with what lies on padding zeroed, as the reference has it."""
    kept = []
    for output, got, want in zip(op.outputs, outputs, wanted, strict=True):
        if output.rows is None:
            kept.append(got)
            continue
        others = [axis for axis in range(want.ndim) if axis != output.rows]
        real = want.abs().amax(dim=others, keepdim=True) > 0
        assert not real.all(), "a padded case has padding"
        kept.append(torch.where(real, got.float(), 0.0))
    return kept


def judge(op: Op, variant: str, case: Case, exact: bool) -> None:
    def run(inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        wanted = op.reference(**{k: v.clone() for k, v in inputs.items()}, **case.params)
        return only_real_rows(op, run_variant(target(exact), op, variant, case, inputs), wanted)

    report = gate(
        run,
        lambda inputs: op.reference(**inputs, **case.params),
        lambda seed: make_inputs(case, seed),
        name=f"{op.name}/{variant}/{case.name}",
        outputs=specs(op, exact),
    )
    assert report.verdict is Verdict.PASS, str(report)


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("op", "variant"), [(op, variant) for op in registry().values() for variant in op.variants], ids=lambda v: str(v)
)
def test_op_passes_the_gate(op: Op, variant: str, case: str, exact: bool) -> None:
    judge(op, variant, op.case(case), exact)


@pytest.mark.parametrize("name", ["rms_norm", "chunk_gated_delta_rule", "gated_attention_prefill", "gdn_layer_masked"])
def test_a_wrong_variant_is_refused(name: str) -> None:
    """The first output's last token comes one late."""
    op = registry()[name]
    case = op.case("tiny")
    (right,) = op.variants.values()

    def late(ttnn, **arguments):  # type: ignore[no-untyped-def]
        outputs = list(right(ttnn, **arguments))
        values = ttnn.to_torch(outputs[0])
        outputs[0] = values.roll(1, dims=op.outputs[0].slices["token"])
        return outputs

    wrong = Op(op.name, op.reference, {"late": late}, op.cases, op.outputs)
    with pytest.raises(AssertionError, match="FAIL"):
        judge(wrong, "late", case, exact=False)


def test_every_op_has_the_named_cases() -> None:
    for op in registry().values():
        assert [case.name for case in op.cases] == ["tiny", "small", "qwen3.6-27b", "qwen3.6-27b-tp4"]
