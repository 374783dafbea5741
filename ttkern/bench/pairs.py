"""What interleaved pairs say: a ratio with its interval, the smallest effect they could have found, and a verdict.

The two times of a pair were taken one after the other, so both met the same machine: their ratio is what counts. Runs
minutes apart are not compared this way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.stats import norm

CONFIDENCE = 0.99
MARGIN = 0.02
RESAMPLES = 2_000
MIN_PAIRS = 20
# Chance with which an effect of the smallest detectable size is found.
POWER = 0.8


class Outcome(Enum):
    """What is said of the second of two against the first."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Comparison:
    """ratio: time of the second over time of the first, the median over pairs; low, high: its interval.

    reason      code for the outcome: interval_beyond_margin, interval_within_margin, interval_spans_margin,
                few_pairs, few_samples
    detectable  the smallest effect that so many pairs of such scatter find in 4 of 5 runs (0.03: 3%)
    """

    outcome: Outcome
    reason: str
    ratio: float
    low: float
    high: float
    detectable: float
    pairs: int
    confidence: float
    margin: float

    def __str__(self) -> str:
        return f"{self.outcome.value}: {self.ratio:.3f}x ({self.low:.3f} to {self.high:.3f})"


def compare(
    first: Sequence[float],
    second: Sequence[float],
    *,
    groups: Sequence[int] | None = None,
    confidence: float = CONFIDENCE,
    margin: float = MARGIN,
    seed: int = 0,
) -> Comparison:
    """Times of the two arms, pair by pair.

    groups   pairs that share what does not vary within them, such as a process: whole groups are drawn, and then pairs
             of them, so that what differs between processes widens the interval
    margin   a difference within it is none that matters (the same code twice differs by as much, where its memory lies
             otherwise): an interval inside 1 +- margin is SAME, one outside is FASTER or SLOWER, any other is UNCLEAR

    Raises ValueError for arms of different length or times that are not positive.
    """
    a, b = np.asarray(first, float), np.asarray(second, float)
    if len(a) != len(b) or not (np.all(a > 0) and np.all(b > 0)):
        raise ValueError(f"{len(a)} and {len(b)} times; pairs need as many of both, all positive")
    if len(a) < MIN_PAIRS:
        ratio = float(np.exp(np.median(np.log(b / a)))) if len(a) else math.nan
        return Comparison(Outcome.UNCLEAR, "few_pairs", ratio, math.nan, math.nan, math.nan, len(a), confidence, margin)
    logs = np.log(b / a)
    drawn = _bootstrap(logs, None if groups is None else np.asarray(groups), np.random.default_rng(seed))
    return _comparison(float(np.exp(np.median(logs))), drawn, len(a), confidence, margin)


def compare_runs(
    first: Sequence[float],
    second: Sequence[float],
    *,
    confidence: float = CONFIDENCE,
    margin: float = MARGIN,
    seed: int = 0,
) -> Comparison:
    """Two saved runs, each resampled by itself: what the machine did between them is in the ratio and not in the
    interval. Raises ValueError for times that are not positive."""
    a, b = np.asarray(first, float), np.asarray(second, float)
    if not (np.all(a > 0) and np.all(b > 0)):
        raise ValueError("times must be positive")
    count = min(len(a), len(b))
    ratio = float(np.median(b) / np.median(a)) if count else math.nan
    if count < MIN_PAIRS:
        return Comparison(
            Outcome.UNCLEAR, "few_samples", ratio, math.nan, math.nan, math.nan, count, confidence, margin
        )
    rng = np.random.default_rng(seed)
    medians = [np.log(np.median(rng.choice(arm, (RESAMPLES, len(arm))), axis=1)) for arm in (a, b)]
    return _comparison(ratio, medians[1] - medians[0], count, confidence, margin)


def _comparison(ratio: float, drawn: np.ndarray, count: int, confidence: float, margin: float) -> Comparison:
    """From resampled log ratios."""
    tail = 100 * (1 - confidence) / 2
    low, high = (float(bound) for bound in np.exp(np.percentile(drawn, [tail, 100 - tail])))
    spread = float(norm.ppf((1 + confidence) / 2) + norm.ppf(POWER)) * float(drawn.std())
    outcome, reason = _verdict(low, high, margin)
    return Comparison(outcome, reason, ratio, low, high, math.expm1(spread), count, confidence, margin)


def _verdict(low: float, high: float, margin: float) -> tuple[Outcome, str]:
    if 1 - margin <= low and high <= 1 + margin:
        return Outcome.SAME, "interval_within_margin"
    if low > 1 + margin or high < 1 - margin:
        return (Outcome.SLOWER if low > 1 else Outcome.FASTER), "interval_beyond_margin"
    return Outcome.UNCLEAR, "interval_spans_margin"


def _bootstrap(logs: np.ndarray, groups: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Medians of resampled pairs."""
    if groups is None:
        return np.median(rng.choice(logs, (RESAMPLES, len(logs))), axis=1)
    members = [logs[groups == group] for group in np.unique(groups)]
    medians = np.empty(RESAMPLES)
    for n in range(RESAMPLES):
        chosen = rng.integers(len(members), size=len(members))
        medians[n] = np.median(np.concatenate([rng.choice(members[g], len(members[g])) for g in chosen]))
    return medians
