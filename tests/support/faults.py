"""Faults that `FakeApiServer` can inject: errors, lost answers, closed connections, and requests that wait."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived."""

    method: str
    path: str
    params: Mapping[str, str]
    body: Any
    """The decoded JSON; None without a body."""

    headers: Mapping[str, str] = field(repr=False)
    """The headers, with lower-case names."""

    @property
    def is_watch(self) -> bool:
        """True for a watch."""
        return self.params.get("watch") in {"true", "1"}


When = Callable[[Request], bool]
"""Returns whether a request matches."""


def calls(method: str = "", part: str = "") -> When:
    """Match requests of this method whose path contains ``part``; "" matches any. Watches are GETs, too."""
    return lambda request: (not method or request.method == method) and part in request.path


def watches(part: str = "") -> When:
    """Match watches whose path contains ``part``."""
    return lambda request: request.is_watch and part in request.path


class FaultKind(StrEnum):
    """The kind of a fault."""

    REJECT = "refuse"
    """The request has no effect, and the answer is an error."""
    HANG_UP = "hang up"
    """The request has no effect, and the connection is closed."""
    LOSE_ANSWER = "lose answer"
    """The request has its effect, but the connection is closed instead of an answer."""
    GARBLE = "garble"
    """The request has its effect, but the answer is a page as from a proxy."""
    INTERCEPT = "intercept"
    """The request has no effect, and the answer is a page as from a proxy."""
    WAIT = "wait"
    """The request waits at its gate, and then continues normally."""


@dataclass(slots=True)
class Gate:
    """A place where requests wait until `open` is called."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a request waits."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        """Let all requests pass, now and later."""
        self.opened.set()


@dataclass(slots=True)
class Fault:
    """A fault for the next ``left`` requests that ``when`` matches."""

    kind: FaultKind
    when: When
    left: int
    status: int = 503
    reason: str = ""
    message: str = "injected"
    retry_after: int | None = None
    causes: frozenset[str] = frozenset()
    gate: Gate = field(default_factory=Gate)

    def applies_to(self, request: Request) -> bool:
        """Return whether the fault applies to this request. If so, it is counted."""
        if self.left <= 0 or not self.when(request):
            return False
        self.left -= 1
        return True
