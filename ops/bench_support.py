"""What every op's bench.py shares: the gate first, then wall time on the emulated device (a CPU's, no card's)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ops import all_ops
from ops.registry import make_inputs, to_device
from ttkern.evidence.compare import Verdict
from ttkern.evidence.op_gate import gate_op
from ttkern.targets import open_target


def rows(folder: str) -> Iterator[Any]:
    """A pytest parameter for every op of a folder, variant, and case that is small enough to run with data."""
    for op in importlib.import_module(f"ops.{folder}").OPS:
        for variant in op.variants:
            for case in op.cases[:2]:
                yield pytest.param(op.name, variant, case.name, id=f"{op.name}-{variant}-{case.name}")


def bench(benchmark: Any, op_name: str, variant: str, case_name: str) -> None:
    """Time one variant, on fresh inputs each round. One that the gate refuses is reported and not timed."""
    torch.set_num_threads(1)
    op, target = all_ops()[op_name], open_target("emulated")
    case = op.case(case_name)
    report = gate_op(target, op, variant, case, exact=False)
    if report.verdict is not Verdict.PASS:
        pytest.fail(f"not timed: {report}")
    inputs = make_inputs(case, 0)

    def fresh() -> tuple[tuple[()], dict[str, Any]]:
        return (), {n: to_device(target.ttnn, target.device, s, inputs[n]) for n, s in case.tensors.items()}

    def call(**tensors: Any) -> None:
        op.variants[variant](target.ttnn, **tensors, **case.params)

    benchmark.extra_info.update(target="emulated", verdict=report.verdict.name)
    benchmark.pedantic(call, setup=fresh, rounds=20, warmup_rounds=1)
