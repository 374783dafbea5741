"""SIGTERM ends the process without losing an answer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from ttkern.errors import TtkernError
from ttkern.serve.server import bind

from live_server import MODEL, LiveServer

SCRIPT_PATH = Path(__file__).with_name("live_server.py")
ROOT = SCRIPT_PATH.parents[2]


def start(port: int = 0) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT_PATH), str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.fixture
def process() -> Iterator[tuple[subprocess.Popen, str]]:
    server = start()
    url = f"http://127.0.0.1:{int(server.stdout.readline())}"
    LiveServer.wait_until(lambda: is_up(url))
    yield server, url
    if server.poll() is None:
        server.kill()
    server.communicate()


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_stream_finish_and_refuses_what_comes(process, number: signal.Signals):
    server, url = process
    with client_of(url) as client:
        stream = client.completions.create(model=MODEL, prompt="a", max_tokens=60, stream=True)
        chunks = [next(stream)]
        server.send_signal(number)
        LiveServer.wait_until(lambda: not is_up(url), timeout_s=1)
        refused = httpx.post(f"{url}/v1/completions", json={"model": MODEL, "prompt": "b"})
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "server_error"
        assert "shutting down" in refused.json()["error"]["message"]
        assert httpx.get(f"{url}/health").status_code == 503
        with pytest.raises(openai.InternalServerError, match="shutting down"):
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "b"}], stream=True)
        chunks += list(stream)
    whole = "".join(chunk.choices[0].text for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len(whole) > 20
    assert server.wait(timeout=10) == 0
    assert "Traceback" not in server.stderr.read()


def test_a_signal_to_an_idle_server_ends_it_at_once(process):
    server, url = process
    with httpx.Client(base_url=url) as keeps_a_connection:
        keeps_a_connection.get("/health")
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=5) == 0


def test_a_second_signal_gives_up_what_runs(process):
    server, url = process
    with client_of(url) as client:
        stream = client.completions.create(model=MODEL, prompt="a", max_tokens=900, stream=True)
        next(stream)
        server.send_signal(signal.SIGTERM)
        LiveServer.wait_until(lambda: not is_up(url))
        server.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
    assert server.wait(timeout=10) == 0


def test_a_port_in_use_is_one_clear_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TtkernError, match=f"cannot listen on 127.0.0.1:{port}: .*in use.*--port") as caught:
            bind("127.0.0.1", port)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70000), ("no.such.host.invalid", 0), ("203.0.113.1", 0)])
def test_an_address_that_cannot_be_had_is_one_clear_line(host: str, port: int):
    with pytest.raises(TtkernError, match=f"cannot listen on {host}:{port}: "):
        bind(host, port)


def test_small_responses_do_not_wait_for_an_acknowledgement(scripted: LiveServer):
    """Without TCP_NODELAY each takes 40 ms."""
    times_ms = sorted(scripted.http.get("/health").elapsed.total_seconds() * 1e3 for _ in range(21))
    assert times_ms[10] < 30
