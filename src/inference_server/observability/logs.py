"""The process's logs on standard error, as text or as one JSON object a line. uvicorn's loggers are routed the same way."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

UVICORN_LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.access")
OWN_LOGGERS = ("inference_server", *UVICORN_LOGGERS)
QUIET_ROUTES = ("/health", "/ready", "/metrics", "/dashboard/state")  # asked every few seconds by machines
STANDARD_FIELDS = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"})
TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """time, level, logger, message, what `extra` brought, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in STANDARD_FIELDS and name not in entry}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure_logging(level: str, log_format: Literal["text", "json"]) -> None:
    """Put one handler on the root logger, unless the embedding program has put its own there. level: debug, info, warning or error.

    The level applies to this program's own loggers and uvicorn's: other libraries are heard from warning on.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=max(logging.WARNING, logging.getLevelName(level.upper())), handlers=[handler])
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())
    logging.getLogger("uvicorn.access").addFilter(_asked_by_a_person)
    for name in UVICORN_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def _asked_by_a_person(record: logging.LogRecord) -> bool:
    """uvicorn's access records carry (client, method, path, HTTP version, status)."""
    return not (isinstance(record.args, tuple) and len(record.args) == 5 and str(record.args[2]).startswith(QUIET_ROUTES))
