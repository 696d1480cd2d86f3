"""Structured logs (`configure_logging`): one JSON object per line on stderr, with the keys of klog (`pod`, `err`).

Callers use the standard library: ``log.info("bound", extra={"pod": "ns/name", "node": "n1"})``.
"""

import logging
import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
from cachetools import FIFOCache

from serried.api.names import GroupKey

if TYPE_CHECKING:
    from serried.api.pod import Pod
    from serried.api.reservation import Victim


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

UNTRUSTED_LOGGERS = frozenset(
    {"serried.ops.tls", "serried.ops.access", "serried.ops.server"} | {"extender.core.http.server", "uvicorn.error"}
)
"""The loggers of messages that any client that reaches a port can cause at any rate."""

_SECONDS_BETWEEN_LINES = 10.0

_MOST_KNOWN = 256
"""The maximum number of remembered messages; these loggers have far fewer."""


def name_group(key: GroupKey) -> dict[str, str]:
    """Return the fields of a log record for a group."""
    return {"podGroup": str(key), "kind": key.kind.value}


def name_pod(pod: "Pod | Victim") -> dict[str, str]:
    """Return the fields of a log record about a pod."""
    return {"namespace": pod.namespace, "pod": pod.name}


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: ts (seconds), level, logger, msg, then the fields of ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line without its end. Fields that JSON cannot represent become strings."""
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


class RateLimitFilter(logging.Filter):
    """Limits the rate of warnings from untrusted loggers: one line per message and 10 seconds.

    The next line has the number of dropped lines as ``leftOut``. Other loggers are not limited.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: FIFOCache[object, tuple[float, int]] = FIFOCache(_MOST_KNOWN)
        """By message: the time of its last line, and the number of lines dropped since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line."""
        if record.name not in UNTRUSTED_LOGGERS or record.levelno < logging.WARNING:
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
    """Configure all loggers of this process for JSON; ``level`` is debug, info, warning or error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RateLimitFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Below warning, asyncio only logs the name of its selector.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
