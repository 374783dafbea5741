"""Every op, variant and small case on the emulated device through the gate, in exact mode and in bfloat16."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from ops import all_ops
from ops.registry import Op
from ttkern.evidence.compare import Verdict
from ttkern.evidence.op_gate import gate_op
from ttkern.targets import Target, open_target


@lru_cache(maxsize=2)
def target(exact: bool) -> Target:
    return open_target("emulated", exact=exact)


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "bfloat16"])
@pytest.mark.parametrize("case", ["tiny", "small"])
@pytest.mark.parametrize(
    ("op", "variant"), [(op, variant) for op in all_ops().values() for variant in op.variants], ids=str
)
def test_op_passes_the_gate(op: Op, variant: str, case: str, exact: bool) -> None:
    report = gate_op(target(exact), op, variant, op.case(case), exact=exact)
    assert report.verdict is Verdict.PASS, str(report)


@pytest.mark.parametrize("op", all_ops().values(), ids=str)
def test_an_output_one_place_off_is_refused(op: Op) -> None:
    (right, *_) = op.variants.values()

    def off(ttnn: Any, **arguments: Any) -> list[Any]:
        outputs = list(right(ttnn, **arguments))
        values = outputs[0] if hasattr(outputs[0], "roll") else ttnn.to_torch(outputs[0])
        outputs[0] = values.roll(1, dims=-1)
        return outputs

    report = gate_op(target(False), replace(op, variants={"off": off}), "off", op.case("tiny"), exact=False)
    assert report.verdict is Verdict.FAIL


def test_every_op_has_the_named_cases() -> None:
    for op in all_ops().values():
        assert [case.name for case in op.cases] == ["tiny", "small", "qwen3.6-27b", "qwen3.6-27b-tp4"]
