"""The page of a fleet in headless Chromium: a row for each replica that answers, on a desk and on a phone. Its figures are made up."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import uvicorn
from chromium import EXECUTABLE, Page, browsing
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import inference_server

pytestmark = [pytest.mark.browser, pytest.mark.skipif(EXECUTABLE is None, reason="chromium is not installed")]

STATIC = Path(inference_server.__file__).parent / "static"
CELLS = "[...document.querySelectorAll('#replicas tr')].map((row) => [...row.children].map((cell) => cell.textContent))"


def replica(name: str, **figures: Any) -> dict[str, Any]:
    usual = {"status": "ok", "running": 2, "waiting": 0, "tokens": 300, "kv_pressure": 0.25, "hit_tokens": 30, "miss_tokens": 10}
    return {"replica": name, "tokens_per_s": 40, **usual, **figures}


@pytest.fixture
def fleet() -> dict[str, Any]:
    """What `/fleet/stats` answers; a test changes it."""
    replicas = [replica("b", waiting=3, tokens=900), replica("a", status="draining", miss_tokens=30)]
    return {"replicas": replicas, "retries": 5, "broken": 1, "refused": 2}


@pytest.fixture
def page(fleet: dict[str, Any], tmp_path: Path) -> Iterator[Page]:
    async def show(request: Request) -> Response:
        return FileResponse(STATIC / "fleet.html")

    async def stats(request: Request) -> Response:
        return JSONResponse(fleet)

    app = Starlette(
        routes=[Route("/below/fleet", show), Route("/below/fleet/stats", stats), Mount("/below/static", StaticFiles(directory=STATIC))]
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    thread = Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        with browsing(tmp_path) as page:
            page.look(1280)
            page.go(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/below/fleet")
            page.wait_for("document.querySelectorAll('#replicas tr').length === 2")
            yield page
            assert page.problems == []
    finally:
        server.should_exit = True
        thread.join(20)


def test_a_row_for_each_replica_and_what_they_have_together(page: Page, fleet: dict[str, Any]) -> None:
    assert page.run(CELLS) == [
        ["a", "shutting down", "2", "0", "300", "", "50 %", "40"],
        ["b", "serving", "2", "3", "900", "", "75 %", "40"],
    ]
    assert page.run("[...document.querySelectorAll('.tile b')].map((figure) => figure.textContent)") == ["80", "4", "1.50", "60 %", "1"]
    assert page.run("document.querySelector('#replicas .track').getAttribute('aria-label')") == "25 % used"
    fleet["replicas"] = [replica("c")]
    page.wait_for(f"JSON.stringify({CELLS}).startsWith('[[\"c\"')")
    assert page.run("document.querySelector('#health').textContent") == "replicas: 1"


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out(page: Page, width: int, tmp_path: Path) -> None:
    page.look(width, "dark")
    assert page.run("document.documentElement.scrollWidth") <= width
    page.screenshot(tmp_path / "fleet.png")
