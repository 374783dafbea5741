"""From admitted requests to an HTTP answer: whole or as server-sent events, and given up when the client goes away."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ttkern.engine.request import RequestOutput
from ttkern.serve.engine_loop import RequestGroup
from ttkern.serve.errors import ApiError, ClientDisconnected
from ttkern.serve.protocol import GenerationRequest

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class Usage:
    """Token counts of one answer. A prompt that is sampled n times counts once, as OpenAI bills it."""

    def __init__(self, choices_per_prompt: int) -> None:
        self._choices_per_prompt = choices_per_prompt
        self._latest: dict[int, RequestOutput] = {}

    def update(self, index: int, output: RequestOutput) -> None:
        self._latest[index] = output

    def body(self) -> dict[str, Any]:
        prompts = [output for index, output in self._latest.items() if index % self._choices_per_prompt == 0]
        prompt_tokens = sum(output.num_prompt_tokens for output in prompts)
        completion_tokens = sum(output.num_output_tokens for output in self._latest.values())
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(output.num_cached_tokens for output in prompts)},
        }


class Answer(ABC):
    """Writes the outputs of one call in the shape of one endpoint."""

    id_prefix: str
    object_name: str
    chunk_object_name: str

    def __init__(self, body: GenerationRequest) -> None:
        self.body = body
        self._head = {"id": self.id_prefix + uuid.uuid4().hex, "created": int(time.time()), "model": body.model}

    @abstractmethod
    def choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        """A finished choice, from everything that its request produced."""

    @abstractmethod
    def chunk_choices(self, index: int, output: RequestOutput) -> Iterable[dict[str, Any]]:
        """The `choices` entries, each for a chunk of its own, that tell this part of the choice."""

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {**self._head, "object": self.object_name, "choices": choices, "usage": usage.body()}

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self.chunk_object_name, "choices": choices}


def _check_not_aborted(output: RequestOutput) -> None:
    if output.finish_reason == "abort":
        raise ApiError(500, f"the engine gave up the request: {output.error or 'it was aborted'}")


def _event(data: dict[str, Any]) -> str:
    # ASCII only: some clients split events at any Unicode line separator.
    return f"data: {json.dumps(data, separators=(',', ':'), allow_nan=False)}\n\n"


async def _events(answer: Answer, group: RequestGroup) -> AsyncIterator[str]:
    body = answer.body
    usage = Usage(body.num_choices())
    while arrived := await group.next():
        events = []
        for index, output in arrived:
            _check_not_aborted(output)
            usage.update(index, output)
            for choice in answer.chunk_choices(index, output):
                chunk = answer.chunk([choice])
                if body.include_usage():
                    chunk["usage"] = usage.body() if body.continuous_usage() else None
                events.append(_event(chunk))
        yield "".join(events)
    if body.include_usage():
        yield _event({**answer.chunk([]), "usage": usage.body()})
    yield "data: [DONE]\n\n"


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`; when the client goes away first, `work` is cancelled and ClientDisconnected raised."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnected
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


class EventStream(Response):
    """Server-sent events. Owns the group: whichever way the answer ends, nothing of it stays in the engine."""

    media_type = "text/event-stream"

    def __init__(self, group: RequestGroup, events: AsyncIterator[str]) -> None:
        self.status_code = 200
        self.background = None
        self._group = group
        self._events = events
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send(send))
        except ClientDisconnected:
            pass
        finally:
            self._group.close()

    async def _send(self, send: Send) -> None:
        async def write(text: str, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for events in self._events:
                if events:
                    await write(events)
        except ApiError as error:
            await write(_event(error.body()))
        except Exception as error:
            logger.exception("a stream ended early")
            await write(_event(ApiError(500, f"internal error: {type(error).__name__}").body()))
        await write("", more=False)


async def respond(receive: Receive, answer: Answer, group: RequestGroup) -> Response:
    """The answer to an admitted call. Takes over `group`."""
    if answer.body.stream:
        return EventStream(group, _events(answer, group))
    try:
        outputs = await until_disconnect(receive, group.collect())
    finally:
        group.close()
    usage = Usage(answer.body.num_choices())
    for index, output in enumerate(outputs):
        _check_not_aborted(output)
        usage.update(index, output)
    return JSONResponse(answer.whole([answer.choice(i, output) for i, output in enumerate(outputs)], usage))
