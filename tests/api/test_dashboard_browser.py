"""The dashboard in headless Chromium: drive a simulation, chat, ask why a request was slow, on a desk and on a phone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import TestServer, running
from chromium import EXECUTABLE, Page, browsing
from echo_model import EchoBackend

pytestmark = [pytest.mark.browser, pytest.mark.skipif(EXECUTABLE is None, reason="chromium is not installed")]

NUM_ROWS = "document.querySelectorAll('#rows li').length"


@pytest.fixture
def server() -> Iterator[TestServer]:
    with running(EchoBackend(step_s=0.03), max_batch_size=4) as server:
        yield server


@pytest.fixture
def page(server: TestServer, tmp_path: Path) -> Iterator[Page]:
    with browsing(tmp_path) as page:
        page.look(1280)
        page.go(server.url)
        page.wait_for("document.querySelector('#health').textContent === 'idle'")
        yield page
        assert page.problems == []


def text(page: Page, selector: str) -> str:
    return str(page.run(f"document.querySelector('{selector}').textContent"))


def press_on(page: Page, selector: str, key: str = "Enter") -> None:
    page.run(f"document.querySelector('{selector}').focus()")
    page.press(key)


def start_simulation(page: Page) -> None:
    fields = {"num_users": 8, "think_time_s": 0, "short": 1, "medium": 0, "long": 0}
    for name, value in fields.items():
        page.run(f"document.querySelector('#sim-form [name={name}]').value = {value}")
    press_on(page, "#sim-start")


def test_a_simulation_is_started_seen_and_stopped(page: Page) -> None:
    start_simulation(page)
    page.wait_for(f"{NUM_ROWS} > 4")
    page.wait_for("document.querySelectorAll('#rows .waiting').length && document.querySelectorAll('#rows .running').length")
    before = page.run("document.querySelector('#chart-tokens path.line').getAttribute('d')")
    page.wait_for(f"document.querySelector('#chart-tokens path.line').getAttribute('d') !== '{before}'")
    page.wait_for("document.querySelector('#chart-itl path.line').getAttribute('d').includes('L')")
    page.wait_for("document.querySelectorAll('#pool .used').length > 0")
    page.wait_for("document.querySelectorAll('#fairness li').length > 1")
    page.wait_for("document.querySelectorAll('#ended tr').length > 3")
    assert "waiting" in text(page, "#batch-counts")
    press_on(page, "#sim-stop")
    page.wait_for("document.querySelector('#sim-state').textContent === 'stopped'")
    page.wait_for(f"{NUM_ROWS} === 0")
    assert text(page, "#sim-error") == ""


def test_a_chat_streams_and_tells_its_life(page: Page) -> None:
    page.run("document.querySelector('#chat-text').value = 'hello there'")
    press_on(page, "#chat-text")
    page.wait_for("document.querySelector('.said.model .text').textContent.length > 3")
    assert text(page, "#chat-send") == "Stop"  # the answer is still coming
    page.wait_for("document.querySelector('.said.model .note').textContent.includes('tokens/s')")
    assert text(page, ".said.model .text") == "hello there"
    press_on(page, ".said.model .link")
    page.wait_for("document.querySelector('#life[open] .verdict')")
    assert "decoded its answer" in text(page, ".verdict")
    assert "first token" in text(page, "#life .events")
    page.press("Escape")
    page.wait_for("!document.querySelector('#life').open")


def test_a_failure_is_told_in_words(page: Page) -> None:
    page.run("document.querySelector('#find-id').value = 'nobody'")
    press_on(page, "#find-id")
    page.wait_for("document.querySelector('#life .error')")
    assert "no open request has this id" in text(page, "#life .error")
    (problem,) = page.problems  # the browser logs every 404
    assert "404" in problem
    page.problems.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out_and_colours_follow_the_system(page: Page, width: int, scheme: str, tmp_path: Path) -> None:
    page.look(width, scheme)
    start_simulation(page)
    page.wait_for(f"{NUM_ROWS} > 4")
    assert page.run("document.documentElement.scrollWidth") <= width
    red, green, blue = (int(part) for part in page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)"))
    assert (red + green + blue > 600) == (scheme == "light")
    page.screenshot(tmp_path / "page.png")
    assert 20_000 < (tmp_path / "page.png").stat().st_size < 300_000
    press_on(page, "#sim-stop")


def test_it_can_be_used_without_eyes_mouse_or_motion(page: Page) -> None:
    nameless = page.run(
        "[...document.querySelectorAll('input, textarea, button, [role=img], section')].filter((e) => !(e.labels?.length ||"
        " e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim())).map((e) => e.outerHTML)"
    )
    assert nameless == []
    reached = []
    for _ in range(24):
        page.press("Tab")
        reached.append(page.run("document.activeElement.id || document.activeElement.name || document.activeElement.className"))
    assert {"skip", "chat-text", "num_users", "sim-start", "find-id"} <= set(reached)
    page.look(1280, motion="reduce")
    assert page.run("getComputedStyle(document.querySelector('.blocks i')).transitionProperty") == "none"


def test_a_list_that_changes_keeps_the_focus_of_what_stays(page: Page) -> None:
    state = page.run("""(async () => {
        const { el, follow } = await import('/static/js/dom.js');
        const list = document.body.appendChild(el('ul'));
        const show = (...keys) => follow(list, keys, (key) => key, (key) => el('li', { tabindex: 0 }, key), (item) => item.append('!'));
        show('a', 'b', 'c');
        list.children[1].focus();
        show('b', 'c', 'd');
        return [document.activeElement.textContent, list.textContent];
    })()""")
    assert state == ["b!!", "b!!c!!d!"]


def test_the_stretches_of_a_life_add_up_to_it(page: Page) -> None:
    events = [
        {"event": "received", "at_ms": 0},
        {"event": "held", "at_ms": 30, "gate": "kv_blocks"},
        {"event": "admitted", "at_ms": 100, "cached_tokens": 0},
        {"event": "prefill", "at_ms": 110, "duration_ms": 40, "tokens": 512, "rows": 3},
        {"event": "prefill", "at_ms": 170, "duration_ms": 30, "tokens": 1, "rows": 1},
        {"event": "preempted", "at_ms": 250},
        {"event": "prefill", "at_ms": 260, "duration_ms": 20, "tokens": 513, "rows": 1},
    ]
    life = {"phases": {"queue_ms": 100, "prefill_ms": 100, "decode_ms": 300}, "events": events, "output_tokens": 9}
    found = page.run(f"import('/static/js/life.js').then(({{ stretches }}) => stretches({json.dumps(life)}))")
    assert [(part["kind"], part["start"], part["end"]) for part in found] == [
        ("waiting", 0, 30),
        ("waiting", 30, 100),
        ("idle", 100, 110),
        ("prefill", 110, 150),
        ("idle", 150, 170),
        ("prefill", 170, 200),
        ("decode", 200, 500),
    ]
    assert "KV memory" in found[1]["label"]


def test_everything_comes_from_the_server_itself(page: Page, server: TestServer) -> None:
    names = page.run("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert len(names) > 10
    assert all(name.startswith(server.url) for name in names)
    size = page.run("performance.getEntriesByType('resource').reduce((sum, entry) => sum + entry.transferSize, 0)")
    assert size < 200_000


def test_the_page_asks_for_a_key_and_keeps_it_for_the_tab(tmp_path: Path) -> None:
    def enter(key: str) -> None:
        page.wait_for("document.querySelector('#key').open && !document.querySelector('#key-text').value")
        page.run(f"document.querySelector('#key-text').value = '{key}'")
        press_on(page, "#key-text")

    with running(EchoBackend(), api_keys=("secret",)) as server, browsing(tmp_path) as page:
        page.look(390)
        page.go(server.url)
        enter("wrong")
        page.wait_for("document.querySelector('#key-error').textContent.includes('refused')")
        enter("secret")
        page.wait_for("document.querySelector('#health').textContent === 'idle'")
        assert not page.run("document.querySelector('#key').open")
        page.run("document.querySelector('#chat-text').value = 'hello'")
        press_on(page, "#chat-text")
        page.wait_for("document.querySelector('.said.model .note').textContent.includes(' tokens')")
        assert page.run("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
        page.go(server.url)
        page.wait_for("document.querySelector('#health').textContent === 'idle'")
        assert not page.run("document.querySelector('#key').open")
        assert all("401" in problem for problem in page.problems)
