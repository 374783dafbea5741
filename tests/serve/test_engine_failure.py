"""When the engine dies, everyone who waits is told, and so is whoever asks for the server's health."""

from __future__ import annotations

import openai
import pytest
from live_server import MODEL, SCRIPT, LiveServer, ScriptRunner
from ttkern.model.tokenizer import Tokenizer


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
