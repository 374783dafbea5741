"""/metrics, read by Prometheus' own parser, and the other operator routes."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ttkern.model.tokenizer import Tokenizer

from live_server import MODEL, SCRIPT, LiveServer, ScriptRunner


@pytest.fixture
def fresh(tokenizer: Tokenizer):
    with LiveServer(ScriptRunner(tokenizer), tokenizer) as server:
        yield server


def read(server: LiveServer) -> dict[tuple[str, str], float]:
    """Value by sample name and its label other than the model's."""
    answer = server.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            assert sample.labels["model_name"] == MODEL
            other = [value for name, value in sample.labels.items() if name != "model_name"]
            samples[sample.name, "".join(other)] = sample.value
    return samples


def test_counts_are_those_of_the_requests(fresh: LiveServer, tokenizer: Tokenizer):
    assert read(fresh)["vllm:generation_tokens_total", ""] == 0
    ask = fresh.client.completions.create
    ask(model=MODEL, prompt=[5] * 30, max_tokens=10)
    list(ask(model=MODEL, prompt=[5] * 12, max_tokens=7, stream=True))
    ask(model=MODEL, prompt="hello", max_tokens=100, stop="世")
    ask(model=MODEL, prompt=[5] * 4, max_tokens=0, echo=True)
    samples = read(fresh)
    until_stop = len(tokenizer.encode(SCRIPT.partition("世")[0] + "世"))
    assert samples["vllm:prompt_tokens_total", ""] == 30 + 12 + len(tokenizer.encode("hello")) + 4
    assert samples["vllm:generation_tokens_total", ""] == 10 + 7 + until_stop
    assert samples["vllm:request_success_total", "length"] == 3
    assert samples["vllm:request_success_total", "stop"] == 1
    assert samples["vllm:request_success_total", "abort"] == 0
    assert samples["vllm:time_to_first_token_seconds_count", ""] == 3
    assert samples["vllm:e2e_request_latency_seconds_count", ""] == 4
    assert samples["vllm:inter_token_latency_seconds_count", ""] == 9 + 6 + until_stop - 1
    assert samples["vllm:time_per_output_token_seconds_count", ""] == 3
    assert 0 < samples["vllm:time_to_first_token_seconds_sum", ""] < 20
    assert samples["vllm:num_preemptions_total", ""] == 0


def test_gauges_follow_what_runs_and_waits(fresh: LiveServer):
    fresh.runner.delay_s = 0.01
    num_slots = fresh.runner.max_num_seqs
    body = {"model": MODEL, "prompt": "a", "n": num_slots + 3, "max_tokens": 300, "stream": True}
    with fresh.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()  # held: httpx closes the answer with its iterator
        next(lines)
        fresh.wait_until(lambda: read(fresh)["vllm:num_requests_running", ""] == num_slots)
        samples = read(fresh)
        assert samples["vllm:num_requests_waiting", ""] == 3
        assert 0 < samples["vllm:kv_cache_usage_perc", ""] <= 1
    fresh.assert_idle_and_whole()
    fresh.wait_until(lambda: read(fresh)["vllm:num_requests_running", ""] == 0)
    samples = read(fresh)
    assert samples["vllm:request_success_total", "abort"] == num_slots + 3
    assert samples["vllm:kv_cache_usage_perc", ""] == 0


def test_two_servers_in_one_process_count_apart(fresh: LiveServer, scripted: LiveServer):
    before = read(scripted)["vllm:generation_tokens_total", ""]
    fresh.client.completions.create(model=MODEL, prompt="a", max_tokens=5)
    assert read(fresh)["vllm:generation_tokens_total", ""] == 5
    assert read(scripted)["vllm:generation_tokens_total", ""] == before


def test_tokenize_and_detokenize_are_inverse(scripted: LiveServer, tokenizer: Tokenizer):
    answer = scripted.http.post("/tokenize", json={"model": MODEL, "prompt": SCRIPT}).json()
    assert answer == {
        "tokens": tokenizer.encode(SCRIPT),
        "count": len(tokenizer.encode(SCRIPT)),
        "max_model_len": scripted.engine.max_model_len,
        "token_strs": None,
    }
    assert scripted.http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": SCRIPT}


def test_tokenize_renders_messages_as_chat_does(scripted: LiveServer):
    messages = [{"role": "user", "content": "hello"}]
    answer = scripted.http.post("/tokenize", json={"messages": messages, "return_token_strs": True}).json()
    assert "".join(answer["token_strs"]) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    chat = scripted.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    assert chat.usage.prompt_tokens == answer["count"]
    bare = scripted.http.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
    assert bare["count"] < answer["count"]


def test_version_and_openapi_answer(scripted: LiveServer):
    assert isinstance(scripted.http.get("/version").json()["version"], str)
    schema = scripted.http.get("/openapi.json").json()
    body = schema["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].removeprefix("#/components/schemas/")
    assert "messages" in schema["components"]["schemas"][name]["required"]
    assert "Message" in schema["components"]["schemas"]
