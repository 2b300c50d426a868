"""Pure ASGI middleware that buffers nothing: the envelope of every request, admission, and the limits of size.

`api.app` says in which order it runs, together with `api.access` and `api.rate_limit`.
"""

import asyncio
import logging
import re
import uuid

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_server.api.context import ApiContext
from inference_server.api.errors import engine_error_response, error_body, json_error, refusal_reason
from inference_server.api.headers import GENERATION_ROUTES, header, is_generation, route_path
from inference_server.core.errors import InferenceServerError

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
WELL_FORMED = re.compile(rb"[A-Za-z0-9._:/-]{1,128}")
TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

logger = logging.getLogger(__name__)


class RequestEnvelope:
    """Stamps the arrival, echoes X-Request-Id, times every request by its route, and answers 500 where nothing else did.

    `state.arrival_time` is in seconds of the engine's clock. `state.client_id` is the client's own id (X-Request-Id, else X-Trace-Id)
    when it is well formed, else a fresh one. `state.traceparent` is a well-formed traceparent, and `state.trace_id` a well-formed
    X-Trace-Id, else the trace of that; each is empty where there is none. All are only ever echoed, written down and searched for, never
    a key. `state.response_headers`: what every answer gets, for others to add to.
    """

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        arrival_time = self._context.clock()
        trace = header(scope, b"x-trace-id")
        sent = header(scope, b"x-request-id") or trace
        client_id = sent if WELL_FORMED.fullmatch(sent) else uuid.uuid4().hex.encode()
        parent = TRACEPARENT.fullmatch(header(scope, b"traceparent"))
        trace_id = trace if WELL_FORMED.fullmatch(trace) else parent[1] if parent else b""
        response_headers = [(b"x-request-id", client_id)]
        scope.setdefault("state", {}).update(
            arrival_time=arrival_time,
            client_id=client_id.decode(),
            trace_id=trace_id.decode(),
            traceparent=parent[0].decode() if parent else "",
            response_headers=response_headers,
        )
        status = 0

        async def send_stamped(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *response_headers]
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
        route = getattr(scope.get("route"), "path", None) or (route_path(scope) if is_generation(scope) else "unmatched")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._context.prometheus.observe_http(method, route, status, seconds)
        if route in GENERATION_ROUTES and status in (429, 503):
            self._context.prometheus.count_rejection(scope["state"].get("refusal", "other"))


class HeadAsGet:
    """Hands HEAD on as GET, the method that the routes have. The HTTP server knows what the client sent, and leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class AdmissionGate:
    """Refuses a generation before its body is read, while the engine cannot take one."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_generation(scope):
            try:
                self._context.engine.check_admission()
            except InferenceServerError as error:
                scope["state"]["refusal"] = refusal_reason(error)
                return await engine_error_response(error)(scope, receive, send)
        await self._app(scope, receive, send)


class HeaderLimit:
    """Answers 431 to headers, or 414 to a target, above `max_bytes`. The server has read them by then: what they cost it a proxy bounds."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if len(scope["raw_path"]) + len(scope["query_string"]) > self._max_bytes:
                return await self._refuse(414, "target is", scope, receive, send)
            if sum(len(name) + len(value) for name, value in scope["headers"]) > self._max_bytes:
                return await self._refuse(431, "headers are", scope, receive, send)
        await self._app(scope, receive, send)

    async def _refuse(self, status: int, what: str, scope: Scope, receive: Receive, send: Send) -> None:
        body = error_body(status, f"the {what} larger than {self._max_bytes} bytes")
        await json_error(status, body, {"Connection": "close"})(scope, receive, send)


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
        declared = header(scope, b"content-length")
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
