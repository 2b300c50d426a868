"""Who may ask: `KeyRing`, the keys that the server knows, and `AccessGate`, which refuses before a body is read.

With API_KEYS set, every route needs one of them but those listed here, which show nothing of what clients send; a route that is added
later is closed until it is listed. /metrics goes by METRICS_KEY alone. Keys are compared and named by their digests.
"""

import hashlib
from collections.abc import Sequence
from hmac import compare_digest

from starlette.types import ASGIApp, Receive, Scope, Send

from inference_server.api.errors import error_body, json_error
from inference_server.api.headers import header, route_path

# Probes, and what a browser needs before it can ask its user for a key.
OPEN_ROUTES = frozenset({"/health", "/health/live", "/health/ready", "/ready", "/"})
OPEN_FOLDER = "/static/"
METRICS_ROUTE = "/metrics"
_BEARER = b"bearer "
_NAME_LENGTH = 12


def bearer_token(authorization: bytes) -> bytes:
    """The token of an Authorization header; empty where there is none."""
    return authorization[len(_BEARER) :].strip() if authorization[: len(_BEARER)].lower() == _BEARER else b""


def key_name(token: bytes) -> str:
    """A name for a key in statistics, which does not give the key away."""
    return f"key:{hashlib.sha256(token).hexdigest()[:_NAME_LENGTH]}"


class KeyRing:
    """A set of keys. Looking one up takes the same time whether, and wherever, it is found."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def __contains__(self, token: bytes) -> bool:
        digest = hashlib.sha256(token).digest()
        found = 0
        for known in self._digests:
            found |= compare_digest(known, digest)
        return bool(found)


class AccessGate:
    """Answers 401 to a request without the key that its route needs. `state.client_key` names a key that was checked."""

    def __init__(self, app: ASGIApp, api_keys: Sequence[str], metrics_key: str | None) -> None:
        self._app = app
        self._api_keys = KeyRing(api_keys)
        self._metrics_keys = KeyRing(() if metrics_key is None else (metrics_key,))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        path = route_path(scope)
        keys = self._metrics_keys if path == METRICS_ROUTE else self._api_keys
        if keys and path not in OPEN_ROUTES and not path.startswith(OPEN_FOLDER):
            token = bearer_token(header(scope, b"authorization"))
            if token not in keys:
                body = error_body(401, "this server needs a valid key: Authorization: Bearer KEY", code="invalid_api_key")
                return await json_error(401, body, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
            scope["state"]["client_key"] = key_name(token)
        await self._app(scope, receive, send)
