"""The HTTP application: its routes, and what a body becomes before the engine sees it."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.openapi.utils import get_openapi
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from ttkern import __version__
from ttkern.engine import request as engine_request
from ttkern.model.chat_template import ChatTemplate
from ttkern.model.tokenizer import Tokenizer
from ttkern.serve.chat import ChatAnswer
from ttkern.serve.completions import CompletionAnswer
from ttkern.serve.engine_loop import EngineLoop
from ttkern.serve.errors import (
    ApiError,
    ClientDisconnected,
    ErrorBody,
    from_validation_error,
    install_error_handlers,
)
from ttkern.serve.generation import Answer, respond
from ttkern.serve.logprobs import TokenTexts
from ttkern.serve.metrics import Metrics
from ttkern.serve.protocol import (
    Body,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    Message,
    TokenizeRequest,
)

DEFAULT_MAX_BODY_BYTES = 32 * 1024 * 1024  # 1M tokens as JSON numbers are about 8 MB
AnyBody = TypeVar("AnyBody", bound=Body)


class Service:
    """What the routes share."""

    def __init__(
        self,
        engine_loop: EngineLoop,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        served_model_name: str,
        max_body_bytes: int,
    ) -> None:
        self.engine_loop = engine_loop
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.model_name = served_model_name
        self.max_body_bytes = max_body_bytes
        self.max_model_len = engine_loop.engine.max_model_len
        self.texts = TokenTexts(tokenizer)
        self.created = int(time.time())

    async def read(self, http: Request, model: type[AnyBody]) -> AnyBody:
        """The body of `http`, checked. Raises ApiError 400, 413 or 415."""
        content_type = http.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            shown = content_type[:60] or "missing"
            raise ApiError(415, f"the request needs the header Content-Type: application/json; it is {shown}")
        declared = http.headers.get("content-length", "")
        received = bytearray()
        too_large = declared.isdecimal() and int(declared[:20]) > self.max_body_bytes
        if not too_large:
            try:
                async for part in http.stream():
                    received += part
                    if too_large := len(received) > self.max_body_bytes:
                        break
            except ClientDisconnect:
                raise ClientDisconnected from None
        if too_large:
            raise ApiError(413, f"the request body is larger than {self.max_body_bytes} bytes")
        try:
            return model.model_validate_json(bytes(received))
        except ValidationError as error:
            raise from_validation_error(error) from None

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.model_name:
            message = f"the model {name[:200]!r} does not exist; this server has {self.model_name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        # In a thread: a long text takes a while, and the other streams go on.
        special = True if add_special_tokens is None else add_special_tokens
        return await run_in_threadpool(self.tokenizer.encode, text, add_special_tokens=special)

    async def encode_messages(
        self, messages: list[Message], kwargs: dict[str, Any] | None, add_generation_prompt: bool = True
    ) -> list[int]:
        if self.chat_template is None:
            raise ApiError(400, "messages: this model has no chat template; use /v1/completions", param="messages")
        try:
            text = self.chat_template.render(
                [message.for_template() for message in messages],
                add_generation_prompt=add_generation_prompt,
                **(kwargs or {}),
            )
        except ValueError as error:
            raise ApiError(400, f"messages: {error}", param="messages") from None
        return await self.encode(text, add_special_tokens=False)

    async def generate(
        self, http: Request, answer: Answer, body: GenerationRequest, prompts: list[list[int]]
    ) -> Response:
        call = uuid.uuid4().hex
        requests = [
            engine_request.Request(f"{call}-{number}-{choice}", prompt, body.sampling_params(choice))
            for number, prompt in enumerate(prompts)
            for choice in range(body.num_choices())
        ]
        return await respond(http.receive, answer, await self.engine_loop.submit(requests))


def create_app(
    engine_loop: EngineLoop,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate | None,
    served_model_name: str,
    *,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
) -> FastAPI:
    """The application around `engine_loop`, which starts and stops with it.

    chat_template: None refuses /v1/chat/completions; max_body_bytes: larger bodies are a 413. The loop is also at
    `app.state.engine_loop`.
    """
    metrics = Metrics(served_model_name, lambda: engine_loop.stats)
    engine_loop.metrics = metrics
    service = Service(engine_loop, tokenizer, chat_template, served_model_name, max_body_bytes)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine_loop.start()
        yield
        await run_in_threadpool(engine_loop.stop)

    errors: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
    app = FastAPI(title="ttkern", version=__version__, lifespan=lifespan, responses=errors)
    app.state.engine_loop = engine_loop
    install_error_handlers(app)
    _add_model_routes(app, service)
    _add_generation_routes(app, service)
    _add_token_routes(app, service)
    _add_operator_routes(app, service, metrics)
    app.openapi = lambda: _openapi(app, served_model_name)  # type: ignore[method-assign]
    return app


_BODIES: tuple[type[Body], ...] = (CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest)
_SCHEMA_PATH = "#/components/schemas/{model}"


def _takes(model: type[Body]) -> dict[str, Any]:
    schema = {"$ref": _SCHEMA_PATH.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _openapi(app: FastAPI, model_name: str) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = app.openapi_schema.setdefault("components", {}).setdefault("schemas", {})
        for model in _BODIES:
            schema = model.model_json_schema(ref_template=_SCHEMA_PATH)
            schemas.update(schema.pop("$defs", {}))
            optional = [] if "model" in schema.get("required", ()) else [None]
            schema["properties"]["model"] = {"enum": [model_name, *optional]}
            schemas[model.__name__] = schema
    return app.openapi_schema


def _add_generation_routes(app: FastAPI, service: Service) -> None:
    streams: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}, "text/event-stream": {}}}}

    @app.post("/v1/completions", openapi_extra=_takes(CompletionRequest), responses=streams)
    async def completions(http: Request) -> Response:
        body = await service.read(http, CompletionRequest)
        service.check_model(body.model)
        prompts = [
            await service.encode(prompt, body.add_special_tokens) if isinstance(prompt, str) else prompt
            for prompt in body.prompt
        ]
        answer = CompletionAnswer(body, prompts, service.tokenizer, service.texts)
        return await service.generate(http, answer, body, prompts)

    @app.post("/v1/chat/completions", openapi_extra=_takes(ChatRequest), responses=streams)
    async def chat_completions(http: Request) -> Response:
        body = await service.read(http, ChatRequest)
        service.check_model(body.model)
        prompt = await service.encode_messages(body.messages, body.chat_template_kwargs)
        return await service.generate(http, ChatAnswer(body, service.texts), body, [prompt])


def _add_model_routes(app: FastAPI, service: Service) -> None:
    def card() -> dict[str, Any]:
        return {
            "id": service.model_name,
            "object": "model",
            "created": service.created,
            "owned_by": "ttkern",
            "max_model_len": service.max_model_len,
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card()]}

    @app.get("/v1/models/{model:path}")
    async def model_card(model: str) -> dict[str, Any]:
        service.check_model(model)
        return card()


def _add_token_routes(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize", openapi_extra=_takes(TokenizeRequest))
    async def tokenize(http: Request) -> dict[str, Any]:
        body = await service.read(http, TokenizeRequest)
        service.check_model(body.model)
        if body.messages is not None:
            add_generation_prompt = body.add_generation_prompt is not False
            tokens = await service.encode_messages(body.messages, body.chat_template_kwargs, add_generation_prompt)
        else:
            tokens = await service.encode(body.prompt or "", body.add_special_tokens)
        strings = [service.texts.string(token) for token in tokens] if body.return_token_strs else None
        return {
            "tokens": tokens,
            "count": len(tokens),
            "max_model_len": service.max_model_len,
            "token_strs": strings,
        }

    @app.post("/detokenize", openapi_extra=_takes(DetokenizeRequest))
    async def detokenize(http: Request) -> dict[str, Any]:
        body = await service.read(http, DetokenizeRequest)
        service.check_model(body.model)
        limit = service.tokenizer.vocab_size
        if (bad := next((token for token in body.tokens if token >= limit), None)) is not None:
            raise ApiError(400, f"tokens: token id {bad} is outside the vocabulary of {limit}", param="tokens")
        text = await run_in_threadpool(service.tokenizer.decode, body.tokens, skip_special_tokens=False)
        return {"prompt": text}


def _add_operator_routes(app: FastAPI, service: Service, metrics: Metrics) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        if not service.engine_loop.accepting:
            raise service.engine_loop.refusal()
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics_page() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/version")
    async def version_page() -> dict[str, str]:
        return {"version": __version__}
