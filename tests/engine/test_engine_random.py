"""Random arrivals, cancellations and failures over pools that are too small: every token as from the prompt alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttkern.engine.config import EngineConfig
from ttkern.engine.engine import Engine
from ttkern.engine.request import Request, SamplingParams
from ttkern.engine.stub_runner import expected_tokens
from ttkern.errors import TtkernError

VOCAB = 40  # small, so that token 0 ends many answers
MAX_STEPS = 3000
_seen = {"preempted": 0, "aborted": 0, "failed": 0, "finished": 0, "ended early": 0}


def wanted(prompt: list[int], params: SamplingParams, limit: int) -> tuple[list[int], str]:
    """The answer by the definition: tokens and how it ends."""

    def forbidden(step: int) -> tuple[int, ...]:
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else (0,))}
        return tuple(ends) if step < params.min_tokens else ()

    sampled = {"temperature": params.temperature, "seed": params.seed}
    tokens = expected_tokens(prompt, limit, VOCAB, forbidden=forbidden, **sampled)
    for index, token in enumerate(tokens):
        if token in params.stop_token_ids or (token == 0 and not params.ignore_eos):
            return tokens[: index + 1], "stop"
    return tokens, "length"


requests = st.fixed_dictionaries(
    {
        "arrives": st.integers(0, 40),
        "length": st.integers(1, 150),
        "max_tokens": st.none() | st.integers(0, 60),
        "min_tokens": st.integers(0, 5),
        "temperature": st.sampled_from([0.0, 1.0]),
        "seed": st.integers(0, 2**32),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.sampled_from([(), (3,), (5, 6)]),
        "prompt_logprobs": st.sampled_from([None, None, 1]),
        "aborted_after": st.none() | st.none() | st.integers(0, 30),
    }
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    wishes=st.lists(requests, min_size=1, max_size=9),
    num_blocks=st.integers(3, 30),
    max_num_seqs=st.integers(1, 5),
    chunk_tokens=st.sampled_from([32, 64]),
    fails_at=st.none() | st.none() | st.none() | st.integers(1, 60),
)
def test_every_answer_is_exact_and_nothing_is_lost(
    letters, script_runner, wishes, num_blocks, max_num_seqs, chunk_tokens, fails_at
):
    runner = script_runner(
        vocab_size=VOCAB,
        num_blocks=num_blocks,
        block_size=8,
        max_num_seqs=max_num_seqs,
        max_model_len=200,
        chunk_tokens=64,
        buckets=(32, 16),
        masked_buckets=(16, 8),
    )
    engine = Engine(runner, letters, EngineConfig(chunk_tokens=chunk_tokens))

    def fail(name, call):
        if len(runner.calls) == fails_at:
            raise RuntimeError("planned")

    runner.on_call = fail
    limit = min(200, num_blocks * 8)
    held: dict[str, tuple[list[int], SamplingParams]] = {}
    said: dict[str, list] = {}
    over: set[str] = set()
    step = 0
    while step <= 40 or engine.has_work():
        assert step < MAX_STEPS, "no progress"
        for number, wish in enumerate(wishes):
            name = str(number)
            if wish["arrives"] == step:
                prompt = [random.Random(number).randrange(VOCAB) for _ in range(wish["length"])]
                fields = {k: v for k, v in wish.items() if k not in ("arrives", "length", "aborted_after")}
                try:
                    params = SamplingParams(**fields)
                    engine.add_request(Request(name, prompt, params))
                except TtkernError:
                    continue
                held[name], said[name] = (prompt, params), []
            elif wish["aborted_after"] is not None and step == wish["arrives"] + wish["aborted_after"] and name in held:
                assert engine.abort(name) == (name not in over)
                over.add(name)
        for output in engine.step():
            assert output.request_id not in over, "output of a request that is over"
            said[output.request_id].append(output)
            if output.finish_reason is not None:
                over.add(output.request_id)
        engine.check_integrity()
        step += 1

    assert over == set(held)
    for name, (prompt, params) in held.items():
        tokens = [token for output in said[name] for token in output.token_ids]
        text = "".join(output.text for output in said[name])
        most = limit - len(prompt) if params.max_tokens is None else params.max_tokens
        expected, reason = wanted(prompt, params, most)
        assert tokens == expected[: len(tokens)]
        last = said[name][-1] if said[name] else None
        if last is not None and last.finish_reason in ("stop", "length"):
            assert (tokens, last.finish_reason) == (expected, reason)
            ended = last.stop_reason is not None or (reason == "stop")
            assert text == letters.decode(tokens[:-1] if ended else tokens)
            _seen["finished"] += 1
            _seen["ended early"] += ended
        elif last is not None and last.finish_reason == "abort":
            assert fails_at is not None
            assert last.error == "RuntimeError: planned"
            _seen["failed"] += 1
        else:
            assert text == letters.decode(tokens)
            _seen["aborted"] += 1
        if said[name] and params.prompt_logprobs is not None and last.error is None:
            assert [entry.token for entry in said[name][0].prompt_logprobs] == prompt[1:]
    stats = engine.stats()
    _seen["preempted"] += stats.num_preemptions
    assert (stats.num_used_blocks, stats.num_running, stats.num_waiting) == (0, 0, 0)
    assert runner._num_tokens == {}, "a slot was not released"


@pytest.fixture(scope="module", autouse=True)
def _every_kind_of_end_was_seen():
    yield
    assert all(_seen.values()), f"the scenarios leave something out: {_seen}"
