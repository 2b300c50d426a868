"""`GET /`: an index of every route, for people who knock with curl."""

from typing import Any

from fastapi import APIRouter, Request

from inference_server import __version__

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index(request: Request) -> dict[str, Any]:
    """Every route with one line about it."""
    paths: dict[str, dict[str, dict[str, Any]]] = request.app.openapi()["paths"]
    routes = {
        f"{method.upper()} {path}": operation.get("description", "").partition("\n")[0]
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    return {"name": "inference-server", "version": __version__, "routes": routes}
