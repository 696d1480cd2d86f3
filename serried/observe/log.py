"""Logs: one JSON object a line on standard error, with klog's key names (`pod`, `podGroup`, `node`, `err`).

Callers use the standard library: ``log.info("bound", extra={"pod": "ns/name", "node": "n1"})``.
"""

import logging
import sys
from typing import Any

import orjson

from serried.model.group import GroupKey

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


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


def configure_logging(level: str) -> None:
    """Send all logs of this process through the JSON formatter; ``level`` is debug, info, warning or error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Below warning it only says which selector the loop uses.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
