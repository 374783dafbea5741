"""The runner on the emulated device: padding is neutral, and after start-up nothing is compiled or allocated."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers.models.qwen3_5", reason="the model under test is made by transformers")

from tests.reference_model import GREEDY, SHAPES, decode, make_runner, prefill, reference_model
from ttkern.engine.planner import plan
from ttkern.engine.runner import DeviceRunner
from ttkern.engine.runner_protocol import PrefillCall
from ttkern.targets import open_target

CHUNK = 256


@pytest.fixture(scope="module")
def model() -> Any:
    return reference_model(SHAPES["base"])


def tokens_of(length: int) -> list[int]:
    return random.Random(length).choices(range(256), k=length)


def run(runner: DeviceRunner, length: int, blocks: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the prompt and of three decoded tokens."""
    steps = list(plan(length, 0, CHUNK, runner.buckets, runner.masked_buckets))
    logits, first = prefill(runner, tokens_of(length), steps, blocks=blocks)
    _, decoded = decode(runner, first, length, 3, blocks=blocks)
    runner.release(0)
    return logits, decoded


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "bfloat16"])
def test_padding_bytes_never_reach_a_logit(model: Any, exact: bool) -> None:
    """Two devices that differ in all that a request must not see: tile padding, padded tokens, stale KV and states."""
    clean = make_runner(open_target("emulated", exact=exact), model, chunk_tokens=CHUNK)
    other = open_target("emulated", exact=exact, poison=-3.0e38)
    dirty = make_runner(other, model, chunk_tokens=CHUNK, pad_token_id=201)
    everything = list(range(dirty.num_blocks))
    for length in (8000, 300):  # leave stale keys, values and states behind
        run(dirty, length, everything)
    for length in range(1, 257):
        blocks = random.Random(length).sample(everything, 8)
        for a, b in zip(run(clean, length, blocks), run(dirty, length, blocks), strict=True):
            assert np.array_equal(a, b), f"tail of {length} tokens"


def test_an_op_that_reads_padding_is_caught(model: Any) -> None:
    """The check above can fail: let the mask forget one padded token."""
    runner = make_runner(open_target("emulated", exact=True), model, chunk_tokens=CHUNK)
    blocks = list(range(8))
    right = run(runner, 40, blocks)
    step = runner.steps[64, True]
    assert step.mask is not None
    refresh = step.mask.refresh
    step.mask.refresh = lambda real: refresh(np.arange(64) <= 40)  # type: ignore[method-assign]
    wrong = run(runner, 40, blocks)
    assert not np.array_equal(right[1], wrong[1])


def test_a_request_compiles_nothing_and_allocates_nothing(model: Any) -> None:
    target = open_target("emulated")
    runner = make_runner(target, model, chunk_tokens=CHUNK, max_model_len=2048, num_blocks=32)
    blocks = list(range(32))
    rng = random.Random(0)
    start = target.device.counters()
    for _ in range(300):
        length = rng.randint(1, 700)
        steps = plan(length, 0, CHUNK, runner.buckets, runner.masked_buckets)
        tokens = tokens_of(length)
        for index, step in enumerate(steps):
            before = target.device.counters()
            last = index == len(steps) - 1
            part = tokens[step.start : step.start + step.length]
            runner.prefill(PrefillCall(0, step, part, blocks, index == 0, last, GREEDY if last else None, None, None))
            spent = target.device.counters() - before
            assert spent.host_writes <= 8, step
            assert 1 <= spent.trace_replays <= 2, step
        decode(runner, 1, length, 2, blocks=blocks)
        runner.release(0)
    spent = target.device.counters() - start
    assert spent.programs_compiled == 0
    assert spent.allocations == 0
    assert spent.trace_replays > 600


def test_a_decode_step_must_carry_every_sequence(model: Any) -> None:
    runner = make_runner(open_target("emulated"), model, chunk_tokens=CHUNK)
    prefill(runner, tokens_of(33), list(plan(33, 0, CHUNK, runner.buckets, runner.masked_buckets)))
    with pytest.raises(ValueError, match=r"rows \[0\] hold sequences"):
        decode(runner, 1, 33, 1, slot=1)


@pytest.mark.parametrize(
    "sizes",
    [
        {"max_model_len": 100, "chunk_tokens": 2048, "num_blocks": 2},
        {"max_model_len": 800, "chunk_tokens": 4096, "block_size": 128, "num_blocks": 7},
        {"max_model_len": 333, "chunk_tokens": 32, "block_size": 32, "num_blocks": 11, "max_num_seqs": 1},
        {"max_model_len": 200, "chunk_tokens": 64, "block_size": 32, "num_blocks": 7, "max_num_seqs": 33},
    ],
    ids=str,
)
def test_sizes_that_do_not_match_each_other_serve_up_to_the_limit(model: Any, sizes: dict[str, int]) -> None:
    """The last token of the longest sequence has its place, whatever chunk, block and limit are."""
    runner = make_runner(open_target("emulated", exact=True), model, **sizes)
    length = sizes["max_model_len"] - 2
    steps = list(plan(length, 0, runner.chunk_tokens, runner.buckets, runner.masked_buckets))
    logits, first = prefill(runner, tokens_of(length), steps)
    _, decoded = decode(runner, first, length, 2)
    assert np.isfinite(logits).all()
    assert np.isfinite(decoded).all()
