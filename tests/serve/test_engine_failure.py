"""When something below fails, everyone who waits is told, and so is whoever asks for the server's health."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from ttkern.model.tokenizer import Tokenizer

from live_server import MODEL, LiveServer, ScriptRunner


@pytest.fixture
def dying(tokenizer: Tokenizer) -> Iterator[LiveServer]:
    with LiveServer(ScriptRunner(tokenizer, delay_s=0.01), tokenizer) as server:
        yield server


def die(server: LiveServer) -> None:
    def step() -> list:
        raise RuntimeError("a block is lost")

    server.engine.step = step  # type: ignore[method-assign]


@pytest.mark.parametrize("how", ["runner", "engine"])
def test_a_stream_ends_with_an_error_event(dying: LiveServer, how: str):
    stream = dying.client.completions.create(model=MODEL, prompt="a", max_tokens=500, stream=True)
    next(stream)
    if how == "runner":
        dying.runner.fail = True
    else:
        die(dying)
    with pytest.raises(openai.APIError, match="the device went away" if how == "runner" else "a block is lost"):
        list(stream)
    dying.wait_until(lambda: dying.loop.num_open_groups == 0)


def test_a_failed_step_fails_its_requests_and_no_others(dying: LiveServer):
    ask = {"model": MODEL, "prompt": "a", "max_tokens": 5}
    dying.runner.fail = True
    answer = dying.http.post("/v1/completions", json=ask)
    assert answer.status_code == 500
    assert "the device went away" in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "server_error"
    dying.runner.fail = False
    assert dying.http.post("/v1/completions", json=ask).status_code == 200
    dying.assert_idle_and_whole()


@pytest.mark.parametrize("stream", [False, True])
def test_a_dead_engine_is_a_503_for_all_and_shows_in_health(dying: LiveServer, stream: bool):
    die(dying)
    body = {"model": MODEL, "prompt": "a", "max_tokens": 50, "stream": stream}
    first, second = (dying.http.post("/v1/completions", json=body) for _ in range(2))
    assert "a block is lost" in first.text
    assert second.status_code == 503
    assert "a block is lost" in second.json()["error"]["message"]
    health = dying.http.get("/health")
    assert health.status_code == 503
    assert "a block is lost" in health.json()["error"]["message"]
    assert dying.http.get("/metrics").status_code == 200
    assert dying.http.get("/v1/models").status_code == 200
