"""What a caller hands to the engine and gets back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ttkern.engine.runner_protocol import Sampled
from ttkern.errors import TtkernError

FinishReason = Literal["stop", "length", "abort"]


class RequestError(TtkernError):
    """A request that cannot be honoured.

    field: the parameter at fault; message: one line; code: OpenAI's machine-readable code, where it has one.
    """

    def __init__(self, field: str, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.code = code


@dataclass(frozen=True)
class SamplingParams:
    """How to continue a prompt, and when to end. Raises RequestError on values that mean nothing.

    temperature      0 is greedy; else logits are divided by it
    top_p            keep the likeliest tokens up to this probability, in (0, 1]
    top_k            keep that many of the likeliest tokens; 0: all
    seed             equal seeds give equal samples; None: a new one for each request
    max_tokens       most tokens to produce; None: up to the model's limit; 0: only read the prompt
    min_tokens       before that many, no end-of-sequence or stop token is chosen and no stop string ends the answer
    stop             strings that end the answer; the text ends before the one that was completed first
    stop_token_ids   tokens that end the answer; they appear in the token ids but not in the text
    ignore_eos       an end-of-sequence token does not end the answer
    logprobs         None: none; 0: the chosen tokens'; N: those of the N likeliest tokens as well
    prompt_logprobs  the same for the prompt's tokens from the second on
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature)
        if self.temperature < 0:
            raise RequestError("temperature", f"temperature is {self.temperature}; it must be 0 or more")
        _number("top_p", self.top_p)
        if not 0 < self.top_p <= 1:
            raise RequestError("top_p", f"top_p is {self.top_p}; it must be above 0 and at most 1")
        _count("top_k", self.top_k)
        _count("min_tokens", self.min_tokens)
        for field in ("max_tokens", "logprobs", "prompt_logprobs"):
            if getattr(self, field) is not None:
                _count(field, getattr(self, field))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                "min_tokens", f"min_tokens is {self.min_tokens}, which is more than max_tokens, {self.max_tokens}"
            )
        if self.seed is not None and not (_is_int(self.seed) and -(2**63) <= self.seed < 2**64):
            raise RequestError("seed", f"seed is {self.seed!r}; it must be a 64-bit integer")
        if not isinstance(self.stop, (list, tuple)):
            raise RequestError("stop", f"stop is {self.stop!r}; it must be a list of strings")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise RequestError("stop", f"stop holds {text!r}; each must be a string of at least one character")
        if not isinstance(self.stop_token_ids, (list, tuple)):
            raise RequestError("stop_token_ids", f"stop_token_ids is {self.stop_token_ids!r}; it must be a list")
        for token in self.stop_token_ids:
            if not _is_int(token) or token < 0:
                raise RequestError("stop_token_ids", f"stop_token_ids holds {token!r}; token ids are 0 or more")
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(field: str, value: Any) -> None:
    if not (_is_int(value) or isinstance(value, float)) or not math.isfinite(value):
        raise RequestError(field, f"{field} is {value!r}; it must be a finite number")


def _count(field: str, value: Any) -> None:
    if not _is_int(value) or value < 0:
        raise RequestError(field, f"{field} is {value!r}; it must be an integer of at least 0")


@dataclass
class Request:
    """A prompt to continue. request_id: unique among the requests that the engine holds."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams


@dataclass
class RequestOutput:
    """What one step said about one request; concatenated over the steps they are the answer.

    text              safe to send: never half a character, never the beginning of a stop string
    token_ids         new tokens
    logprobs          aligned with token_ids; None where none were asked for
    prompt_logprobs   scores of the prompt's tokens from the second on, once, with the first output
    finish_reason     None while it goes on; "abort" when the engine gave up, `error` says why
    stop_reason       the stop string or stop token that ended the answer; None for end of sequence
    num_prompt_tokens, num_cached_tokens, num_output_tokens   totals so far; cached ones were not computed again
    """

    request_id: str
    text: str
    token_ids: list[int]
    logprobs: list[Sampled] | None
    prompt_logprobs: list[Sampled] | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    error: str | None = None


def merge_outputs(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """One output that says what consecutive `outputs` of one request (at least one) say together."""
    if len(outputs) == 1:
        return outputs[0]
    last = outputs[-1]
    return RequestOutput(
        request_id=last.request_id,
        text="".join(output.text for output in outputs),
        token_ids=[token for output in outputs for token in output.token_ids],
        logprobs=(
            [entry for output in outputs for entry in output.logprobs or ()]
            if any(output.logprobs is not None for output in outputs)
            else None
        ),
        prompt_logprobs=next((o.prompt_logprobs for o in outputs if o.prompt_logprobs is not None), None),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        num_prompt_tokens=last.num_prompt_tokens,
        num_cached_tokens=last.num_cached_tokens,
        num_output_tokens=last.num_output_tokens,
        error=last.error,
    )
