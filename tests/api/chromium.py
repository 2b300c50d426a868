"""A page in headless Chromium, driven over its DevTools protocol by the websocket library that uvicorn uses. No driver, no Node.js."""

import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


class Page:
    """problems: the complaints of the console and the network, in order."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one command. Events that come before it are handled. Raises RuntimeError if the browser refuses the command."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=30))
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return dict(message["result"])
            self._note(message)

    def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str, limit_s: float = 20) -> None:
        end = time.monotonic() + limit_s
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.05)

    def go(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def look(self, width: int, scheme: str = "light", motion: str = "no-preference") -> None:
        """Set how the page is looked at. scheme: the value of prefers-color-scheme; motion: that of prefers-reduced-motion."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        features = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": motion}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13, "Escape": 27}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            extra = text if kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **extra)

    def screenshot(self, path: Path) -> None:
        """Save a picture of the whole page, however long."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, optimizeForSpeed=False)["data"]
        path.write_bytes(base64.b64decode(data))

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.problems.append(f"console: {params['args']}")
            case "Runtime.exceptionThrown":
                self.problems.append(f"exception: {params['exceptionDetails']}")
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.problems.append(f"log: {params['entry']['text']} {params['entry'].get('url', '')}")


@contextmanager
def browsing(folder: Path) -> Iterator[Page]:
    """An empty page of a fresh browser that keeps its files in `folder`."""
    assert EXECUTABLE is not None
    log = (folder / "chromium.log").open("wb")
    child = subprocess.Popen(
        [EXECUTABLE, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"], stdout=log, stderr=log
    )
    try:
        port = _port(folder / "DevToolsActivePort", child)
        pages = httpx.get(f"http://127.0.0.1:{port}/json", trust_env=False).json()
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        with connect(address, max_size=None, max_queue=None, ping_interval=None, proxy=None) as socket:
            yield Page(socket)
    finally:
        child.terminate()
        child.wait(20)
        log.close()


def _port(file: Path, child: "subprocess.Popen[bytes]") -> int:
    end = time.monotonic() + 60
    while not (file.exists() and file.read_text().count("\n")):
        assert child.poll() is None, "chromium did not start"
        assert time.monotonic() < end
        time.sleep(0.05)
    return int(file.read_text().split()[0])
