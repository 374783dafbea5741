"""One engine step at a time: order, text, ends, failures. The stub's tokens are checked against `expected_tokens`."""

from __future__ import annotations

import pytest

from ttkern.engine.config import EngineConfig
from ttkern.engine.engine import Engine
from ttkern.engine.request import Request, RequestOutput, SamplingParams, merge_outputs
from ttkern.engine.stub_runner import StubRunner, expected_tokens
from ttkern.errors import TtkernError

GREEDY = {"temperature": 0, "ignore_eos": True}


def run(engine: Engine) -> dict[str, RequestOutput]:
    """Step to the end; everything said, merged per request."""
    parts: dict[str, list[RequestOutput]] = {}
    while engine.has_work():
        said = set()
        for output in engine.step():
            assert output.request_id not in said, "two outputs of one request in one step"
            said.add(output.request_id)
            parts.setdefault(output.request_id, []).append(output)
        engine.check_integrity()
    for outputs in parts.values():
        assert all(output.finish_reason is None for output in outputs[:-1])
    return {request_id: merge_outputs(outputs) for request_id, outputs in parts.items()}


def assert_idle(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
    assert stats.kv_cache_usage == 0
    engine.check_integrity()


def answer(engine: Engine, prompt=(1, 2, 3), **options) -> RequestOutput:
    return engine.generate([list(prompt)], SamplingParams(**options))[0]


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 127, 128, 129, 511, 512, 513, 1400, 3000])
def test_prompts_of_any_length_are_answered_as_from_their_tokens_alone(letters, length):
    engine = Engine(StubRunner(), letters)
    prompt = [(7 * i) % 512 for i in range(length)]
    output = answer(engine, prompt, max_tokens=70, **GREEDY)
    assert output.token_ids == expected_tokens(prompt, 70, 512)
    assert (output.num_prompt_tokens, output.num_output_tokens, output.num_cached_tokens) == (length, 70, 0)
    assert engine.stats().num_prefilled_tokens == length
    assert engine.stats().num_generated_tokens == 70
    assert_idle(engine)


def test_blocks_are_taken_when_a_token_needs_one_and_not_before(letters):
    engine = Engine(StubRunner(num_blocks=8, block_size=32), letters)
    engine.add_request(Request("r", [1] * 33, SamplingParams(max_tokens=200, **GREEDY)))
    engine.step()
    written = 33
    while engine.has_work():
        under_way = engine._decoding.in_flight  # the next step has been launched, and writes one more
        assert engine.stats().num_used_blocks == -(-(written + under_way) // 32)
        engine.step()
        written += 1
    assert written == 33 + 200 - 1


def test_more_requests_than_slots_are_all_answered(letters):
    engine = Engine(StubRunner(), letters, EngineConfig(max_num_seqs=3))
    prompts = [[n, n + 1] * (40 * n + 1) for n in range(10)]
    outputs = engine.generate(prompts, SamplingParams(max_tokens=30, **GREEDY))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.token_ids == expected_tokens(prompt, 30, 512)
    assert_idle(engine)


def test_a_running_stream_waits_for_at_most_one_prefill_step_between_two_tokens(letters, script_runner):
    runner = script_runner()
    engine = Engine(runner, letters)
    engine.add_request(Request("stream", [1, 2], SamplingParams(max_tokens=60, **GREEDY)))
    engine.step()
    for number in range(3):
        engine.add_request(Request(f"long-{number}", [3] * 2000, SamplingParams(max_tokens=2, **GREEDY)))
    run(engine)
    names = [name for name, _ in runner.calls]
    first, last = names.index("decode"), len(names) - names[::-1].index("decode")
    assert names.count("prefill") > 10
    for before, after in zip(names[first:last], names[first + 1 : last], strict=False):
        assert not before == after == "prefill", "two prefill steps between two decodes"


def test_requests_are_admitted_in_the_order_they_came(letters, script_runner):
    runner = script_runner(max_num_seqs=2)
    engine = Engine(runner, letters)
    for number in range(6):
        engine.add_request(Request(str(number), [number + 1] * (200 - 30 * number), SamplingParams(max_tokens=3)))
    run(engine)
    starts = [call.tokens[0] for name, call in runner.calls if name == "prefill" and call.step.start == 0]
    assert starts == [1, 2, 3, 4, 5, 6]


def test_the_youngest_is_preempted_when_blocks_run_out_and_says_the_same_as_without(letters):
    engine = Engine(StubRunner(num_blocks=8, block_size=32, buckets=(128,)), letters)
    params = SamplingParams(temperature=0.8, seed=11, max_tokens=150, ignore_eos=True, logprobs=1)
    prompts = [[n + 1] * 40 for n in range(3)]
    for number, prompt in enumerate(prompts):
        engine.add_request(Request(str(number), prompt, params))
    finished, stream = [], []
    while engine.has_work():
        for output in engine.step():
            stream.append((output.request_id, output.text))
            if output.finish_reason:
                finished.append(output.request_id)
                assert output.error is None
        engine.check_integrity()
    assert engine.stats().num_preemptions > 0
    assert engine.stats().num_prefilled_tokens > sum(map(len, prompts))
    assert finished == ["0", "1", "2"], "a younger request overtook the oldest"
    for number, prompt in enumerate(prompts):
        expected = expected_tokens(prompt, 150, 512, temperature=0.8, seed=11)
        assert "".join(text for name, text in stream if name == str(number)) == letters.decode(expected)
    assert_idle(engine)


def test_a_prefill_that_is_preempted_begins_again_and_its_prompt_scores_are_told_once(letters, script_runner):
    sizes = {"num_blocks": 23, "block_size": 8, "chunk_tokens": 8, "buckets": (), "masked_buckets": (8,)}
    runner = script_runner(**sizes)
    engine = Engine(runner, letters)
    engine.add_request(Request("old", [1] * 5, SamplingParams(max_tokens=60, **GREEDY)))
    for _ in range(2):
        engine.step()
    new = [2 + n % 9 for n in range(160)]
    engine.add_request(Request("new", new, SamplingParams(max_tokens=20, prompt_logprobs=1, **GREEDY)))
    outputs = run(engine)
    assert engine.stats().num_preemptions == 1
    starts = [call.step.start for name, call in runner.calls if name == "prefill"]
    assert starts.count(0) == 3, "the preemption did not meet a prefill"
    assert outputs["old"].token_ids == expected_tokens([1] * 5, 60, 512)[2:]  # two came before `run`
    assert outputs["new"].token_ids == expected_tokens(new, 20, 512)
    assert [entry.token for entry in outputs["new"].prompt_logprobs] == new[1:]
    assert_idle(engine)


def test_equal_seeds_give_equal_answers_and_none_gives_new_ones(letters):
    engine = Engine(StubRunner(), letters)
    options = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True}
    seeded = [answer(engine, seed=3, **options).token_ids for _ in range(2)]
    assert seeded[0] == seeded[1] == expected_tokens([1, 2, 3], 20, 512, temperature=1.0, seed=3)
    assert len({tuple(answer(engine, **options).token_ids) for _ in range(3)}) == 3


# --- how an answer ends


def scripted(script_runner, tokenizer, script, **config) -> Engine:
    return Engine(script_runner(script), tokenizer, EngineConfig(**config))


def test_end_of_sequence_stops_unless_ignored(letters, script_runner):
    engine = scripted(script_runner, letters, [1, 2, 0, 3])
    output = answer(engine, max_tokens=8)
    assert (output.text, output.token_ids, output.finish_reason, output.stop_reason) == ("ab", [1, 2, 0], "stop", None)
    output = answer(engine, max_tokens=8, ignore_eos=True)
    assert (output.text, output.finish_reason, output.num_output_tokens) == ("abcabc", "length", 8)


def test_a_stop_token_ends_the_answer_and_is_not_in_its_text(letters, script_runner):
    engine = scripted(script_runner, letters, [1, 2, 3, 4])
    output = answer(engine, max_tokens=8, stop_token_ids=(3,))
    assert (output.text, output.token_ids, output.finish_reason, output.stop_reason) == ("ab", [1, 2, 3], "stop", 3)
    output = answer(scripted(script_runner, letters, [1, 0]), max_tokens=8, stop_token_ids=(0,), ignore_eos=True)
    assert (output.token_ids, output.stop_reason) == ([1, 0], 0)


@pytest.mark.parametrize("stop", ["cd", "d", "abcd", "bcde"])
def test_a_stop_string_across_tokens_ends_the_answer_before_it(letters, script_runner, stop):
    engine = scripted(script_runner, letters, [1, 2, 3, 4, 5, 6])
    output = answer(engine, max_tokens=30, stop=("zz", stop))
    assert output.text == "abcdef".partition(stop)[0]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    assert engine.runner.released == [0]
    assert_idle(engine)


def test_text_held_for_a_stop_string_is_told_when_the_answer_ends_otherwise(letters, script_runner):
    for script, options, expected in (
        ([1, 2, 3], {"max_tokens": 2}, ("ab", "length", None)),
        ([1, 2, 0], {"max_tokens": 9}, ("ab", "stop", None)),
        ([1, 2, 9], {"max_tokens": 9, "stop_token_ids": (9,)}, ("ab", "stop", 9)),
    ):
        output = answer(scripted(script_runner, letters, script), stop=("abx",), **options)
        assert (output.text, output.finish_reason, output.stop_reason) == expected


def test_a_stop_string_with_the_last_token_is_a_stop(letters, script_runner):
    output = answer(scripted(script_runner, letters, [1, 2]), max_tokens=2, stop=("b",))
    assert (output.text, output.finish_reason, output.stop_reason) == ("a", "stop", "b")


def test_min_tokens_forbids_ends_until_then(letters, script_runner):
    runner = script_runner()
    engine = Engine(runner, letters)
    options = {"min_tokens": 3, "max_tokens": 5, "temperature": 0}
    answer(engine, stop_token_ids=(7, 8), **options)
    answer(engine, stop_token_ids=(7, 8), ignore_eos=True, **options)
    specs = [call.sample if name == "prefill" else call[0].sample for name, call in runner.calls]
    assert [spec.forbidden for spec in specs] == [(0, 7, 8)] * 3 + [()] * 2 + [(7, 8)] * 3 + [()] * 2
    assert [spec.step for spec in specs] == [0, 1, 2, 3, 4] * 2


def test_min_tokens_lets_stop_strings_pass_until_then(letters, script_runner):
    engine = scripted(script_runner, letters, [1, 2])
    output = answer(engine, min_tokens=4, max_tokens=20, stop=("ab",))
    assert (output.text, output.num_output_tokens, output.stop_reason) == ("abab", 6, "ab")


def test_no_tokens_wanted_reads_the_prompt_and_ends(letters, script_runner):
    runner = script_runner()
    engine = Engine(runner, letters)
    output = answer(engine, [5] * 700, max_tokens=0, prompt_logprobs=2)
    assert (output.text, output.token_ids, output.finish_reason) == ("", [], "length")
    assert [entry.token for entry in output.prompt_logprobs] == [5] * 699
    assert all(call.sample is None for _, call in runner.calls)
    assert answer(engine, [5], max_tokens=0, prompt_logprobs=2).prompt_logprobs == []
    assert_idle(engine)


def test_prompt_scores_cross_the_borders_of_steps(letters):
    engine = Engine(StubRunner(), letters)
    prompt = [i % 512 for i in range(1234)]
    engine.add_request(Request("r", prompt, SamplingParams(max_tokens=5, logprobs=2, prompt_logprobs=0)))
    outputs = []
    while engine.has_work():
        outputs += engine.step()
    assert [entry.token for entry in outputs[0].prompt_logprobs] == prompt[1:]
    assert all(output.prompt_logprobs is None for output in outputs[1:])
    for output in outputs:
        assert [entry.token for entry in output.logprobs] == output.token_ids
        assert all(len(entry.top) == 2 for entry in output.logprobs)
    assert answer(engine, max_tokens=2).logprobs is None


def test_streamed_text_never_holds_half_a_character_and_joins_to_the_whole(byte_pairs, script_runner):
    text = "Zażółć 你好，世界 🎉🧑‍🚀 naïve — end"
    script = byte_pairs.encode(text)
    for stop, expected in (
        ((), text),
        (("世界 🎉🧑",), "Zażółć 你好，"),
        (("x", "é", "\u200d🚀"), "Zażółć 你好，世界 🎉🧑"),
    ):
        engine = Engine(script_runner(script, vocab_size=byte_pairs.vocab_size), byte_pairs)
        engine.add_request(Request("r", [5], SamplingParams(max_tokens=len(script), stop=stop)))
        parts = []
        while engine.has_work():
            parts += [output.text for output in engine.step()]
        assert "".join(parts) == expected
        assert not any("\ufffd" in part for part in parts)


def test_an_answer_cut_inside_a_character_tells_what_decoding_tells(byte_pairs, script_runner):
    script = byte_pairs.encode("a\U0001f9d1")
    engine = Engine(script_runner(script, vocab_size=byte_pairs.vocab_size), byte_pairs)
    output = answer(engine, max_tokens=len(script) - 1)
    assert output.text == byte_pairs.decode(script[:-1]) == "a\ufffd"


# --- given up and failed


def test_abort_frees_everything_wherever_the_request_is(letters, script_runner):
    runner = script_runner()
    engine = Engine(runner, letters, EngineConfig(max_num_seqs=2))
    for name, length in (("running", 10), ("prefilling", 1500), ("waiting", 10), ("kept", 10)):
        engine.add_request(Request(name, [4] * length, SamplingParams(max_tokens=50, **GREEDY)))
    for _ in range(2):
        engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 2)
    for name in ("waiting", "prefilling", "running"):
        assert engine.abort(name)
        assert not engine.abort(name)
        engine.check_integrity()
    assert engine.stats().num_used_blocks == 0
    assert sorted(runner.released) == [0, 1]
    outputs = run(engine)
    assert list(outputs) == ["kept"]
    assert outputs["kept"].token_ids == expected_tokens([4] * 10, 50, 512)
    assert_idle(engine)


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_a_failing_runner_fails_the_requests_it_worked_for_and_no_others(letters, script_runner, name, caplog):
    runner = script_runner()
    engine = Engine(runner, letters, EngineConfig(max_num_seqs=3))
    for number in range(2):
        engine.add_request(Request(f"running-{number}", [number] * 5, SamplingParams(max_tokens=40, **GREEDY)))
    for _ in range(3):
        engine.step()
    engine.add_request(Request("prefilling", [6] * 1500, SamplingParams(max_tokens=4, **GREEDY)))
    engine.add_request(Request("waiting", [7] * 5, SamplingParams(max_tokens=4, **GREEDY)))
    engine.step()

    def fail(called, call):
        if called == name:
            runner.on_call = lambda *_: None
            raise ValueError("NaN in the logits\nand more")

    runner.on_call = fail
    outputs = run(engine)
    victims = {"prefilling"} if name == "prefill" else {"running-0", "running-1"}
    for request_id, output in outputs.items():
        if request_id in victims:
            assert (output.finish_reason, output.error) == ("abort", "ValueError: NaN in the logits")
        else:
            assert (output.finish_reason, output.error) == ("length", None)
    assert outputs["waiting"].token_ids == expected_tokens([7] * 5, 4, 512)
    assert set(outputs) == {"running-0", "running-1", "prefilling", "waiting"}
    assert len(runner.released) == 4
    assert "NaN in the logits" in caplog.text
    assert_idle(engine)


def test_generate_takes_text_and_params_for_each(letters):
    engine = Engine(StubRunner(), letters)
    each = [SamplingParams(max_tokens=n, **GREEDY) for n in (2, 5)]
    outputs = engine.generate(["abc", [1, 2, 3]], each)
    assert [output.num_output_tokens for output in outputs] == [2, 5]
    assert outputs[1].token_ids[:2] == outputs[0].token_ids
    assert outputs[0].text == letters.decode(outputs[0].token_ids)
    with pytest.raises(TtkernError, match="2 prompts and 1"):
        engine.generate(["a", "b"], each[:1])
    with pytest.raises(TtkernError):
        engine.generate(["a", []])
    assert_idle(engine)
    engine.add_request(Request("r", [1], SamplingParams()))
    with pytest.raises(TtkernError, match="to itself"):
        engine.generate(["a"])


def test_lost_blocks_and_slots_are_found(letters):
    engine = Engine(StubRunner(), letters)
    engine.add_request(Request("r", [1] * 200, SamplingParams(max_tokens=50)))
    engine.step()
    engine.check_integrity()
    sequence = engine._sequences["r"]
    block = sequence.block_table.pop()
    with pytest.raises(RuntimeError, match="hold 3 KV blocks, the pool counts 4"):
        engine.check_integrity()
    sequence.block_table.append(block)
    sequence.slot += 1
    with pytest.raises(RuntimeError, match="slots"):
        engine.check_integrity()


class Launches(StubRunner):
    """Writes down when a decode step is launched and when its tokens are read."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.log = []

    def launch_decode(self, rows):
        number = sum(name == "launch" for name, _ in self.log)
        self.log.append(("launch", number))
        collect = super().launch_decode(rows)

        def read():
            self.log.append(("read", number))
            return collect()

        return read


def test_the_next_step_is_launched_before_the_last_ones_tokens_are_read(letters):
    runner = Launches()
    output = Engine(runner, letters).generate([[1, 2, 3]], SamplingParams(max_tokens=9, **GREEDY))[0]
    assert output.token_ids == expected_tokens([1, 2, 3], 9, 512)
    assert runner.log[:6] == [("launch", 0), ("launch", 1), ("read", 0), ("launch", 2), ("read", 1), ("launch", 3)]
    assert runner.log[-2:] == [("read", 6), ("read", 7)], "a step was launched that nobody needs"


def test_a_sampled_token_is_read_before_the_step_that_needs_it(letters):
    runner = Launches()
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=6, ignore_eos=True)
    output = Engine(runner, letters).generate([[1, 2, 3]], params)[0]
    assert output.token_ids == expected_tokens([1, 2, 3], 6, 512, temperature=1.0, seed=3)
    names = [name for name, _ in runner.log]
    assert names == ["launch", "read"] * 5


def test_who_ends_or_leaves_while_its_next_step_is_in_flight_is_forgotten(letters):
    runner = Launches(max_num_seqs=2)
    engine = Engine(runner, letters)
    long = SamplingParams(max_tokens=30, **GREEDY)
    for name in ("stays", "leaves"):
        engine.add_request(Request(name, [ord(c) - 96 for c in name], long))
    said = {"stays": [], "leaves": [], "comes": []}
    for step in range(80):
        if step == 8:
            assert engine._decoding.in_flight
            assert engine.abort("leaves")
            engine.add_request(Request("comes", [9, 9], long))
        for output in engine.step():
            said[output.request_id] += output.token_ids
        engine.check_integrity()
    assert said["stays"] == expected_tokens([ord(c) - 96 for c in "stays"], 30, 512)
    assert said["comes"] == expected_tokens([9, 9], 30, 512)
    assert said["leaves"] == expected_tokens([ord(c) - 96 for c in "leaves"], 30, 512)[: len(said["leaves"])]
    assert_idle(engine)
