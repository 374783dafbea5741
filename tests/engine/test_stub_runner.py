"""The stub finds what it is there to find: planted faults of an engine, one at a time."""

from __future__ import annotations

import dataclasses

import pytest

from ttkern.engine.engine import Engine
from ttkern.engine.request import Request, SamplingParams
from ttkern.engine.runner_protocol import DecodeRow, PrefillCall, PrefillStep, SampleSpec
from ttkern.engine.stub_runner import RunnerMisuse, StubRunner, expected_tokens

GREEDY = SampleSpec(0.0, 1.0, 0, 0, 0, None, ())
SIZES = {"num_blocks": 16, "block_size": 32, "max_num_seqs": 3, "chunk_tokens": 64, "buckets": (32,)}
SIZES |= {"masked_buckets": (32,), "vocab_size": 1 << 30, "max_model_len": 512}
PROMPT = [11, 12, 13] * 27  # 81 tokens: a chunk and 17 in a masked bucket


def first(slot=0, table=(0, 1, 2), tokens=PROMPT, **changes) -> PrefillCall:
    step = PrefillStep("traced_chunk", 0, 64, 64)
    call = PrefillCall(slot, step, tokens[:64], table, True, False, None, None, tokens[64])
    return dataclasses.replace(call, **changes)


def second(slot=0, table=(0, 1, 2), tokens=PROMPT, **changes) -> PrefillCall:
    step = PrefillStep("masked_bucket", 64, 17, 32)
    return dataclasses.replace(PrefillCall(slot, step, tokens[64:], table, False, True, GREEDY, None, None), **changes)


def row(slot=0, token=5, position=81, table=(0, 1, 2)) -> DecodeRow:
    return DecodeRow(slot, token, position, table, GREEDY)


@pytest.fixture
def runner() -> StubRunner:
    return StubRunner(**SIZES)


def test_prefill_and_decode_give_the_expected_tokens(runner):
    expected = expected_tokens(PROMPT, 3, runner.vocab_size)
    runner.prefill(first())
    assert runner.prefill(second()).sampled.token == expected[0]
    assert runner.decode([row(token=expected[0])])[0].token == expected[1]
    assert runner.decode([row(token=expected[1], position=82)])[0].token == expected[2]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda runner: runner.decode([row()]) and None,
        lambda runner: runner._state.__setitem__(0, runner._state[1]),
        lambda runner: runner._kv.__setitem__((1, 7), 0),
        lambda runner: runner._kv.__setitem__((2, 80 % 32), runner._kv[2, 79 % 32]),
    ],
    ids=["another token before", "another state", "a lost position", "a stale position"],
)
def test_a_wrong_block_or_state_gives_a_wrong_token(spoil):
    tokens = []
    for fault in (lambda runner: None, spoil):
        runner = StubRunner(**SIZES)
        runner.prefill(first())
        runner.prefill(second())
        fault(runner)
        position = runner._num_tokens[0]
        tokens.append(runner.decode([row(token=9, position=position)])[0].token)
    assert tokens[0] != tokens[1]


def test_blocks_in_the_wrong_order_or_of_another_sequence_give_a_wrong_token(runner):
    expected = expected_tokens(PROMPT, 2, runner.vocab_size)
    for table in ((1, 0, 2), (0, 3, 2)):
        runner = StubRunner(**SIZES)
        runner.prefill(first())
        runner.prefill(second())
        assert runner.decode([row(token=expected[0], table=table)])[0].token != expected[1]
        runner = StubRunner(**SIZES)
        runner.prefill(first())
        assert runner.prefill(second(table=table)).sampled.token != expected[0]


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([first(), first(slot=1, table=(3, 4, 5))], "inside that of slot 0"),
        ([first(fresh_state=False)], "step begins at 0"),
        ([second()], "at token 0; the step begins at 64"),
        ([first(), first()], "at token 64; the step begins at 0"),
        ([first(table=(0,))], "do not cover 64"),
        ([first(table=(0, 16))], "block 16 of 16"),
        ([first(slot=3)], "slot 3 of 3"),
        ([first(tokens=[-1] * 65)], "token ids -1"),
        ([first(), second(tokens=PROMPT[:-1])], "16 tokens for"),
        ([first(step=PrefillStep("traced_bucket", 0, 128, 128))], "no such step"),
        ([first(step=PrefillStep("traced_chunk", 0, 60, 64))], "no such step"),
        ([first(), second(step=PrefillStep("masked_bucket", 64, 33, 32))], "no such step"),
        ([first(), second(), first()], "holds another"),
    ],
)
def test_a_prefill_that_breaks_the_protocol_is_refused(runner, calls, message):
    for call in calls[:-1]:
        runner.prefill(call)
    with pytest.raises(RunnerMisuse, match=message):
        runner.prefill(calls[-1])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "prefilled sequences are in"),
        ([row(slot=1)], "prefilled sequences are in"),
        ([row(), row()], "prefilled sequences are in"),
        ([row(position=82)], "has seen 81 tokens and decodes position 82"),
        ([row(table=(0, 1))], "do not cover 82"),
        ([row(token=1 << 30)], "token ids"),
    ],
)
def test_a_decode_that_breaks_the_protocol_is_refused(runner, rows, message):
    runner.prefill(first())
    runner.prefill(second())
    runner.prefill(first(slot=2, table=(3, 4, 5)))  # still prefilling: not a row
    with pytest.raises(RunnerMisuse, match=message):
        runner.decode(rows)


def test_a_slot_is_released_once_and_then_not_decoded(runner):
    runner.prefill(first())
    runner.prefill(second())
    runner.release(0)
    for misuse in (lambda: runner.release(0), lambda: runner.decode([row()])):
        with pytest.raises(RunnerMisuse):
            misuse()
    runner.prefill(first())
    runner.release(0)  # in the middle of a prefill
    runner.prefill(first(slot=1))


class StaleTable(StubRunner):
    """Decodes with the block table as it was when the sequence began."""

    def decode(self, rows):
        kept = [dataclasses.replace(r, block_table=[*r.block_table[:-1], r.block_table[0]]) for r in rows]
        return super().decode(kept)


class LateState(StubRunner):
    """Takes the prefill's state over one token late."""

    def prefill(self, call):
        result = super().prefill(call)
        if call.last:
            self._state[call.slot] ^= 1
        return result


@pytest.mark.parametrize("kind", [StaleTable, LateState])
def test_a_faulty_runner_shows_in_the_engines_answers(letters, kind):
    engine = Engine(kind(**SIZES), letters)
    output = engine.generate([PROMPT], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))[0]
    expected = expected_tokens(PROMPT, 40, SIZES["vocab_size"])
    assert output.token_ids[0] == expected[0]
    assert output.token_ids != expected


def test_two_sequences_that_share_a_block_are_found(letters):
    engine = Engine(StubRunner(**SIZES), letters)
    prompts = {"a": [1] * 40, "b": [2] * 40}
    for name, prompt in prompts.items():
        engine.add_request(Request(name, prompt, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)))
    answers = {"a": [], "b": []}
    for step in range(25):
        for output in engine.step():
            answers[output.request_id] += output.token_ids
        if step == 5:
            tables = [engine._sequences[name].block_table for name in prompts]
            tables[1][1] = tables[0][1]
    wrong = [name for name in prompts if answers[name] != expected_tokens(prompts[name], 30, SIZES["vocab_size"])[:24]]
    assert wrong
