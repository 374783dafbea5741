"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ttkern.engine.request import RequestOutput
from ttkern.serve.generation import Answer
from ttkern.serve.logprobs import TokenTexts, chat_logprobs
from ttkern.serve.protocol import ChatRequest


class ChatAnswer(Answer):
    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def __init__(self, body: ChatRequest, texts: TokenTexts) -> None:
        super().__init__(body)
        self._scored = bool(body.logprobs)
        self._texts = texts
        self._begun: set[int] = set()

    def choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": chat_logprobs(self._texts, output.logprobs or ()) if self._scored else None,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }

    def chunk_choices(self, index: int, output: RequestOutput) -> Iterable[dict[str, Any]]:
        def chunk(delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
            return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

        if index not in self._begun:
            self._begun.add(index)
            yield chunk({"role": "assistant", "content": ""})
        logprobs = chat_logprobs(self._texts, output.logprobs) if self._scored and output.logprobs else None
        if output.text or logprobs:
            yield chunk({"content": output.text}, logprobs)
        if output.finish_reason is not None:
            yield {**chunk({}), "finish_reason": output.finish_reason, "stop_reason": output.stop_reason}
