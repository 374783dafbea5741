"""Interleaved pairs of variants, or of this tree and another revision."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ops import all_ops, folders
from ops.registry import Case, Op
from ttkern.bench.against import samples_against, worktree
from ttkern.bench.pairs import MARGIN, Comparison, compare
from ttkern.bench.roofline import CARDS, roofline_seconds
from ttkern.bench.timing import MEANING, Timer, cost_of
from ttkern.errors import TtkernError
from ttkern.evidence.records import new_record
from ttkern.targets import Target

Track = Callable[[Iterable[Any], str], Iterable[Any]]
SHARED = (
    "ops/registry.py",
    "ops/compute.py",
    "ops/model_shapes.py",
    "ttkern/targets",
    "ttkern/bench",
    "ttkern/evidence",
)


def find(op_name: str, case_name: str) -> tuple[Op, Case]:
    """Raises TtkernError with the names there are."""
    ops = all_ops()
    if op_name not in ops:
        raise TtkernError(f"no op is called {op_name!r}; there are {', '.join(ops)}")
    op = ops[op_name]
    try:
        return op, op.case(case_name)
    except KeyError as error:
        raise TtkernError(str(error.args[0])) from None


def bench_variants(
    target: Target, op: Op, variants: Sequence[str], case: Case, pairs: int, track: Track, margin: float = MARGIN
) -> dict[str, Any]:
    """A record: every variant judged, then timed in rounds that take each of them once, in random order.

    Raises TtkernError for a variant that is wrong, before the first and after the last timed call.
    """
    timers = [Timer(target, op, variant, case) for variant in variants]
    names = [name if variants.count(name) == 1 else f"{name}#{n}" for n, name in enumerate(variants)]
    calls = max(timer.calls for timer in timers)
    samples: dict[str, list[float]] = {name: [] for name in names}
    orders = random.Random(0)  # what ran just before leaves its mark, so it must not be always the same
    for _ in track(range(pairs), f"{op.name}, {case.name}"):
        for at in orders.sample(range(len(timers)), len(timers)):
            samples[names[at]].append(timers[at].sample(calls))
    for timer in timers:
        if timer.still_right() is False:
            raise TtkernError(f"{op.name}/{timer.variant}/{case.name}: the last timed call's output is wrong")
    arms = [Arm(n, t.report.as_dict(), t.first_call) for n, t in zip(names, timers, strict=True)]
    return _record(target.name, op, case, arms, samples, calls, None, margin)


def bench_against(
    revision: str, target: str, op: Op, variant: str, case: Case, pairs: int, track: Track, margin: float = MARGIN
) -> dict[str, Any]:
    """A record: this tree's variant against another revision's. Raises TtkernError where either cannot be timed."""
    with worktree(revision) as (tree, commit):
        found = samples_against(tree, commit, target, op, variant, case, pairs, track)
    arms = [Arm(label, said["gate"], said["first_call"]) for label, said in found["ready"].items()]
    return _record(target, op, case, arms, found["samples"], found["calls"], found["groups"], margin)


@dataclass(frozen=True)
class Arm:
    """What is timed: a variant, or a tree; the gate's report on it, and the seconds of its first call."""

    name: str
    gate: dict[str, Any]
    first_call: float


def _record(
    target: str,
    op: Op,
    case: Case,
    arms: Sequence[Arm],
    samples: dict[str, list[float]],
    calls: int,
    groups: list[int] | None,
    margin: float,
) -> dict[str, Any]:
    cost = cost_of(op, case)
    first, *others = samples
    config = {
        "op": op.name,
        "arms": list(samples),
        "case": case.name,
        "target": target,
        "calls_per_sample": calls,
        "method": "interleaved" if groups is None else "interleaved processes",
    }
    return new_record(
        "bench",
        config,
        [f"ops/{folder_of(op)}", *SHARED],
        meaning=MEANING[target],
        judged_on=target if target != "mock" else "emulated",
        gates={arm.name: arm.gate for arm in arms},
        first_call_s={arm.name: arm.first_call for arm in arms},
        algorithm=asdict(cost),
        roofline_s={card.name: {**asdict(card), "seconds": roofline_seconds(cost, card)} for card in CARDS.values()},
        samples_s=samples,
        groups=groups,
        comparisons={
            name: as_plain(compare(samples[first], samples[name], groups=groups, margin=margin)) for name in others
        },
    )


def as_plain(found: Comparison) -> dict[str, Any]:
    """For JSON."""
    return {**asdict(found), "outcome": found.outcome.value}


def folder_of(op: Op) -> str:
    """The folder under ops/ that registers an op."""
    return next(name for name, found in folders().items() if op.name in {one.name for one in found})
