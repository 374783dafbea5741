"""/v1/completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ttkern.engine.request import RequestOutput
from ttkern.model.tokenizer import Tokenizer
from ttkern.serve.generation import Answer
from ttkern.serve.logprobs import CharacterCounter, TokenTexts, completion_logprobs
from ttkern.serve.protocol import CompletionRequest


class CompletionAnswer(Answer):
    id_prefix = "cmpl-"
    object_name = chunk_object_name = "text_completion"

    def __init__(
        self, body: CompletionRequest, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer, texts: TokenTexts
    ) -> None:
        super().__init__(body)
        self._choices = [
            _Choice(index, body, prompt, tokenizer, texts)
            for index, prompt in enumerate(prompt for prompt in prompts for _ in range(body.num_choices()))
        ]

    def choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        return self._choices[index].part(output, output.finish_reason)

    def chunk_choices(self, index: int, output: RequestOutput) -> Iterable[dict[str, Any]]:
        part = self._choices[index].part(output, None)
        if part["text"] or part["logprobs"]:
            yield part
        if output.finish_reason is not None:
            end = {"finish_reason": output.finish_reason, "stop_reason": output.stop_reason}
            yield {"index": index, "text": "", "logprobs": None, **end}


class _Choice:
    """Tells one choice part by part, and knows how much of its text was told."""

    def __init__(
        self, index: int, body: CompletionRequest, prompt: Sequence[int], tokenizer: Tokenizer, texts: TokenTexts
    ) -> None:
        self._index = index
        self._scored = body.logprobs is not None
        self._prompt = prompt
        self._prompt_text = tokenizer.decode(list(prompt), skip_special_tokens=False) if body.echo else None
        self._texts = texts
        self._counter = CharacterCounter(len(self._prompt_text or ""))

    def part(self, output: RequestOutput, finish_reason: str | None) -> dict[str, Any]:
        text, logprobs = output.text, None
        if self._scored:
            sampled = output.logprobs or ()
            offsets = [self._counter.advance(self._texts.output_bytes(entry.token)) for entry in sampled]
            logprobs = completion_logprobs(self._texts, sampled, offsets) if sampled else None
        if self._prompt_text is not None:
            text = self._prompt_text + text
            if self._scored:
                logprobs = _joined(self._prompt_logprobs(output), logprobs)
            self._prompt_text = None
        stop_reason = output.stop_reason if finish_reason is not None else None
        return {
            "index": self._index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        }

    def _prompt_logprobs(self, output: RequestOutput) -> dict[str, list[Any]]:
        counter = CharacterCounter()
        offsets = [counter.advance(self._texts.data(token)) for token in self._prompt]
        return completion_logprobs(self._texts, output.prompt_logprobs or (), offsets, first_unscored=self._prompt[0])


def _joined(first: dict[str, list[Any]], second: dict[str, list[Any]] | None) -> dict[str, list[Any]]:
    return first if second is None else {name: first[name] + second[name] for name in first}
