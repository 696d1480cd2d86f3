"""Mishaps of a request on its way to the API server, and how they are drawn from one source of chance. Pure."""

import json
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from urllib.parse import parse_qs, urlsplit

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Mishap(StrEnum):
    """The mishaps of a request; the value is the name in the report."""

    CONFLICT = "answered 409"
    TOO_MANY = "answered 429 with Retry-After"
    ERROR = "answered 500"
    UNAVAILABLE = "answered 503"
    TIMEOUT = "answered 504 after a while"
    SILENT = "never answered"
    RESET_BEFORE = "connection reset before it was done"
    RESET_AFTER = "connection reset after it was done"
    SLOW_BODY = "slow body"
    COMPACTED = "watch answered 410"
    EXPIRED = "watch ended by an event of 410"
    CUT = "watch cut"
    ENDED = "watch ended in good order"
    DELAYED = "watch delayed"
    DUPLICATED = "watched change sent twice"


_ANY = (
    Mishap.TOO_MANY,
    Mishap.ERROR,
    Mishap.UNAVAILABLE,
    Mishap.TIMEOUT,
    Mishap.SILENT,
    Mishap.RESET_BEFORE,
    Mishap.RESET_AFTER,
    Mishap.SLOW_BODY,
)
_SLOW = frozenset({Mishap.TIMEOUT, Mishap.SILENT})
_BEGIN = (Mishap.COMPACTED, Mishap.EXPIRED, Mishap.ERROR, Mishap.RESET_BEFORE, Mishap.TOO_MANY)
_CHANGE = (*(Mishap.DUPLICATED,) * 7, Mishap.DELAYED, Mishap.CUT, Mishap.ENDED)
HARMLESS = frozenset({Mishap.DELAYED, Mishap.DUPLICATED})
"""The mishaps that delay nobody for longer than a moment, so that they excuse nothing that follows."""

_ENDS = frozenset({Mishap.COMPACTED, Mishap.EXPIRED, Mishap.ERROR, Mishap.RESET_BEFORE, Mishap.CUT, Mishap.ENDED})


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived."""

    method: str
    target: str
    body: bytes = b""

    @property
    def path(self) -> str:
        """Return the target without the query."""
        return self.target.partition("?")[0]

    @property
    def watches(self) -> bool:
        """Return whether the request is a watch."""
        return parse_qs(urlsplit(self.target).query).get("watch", [""])[0] in {"1", "true"}

    @property
    def updates(self) -> bool:
        """Return whether the request is a write that can meet a conflict: of an existing object, or a Binding."""
        return self.method in WRITES - {"POST"} or self.path.endswith("/binding")

    @property
    def subject(self) -> str:
        """The object that it is about, ``namespace/name``; "" for a list."""
        parts = urlsplit(self.target).path.split("/")
        if "namespaces" not in parts[:-1]:
            return ""
        found = parts.index("namespaces")
        namespace, names = parts[found + 1], parts[found + 3 : found + 4]
        return f"{namespace}/{names[0]}" if names else self._find_created(namespace)

    def _find_created(self, namespace: str) -> str:
        try:
            return f"{namespace}/{json.loads(self.body)['metadata']['name']}"
        except (ValueError, KeyError, TypeError):
            return ""


@dataclass(slots=True)
class Weather:
    """The probabilities of mishaps now, for requests and for watched changes."""

    source: Random
    requests: float = 0.0
    changes: float = 0.0
    ends: float = 1.0
    """The part of the drawn ends of watches that come: client-go waits up to 30 s after several."""

    counted: Counter[Mishap] = field(default_factory=Counter)
    """The number of mishaps so far, by kind."""

    def draw_request(self, request: Request) -> Mishap | None:
        """Draw the mishap of a request; None for none."""
        if self.source.random() >= self.requests:
            return None
        if request.watches:
            return self._count(self._spare(self.source.choice(_BEGIN)))
        kinds = (Mishap.CONFLICT, *_ANY) if request.updates else _ANY
        found = self.source.choice(kinds)
        # What takes seconds is drawn less often, or there would be time for little else.
        return self._count(self.source.choice(kinds) if found in _SLOW else found)

    def draw_change(self, barred: Container[Mishap] = ()) -> Mishap | None:
        """Draw the mishap of a change that a watch brings; None for none, or if the drawn one is ``barred``."""
        if self.source.random() >= self.changes:
            return None
        found = self.source.choice(_CHANGE)
        return self._count(None if found in barred else self._spare(found))

    def _spare(self, mishap: Mishap) -> Mishap | None:
        spared = mishap in _ENDS and self.ends < 1.0 and self.source.random() >= self.ends
        return None if spared else mishap

    def _count(self, mishap: Mishap | None) -> Mishap | None:
        if mishap is not None:
            self.counted[mishap] += 1
        return mishap
