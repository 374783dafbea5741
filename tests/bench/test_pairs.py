"""Verdicts on times whose truth is known: two arms that drift together, with or without a planted difference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ttkern.bench.pairs import MIN_PAIRS, Outcome, compare, compare_runs


def arms(seed: int, effect: float, pairs: int = 200, scatter: float = 0.1) -> tuple[list[float], list[float]]:
    """A machine that drifts by half over the run, slows down by bursts, and scatters."""
    rng = np.random.default_rng(seed)
    drift = 1 + 0.5 * np.sin(np.linspace(0, 6, pairs)) + (rng.random(pairs) < 0.1) * 3
    first, second = (1e-3 * drift * np.exp(scatter * rng.standard_normal(pairs)) for _ in range(2))
    return first.tolist(), (second * (1 + effect)).tolist()


def test_nothing_is_found_where_nothing_is() -> None:
    found = [compare(*arms(seed, 0.0)).outcome for seed in range(100)]
    assert sum(outcome in (Outcome.FASTER, Outcome.SLOWER) for outcome in found) <= 4  # 1% of 100, and its own scatter


@pytest.mark.parametrize(("effect", "outcome"), [(0.1, Outcome.SLOWER), (-0.1, Outcome.FASTER)])
def test_ten_percent_are_found(effect: float, outcome: Outcome) -> None:
    found = [compare(*arms(seed, effect)) for seed in range(30)]
    assert sum(one.outcome is outcome for one in found) >= 27
    assert np.median([one.ratio for one in found]) == pytest.approx(1 + effect, abs=0.01)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    covered = [
        found.low <= 1.03 <= found.high for found in (compare(*arms(s, 0.03), confidence=0.9) for s in range(100))
    ]
    assert 0.81 <= sum(covered) / 100 <= 0.98


def test_the_smallest_effect_seen_is_seen_in_four_of_five() -> None:
    effect = float(np.median([compare(*arms(seed, 0.0)).detectable for seed in range(20)]))
    found = [compare(*arms(seed, effect), margin=0.0).outcome is Outcome.SLOWER for seed in range(60)]
    assert 0.6 <= sum(found) / 60 <= 0.97


def test_little_scatter_is_the_same_within_the_margin() -> None:
    assert compare(*arms(0, 0.005, scatter=0.01)).outcome is Outcome.SAME
    assert compare(*arms(0, 0.005, scatter=0.01), margin=0.0).outcome is Outcome.SLOWER


def test_what_differs_between_processes_widens_the_interval() -> None:
    """Six pairs of processes, each with a difference of its own that says nothing of the code."""
    wrong = {True: 0, False: 0}
    for seed in range(30):
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(6), 40)
        first, second = arms(seed, 0.0, 240, 0.02)
        second = (np.array(second) * np.exp(0.05 * rng.standard_normal(6))[groups]).tolist()
        for known in wrong:
            found = compare(first, second, groups=groups.tolist() if known else None)
            wrong[known] += found.outcome in (Outcome.FASTER, Outcome.SLOWER)
    assert wrong[True] < 0.25 * wrong[False]


def test_few_pairs_say_nothing() -> None:
    found = compare([1.0] * (MIN_PAIRS - 1), [2.0] * (MIN_PAIRS - 1))
    assert (found.outcome, found.reason, found.ratio) == (Outcome.UNCLEAR, "few_pairs", 2.0)
    assert math.isnan(compare([], []).ratio)


@pytest.mark.parametrize(("first", "second"), [([1.0], [1.0, 2.0]), ([1.0, 0.0], [1.0, 1.0]), ([-1.0], [1.0])])
def test_what_are_no_pairs_is_refused(first: list[float], second: list[float]) -> None:
    with pytest.raises(ValueError, match="all positive"):
        compare(first, second)


def test_runs_at_different_times_take_the_drift_for_an_effect() -> None:
    """Why pairs are interleaved: the second run met a machine that was 20% slower."""
    rng = np.random.default_rng(0)
    first, second = (np.exp(0.05 * rng.standard_normal(200)) for _ in range(2))
    assert compare_runs(first.tolist(), (1.2 * second).tolist()).outcome is Outcome.SLOWER
    both = np.r_[np.ones(100), 1.2 * np.ones(100)]  # the same machine, met by both arms of a pair
    assert compare((both * first).tolist(), (both * second).tolist()).outcome in (Outcome.SAME, Outcome.UNCLEAR)
