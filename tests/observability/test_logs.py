"""One JSON object a line, with the traceback inside it."""

import json
import logging
import sys

from inference_server.observability.logs import JsonFormatter


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
