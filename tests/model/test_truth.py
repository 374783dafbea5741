"""ttkern's decoder against transformers' `Qwen3_5ForCausalLM`, in exact mode and in bfloat16."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers.models.qwen3_5", reason="transformers here has no Qwen3.5: no outside reference")

from tests.reference_model import SHAPES, decode, make_runner, prefill, reference_model, whole
from ttkern.engine.planner import plan
from ttkern.targets import open_target

LENGTHS = (1, 2, 3, 31, 32, 33, 63, 64, 65, 300, 2047, 2048, 2049, 5000)
DECODED = 64


def prompt(length: int, vocab: int, seed: int = 0) -> list[int]:
    return torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(seed + length)).tolist()


def reference_logits(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


def error_over_rms(got: np.ndarray, want: np.ndarray) -> float:
    """Largest error of any position over that position's RMS."""
    return float((np.abs(got - want).max(axis=1) / np.sqrt((want**2).mean(axis=1))).max())


def assert_same_choices(tokens: list[int], want: np.ndarray) -> None:
    top = np.sort(want, axis=1)
    clear = top[:, -1] - top[:, -2] > 1e-3
    assert clear.sum() > len(tokens) // 2, "the reference is too flat to tell"
    differ = [i for i in np.flatnonzero(clear) if tokens[i] != int(want[i].argmax())]
    assert not differ, f"tokens {differ} differ from the reference's choice"


@lru_cache(maxsize=1)
def exact_pair(name: str) -> tuple[Any, Any, Any]:
    """The reference, a runner that takes any prompt as one step, and one that takes it in chunks of 256."""
    model = reference_model(SHAPES[name])
    target = open_target("emulated", exact=True)
    one = make_runner(target, model, chunk_tokens=8192, max_masked_bucket=8192)
    return model, one, make_runner(open_target("emulated", exact=True), model, chunk_tokens=256)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", SHAPES)
def test_exact_mode_equals_transformers(name: str, length: int) -> None:
    model, one, chunked = exact_pair(name)
    tokens = prompt(length, model.config.vocab_size)
    plans = (
        (one, whole(length)),
        (chunked, list(plan(length, 0, 256, chunked.buckets, chunked.masked_buckets))),
    )
    for runner, steps in plans:
        logits, first = prefill(runner, tokens, steps)
        more, decoded = decode(runner, first, length, DECODED)
        runner.release(0)
        want = reference_logits(model, [*tokens, first, *more[:-1]])
        assert error_over_rms(logits, want[:length]) <= 1e-4
        assert error_over_rms(decoded, want[length:]) <= 1e-4
        assert_same_choices([first, *more], want[length - 1 :])


@pytest.mark.parametrize("name", SHAPES)
def test_bfloat16_logits_correlate_with_transformers(name: str) -> None:
    model = reference_model(SHAPES[name])
    runner = make_runner(open_target("emulated"), model, chunk_tokens=256)
    tokens = prompt(300, model.config.vocab_size)
    logits, first = prefill(runner, tokens, list(plan(300, 0, 256, runner.buckets, runner.masked_buckets)))
    more, decoded = decode(runner, first, 300, 16)
    want = reference_logits(model, [*tokens, first, *more[:-1]])
    got = np.concatenate([logits, decoded])
    pcc = [float(np.corrcoef(a, b)[0, 1]) for a, b in zip(got, want, strict=True)]
    assert min(pcc) >= 0.99


def test_a_wrong_weight_is_seen() -> None:
    model, one, _ = exact_pair("base")
    tokens = prompt(65, model.config.vocab_size)
    logits, _ = prefill(one, tokens, whole(65))
    one.release(0)
    with torch.no_grad():
        model.model.layers[1].linear_attn.A_log += 0.1
        want = reference_logits(model, tokens)
        model.model.layers[1].linear_attn.A_log -= 0.1
    assert error_over_rms(logits, want) > 1e-4
