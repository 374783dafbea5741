"""The engine's own work per step must not grow with the context.

Run by name: pytest tests/engine/bench_engine.py. Two engines in one process take turns; what counts is the ratio of
each pair of turns, because a shared machine changes its pace from minute to minute.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial

from ttkern.engine import decoding as engine_module
from ttkern.engine.engine import Engine
from ttkern.engine.request import Request, SamplingParams
from ttkern.engine.runner_protocol import DecodeRow, Sampled
from ttkern.engine.stub_runner import StubRunner

NUM_SEQUENCES = 8
SHORT, LONG = 1024, 128 * 1024
STEPS_PER_TURN, TURNS = 64, 31
TEXT = "Once upon a time 你好 there was a naïve little fox 🎉 who lived by the sea. "


class ScriptRunner(StubRunner):
    """Says `script`. Its decode does the same work at any length and leaves the processor's caches as they were: the
    stub's own walks all blocks, so that the engine would begin each step colder at 128k."""

    script: Sequence[int] = ()

    def decode(self, rows: Sequence[DecodeRow]) -> list[Sampled]:
        return [Sampled(self.script[row.sample.step % len(self.script)], None, ()) for row in rows]


class Arm:
    """Eight running streams of one length."""

    def __init__(self, tokenizer, prompt_tokens: int) -> None:
        answer = STEPS_PER_TURN * (TURNS + 1) + NUM_SEQUENCES * (prompt_tokens // 2048 + 2)  # some while others prefill
        blocks = -(-(prompt_tokens + answer) // 64)
        self.runner = ScriptRunner(
            vocab_size=tokenizer.vocab_size,
            num_blocks=NUM_SEQUENCES * blocks,
            max_model_len=prompt_tokens + answer,
            chunk_tokens=2048,
            buckets=(1024, 512, 256, 128),
        )
        self.runner.script = tokenizer.encode(TEXT)
        self.engine = Engine(self.runner, tokenizer)
        params = SamplingParams(max_tokens=answer, ignore_eos=True, stop=("never said",))
        for number in range(NUM_SEQUENCES):
            prompt = [(number + position) % tokenizer.vocab_size for position in range(prompt_tokens)]
            self.engine.add_request(Request(str(number), prompt, params))
        full = 0  # the last prefill's own step counts one output of it, and the next decode is under way without it
        while full < 2:
            full = full + 1 if len(self.engine.step()) == NUM_SEQUENCES else 0

    def us_per_step(self) -> float:
        start = time.perf_counter()
        for _ in range(STEPS_PER_TURN):
            outputs = self.engine.step()
            assert len(outputs) == NUM_SEQUENCES
        return 1e6 * (time.perf_counter() - start) / STEPS_PER_TURN


def compare(tokenizer, turns: int) -> tuple[float, float, float]:
    """Median us per step at SHORT and at LONG, and the median ratio of the pairs."""
    short, long = Arm(tokenizer, SHORT), Arm(tokenizer, LONG)
    pairs = [(short.us_per_step(), long.us_per_step()) for _ in range(turns)]
    short_us, long_us = (statistics.median(column) for column in zip(*pairs, strict=True))
    return short_us, long_us, statistics.median(b / a for a, b in pairs)


def test_a_step_at_128k_tokens_costs_the_engine_what_it_costs_at_1k(byte_pairs):
    short_us, long_us, ratio = compare(byte_pairs, TURNS)
    print(f"\nengine's own work per step, {NUM_SEQUENCES} sequences: {short_us:.0f} us at {SHORT} tokens, ", end="")
    print(f"{long_us:.0f} us at {LONG}; ratio {ratio:.2f}")
    assert ratio <= 1.5
    assert long_us < 5000


def test_an_engine_that_copies_its_tokens_would_be_found(byte_pairs, monkeypatch):
    for name in ("_row", "_next_row"):
        honest = getattr(engine_module, name)
        copying = partial(lambda honest, sequence, *rest: list(sequence.token_ids) and honest(sequence, *rest), honest)
        monkeypatch.setattr(engine_module, name, copying)
    assert compare(byte_pairs, turns=3)[2] > 1.5
