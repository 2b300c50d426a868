"""The one error shape of every route: `{"error": {"message", "type", "param", "code"}}`, in bodies and inside streams.

Validation is 400, never 422; what we did not expect is 500 without its internals, which go to the log. 429 and 503 carry Retry-After.
"""

import json
import logging
import traceback
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from math import ceil
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from inference_server.core import errors

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
MAX_REPORTED_PROBLEMS = 3
UNION_MEMBERS = ("list[", "dict[", "literal[")  # how pydantic names members of unions: each union of ours has one, no field is named so
TOO_DEEP = "the body is nested too deeply"

STATUS: Mapping[type[errors.InferenceServerError], int] = MappingProxyType(
    {
        errors.InvalidRequestError: 400,
        errors.ModelNotFoundError: 404,
        errors.OverloadedError: 429,
        errors.NotReadyError: 503,
        errors.EngineDeadError: 503,
        errors.RequestAbortedError: 503,
        errors.DeadlineExceededError: 504,
    }
)
TYPES: Mapping[int, str] = MappingProxyType(
    {
        429: "rate_limit_error",
        500: "internal_server_error",
        503: "service_unavailable_error",
        504: "timeout_error",
    }
)
CODES: Mapping[int, str] = MappingProxyType(
    {
        400: "invalid_value",
        404: "not_found",
        405: "method_not_allowed",
        408: "request_timeout",
        409: "conflict",
        **dict.fromkeys((413, 414, 431), "request_too_large"),
    }
)


class ClientDisconnectedError(Exception):
    """The client has gone before its response began; nobody will read what we answer."""


def status_of(error: errors.InferenceServerError) -> int:
    """The HTTP status of an engine's error: that of its nearest listed class, else 500."""
    return next((STATUS[cls] for cls in type(error).__mro__ if cls in STATUS), 500)


def error_body(status: int, message: str, *, code: str | None = None, param: str | None = None) -> bytes:
    """The error shape as JSON. ASCII only, since a message may quote a client's key that is no valid Unicode."""
    error = {
        "message": message,
        "type": TYPES.get(status, "invalid_request_error"),
        "param": param,
        "code": code or CODES.get(status, "internal_error"),
    }
    return json.dumps({"error": error}).encode()


def engine_error_body(error: errors.InferenceServerError) -> bytes:
    """The error shape of an engine's error; what went wrong inside a step stays in the log."""
    status = status_of(error)
    message = "the server failed to run this request" if status == 500 else error.message
    return error_body(status, message, code=error.code, param=error.param)


def json_error(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def engine_error_response(error: errors.InferenceServerError) -> Response:
    """The response for an engine's error. Retry-After is whole seconds, at least one."""
    status = status_of(error)
    retry_after_s = error.retry_after_s if isinstance(error, errors.TryLaterError) else 1.0
    headers = {"Retry-After": str(max(1, ceil(retry_after_s)))} if status in (429, 503) else None
    return json_error(status, engine_error_body(error), headers)


def refusal_reason(error: errors.InferenceServerError) -> str:
    """Why a generation was refused, as a label of a metric: one of a short list."""
    return error.reason if isinstance(error, errors.TryLaterError) else error.code


def install_error_handlers(app: FastAPI) -> None:
    """Register the handlers. Exceptions that nobody expects are answered by `RequestEnvelope`, outside all of them."""
    app.add_exception_handler(errors.InferenceServerError, _engine_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnectedError, _client_gone)
    app.add_exception_handler(RecursionError, _too_deep)


async def _engine_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.InferenceServerError)
    request.state.refusal = refusal_reason(error)
    return engine_error_response(error)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    message, param = describe(error.errors())
    return json_error(400, error_body(400, message, param=param))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail if error.status_code < 500 else HTTPStatus(error.status_code).phrase
    return json_error(error.status_code, error_body(error.status_code, message), error.headers)


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _too_deep(request: Request, error: Exception) -> Response:
    """Only what a client sent is walked by recursion here: JSON that could just be read may be too deep to check, render or write.

    The log says where, in case it was not the client's.
    """
    (place,) = traceback.extract_tb(error.__traceback__, limit=-1)
    logger.warning("request %s is nested too deeply for %s:%s", request.state.client_id, place.filename, place.lineno)
    return json_error(400, error_body(400, TOO_DEEP))


def describe(problems: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """One message and the top-level field at fault, from pydantic's list."""
    first = problems[0]
    path = first["loc"][1:]
    if not path:
        if first["type"] == "value_error":  # of the object as a whole
            return str(first["msg"]).removeprefix("Value error, "), None
        return "the body is not a JSON object, or its Content-Type is not application/json", None
    # A union reports a problem for each member, under the member's name, which means nothing to a client.
    siblings = [p for p in problems if p["loc"][1 : len(path)] == path[:-1] and len(p["loc"]) > len(path)]
    union = any(str(p["loc"][len(path)]).startswith(UNION_MEMBERS) for p in siblings)
    messages = dict.fromkeys(p["msg"].removeprefix("Value error, ") for p in (siblings if union else [first]))
    text = "; or ".join(list(messages)[:MAX_REPORTED_PROBLEMS])
    return f"{_path(path[:-1] if union else path)}: {text}", str(path[0])


def _path(loc: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")
