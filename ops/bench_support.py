"""What every op's bench.py shares: the gate first, then the time, then the last timed output before the gate again."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ops import all_ops, folders
from ttkern.bench.roofline import CARDS, roofline_seconds
from ttkern.bench.timing import MEANING, Timer, cost_of
from ttkern.errors import TtkernError
from ttkern.targets import open_target

ROUNDS = 20


def rows(folder: str) -> Iterator[Any]:
    """A pytest parameter for every op of a folder, variant, target, and case that is small enough to run with data."""
    targets = ["emulated", *(["mock"] if importlib.util.find_spec("ttnn") else [])]
    for op in folders()[folder]:
        for variant in op.variants:
            for case in op.cases[:2]:
                for target in targets:
                    name = f"{op.name}-{variant}-{case.name}-{target}"
                    yield pytest.param(op.name, variant, case.name, target, id=name)


def bench(benchmark: Any, op_name: str, variant: str, case_name: str, target_name: str) -> None:
    """Time one variant, on fresh inputs each round. One that the gate refuses is reported as wrong and not timed."""
    torch.set_num_threads(1)
    op = all_ops()[op_name]
    case, target = op.case(case_name), open_target(target_name)
    try:
        timer = Timer(target, op, variant, case)
        benchmark.pedantic(timer.call, setup=lambda: ((timer.fresh(),), {}), rounds=ROUNDS, warmup_rounds=1)
        if timer.still_right() is False:
            pytest.fail(f"{op_name}/{variant}/{case_name}: the last timed call's output is wrong")
    except TtkernError as error:
        pytest.fail(str(error))
    finally:
        target.close()
    cost = cost_of(op, case)
    benchmark.extra_info.update(
        target=target_name,
        meaning=MEANING[target_name],
        gate=timer.report.as_dict(),
        algorithmic_bytes=cost.bytes,
        algorithmic_flops=cost.flops,
        first_call_s=timer.first_call,
        roofline_s={card.name: roofline_seconds(cost, card) for card in CARDS.values()},
    )
    if target.has_timing:
        best = benchmark.stats.stats.min
        benchmark.extra_info["roofline_fraction"] = {c.name: roofline_seconds(cost, c) / best for c in CARDS.values()}
