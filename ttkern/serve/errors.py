"""Every error leaves the server in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from ttkern.engine.request import RequestError
from ttkern.errors import TtkernError

logger = logging.getLogger(__name__)

_LONGEST_ECHOED_INPUT = 60
_LONGEST_LINE = 1000


def _one_line(text: str) -> str:
    """A client's own words come back in messages: whatever they are, as one line of bounded length."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:_LONGEST_LINE])
    return shown if len(text) <= _LONGEST_LINE else shown + "..."


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Describes the shape to readers of the OpenAPI schema."""

    error: ErrorDetail


class ApiError(Exception):
    """An answer other than 200.

    status: the HTTP status; message: one line; param: the field at fault, dotted ("messages.0.role");
    code: OpenAI's machine-readable code, where it has one.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = _one_line(message)
        self.param = None if param is None else _one_line(param)
        self.code = code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class ClientDisconnected(Exception):
    """The client has gone: there is nobody to answer."""


def from_request_error(error: RequestError) -> ApiError:
    """What the engine refuses is the client's mistake."""
    return ApiError(400, str(error), param=error.field, code=getattr(error, "code", None))


def from_validation_error(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a body, as one line that names the field."""
    first = error.errors(include_url=False)[0]
    param = first.get("ctx", {}).get("param") or ".".join(str(part) for part in first["loc"]) or None
    if first["type"] == "json_invalid":
        return ApiError(400, f"the request body is not valid JSON: {first['ctx']['error']}")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{param}: unknown field; this server would have to ignore it", param=param)
    if first["type"] == "missing":
        return ApiError(400, f"{param}: this field is required", param=param)
    message = f"{param or 'request body'}: {first['msg']}"
    given = first["input"]
    if isinstance(given, str | int | float | bool) and first["type"] != "refused":
        shown = repr(given) if not isinstance(given, int) or given.bit_length() < 256 else "a huge integer"
        message += f", not {shown if len(shown) <= _LONGEST_ECHOED_INPUT else shown[:_LONGEST_ECHOED_INPUT] + '...'}"
    return ApiError(400, message, param=param)


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of `app`, those of the framework included, in OpenAI's shape."""

    @app.exception_handler(ApiError)
    async def on_api_error(request: Request, error: ApiError) -> Response:
        return JSONResponse(error.body(), error.status)

    @app.exception_handler(RequestError)
    async def on_request_error(request: Request, error: RequestError) -> Response:
        answer = from_request_error(error)
        return JSONResponse(answer.body(), answer.status)

    @app.exception_handler(TtkernError)
    async def on_ttkern_error(request: Request, error: TtkernError) -> Response:
        return JSONResponse(ApiError(400, str(error)).body(), 400)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> Response:
        message = error.detail
        if error.status_code == 404:
            message = f"there is no {request.method} {request.url.path}"
        elif error.status_code == 405:
            message = f"{request.url.path} does not take {request.method}"
        return JSONResponse(ApiError(error.status_code, message).body(), error.status_code, headers=error.headers)

    @app.exception_handler(ClientDisconnected)
    async def on_client_disconnected(request: Request, error: ClientDisconnected) -> Response:
        return Response(status_code=499)

    @app.exception_handler(Exception)
    async def on_any_other_exception(request: Request, error: Exception) -> Response:
        # The framework raises it again after this answer, and the server logs it with its traceback.
        return JSONResponse(ApiError(500, f"internal error: {type(error).__name__}").body(), 500)
