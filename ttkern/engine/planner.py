"""Which steps prefill a prompt: a pure function of lengths.

0          2048        4096      5120  5376 5500
|--chunk----|--chunk----|--1024---|-256-|-124-|     5,500 tokens
 traced_chunk            traced_bucket   masked_bucket (128, 4 of them padding)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ttkern.engine.runner_protocol import Path as StepPath
from ttkern.engine.runner_protocol import PrefillStep
from ttkern.errors import TtkernError

Lengths = tuple[tuple[StepPath, int], ...]


@dataclass(frozen=True)
class CostTable:
    """What a step costs: launch_us per path, plus token_us per path and computed token (padding counts).

    Each mapping has an entry for "traced_chunk", "traced_bucket" and "masked_bucket".
    """

    launch_us: Mapping[StepPath, float]
    token_us: Mapping[StepPath, float]

    @classmethod
    def from_file(cls, path: Path) -> CostTable:
        """Read {"launch_us": {path: us}, "token_us": {path: us}}. Raises TtkernError, naming what is wrong."""
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TtkernError(f"{path}: cannot be read as JSON: {error}") from error
        kinds = get_args(StepPath)
        for name in ("launch_us", "token_us"):
            costs = table.get(name) if isinstance(table, dict) else None
            if not isinstance(costs, dict) or sorted(costs) != sorted(kinds):
                raise TtkernError(f"{path}: {name} must give a cost for each of {', '.join(kinds)}")
            for kind, cost in costs.items():
                if type(cost) not in (int, float) or not 0 <= cost < 1e12:
                    raise TtkernError(f"{path}: {name} of {kind} is {cost!r}; it must be microseconds, at least 0")
        return cls(table["launch_us"], table["token_us"])

    def step_ns(self, path: StepPath, bucket: int) -> int:
        """Cost of one step in whole nanoseconds, so that sums compare exactly in whatever order."""
        return round(1000 * (self.launch_us[path] + self.token_us[path] * bucket))


def plan(
    prompt_tokens: int,
    resume_at: int,
    chunk_tokens: int,
    buckets: Sequence[int],
    masked_buckets: Sequence[int],
    costs: CostTable | None = None,
) -> tuple[PrefillStep, ...]:
    """Steps that prefill tokens [resume_at, prompt_tokens).

    Full chunks, then the tail in exact buckets, largest first, then at most one masked bucket, the smallest that fits.
    With `costs`, the tail takes the cheapest such sequence instead, which may be one padded bucket from the start.
    Resuming where a step of the whole plan begins gives the rest of that very plan.

    chunk_tokens: a full chunk. buckets: exact lengths below it. masked_buckets: padded lengths.
    resume_at: a multiple of the smallest exact length, where a step may begin.
    Raises ValueError when nothing is left to prefill, resume_at is off that grid, or no masked bucket fits the rest.
    """
    unit = min(buckets, default=chunk_tokens)
    if not 0 <= resume_at < prompt_tokens:
        raise ValueError(f"resume at {resume_at} leaves nothing to prefill of {prompt_tokens} tokens")
    if resume_at % unit:
        raise ValueError(f"resume at {resume_at} is not a multiple of the smallest exact bucket, {unit}")
    chunks, tail = divmod(prompt_tokens - resume_at, chunk_tokens)
    lengths: list[tuple[StepPath, int]] = [("traced_chunk", chunk_tokens)] * chunks
    lengths += (
        _exact_tail(tail, buckets, masked_buckets)
        if costs is None
        else _cheapest_tail(tail, buckets, masked_buckets, costs)
    )
    steps = []
    start = resume_at
    for path, bucket in lengths:
        step = PrefillStep(path, start, min(bucket, prompt_tokens - start), bucket)
        steps.append(step)
        start = step.end
    return tuple(steps)


def _exact_tail(tail: int, buckets: Sequence[int], masked_buckets: Sequence[int]) -> list[tuple[StepPath, int]]:
    lengths: list[tuple[StepPath, int]] = []
    for bucket in sorted(buckets, reverse=True):
        count, tail = divmod(tail, bucket)
        lengths += [("traced_bucket", bucket)] * count
    if tail:
        lengths.append(("masked_bucket", _smallest_masked(tail, masked_buckets)))
    return lengths


def _smallest_masked(tail: int, masked_buckets: Sequence[int]) -> int:
    fitting = [bucket for bucket in masked_buckets if bucket >= tail]
    if not fitting:
        raise ValueError(
            f"{tail} tokens are left, and the largest masked bucket holds {max(masked_buckets, default=0)}"
        )
    return min(fitting)


def _cheapest_tail(
    tail: int, buckets: Sequence[int], masked_buckets: Sequence[int], costs: CostTable
) -> list[tuple[StepPath, int]]:
    """Dynamic programming over what is left. Ties go to the exact path and to the larger bucket, so that the lengths
    descend and the rest of a plan is the plan of the rest."""
    best: dict[int, tuple[int, Lengths] | None] = {0: (0, ())}
    exact = sorted(buckets, reverse=True)
    masked = sorted(masked_buckets)

    def cheapest(left: int) -> tuple[int, Lengths] | None:
        if left not in best:
            options: list[tuple[int, Lengths]] = []
            for bucket in exact:
                rest = cheapest(left - bucket) if bucket <= left else None
                if rest is not None:
                    step_ns = costs.step_ns("traced_bucket", bucket)
                    options.append((step_ns + rest[0], (("traced_bucket", bucket), *rest[1])))
            options += [
                (costs.step_ns("masked_bucket", bucket), (("masked_bucket", bucket),))
                for bucket in masked
                if bucket >= left
            ]
            best[left] = min(options, key=lambda option: option[0], default=None)
        return best[left]

    found = cheapest(tail)
    if found is None:
        _exact_tail(tail, buckets, masked_buckets)  # says what does not fit
        raise ValueError(f"no steps cover a tail of {tail} tokens")
    return list(found[1])
