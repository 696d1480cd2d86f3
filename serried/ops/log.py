"""Structured logs (`configure_logging`): one JSON object per line on stderr, with klog's field names (`pod`, `err`).

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
"""Names of loggers whose warnings any client that can connect to a port can cause, as often as it likes."""

_SECONDS_BETWEEN_LINES = 10.0

_MAX_MESSAGES = 256
"""The maximum number of messages remembered by `RateLimitFilter`; UNTRUSTED_LOGGERS have far fewer."""


def name_group(key: GroupKey) -> dict[str, str]:
    """Return the log fields that name a group, for ``extra``.

    The fields are ``podGroup``, its namespace and name, and ``kind``, the kind of its object, e.g. CompositePodGroup.
    """
    return {"podGroup": str(key), "kind": key.kind.value}


def name_pod(pod: "Pod | Victim") -> dict[str, str]:
    """Return the log fields that name a pod, for ``extra``: ``namespace`` and ``pod``."""
    return {"namespace": pod.namespace, "pod": pod.name}


class JsonFormatter(logging.Formatter):
    """Formats a log record as JSON: ts (seconds since 1970), level, logger, msg, then the fields of ``extra``.

    A record with an exception also has ``trace``, its traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line, without the line break. Values that JSON cannot represent become strings."""
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
    """Drops repeated warnings that any client could cause: each message is written at most once in 10 seconds.

    These are the warnings of UNTRUSTED_LOGGERS: of the HTTP and TLS listeners, and of authentication. When the same
    message is written again, it has the field ``leftOut``: how often it was dropped since the last time. Records of
    other loggers, and below level WARNING, always pass.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: FIFOCache[object, tuple[float, int]] = FIFOCache(_MAX_MESSAGES)
        """By message: the time by ``clock`` of its last line, and the number of lines dropped since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be written; may add ``leftOut`` to it."""
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
    """Let all loggers of this process write JSON lines to stderr, from ``level`` on: debug, info, warning or error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RateLimitFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Below warning, asyncio only logs the name of its selector.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
