"""Whose a token is and what they may ask: the API server's word, by TokenReview and SubjectAccessReview, kept a while.

What is kept is bounded in number and time, and holds no token: tokens are known by a keyed hash of this process alone.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import orjson
from cachetools import TTLCache

from serried.callers.lines import Lines
from serried.kube.client import ONCE, ApiClient
from serried.model.ration import Ration

T = TypeVar("T")

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_MOST_KEPT = 4096
"""How many answers are kept of each kind."""

_MOST_OPEN = 16
"""How many reviews of each kind may wait for the API server about what was not granted of late."""

_MOST_IN_LINE = 16
"""How many of one caller may be begun or wait for that."""

_MOST_OF_ONE = 4
"""How many of one caller may be under way at a time."""

_TOKENS_A_SECOND = 20.0
_TOKENS_AT_ONCE = 50
"""How many tokens may be reviewed that were nobody's, or not shown, of late: whoever invents them costs no more.

The others wait: the next is one of another address, if others have come.
"""

_RIGHTS_A_SECOND = 50.0
_RIGHTS_AT_ONCE = 200
"""The same of rights; one with a good token may invent paths, or look at the pages of many groups."""

_WELCOME_SECONDS = 3600.0
"""For how long what was granted is reviewed anew without these bounds: nobody can invent it."""

_REFUSAL_SECONDS = 10.0
"""How long a refusal counts at most: whoever has just been given a right should not wait long."""

_REVIEW_SECONDS = 5.0
"""How long a review may take."""


class TooManyReviewsError(Exception):
    """So many reviews of one caller wait until they are begun that no other is taken."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose token it is."""

    name: str
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What the API server says of the user, for its own eyes: name, uid, groups, extra."""


class Reviews:
    """Asks the API server; an answer counts for ``kept_seconds``. ``rest`` sleeps.

    Raises ApiError or TooManyReviewsError where there is no answer.
    """

    def __init__(
        self,
        client: ApiClient,
        kept_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.kept_seconds = kept_seconds
        """For how long an answer counts."""
        self._client = client
        self._salt = secrets.token_bytes(32)
        tokens = _Door(Ration(_TOKENS_A_SECOND, _TOKENS_AT_ONCE), clock, rest)
        rights = _Door(Ration(_RIGHTS_A_SECOND, _RIGHTS_AT_ONCE), clock, rest)
        self._callers: _Kept[Caller | None] = _Kept(kept_seconds, clock, tokens)
        self._rights: _Kept[bool] = _Kept(kept_seconds, clock, rights)

    async def identify(self, token: str, address: str) -> Caller | None:
        """Whose token it is, which comes from this address; None if it is nobody's, or has expired."""
        key = hashlib.blake2b(token.encode(), key=self._salt).digest()
        return await self._callers.find(key, address, lambda: self._review_token(token))

    async def allows(self, caller: Caller, verb: str, path: str) -> bool:
        """Whether the caller may do this; ``verb`` is the method in small letters, as in a role."""
        about = caller.about
        spec = {
            "user": caller.name,
            "uid": about.get("uid", ""),
            "groups": about.get("groups") or [],
            "extra": about.get("extra") or {},
            "nonResourceAttributes": {"path": path, "verb": verb},
        }
        # Rights may come from any of these: two tokens of one name need not have the same.
        question = orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)
        return await self._rights.find(question, caller.name, lambda: self._review_access(spec))

    async def _review_token(self, token: str) -> Caller | None:
        status = await self._ask(_TOKENS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        user = status.get("user") or {}
        if not status.get("authenticated") or not user.get("username"):
            return None
        return Caller(user["username"], user)

    async def _review_access(self, spec: Mapping[str, Any]) -> bool:
        status = await self._ask(_ACCESS, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
        return bool(status.get("allowed")) and not status.get("denied")

    async def _ask(self, path: str, version: str, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        review = {"apiVersion": version, "kind": kind, "spec": spec}
        answer = await self._client.ask("POST", path, body=orjson.dumps(review), timeout=_REVIEW_SECONDS, retry=ONCE)
        status = answer.get("status")
        return status if isinstance(status, dict) else {}


class _Door:
    """Lets reviews begin: of each caller few at a time, of all only so often. The callers take turns."""

    def __init__(self, ration: Ration, clock: Callable[[], float], rest: Callable[[float], Awaitable[None]]) -> None:
        self._ration = ration
        self._clock = clock
        self._rest = rest
        self._lines = Lines(_MOST_OF_ONE)
        self._places = asyncio.Semaphore(_MOST_OPEN)
        self._next = asyncio.Lock()
        """Whoever has it waits for the ration."""

    @asynccontextmanager
    async def enter(self, caller: str) -> AsyncIterator[None]:
        """Wait until a review may begin, which the block is. Raises TooManyReviewsError."""
        line = self._lines.of(caller)
        if line.length >= _MOST_IN_LINE:
            raise TooManyReviewsError
        async with line.stand(), self._places:
            async with self._next:
                while (left := self._ration.delay(self._clock())) > 0:
                    await self._rest(left)
                self._ration.take()
            yield


@dataclass(slots=True)
class _Review(Generic[T]):
    """A review that is under way, or waits until it may begin."""

    task: "asyncio.Task[T]"
    askers: int = 0
    """How many want to know."""


class _Kept(Generic[T]):
    """Answers by question; those who ask the same at the same time share one review. What is falsy is a refusal."""

    def __init__(self, seconds: float, clock: Callable[[], float], door: _Door) -> None:
        self._given: TTLCache[object, T] = TTLCache(_MOST_KEPT, seconds, clock)
        self._refused: TTLCache[object, T] = TTLCache(_MOST_KEPT, min(seconds, _REFUSAL_SECONDS), clock)
        self._welcome: TTLCache[object, None] = TTLCache(_MOST_KEPT, _WELCOME_SECONDS, clock)
        """What was granted of late."""
        self._door = door
        """For anything else."""
        self._open: dict[object, _Review[T]] = {}

    async def find(self, question: object, caller: str, review: Callable[[], Awaitable[T]]) -> T:
        for kept in (self._given, self._refused):
            try:
                return kept[question]
            except KeyError:
                continue
        if question not in self._open:
            task = asyncio.create_task(self._review(question, caller, review), name="review")
            self._open[question] = _Review(task)
        found = self._open[question]
        found.askers += 1
        try:
            # One who hangs up must not take the answer from the others.
            return await asyncio.shield(found.task)
        finally:
            found.askers -= 1
            if not found.askers:
                # At once: whoever asks next must not be told that this one was cancelled.
                del self._open[question]
                found.task.cancel()

    async def _review(self, question: object, caller: str, review: Callable[[], Awaitable[T]]) -> T:
        async with nullcontext() if question in self._welcome else self._door.enter(caller):
            answer = await review()
        (self._given if answer else self._refused)[question] = answer
        if answer:
            self._welcome[question] = None
        return answer
