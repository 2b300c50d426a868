"""`JsonRoute`: reads a body as JSON, and says in the client's terms what is wrong with one that cannot be read.

The number of its objects is limited before a schema sees them: each costs the event loop some ten microseconds, and four megabytes
have room for a million.
"""

import gc
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

MAX_OBJECTS = 16_384


class JsonRoute(APIRoute):
    """For routers whose routes take a body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read_by_us(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return read_by_us


class _JsonRequest(Request):
    async def json(self) -> Any:
        return parse_body(await self.body())


def parse_body(body: bytes) -> Any:
    """Raises HTTPException, 400; JSONDecodeError, which has its own handler, for text that is no JSON."""
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
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise HTTPException(400, f"the body is not valid UTF-8: byte {error.start} cannot be read") from None
    except RecursionError:
        raise HTTPException(400, "the body is nested too deeply") from None
    except ValueError:  # Python converts no integer of thousands of digits
        raise HTTPException(400, "a number in the body has too many digits") from None


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
