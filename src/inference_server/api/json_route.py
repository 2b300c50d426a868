"""`JsonRoute`: reads a body as JSON, and says in the client's terms what is wrong with one that cannot be read. `GenerationRoute` also
runs its endpoint without FastAPI's machinery, which would take longer than all else that a short request costs the event loop.

The JSON objects of a body are counted before a schema sees them: each costs the event loop some ten microseconds, and four megabytes
have room for a million.
"""

import gc
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from inference_server.api.errors import TOO_DEEP, ClientDisconnectedError
from inference_server.api.headers import GENERATION_ROUTES, header

MAX_OBJECTS = 16_384


class JsonRoute(APIRoute):
    """For routers whose routes take a body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read_by_us(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return read_by_us


class GenerationRoute(JsonRoute):
    """For routes whose endpoints take `body`, `request` and `context`, and return a response."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint, schema = self.endpoint, self.body_field
        assert schema is not None, "a generation has a body"
        assert self.path in GENERATION_ROUTES, f"no gate would stand before {self.path}: middleware goes by the list in api.headers"

        async def run(request: Request) -> Response:
            try:
                content = await request.body()
            except ClientDisconnect:
                raise ClientDisconnectedError from None
            data = parse_body(content) if _is_json(header(request.scope, b"content-type")) else content
            body, problems = schema.validate(data, {}, loc=("body",))
            if problems:
                raise RequestValidationError(problems)
            response: Response = await endpoint(body=body, request=request, context=request.app.state.context)
            return response

        return run


class _JsonRequest(Request):
    async def json(self) -> Any:
        return parse_body(await self.body())


def parse_body(body: bytes) -> Any:
    """Raises HTTPException, 400."""
    num_objects = 0

    def counted(value: dict[str, Any]) -> dict[str, Any]:
        nonlocal num_objects
        num_objects += 1
        if num_objects > MAX_OBJECTS:
            raise HTTPException(400, f"the body has more than {MAX_OBJECTS} JSON objects")
        return value

    try:
        with _no_collection():
            return json.loads(body, object_hook=counted)
    except json.JSONDecodeError as error:
        raise HTTPException(400, f"the body is not valid JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise HTTPException(400, f"the body is not valid UTF-8: byte {error.start} cannot be read") from None
    except RecursionError:
        raise HTTPException(400, TOO_DEEP) from None
    except ValueError:  # Python converts no integer of thousands of digits
        raise HTTPException(400, "a number in the body has too many digits") from None


def _is_json(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))


@contextmanager
def _no_collection() -> Iterator[None]:
    """A million empty lists would set off a thousand collections, which hold up everybody for half a second."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
