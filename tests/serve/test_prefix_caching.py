"""Prefix caching as a client and an operator see it: usage, metrics, and what is refused at start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ttkern.engine.stub_runner import expected_tokens
from ttkern.errors import TtkernError
from ttkern.model.checkpoint import SMALL
from ttkern.model.tokenizer import Tokenizer
from ttkern.model.work import state_bytes
from ttkern.serve.options import ServeOptions
from ttkern.serve.sizes import runner_config

from live_server import MODEL, LiveServer, StubRunner, small_stub


@pytest.fixture
def caching(tokenizer: Tokenizer) -> Iterator[LiveServer]:
    sizes = {**small_stub(tokenizer), "chunk_tokens": 128, "buckets": (), "num_host_snapshots": 16}
    with LiveServer(StubRunner(**sizes), tokenizer) as server:
        yield server


def metrics(server: LiveServer) -> dict[str, float]:
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    return {"".join([s.name, s.labels.get("reason", "")]): s.value for f in families for s in f.samples}


def test_usage_and_metrics_tell_what_was_skipped(caching: LiveServer, tokenizer: Tokenizer) -> None:
    head, ask = [7, 9, 11, 13] * 75, caching.client.completions.create
    asked = [head + [n] * 40 for n in (20, 21, 22)]
    cached = []
    for prompt in asked:
        answer = ask(model=MODEL, prompt=prompt, max_tokens=4, temperature=0)
        assert answer.usage.prompt_tokens == 340
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        text = tokenizer.decode(expected_tokens(prompt, 4, tokenizer.vocab_size))
        assert answer.choices[0].text == text
    assert cached == [0, 256, 256]
    found = metrics(caching)
    assert found["vllm:prefix_cache_queries_total"] == 3 * 340
    assert found["vllm:prefix_cache_hits_total"] == sum(cached)
    assert found["ttkern:prefix_cache_kv_hits_total"] == 2 * 256
    assert found["ttkern:prefix_cache_state_hits_total"] == 2 * 256
    assert (found["ttkern:prefix_cache_short_totalno_prefix"], found["ttkern:prefix_cache_short_totalnone"]) == (1, 2)
    assert found["ttkern:snapshots_corrupt_total"] == 0
    assert found["ttkern:snapshots"] == 2
    assert found["vllm:kv_cache_usage_perc"] == 0, "blocks that nobody reads count as used"


def test_a_prompt_counts_once_however_many_answers_it_has(caching: LiveServer) -> None:
    prompt = [3, 5] * 150
    first = caching.client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, n=3)
    assert (first.usage.prompt_tokens, first.usage.prompt_tokens_details.cached_tokens) == (300, 0)
    again = caching.client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, n=3)
    assert (again.usage.prompt_tokens, again.usage.prompt_tokens_details.cached_tokens) == (300, 256)


def test_a_prompt_whose_own_tokens_are_scored_is_computed_whole(caching: LiveServer) -> None:
    for _ in range(2):
        answer = caching.client.completions.create(model=MODEL, prompt=[4] * 300, max_tokens=1, echo=True, logprobs=1)
        assert answer.usage.prompt_tokens_details.cached_tokens == 0
        assert len(answer.choices[0].logprobs.token_logprobs) == 301


def limits(**options: object):
    return runner_config(ServeOptions(model=Path("m"), **options), SMALL)  # type: ignore[arg-type]


def test_it_is_on_where_it_can_work() -> None:
    assert limits(max_model_len=8192).snapshot_bytes == 4 << 30
    assert limits(max_model_len=8192, enable_prefix_caching=False).snapshot_bytes == 0
    assert limits(max_model_len=2048).snapshot_bytes == 0, "no prompt is longer than a chunk"
    assert limits(max_model_len=8192, snapshot_bytes=state_bytes(SMALL) - 1).snapshot_bytes == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_model_len": 2048}, "--max-model-len is 2048 and --chunk-tokens 2048: no prompt is longer than a chunk"),
        (
            {"max_model_len": 8192, "snapshot_bytes": 1000},
            f"--snapshot-bytes and --snapshot-device-bytes are 1000 together; one state takes {state_bytes(SMALL)}",
        ),
    ],
)
def test_asked_for_where_it_cannot_it_is_refused_with_the_numbers(options: dict[str, int], said: str) -> None:
    with pytest.raises(TtkernError) as error:
        limits(enable_prefix_caching=True, **options)
    assert str(error.value) == f"--enable-prefix-caching: {said}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chunk_tokens": 64, "block_size": 128}, "--chunk-tokens is 64 and --block-size 128; a chunk is whole blocks"),
        ({"snapshot_bytes": -1}, "--snapshot-bytes is -1; it must be at least 0"),
        ({"snapshot_device_bytes": -5}, "--snapshot-device-bytes is -5; it must be at least 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(TtkernError) as error:
        limits(**options)
    assert said in str(error.value)
