"""The request bodies, field by field.

A field that this server honours has its type and range here. A field that it knows and cannot honour is declared with
`Neutral`: the values that ask for nothing pass, any other is refused. Any other field is refused by name. So nothing
that a client asks for is ever ignored in silence.

Names and defaults follow OpenAI's API reference; `top_k`, `ignore_eos`, `min_tokens`, `stop_token_ids`, `min_p`,
`repetition_penalty`, `add_special_tokens`, `skip_special_tokens`,
`chat_template_kwargs` and `continuous_usage_stats` follow vLLM's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic.functional_validators import PlainValidator, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from ttkern.engine.request import SamplingParams

MAX_CHOICES = 1024
MAX_STOP_STRINGS = 4
INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1


def refuse(reason: str, param: str | None = None) -> PydanticCustomError:
    """The error of a validator. A validator of the whole body names the field at fault as `param`."""
    return PydanticCustomError("refused", "{reason}", {"reason": reason, "param": param})


@dataclass(frozen=True, eq=False)  # by identity: Annotated is cached by equality, and 0 == False
class Neutral:
    """Annotates a field that cannot be honoured: only null and `values`, which ask for nothing, are accepted."""

    values: tuple[Any, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [None, *self.values]}

    def check(self, value: Any) -> Any:
        # bool is an int to ==, but true is not a 1 that a client meant.
        if value is None or any(v == value and isinstance(v, bool) == isinstance(value, bool) for v in self.values):
            return value
        allowed = " or ".join(json.dumps(v) for v in (None, *self.values))
        raise refuse(f"this server cannot honour it; leave it out, or send {allowed}")


def _is_token_ids(value: list[Any]) -> bool:
    return all(type(item) is int for item in value)


def _parse_prompt(value: Any) -> list[str] | list[list[int]]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return value
        if _is_token_ids(value):
            return [value]
        if all(isinstance(item, list) and item and _is_token_ids(item) for item in value):
            return value
    raise refuse("expected a string, a list of strings, a list of token ids or a list of lists of token ids, not empty")


def _parse_stop(value: Any) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value if value is not None else []
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise refuse("expected a string or a list of strings")
    if len(strings) > MAX_STOP_STRINGS:
        raise refuse(f"at most {MAX_STOP_STRINGS} stop strings, not {len(strings)}")
    if "" in strings:
        raise refuse("a stop string must not be empty")
    return tuple(strings)


def _parse_content(value: Any) -> str:
    """The text of a message: its string, or its text parts one after another."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise refuse("expected a string or a list of text parts")
    texts = []
    for number, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise refuse(f"part {number} is of type {kind[:40]!r}; this server takes text")
        if kind != "text" or set(part) != {"type", "text"} or not isinstance(part["text"], str):
            raise refuse(f'part {number} must be {{"type": "text", "text": "..."}}')
        texts.append(part["text"])
    return "".join(texts)


_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
Prompt = Annotated[
    Any,
    PlainValidator(_parse_prompt),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
                _TOKEN_IDS,
                {"type": "array", "items": _TOKEN_IDS, "minItems": 1},
            ]
        }
    ),
]
Stop = Annotated[
    tuple[str, ...],
    PlainValidator(_parse_stop),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": MAX_STOP_STRINGS},
                {"type": "null"},
            ]
        }
    ),
]
Content = Annotated[
    str,
    PlainValidator(_parse_content),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART, "minItems": 1}]}),
]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[Any, Neutral((False,))] = None


class GenerationRequest(Body):
    """What completions and chat completions have in common."""

    model: str
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    stop: Stop = ()
    stop_token_ids: list[TokenId] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None  # names the end user to the operator; asks for nothing

    presence_penalty: Annotated[Any, Neutral((0,))] = None
    frequency_penalty: Annotated[Any, Neutral((0,))] = None
    repetition_penalty: Annotated[Any, Neutral((1,))] = None
    min_p: Annotated[Any, Neutral((0,))] = None
    logit_bias: Annotated[Any, Neutral(({},))] = None
    skip_special_tokens: Annotated[Any, Neutral((True,))] = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise refuse("only allowed together with stream: true", "stream_options")
        return self

    def num_choices(self) -> int:
        return self.n or 1

    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def continuous_usage(self) -> bool:
        return self.include_usage() and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def token_limit(self) -> int | None:
        """Most tokens to generate; None: up to the model's limit."""
        raise NotImplementedError

    def num_logprobs(self) -> int | None:
        """None: no logprobs; 0: the chosen token's; N: those of the N likeliest as well."""
        raise NotImplementedError

    def num_prompt_logprobs(self) -> int | None:
        return None

    def sampling_params(self, choice: int) -> SamplingParams:
        """Those of choice 0 .. n-1. With a seed, each choice draws from its own, so that they differ and repeat."""
        seed = None if self.seed is None else (self.seed + choice) % 2**63
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),  # vLLM's -1 also means all tokens
            seed=seed,
            max_tokens=self.token_limit(),
            min_tokens=self.min_tokens or 0,
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=self.num_logprobs(),
            prompt_logprobs=self.num_prompt_logprobs(),
        )


class CompletionRequest(GenerationRequest):
    prompt: Prompt  # after validation a list of texts or a list of token-id lists
    max_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    suffix: Annotated[Any, Neutral()] = None
    add_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _check_choices(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != self.num_choices():
            raise refuse(f"{self.best_of} is not supported; leave it out, or send the value of n", "best_of")
        if len(self.prompt) * self.num_choices() > MAX_CHOICES:
            asked = f"{len(self.prompt)} prompts times n {self.num_choices()}"
            raise refuse(f"{asked} is more than {MAX_CHOICES} choices in one request", "prompt")
        return self

    def token_limit(self) -> int | None:
        return 16 if self.max_tokens is None else self.max_tokens

    def num_logprobs(self) -> int | None:
        return self.logprobs

    def num_prompt_logprobs(self) -> int | None:
        return self.logprobs if self.echo else None


class Message(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content

    # What the `openai` package puts into an assistant message that is sent back.
    name: Annotated[Any, Neutral(("",))] = None
    refusal: Annotated[Any, Neutral()] = None
    audio: Annotated[Any, Neutral()] = None
    annotations: Annotated[Any, Neutral(([],))] = None
    function_call: Annotated[Any, Neutral()] = None
    tool_calls: Annotated[Any, Neutral(([],))] = None
    reasoning_content: Annotated[Any, Neutral()] = None

    def for_template(self) -> dict[str, str]:
        return {"role": self.role, "content": self.content}


Messages = Annotated[list[Message], Field(min_length=1)]
_TEMPLATE_NAMES = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})


def _check_template_kwargs(kwargs: dict[str, Any] | None) -> None:
    if reserved := sorted(_TEMPLATE_NAMES & set(kwargs or ())):
        raise refuse(f"must not set {reserved[0]!r}", "chat_template_kwargs")


class ChatRequest(GenerationRequest):
    messages: Messages
    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None  # labels for the operator, like `user`
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None  # a routing hint; there is one server to route to

    tools: Annotated[Any, Neutral(([],))] = None
    tool_choice: Annotated[Any, Neutral(("none", "auto"))] = None
    parallel_tool_calls: Annotated[Any, Neutral((True, False))] = None
    functions: Annotated[Any, Neutral(([],))] = None
    function_call: Annotated[Any, Neutral(("none", "auto"))] = None
    response_format: Annotated[Any, Neutral(({"type": "text"},))] = None
    modalities: Annotated[Any, Neutral((["text"],))] = None
    audio: Annotated[Any, Neutral()] = None
    prediction: Annotated[Any, Neutral()] = None
    reasoning_effort: Annotated[Any, Neutral()] = None
    verbosity: Annotated[Any, Neutral(("medium",))] = None
    service_tier: Annotated[Any, Neutral(("auto", "default"))] = None
    store: Annotated[Any, Neutral((False,))] = None
    web_search_options: Annotated[Any, Neutral()] = None
    echo: Annotated[Any, Neutral((False,))] = None
    add_generation_prompt: Annotated[Any, Neutral((True,))] = None
    continue_final_message: Annotated[Any, Neutral((False,))] = None

    @model_validator(mode="after")
    def _check_fields_together(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise refuse("only allowed together with logprobs: true", "top_logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            both = f"{self.max_tokens} and {self.max_completion_tokens}"
            raise refuse(f"max_tokens and max_completion_tokens differ ({both}); send one of them", "max_tokens")
        _check_template_kwargs(self.chat_template_kwargs)
        return self

    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeRequest(Body):
    """Exactly one of prompt and messages."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["prompt"]}, {"required": ["messages"]}]})

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _check_one_input(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise refuse("send exactly one of prompt and messages", "prompt")
        _check_template_kwargs(self.chat_template_kwargs)
        return self


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: list[TokenId]
