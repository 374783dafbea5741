"""The engine over the real runner: what a sequence says does not depend on who else is served."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("transformers.models.qwen3_5", reason="the model under test is made by transformers")

from tests.reference_model import SHAPES, make_runner, reference_model
from ttkern.engine.engine import Engine
from ttkern.engine.request import Request, SamplingParams
from ttkern.targets import open_target


class Letters:
    """A tokenizer of one character per id."""

    eos_token_ids: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return [ord(c) - 0x4E00 for c in text]

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return "".join(chr(0x4E00 + i) for i in ids)


def answers(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    """Output ids of prompts that are all there from the start."""
    said: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}
    for i, prompt in enumerate(prompts):
        engine.add_request(Request(str(i), prompt, params))
    while engine.has_work():
        for output in engine.step():
            assert output.error is None
            said[output.request_id].extend(output.token_ids)
    engine.check_integrity()
    return list(said.values())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "bfloat16"])
def test_company_changes_nothing(exact: bool, temperature: float) -> None:
    runner = make_runner(
        open_target("emulated", exact=exact),
        reference_model(SHAPES["base"]),
        chunk_tokens=128,
        max_num_seqs=4,
        max_model_len=1024,
        num_blocks=64,
    )
    rng = random.Random(0)
    prompts = [rng.choices(range(256), k=n) for n in (1, 31, 64, 127, 128, 129, 300, 511)]
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=12, ignore_eos=True)
    alone = [answers(Engine(runner, Letters()), [prompt], params)[0] for prompt in prompts]
    together = answers(Engine(runner, Letters()), prompts, params)
    assert together == alone
    assert all(len(tokens) == 12 for tokens in together)


def test_a_pool_too_small_for_all_changes_nothing() -> None:
    """In exact mode, where recomputing a preempted sequence gives the same numbers as keeping it."""
    runner = make_runner(
        open_target("emulated", exact=True),
        reference_model(SHAPES["base"]),
        chunk_tokens=128,
        max_num_seqs=4,
        max_model_len=512,
        num_blocks=8,
    )
    rng = random.Random(1)
    prompts = [rng.choices(range(256), k=n) for n in (60, 50, 40, 30)]
    params = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
    alone = [answers(Engine(runner, Letters()), [prompt], params)[0] for prompt in prompts]
    engine = Engine(runner, Letters())
    assert answers(engine, prompts, params) == alone
    assert engine.stats().num_preemptions > 0


def test_a_greedy_step_sends_nothing_to_the_device() -> None:
    """Token, positions and the argmax stay there; a new block and idle rows' positions are all that is sent."""
    target = open_target("emulated")
    sizes = {"chunk_tokens": 128, "max_num_seqs": 4, "max_model_len": 1024, "num_blocks": 64}
    runner = make_runner(target, reference_model(SHAPES["base"]), **sizes)
    engine = Engine(runner, Letters())
    engine.add_request(Request("r", [5, 6, 7], SamplingParams(temperature=0, max_tokens=200)))
    while engine.stats().num_generated_tokens < 4:
        engine.step()
    before, tokens = target.device.counters(), engine.stats().num_generated_tokens
    while engine.stats().num_generated_tokens < 190:
        engine.step()
    spent, steps = target.device.counters() - before, engine.stats().num_generated_tokens - tokens
    assert spent.trace_replays == spent.host_reads == steps
    blocks, resets = steps // 64 + 1, steps // 31 + 1
    assert spent.host_writes <= blocks + 2 * resets
