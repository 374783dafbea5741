"""A client that goes away takes its request with it, at whatever moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from live_server import MODEL, LiveServer

NUM_CANCELLATIONS = 200


def body_of(number: int, rng: random.Random, limit: int) -> tuple[str, dict]:
    length = rng.choice([1, 3, 40, limit // 2])
    body: dict = {"model": MODEL, "max_tokens": limit // 3, "stream": number % 2 == 0, "n": rng.choice([1, 1, 3])}
    if number % 3 == 0:
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": "z" * length}]}
    return "/v1/completions", {**body, "prompt": [rng.randrange(3, 300) for _ in range(length)]}


def request_bytes(path: str, body: dict) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def test_cancellations_at_random_moments_leave_nothing_behind(slow: LiveServer):
    rng = random.Random(7)
    port = int(slow.url.rsplit(":", 1)[1])

    async def call_and_go(number: int, gate: asyncio.Semaphore) -> None:
        request = request_bytes(*body_of(number, rng, slow.engine.max_model_len))
        after_s = rng.choice([0, 0.02, 0.1, 0.3]) * rng.random()
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            await asyncio.sleep(after_s)
            assert not reader.at_eof(), "the answer was complete: nothing was cancelled"
            if number % 5:
                writer.close()
            else:
                writer.transport.abort()

    async def storm() -> None:
        gate = asyncio.Semaphore(24)  # three times the slots, so that some are cancelled in the queue
        await asyncio.gather(*(call_and_go(number, gate) for number in range(NUM_CANCELLATIONS)))

    before = aborts(slow)
    asyncio.run(storm())
    slow.assert_idle_and_whole()
    assert aborts(slow) > before + NUM_CANCELLATIONS / 2, "too few got as far as the engine"
    assert slow.client.completions.create(model=MODEL, prompt="a", max_tokens=4).usage.completion_tokens == 4


def aborts(server: LiveServer) -> float:
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    (samples,) = (family.samples for family in families if family.name == "vllm:request_success")
    return sum(sample.value for sample in samples if sample.labels.get("finished_reason") == "abort")


def ask_and_leave(server: LiveServer, stream: bool) -> None:
    """Streaming: leave after the first line. Otherwise: leave while the answer is being made."""
    body = {"model": MODEL, "prompt": "b", "max_tokens": 900, "stream": stream}
    timeout = httpx.Timeout(5, read=5 if stream else 0.05)
    with (
        httpx.Client(base_url=server.url, timeout=timeout) as client,
        contextlib.suppress(httpx.ReadTimeout),
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        next(answer.iter_lines())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slot_while_the_others_go_on(slow: LiveServer, stream: bool):
    body = {"model": MODEL, "prompt": "a", "max_tokens": 200, "stream": True}
    with slow.http.stream("POST", "/v1/completions", json=body) as other:
        lines = other.iter_lines()
        next(lines)
        ask_and_leave(slow, stream)
        slow.wait_until(lambda: slow.loop.num_open_groups == 1, timeout_s=2)
        assert slow.loop.has_requests
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    slow.assert_idle_and_whole()


def test_all_choices_of_a_call_are_cancelled(slow: LiveServer):
    body = {"model": MODEL, "prompt": ["a", "b"], "n": 6, "max_tokens": 900, "stream": True}
    with slow.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()  # held: httpx closes the answer with its iterator
        next(lines)
        assert slow.loop.has_requests
    slow.assert_idle_and_whole()


def test_a_stalled_reader_holds_nobody_up(slow: LiveServer):
    """It reads nothing until all is generated, then everything: no token is lost, and many came as one."""
    choices, tokens_each = 4, 300
    slow.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # what it accepts from now on inherits this
    body: dict = {"model": MODEL, "prompt": "a", "n": choices, "max_tokens": tokens_each, "logprobs": 5, "stream": True}
    body["stream_options"] = {"include_usage": True}
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", int(slow.url.rsplit(":", 1)[1])))
        stalled.sendall(request_bytes("/v1/completions", body))
        slow.wait_until(lambda: slow.loop.has_requests)
        assert slow.client.completions.create(model=MODEL, prompt="b", max_tokens=10).usage.completion_tokens == 10
        slow.wait_until(lambda: not slow.loop.has_requests)
        assert slow.loop.num_open_groups == 1, "the answer fitted into the socket: nothing was tested"
        with stalled.makefile("rb") as answer:
            events = [json.loads(line[6:]) for line in answer if line.startswith(b"data: {")]
    pieces = [choice for event in events for choice in event["choices"]]
    assert sum(len(piece["logprobs"]["tokens"]) for piece in pieces if piece["logprobs"]) == choices * tokens_each
    assert len(pieces) < choices * tokens_each / 2
    assert events[-1]["usage"]["completion_tokens"] == choices * tokens_each
    slow.assert_idle_and_whole()
