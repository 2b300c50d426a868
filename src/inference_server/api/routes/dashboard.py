"""The dashboard: its page for browsers at `/`, its files under `/static`, and the one snapshot that it polls.

Other clients get an index of every route at `/`. The page may load nothing but its own files, and nobody may frame it.
"""

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.staticfiles import StaticFiles

from inference_server import __version__
from inference_server.api.context import Context
from inference_server.api.formats.timeline import row
from inference_server.api.routes.stats import cache_stats, scheduler_stats

STATIC = StaticFiles(directory=Path(__file__).parents[2] / "static")
MAX_ROWS = 256
NUM_ENDED = 12
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index(request: Request) -> Response:
    """The page, or every route with one line about it."""
    if "text/html" in request.headers.get("accept", ""):
        page = await _file(request, "index.html")
        page.headers["Vary"] = "Accept"
        return page
    paths: dict[str, dict[str, dict[str, Any]]] = request.app.openapi()["paths"]
    routes = {
        f"{method.upper()} {path}": operation.get("description", "").partition("\n")[0]
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    return JSONResponse({"name": "inference-server", "version": __version__, "routes": routes}, headers={"Vary": "Accept"})


@router.get("/static/{path:path}")
async def static(path: str, request: Request) -> Response:
    """A file of the page."""
    return await _file(request, path)


@router.get("/dashboard/state")
async def state(context: Context) -> Response:
    """All that the page shows, at one moment. requests: null while a step takes so long that the engine does not answer.

    Encoded here: FastAPI would first walk through every value of every row.
    """
    try:
        requests = [row(record) for record in (await context.engine.open_requests())[:MAX_ROWS]]
    except TimeoutError:
        requests = None
    now = {
        "model": context.options.served_model_name,
        "version": __version__,
        "health": context.engine.health().status,
        "scheduler": await scheduler_stats(context),
        "cache": await cache_stats(context),
        "requests": requests,
        "ended": [row(record) for record in context.request_log.latest(NUM_ENDED)],
        "history": context.tracker.history(),
        "simulator": context.simulator and context.simulator.status(),
    }
    return JSONResponse(now)


async def _file(request: Request, path: str) -> Response:
    """Raises HTTPException 404, also for what lies outside the folder."""
    response = await STATIC.get_response(path, request.scope)
    response.headers.update(HEADERS)
    return response
