"""What can go wrong with an API server, on order: errors, lost answers, slowness, hangs."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived. ``body`` is the decoded JSON, None without one; ``headers`` have lower-case names."""

    method: str
    path: str
    params: Mapping[str, str]
    body: Any
    headers: Mapping[str, str] = field(repr=False)

    @property
    def watches(self) -> bool:
        """Whether it is a watch."""
        return self.params.get("watch") in {"true", "1"}


When = Callable[[Request], bool]


def calls(method: str = "", part: str = "") -> When:
    """Requests of this method whose path contains ``part``; empty means any. Watches are GETs too."""
    return lambda request: (not method or request.method == method) and part in request.path


def watches(part: str = "") -> When:
    """Watches whose path contains ``part``."""
    return lambda request: request.watches and part in request.path


class Mishap(StrEnum):
    """What happens to the request."""

    REFUSE = "refuse"
    """It is answered with an error and has no effect."""
    HANG_UP = "hang up"
    """The connection closes before anything is done."""
    LOSE_ANSWER = "lose answer"
    """It has its effect, then the connection closes."""
    GARBLE = "garble"
    """It has its effect, and somebody on the way answers it with a page of his own."""
    INTERCEPT = "intercept"
    """It has no effect: somebody on the way answers it with a page of his own."""
    WAIT = "wait"
    """It waits at its gate, then goes on as ever."""


@dataclass(slots=True)
class Gate:
    """Where requests wait: ``reached`` is set when one stands here, `open` lets all go on."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        """Let them pass, now and later."""
        self.opened.set()


@dataclass(slots=True)
class Fault:
    """An order for the next ``left`` requests that ``when`` matches."""

    mishap: Mishap
    when: When
    left: int
    status: int = 503
    reason: str = ""
    message: str = "injected"
    retry_after: int | None = None
    causes: frozenset[str] = frozenset()
    gate: Gate = field(default_factory=Gate)

    def takes(self, request: Request) -> bool:
        """Whether the fault happens to this request; counts it if so."""
        if self.left <= 0 or not self.when(request):
            return False
        self.left -= 1
        return True
