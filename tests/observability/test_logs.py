"""Logs are one JSON object a line, with the traceback inside it."""

import json
import logging
import sys
from pathlib import Path

from inference_server.observability.logs import JsonFormatter, _asked_by_a_person


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("a.b", logging.WARNING, "f.py", 1, message, args, None)


def test_a_line_is_one_json_object() -> None:
    line = JsonFormatter().format(record("two\nlines of %s", "text"))
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("warning", "a.b", "two\nlines of text")
    assert entry["time"].endswith("+00:00")


def test_exceptions_are_part_of_the_entry() -> None:
    failed = record("failed")
    try:
        raise ValueError("why")
    except ValueError:
        failed.exc_info = sys.exc_info()
    assert "ValueError: why" in json.loads(JsonFormatter().format(failed))["exception"]


def test_extra_fields_join_the_entry_and_cannot_replace_its_own() -> None:
    line = logging.LogRecord("a", logging.INFO, "f.py", 1, "ended", (), None)
    line.__dict__.update(request_id="r1", tokens=7, path=Path("x"), level="forged")
    entry = json.loads(JsonFormatter().format(line))
    assert set(entry) == {"time", "level", "logger", "message", "request_id", "tokens", "path"}
    assert (entry["request_id"], entry["tokens"], entry["path"], entry["level"]) == ("r1", 7, "x", "info")


def test_what_machines_ask_every_few_seconds_stays_out_of_the_access_log() -> None:
    def access(path: str) -> logging.LogRecord:
        return logging.LogRecord("uvicorn.access", logging.INFO, "f.py", 1, '%s - "%s %s HTTP/%s" %d', ("a", "GET", path, "1.1", 200), None)

    assert [_asked_by_a_person(access(path)) for path in ("/ready", "/metrics", "/dashboard/state", "/generate")] == [
        False,
        False,
        False,
        True,
    ]
    assert _asked_by_a_person(record("a plain message"))
