"""Random forks, turns, cancels, preemptions, evictions and corruptions over tiny pools, with prefix caching on.

The stub's next token is a hash of every token in the state and in every KV block, so a stale, torn or misplaced one
shows as a wrong token.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttkern.engine.config import EngineConfig
from ttkern.engine.engine import Engine
from ttkern.engine.request import Request, SamplingParams
from ttkern.engine.stub_runner import StubRunner, expected_tokens

VOCAB, BLOCK, CHUNK, LONGEST = 50, 8, 16, 160
MAX_STEPS = 4000
_seen = {
    "hits": 0,
    "evicted states": 0,
    "preempted": 0,
    "corrupt": 0,
    "aborted": 0,
    "decode-made hits": 0,
    "state behind": 0,
    "blocks without a state": 0,
    "scenarios": 0,
}

requests = st.fixed_dictionaries(
    {
        "arrives": st.integers(0, 60),
        "head": st.integers(0, 2),  # which of three long texts it begins with
        "shared": st.integers(0, 110),  # how much of it
        "own": st.integers(0, 40),
        "continues": st.none() | st.integers(0, 9),  # the turn before it, if that is over
        "max_tokens": st.integers(1, 45),
        "prompt_logprobs": st.sampled_from([None, None, None, 1]),
        "aborted_after": st.none() | st.none() | st.integers(0, 25),
    }
)


class Scenario:
    """One engine, and what each of its requests has been asked and has said."""

    def __init__(self, letters: Any, places: tuple[int, int], num_blocks: int, num_seqs: int, policy: Any) -> None:
        self.runner = StubRunner(
            vocab_size=VOCAB,
            num_blocks=num_blocks,
            block_size=BLOCK,
            max_num_seqs=num_seqs,
            max_model_len=LONGEST,
            chunk_tokens=CHUNK,
            buckets=(8,),
            masked_buckets=(8,),
            num_device_snapshots=places[0],
            num_host_snapshots=places[1],
        )
        self.engine = Engine(self.runner, letters, EngineConfig(snapshots=policy))
        self.prompts: dict[str, list[int]] = {}
        self.said: dict[str, list[int]] = {}
        self.limits: dict[str, int] = {}
        self.over: set[str] = set()
        self.aborted: set[str] = set()

    def add(self, name: str, wish: dict[str, Any]) -> None:
        before = str(wish["continues"])
        if before in self.over and before not in self.aborted:
            prompt = self.prompts[before] + self.said[before]
        else:
            text = random.Random(wish["head"]).choices(range(VOCAB), k=110)
            prompt = text[: wish["shared"]]
        prompt = prompt + random.Random(name).choices(range(VOCAB), k=wish["own"]) or [1]
        most = min(LONGEST, self.runner.num_blocks * BLOCK) - wish["max_tokens"]
        prompt = prompt[: max(1, most)]
        if len(prompt) > most:
            return
        params = SamplingParams(
            max_tokens=wish["max_tokens"], temperature=0, ignore_eos=True, prompt_logprobs=wish["prompt_logprobs"]
        )
        self.engine.add_request(Request(name, prompt, params))
        self.prompts[name], self.said[name], self.limits[name] = prompt, [], wish["max_tokens"]

    def step(self) -> None:
        for output in self.engine.step():
            assert output.error is None
            assert output.request_id not in self.over
            self.said[output.request_id] += output.token_ids
            assert 0 <= output.num_cached_tokens < output.num_prompt_tokens
            assert output.num_cached_tokens % CHUNK == 0
            if output.finish_reason is not None:
                self.over.add(output.request_id)
        self.engine.check_integrity()


@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    wishes=st.lists(requests, min_size=2, max_size=10),
    places=st.sampled_from([(0, 1), (1, 0), (0, 3), (2, 2), (1, 5), (0, 20)]),
    num_blocks=st.integers(6, 60),
    num_seqs=st.integers(1, 4),
    corrupt_at=st.lists(st.tuples(st.integers(5, 80), st.integers(0, 30)), max_size=3),
    policy=st.sampled_from(["saving", "saving", "saving", "lru"]),
)
def test_no_answer_knows_what_was_cached(letters, wishes, places, num_blocks, num_seqs, corrupt_at, policy):
    scenario = Scenario(letters, places, num_blocks, num_seqs, policy)
    engine, runner = scenario.engine, scenario.runner
    step = 0
    while step <= 60 or engine.has_work():
        assert step < MAX_STEPS, "no progress"
        for number, wish in enumerate(wishes):
            name = str(number)
            if wish["arrives"] == step:
                scenario.add(name, wish)
            due = wish["aborted_after"] is not None and step == wish["arrives"] + wish["aborted_after"]
            if due and name in scenario.said and engine.abort(name):
                scenario.over.add(name)
                scenario.aborted.add(name)
        for when, place in corrupt_at:
            if when == step and places[1]:
                runner.corrupt_places.add(places[0] + place % places[1])
        scenario.step()
        step += 1

    assert scenario.over == set(scenario.said)
    for name, tokens in scenario.said.items():
        wanted = expected_tokens(scenario.prompts[name], scenario.limits[name], VOCAB)
        assert tokens == (wanted[: len(tokens)] if name in scenario.aborted else wanted), f"request {name}"
    stats = engine.stats()
    assert (stats.num_used_blocks, stats.num_running, stats.num_waiting) == (0, 0, 0)
    assert stats.num_idle_blocks <= num_blocks
    assert stats.num_snapshots <= sum(places)
    _seen["hits"] += stats.reuse.hits > 0
    _seen["evicted states"] += stats.num_evicted_snapshots
    _seen["preempted"] += stats.num_preemptions
    _seen["corrupt"] += stats.reuse.corrupt
    _seen["aborted"] += len(scenario.aborted)
    _seen["decode-made hits"] += stats.reuse.inexact
    _seen["state behind"] += stats.reuse.short.get("state_behind", 0)
    _seen["blocks without a state"] += stats.reuse.short.get("no_state", 0)
    _seen["scenarios"] += 1


@pytest.fixture(scope="module", autouse=True)
def _every_kind_of_thing_happened():
    yield
    assert all(_seen.values()), f"the scenarios leave something out: {_seen}"
    print(_seen)
