"""Where the command line listens, what it says about that or if it cannot listen, and what a signal does before it serves."""

import os
import signal
import socket

import pytest
import uvicorn

from inference_server.__main__ import listen, local_url, main


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "localhost"),
        ("0.0.0.0", "localhost"),
        ("::", "localhost"),
        ("::1", "[::1]"),
        ("fd00::7", "[fd00::7]"),
        ("box.lan", "box.lan"),
    ],
)
def test_the_address_is_one_that_a_browser_takes(host: str, expected: str) -> None:
    assert local_url(host, 8000) == f"http://{expected}:8000/"


def test_every_address_can_be_listened_on() -> None:
    for host in ("127.0.0.1", "0.0.0.0", *(("::", "::1") if socket.has_dualstack_ipv6() else ())):
        with listen(host, 0, 1) as taken, socket.create_connection(taken.getsockname()[:2], timeout=5):
            pass


def test_a_port_that_is_taken_and_a_host_that_is_not_here_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0, 1) as taken:
        for host, port, reason in (("127.0.0.1", taken.getsockname()[1], "in use"), ("no.such.host.invalid", 0, "not known")):
            with pytest.raises(SystemExit) as ended:
                listen(host, port, 1)
            line = capsys.readouterr().err
            assert (ended.value.code, line.count("\n")) == (2, 1)
            assert "HOST, PORT: " in line
            assert reason in line


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_that_has_not_begun_to_serve(monkeypatch: pytest.MonkeyPatch, signum: signal.Signals) -> None:
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: (signal.raise_signal(signum), sockets[0].close()))
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        main(["--port", "0"])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert codes == [128 + signum]
