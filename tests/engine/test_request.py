from __future__ import annotations

import math

import pytest

from ttkern.engine.config import EngineConfig
from ttkern.engine.engine import Engine
from ttkern.engine.planner import CostTable
from ttkern.engine.request import Request, RequestError, SamplingParams
from ttkern.engine.stub_runner import StubRunner
from ttkern.errors import TtkernError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -0.1),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_k", -1),
        ("top_k", 1.5),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("seed", 0.5),
        ("max_tokens", -1),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("stop", "text"),
        ("stop", ("",)),
        ("stop", (5,)),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", 7),
        ("logprobs", -1),
        ("prompt_logprobs", 1.0),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(field, value):
    with pytest.raises(RequestError, match=field) as refused:
        SamplingParams(**{field: value})
    assert refused.value.field == field
    assert "\n" not in str(refused.value)


def test_more_least_than_most_tokens_is_refused_with_both_numbers():
    with pytest.raises(RequestError, match=r"min_tokens is 9.* 8"):
        SamplingParams(min_tokens=9, max_tokens=8)


def test_lists_are_taken_as_tuples():
    params = SamplingParams(stop=["a"], stop_token_ids=[1])  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids) == (("a",), (1,))


@pytest.fixture
def engine(letters) -> Engine:
    return Engine(StubRunner(vocab_size=512, max_model_len=4096), letters)


@pytest.mark.parametrize(
    ("prompt", "options", "field", "message"),
    [
        ([], {}, "prompt", "at least 1"),
        ([1, 512], {}, "prompt", "token id 512; the vocabulary is 0 to 511"),
        ([1, -1], {}, "prompt", "token id -1"),
        ([1], {"stop_token_ids": (512,)}, "stop_token_ids", "token id 512"),
        ([1], {"logprobs": 513}, "logprobs", "513.*512"),
        ([1], {"prompt_logprobs": 513}, "prompt_logprobs", "513.*512"),
        (
            [1] * 5000,
            {"max_tokens": 200},
            "prompt",
            "5000 tokens and max_tokens is 200, together over the limit of 4096",
        ),
        ([1] * 4000, {"max_tokens": 97}, "max_tokens", "4000 tokens and max_tokens is 97, .* 4096"),
        ([1] * 4097, {"max_tokens": 0}, "prompt", "4097.* 4096"),
        ([1] * 4096, {}, "prompt", "4096 tokens and the answer needs at least 1, together over the limit of 4096"),
        ([1] * 4096, {"max_tokens": 1}, "prompt", "4096 tokens and max_tokens is 1, .* 4096"),
        ([1] * 4000, {"min_tokens": 97}, "min_tokens", "4000 tokens and min_tokens is 97, .* 4096"),
    ],
)
def test_the_engine_refuses_what_it_cannot_finish(engine, prompt, options, field, message):
    with pytest.raises(RequestError, match=message) as refused:
        engine.add_request(Request("r", prompt, SamplingParams(**options)))
    assert refused.value.field == field
    assert not engine.has_work()
    assert not engine.abort("r"), "a refused request is held"


@pytest.mark.parametrize(("length", "options"), [(4000, {"max_tokens": 96}), (4095, {}), (4096, {"max_tokens": 0})])
def test_what_just_fits_runs_to_its_end(engine, length, options):
    output = engine.generate([[1] * length], SamplingParams(temperature=0, ignore_eos=True, **options))[0]
    assert output.num_output_tokens == options.get("max_tokens", 1)
    assert output.finish_reason == "length"
    assert output.error is None


def test_a_pool_smaller_than_the_limit_is_what_admission_goes_by(letters):
    engine = Engine(StubRunner(num_blocks=4, block_size=64), letters)
    with pytest.raises(
        RequestError, match="prompt has 250 tokens and max_tokens is 7, together over the KV pool of 256"
    ):
        engine.add_request(Request("r", [1] * 250, SamplingParams(max_tokens=7)))
    output = engine.generate([[1] * 250], SamplingParams(ignore_eos=True))[0]
    assert (output.num_output_tokens, output.finish_reason) == (6, "length")


def test_a_request_id_is_taken_until_its_end(engine):
    request = Request("r", [1], SamplingParams(max_tokens=1))
    engine.add_request(request)
    with pytest.raises(RequestError, match="'r'"):
        engine.add_request(request)
    engine.step()
    engine.add_request(request)


def test_the_callers_list_is_not_the_engines(engine):
    prompt = [1, 2, 3]
    engine.add_request(Request("r", prompt, SamplingParams(max_tokens=2)))
    prompt.clear()
    assert engine.step()[0].num_prompt_tokens == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0; the runner is laid out for 1 to 8"),
        ({"max_num_seqs": 9}, "max_num_seqs is 9"),
        ({"max_model_len": 5000}, "max_model_len is 5000; .* 4096"),
        ({"num_blocks": 513}, "num_blocks is 513; .* 512"),
        ({"chunk_tokens": 300}, r"chunk_tokens is 300; the runner has steps of \[128, 256, 512\]"),
    ],
)
def test_limits_beyond_the_runner_are_refused_with_both_numbers(letters, options, message):
    with pytest.raises(TtkernError, match=message):
        Engine(StubRunner(), letters, EngineConfig(**options))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"masked_buckets": (64, 32)}, "largest masked bucket is 64, and up to 127 tokens"),
        ({"block_size": 256, "num_blocks": 16}, "does not end on a border of steps of 128 and blocks of 256"),
    ],
)
def test_steps_that_could_not_prefill_every_prompt_are_refused_at_the_start(letters, sizes, message):
    with pytest.raises(TtkernError, match=message):
        Engine(StubRunner(**sizes), letters)


def test_a_shorter_chunk_and_a_cost_table_reach_the_planner(letters, script_runner):
    paths = ("traced_chunk", "traced_bucket", "masked_bucket")
    free = CostTable(dict.fromkeys(paths, 100.0), dict.fromkeys(paths, 0.0))
    for costs, buckets in ((None, [256, 256, 128, 64]), (free, [256, 256, 256])):
        runner = script_runner(masked_buckets=(512, 256, 128, 64))
        Engine(runner, letters, EngineConfig(chunk_tokens=256, costs=costs)).generate(
            [[1] * 700], SamplingParams(max_tokens=0)
        )
        assert [call.step.bucket for _, call in runner.calls] == buckets
