"""Pure ASGI middleware, outermost first: `RequestEnvelope`, `AdmissionGate`, `BodyLimit`. None of them buffers anything."""

import asyncio
import logging
import re
import uuid

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_server.api.context import ApiContext
from inference_server.api.errors import engine_error_response, error_body, json_error, refusal_reason
from inference_server.core.errors import InferenceServerError

GENERATION_ROUTES = frozenset({"/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses"})
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CLIENT_ID = re.compile(rb"[A-Za-z0-9._:/-]{1,128}")

logger = logging.getLogger(__name__)


class RequestEnvelope:
    """Stamps the arrival, echoes X-Request-Id, times every request by its route, and answers 500 where nothing else did.

    `state.arrival_time` is in seconds of the engine's clock; `state.client_id` is the client's own id (X-Request-Id, else X-Trace-Id)
    when it is well formed, else a fresh one. It is only ever echoed, logged and searched for, never a key.
    """

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        arrival_time = self._context.clock()
        sent = _header(scope, b"x-request-id") or _header(scope, b"x-trace-id")
        client_id = sent if CLIENT_ID.fullmatch(sent) else uuid.uuid4().hex.encode()
        scope.setdefault("state", {}).update(arrival_time=arrival_time, client_id=client_id.decode())
        status = 0

        async def send_stamped(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", client_id)]
            await send(message)

        try:
            await self._app(scope, receive, send_stamped)
        except Exception:
            if status:  # too late for another answer: the server cuts the connection and logs the error
                raise
            logger.exception("request %s failed", client_id.decode())
            await json_error(500, error_body(500, "internal server error"))(scope, receive, send_stamped)
        finally:
            self._observe(scope, status, self._context.clock() - arrival_time)

    def _observe(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or (_route_path(scope) if _is_generation(scope) else "unmatched")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._context.prometheus.observe_http(method, route, status, seconds)
        if route in GENERATION_ROUTES and status in (429, 503):
            self._context.tracker.count_rejection()
            self._context.prometheus.count_rejection(scope["state"].get("refusal", "other"))


class AdmissionGate:
    """Refuses a generation before its body is read, while the engine cannot take one."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_generation(scope):
            try:
                self._context.engine.check_admission()
            except InferenceServerError as error:
                scope["state"]["refusal"] = refusal_reason(error)
                return await engine_error_response(error)(scope, receive, send)
        await self._app(scope, receive, send)


class BodyLimit:
    """Answers 413 to a body above `max_bytes`: at once when its length is declared, else as soon as it has come that far. One that is not
    whole after `deadline_s` is answered 408, so that no connection holds a request, or a server that stops, for ever."""

    def __init__(self, app: ASGIApp, max_bytes: int, deadline_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._deadline_s = deadline_s
        self._message = f"the body is larger than {max_bytes} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        declared = _header(scope, b"content-length")
        if declared.isdigit() and int(declared) > self._max_bytes:
            return await json_error(413, error_body(413, self._message))(scope, receive, send)
        deadline = asyncio.get_running_loop().time() + self._deadline_s
        received, whole = 0, False

        async def receive_limited() -> Message:
            nonlocal received, whole
            if whole:  # what is left to receive is the disconnect
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body did not arrive within {self._deadline_s:g} s", {"Connection": "close"}) from None
            whole = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise HTTPException(413, self._message)
            return message

        await self._app(scope, receive_limited, send)


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")


def _route_path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _is_generation(scope: Scope) -> bool:
    return scope["method"] == "POST" and _route_path(scope) in GENERATION_ROUTES
