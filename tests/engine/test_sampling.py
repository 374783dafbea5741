"""Truth: torch's softmax and log_softmax, and counted frequencies."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttkern.engine.runner_protocol import SampleSpec
from ttkern.engine.sampling import _pick, sample, score


def spec(temperature=1.0, top_p=1.0, top_k=0, seed=1, step=0, logprobs=None, forbidden=()) -> SampleSpec:
    return SampleSpec(temperature, top_p, top_k, seed, step, logprobs, tuple(forbidden))


def random_logits(size: int, seed: int = 0, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def nucleus(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> dict[int, float]:
    """Token -> probability by the definition, one token at a time."""
    ordered = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if top_k:
        ordered = ordered[:top_k]
    probabilities = torch.softmax(torch.tensor(logits[ordered], dtype=torch.float64) / temperature, 0).tolist()
    kept, reached = {}, 0.0
    for token, probability in zip(ordered, probabilities, strict=True):
        if reached >= top_p:
            break
        kept[token] = probability
        reached += probability
    return {token: probability / reached for token, probability in kept.items()}


def test_greedy_is_the_largest_and_ties_go_to_the_lower_id():
    assert sample(np.array([1, 5, 5, 2], dtype=np.float32), spec(temperature=0)).token == 1
    logits = random_logits(1000)
    assert sample(logits, spec(temperature=0)).token == int(torch.tensor(logits).argmax())


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.3, 7, 1.0), (1.0, 0, 0.8), (0.8, 20, 0.6), (1.0, 3, 0.99), (2.0, 0, 0.3)],
)
def test_tokens_come_as_often_as_their_probability_says(temperature, top_k, top_p):
    logits = random_logits(40, seed=3, scale=1.5)
    expected = nucleus(logits, temperature, top_k, top_p)
    draws = 20_000
    counts = np.zeros(40)
    for step in range(draws):
        counts[sample(logits, spec(temperature, top_p, top_k, seed=7, step=step)).token] += 1
    assert set(np.flatnonzero(counts)) <= set(expected), "a token outside the nucleus was drawn"
    chi_squared = sum((counts[t] - draws * p) ** 2 / (draws * p) for t, p in expected.items() if draws * p >= 5)
    # 1 + 5 standard deviations of chi squared: a fair draw passes for all but one seed in a million.
    freedom = max(1, len(expected) - 1)
    assert chi_squared < freedom + 5 * (2 * freedom) ** 0.5 + 10


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1, 2, 50, 257, 3000]),
    top_k=st.sampled_from([0, 1, 5, 5000]),
    top_p=st.floats(0.01, 1.0),
    temperature=st.floats(0.05, 5),
)
def test_a_draw_is_always_inside_the_nucleus(seed, size, top_k, top_p, temperature):
    logits = np.round(random_logits(size, seed))  # many ties
    token = sample(logits, spec(temperature, top_p, top_k, seed=seed)).token
    expected = nucleus(logits, temperature, top_k, min(1.0, top_p * (1 + 1e-9)))
    assert token in expected


def test_a_flat_distribution_has_a_large_nucleus():
    logits = np.zeros(5000, dtype=np.float32)
    drawn = {sample(logits, spec(top_p=0.5, step=step)).token for step in range(3000)}
    assert max(drawn) <= 2500
    assert len(drawn) > 1500


def test_the_draw_depends_on_seed_and_step_alone():
    logits = random_logits(500)
    first = [sample(logits, spec(seed=5, step=step)).token for step in range(50)]
    backwards = [sample(logits, spec(seed=5, step=step)).token for step in reversed(range(50))]
    assert first == backwards[::-1]
    assert first != [sample(logits, spec(seed=6, step=step)).token for step in range(50)]
    assert len(set(first)) > 10
    for seed in (-1, -(2**63), 2**63 - 1, 2**64 - 1):
        sample(logits, spec(seed=seed))


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1}, {"temperature": 1, "top_p": 0.9}])
def test_forbidden_tokens_are_never_chosen_and_the_logits_stay(options):
    logits = random_logits(20)
    best = np.argsort(-logits)
    before = logits.copy()
    for step in range(200):
        assert sample(logits, spec(step=step, forbidden=best[:3], **options)).token not in best[:3]
    assert (logits == before).all()
    assert sample(logits, spec(temperature=0, forbidden=best[:19])).token == best[19]
    with pytest.raises(ValueError, match="none of the 20 tokens"):
        sample(logits, spec(forbidden=range(20), **options))


@pytest.mark.parametrize("options", [{"temperature": 0.3, "top_k": 2}, {"temperature": 0, "forbidden": (1,)}])
def test_logprobs_are_those_of_the_unmodified_logits(options):
    logits = random_logits(300, seed=4)
    truth = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), 0)
    sampled = sample(logits, spec(logprobs=5, **options))
    assert sampled.logprob == pytest.approx(truth[sampled.token].item(), abs=1e-5)
    values, tokens = truth.topk(5)
    assert [entry.token for entry in sampled.top] == tokens.tolist()
    assert [entry.logprob for entry in sampled.top] == pytest.approx(values.tolist(), abs=1e-5)
    assert sample(logits, spec(logprobs=0, **options)).top == ()
    assert sample(logits, spec(**options)).logprob is None


def test_score_gives_a_named_token_its_logprob():
    logits = random_logits(30) + 1000  # the sum of exponentials must not overflow
    truth = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), 0)
    for token in range(30):
        assert score(logits, token, 0).logprob == pytest.approx(truth[token].item(), abs=1e-4)
    assert len(score(logits, 0, 30).top) == 30


@pytest.mark.parametrize(("value", "message"), [(np.nan, "nan, at token 17"), (np.inf, "inf, at token 17")])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_no_numbers_are_an_error(value, message, temperature):
    logits = random_logits(100)
    logits[17] = value
    with pytest.raises(FloatingPointError, match=message):
        sample(logits, spec(temperature=temperature))
    with pytest.raises(FloatingPointError, match="1 of 100"):
        score(logits, 3, 2)
    with pytest.raises(FloatingPointError, match="all -inf"):
        sample(np.full(5, -np.inf, dtype=np.float32), spec(temperature=temperature))


@pytest.mark.parametrize(("uniform", "index"), [(0.0, 1), (0.49, 1), (0.5, 3), (1.0 - 2**-53, 3), (1.0, 3)])
def test_a_weight_of_zero_is_never_picked(uniform, index):
    assert _pick(np.array([0.0, 2.0, 0.0, 2.0, 0.0]), uniform) == index


def test_a_tiny_temperature_is_greedy_and_minus_infinity_is_never_drawn():
    logits = random_logits(100)
    logits[:50] = -np.inf
    assert sample(logits, spec(temperature=1e-300)).token == logits.argmax()
    assert all(sample(logits, spec(temperature=5, step=step)).token >= 50 for step in range(500))


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.9}, {"logprobs": 20}, {"top_p": 0.999}],
    ids=str,
)
def test_a_large_vocabulary_is_quick(options):
    logits = random_logits(248_320, scale=4)
    seconds = []
    for step in range(5):
        start = time.perf_counter()
        sample(logits, spec(step=step, **options))
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.2  # 0.01 s; with one Python object per token it would be more than this
