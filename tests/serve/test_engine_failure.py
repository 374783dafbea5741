"""When the engine dies, everyone who waits is told, and so is whoever asks for the server's health."""

from __future__ import annotations

import openai
import pytest
from live_server import MODEL, SCRIPT, LiveServer, ScriptRunner
from ttkern.engine.request import RequestOutput
from ttkern.model.tokenizer import Tokenizer

from ttkern.serve.engine_loop import OutputBuffer


@pytest.fixture
def dying(tokenizer: Tokenizer):
    runner = ScriptRunner(tokenizer.encode(SCRIPT), vocab_size=tokenizer.vocab_size, delay_s=0.01)
    with LiveServer(runner, tokenizer) as server:
        yield server


def test_a_stream_ends_with_an_error_event(dying: LiveServer):
    stream = dying.client.completions.create(model=MODEL, prompt="a", max_tokens=500, stream=True)
    next(stream)
    dying.runner.fail = True
    with pytest.raises(openai.APIError, match="the device went away"):
        list(stream)
    dying.wait_until(lambda: dying.loop.num_open_groups == 0)


def test_a_whole_answer_becomes_a_503_and_so_does_what_comes_later(dying: LiveServer):
    dying.runner.fail = True
    for stream in (False, True):
        answer = dying.http.post(
            "/v1/completions", json={"model": MODEL, "prompt": "a", "max_tokens": 50, "stream": stream}
        )
        assert answer.status_code == 503
        assert "the device went away" in answer.json()["error"]["message"]
        assert answer.json()["error"]["type"] == "server_error"
    health = dying.http.get("/health")
    assert health.status_code == 503
    assert "the device went away" in health.json()["error"]["message"]
    assert dying.http.get("/metrics").status_code == 200


def output(text: str, tokens: list[int], **fields) -> RequestOutput:
    values = {"logprobs": None, "prompt_logprobs": None, "finish_reason": None, "stop_reason": None}
    values |= {"num_prompt_tokens": 3, "num_cached_tokens": 0, "num_output_tokens": len(tokens)}
    return RequestOutput(request_id="r", text=text, token_ids=tokens, **{**values, **fields})


def test_merged_outputs_say_what_they_said_one_by_one():
    parts = [
        output("a", [1], prompt_logprobs=["p"], logprobs=["x"], num_output_tokens=1),
        output("", [2], logprobs=["y"], num_output_tokens=2),
        output("bc", [3, 4], logprobs=["z", "w"], num_output_tokens=4, finish_reason="stop", stop_reason="d"),
    ]
    buffer = OutputBuffer()
    for part in parts:
        buffer.add(part)
    assert buffer.merged() == output(
        "abc",
        [1, 2, 3, 4],
        logprobs=["x", "y", "z", "w"],
        prompt_logprobs=["p"],
        num_output_tokens=4,
        finish_reason="stop",
        stop_reason="d",
    )
    assert parts[0].text == "a", "the parts are the engine's, not to be changed"
    assert parts[0].logprobs == ["x"]
