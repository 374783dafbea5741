"""Picking a token from one row of logits. Pure functions of the row and the `SampleSpec`."""

from __future__ import annotations

import numpy as np

from ttkern.engine.runner_protocol import Sampled, SampleSpec, TokenLogprob


def sample(logits: np.ndarray, spec: SampleSpec) -> Sampled:
    """The next token.

    logits: float [vocab], not modified. Order: forbidden ids out, temperature, top_k, top_p of what top_k left, one
    draw. The draw depends on (spec.seed, spec.step) alone, so that a sequence computed again continues as before.
    Ties go to the lower token id. Logprobs are those of the unmodified logits.
    Raises FloatingPointError on NaN or +inf, and ValueError when every token is forbidden.
    """
    _check_finite(logits)
    allowed = logits
    if spec.forbidden:
        allowed = logits.copy()
        allowed[list(spec.forbidden)] = -np.inf
    token = int(allowed.argmax())
    if allowed[token] == -np.inf:
        raise ValueError(f"none of the {logits.size} tokens may be chosen: all are forbidden or at -inf")
    if spec.temperature > 0:
        token = _draw(allowed, spec)
    if spec.logprobs is None:
        return Sampled(token, None, ())
    return score(logits, token, spec.logprobs)


def score(logits: np.ndarray, token: int, top: int) -> Sampled:
    """`token` with its logprob and the `top` likeliest tokens, from logits, float [vocab].

    Raises FloatingPointError on NaN or +inf.
    """
    _check_finite(logits)
    peak = float(logits.max())
    log_sum = peak + float(np.log(np.exp(logits - peak, dtype=np.float64).sum()))
    best = _largest(logits, top) if top else ()
    return Sampled(
        token,
        float(logits[token]) - log_sum,
        tuple(TokenLogprob(int(t), float(logits[t]) - log_sum) for t in best),
    )


def _check_finite(logits: np.ndarray) -> None:
    peak = logits.max()  # NaN wins every maximum
    if not np.isfinite(peak):
        bad = np.flatnonzero(np.isnan(logits) | (logits == np.inf))
        if bad.size:
            what = f"the first, {logits[bad[0]]}, at token {bad[0]}"
        else:
            what = "they are all -inf"
        raise FloatingPointError(
            f"{bad.size or logits.size} of {logits.size} logits are not numbers to pick by: {what}"
        )


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest values, largest first, ties by index."""
    if count >= values.size:
        return np.argsort(-values, kind="stable")
    threshold = np.partition(values, values.size - count)[values.size - count]
    candidates = np.flatnonzero(values >= threshold)
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]


def _draw(logits: np.ndarray, spec: SampleSpec) -> int:
    key = np.array([spec.seed % 2**64, spec.step], dtype=np.uint64)
    uniform = np.random.Generator(np.random.Philox(key=key)).random()
    if spec.top_k:
        tokens = _largest(logits, spec.top_k)
        weights = _weights(logits[tokens], spec.temperature)
        total = float(weights.sum())
    else:
        weights = _weights(logits, spec.temperature)
        if spec.top_p == 1:
            return _pick(weights, uniform)
        # All tokens below this floor together are less than 1 - top_p, so that none of them can be in the nucleus: few
        # are left to sort. Half of it, for rounding.
        total = float(weights.sum())
        tokens = np.flatnonzero(weights >= 0.5 * (1 - spec.top_p) * total / weights.size)
        tokens = tokens[np.argsort(-logits[tokens], kind="stable")]
        weights = weights[tokens]
    if spec.top_p < 1:
        # The smallest set of the likeliest tokens that reaches top_p: a token stays while those before it do not.
        before = np.concatenate(([0.0], np.cumsum(weights)[:-1]))
        kept = int(np.searchsorted(before, spec.top_p * total, side="left"))
        tokens, weights = tokens[:kept], weights[:kept]
    return int(tokens[_pick(weights, uniform)])


def _weights(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Unnormalised probabilities in float64; the likeliest token's is 1."""
    with np.errstate(over="ignore"):  # a tiny temperature sends all others to -inf, which is what it asks for
        return np.exp((logits.astype(np.float64) - float(logits.max())) / temperature)


def _pick(weights: np.ndarray, uniform: float) -> int:
    sums = np.cumsum(weights)
    index = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
    if index < weights.size:
        return index
    return int(np.flatnonzero(weights)[-1])  # rounding: uniform * total reached the total
