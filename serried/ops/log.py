"""Logs: one JSON object a line on standard error, with klog's key names (`pod`, `podGroup`, `node`, `err`).

Callers use the standard library: ``log.info("bound", extra={"pod": "ns/name", "node": "n1"})``.
"""

import logging
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson
from cachetools import FIFOCache

from serried.api.names import GroupKey

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

OF_STRANGERS = frozenset(
    {"serried.ops.tls", "serried.ops.access", "serried.ops.server"} | {"extender.core.http.server", "uvicorn.error"}
)
"""Loggers of what anybody who reaches a port can cause, as often as he likes."""

_SECONDS_BETWEEN_LINES = 10.0

_MOST_KNOWN = 256
"""How many messages are remembered; those loggers have far fewer."""


def name_group(key: GroupKey) -> dict[str, str]:
    """The fields of a log record about a group."""
    return {"podGroup": str(key), "kind": key.kind.value}


class JsonFormatter(logging.Formatter):
    """Renders a record as JSON: ts (seconds), level, logger, msg, then the fields of ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line without its end; never raises for a field that JSON cannot hold."""
        line: dict[str, Any] = {
            "ts": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class Seldom(logging.Filter):
    """Of warnings that strangers can cause it lets one through for each message in a while, and counts the others.

    The number is in the next line that it lets through, as ``leftOut``. What other loggers say is not touched.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: FIFOCache[object, tuple[float, int]] = FIFOCache(_MOST_KNOWN)
        """By message: when a line of it was let through, and how many were left out since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.name not in OF_STRANGERS or record.levelno < logging.WARNING:
            return True
        message = record.name, record.msg, record.exc_info and record.exc_info[0]
        now = self._clock()
        said, left_out = self._said.get(message, (-math.inf, 0))
        if now - said < _SECONDS_BETWEEN_LINES:
            self._said[message] = said, left_out + 1
            return False
        self._said[message] = now, 0
        if left_out:
            vars(record)["leftOut"] = left_out
        return True


def configure_logging(level: str) -> None:
    """Send all logs of this process through the JSON formatter; ``level`` is debug, info, warning or error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(Seldom())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Below warning it only says which selector the loop uses.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
