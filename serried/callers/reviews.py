"""Whose a token is and what they may ask: the API server's word, by TokenReview and SubjectAccessReview, kept a while.

What is kept is bounded in number and time, and holds no token: tokens are known by a keyed hash of this process alone.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import orjson
from cachetools import TTLCache

from serried.kube.client import ONCE, ApiClient
from serried.model.ration import Ration

T = TypeVar("T")

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_MOST_KEPT = 4096
"""How many answers are kept of each kind."""

_MOST_OPEN = 16
"""How many reviews of each kind may wait for the API server."""

_TOKENS_A_SECOND = 20.0
_TOKENS_AT_ONCE = 50
"""How many tokens may be reviewed that were nobody's, or not shown, of late: whoever invents them costs no more."""

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
    """So many reviews wait for the API server, or have begun of late, that no other is begun."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose token it is."""

    name: str
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What the API server says of the user, for its own eyes: name, uid, groups, extra."""


class Reviews:
    """Asks the API server; an answer counts for ``kept_seconds``.

    Raises ApiError or TooManyReviewsError where there is no answer.
    """

    def __init__(self, client: ApiClient, kept_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.kept_seconds = kept_seconds
        """For how long an answer counts."""
        self._client = client
        self._salt = secrets.token_bytes(32)
        tokens, rights = Ration(_TOKENS_A_SECOND, _TOKENS_AT_ONCE), Ration(_RIGHTS_A_SECOND, _RIGHTS_AT_ONCE)
        self._callers: _Kept[Caller | None] = _Kept(kept_seconds, clock, tokens)
        self._rights: _Kept[bool] = _Kept(kept_seconds, clock, rights)

    async def identify(self, token: str) -> Caller | None:
        """Whose token it is; None if it is nobody's, or has expired."""
        key = hashlib.blake2b(token.encode(), key=self._salt).digest()
        return await self._callers.find(key, lambda: self._review_token(token))

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
        return await self._rights.find(question, lambda: self._review_access(spec))

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


class _Kept(Generic[T]):
    """Answers by question; those who ask the same at the same time share one review. What is falsy is a refusal."""

    def __init__(self, seconds: float, clock: Callable[[], float], ration: Ration) -> None:
        self._given: TTLCache[object, T] = TTLCache(_MOST_KEPT, seconds, clock)
        self._refused: TTLCache[object, T] = TTLCache(_MOST_KEPT, min(seconds, _REFUSAL_SECONDS), clock)
        self._welcome: TTLCache[object, None] = TTLCache(_MOST_KEPT, _WELCOME_SECONDS, clock)
        """What was granted of late."""
        self._ration = ration
        """Of reviews about anything else."""
        self._clock = clock
        self._open: dict[object, asyncio.Task[T]] = {}

    async def find(self, question: object, review: Callable[[], Awaitable[T]]) -> T:
        for kept in (self._given, self._refused):
            try:
                return kept[question]
            except KeyError:
                continue
        # One who hangs up must not take the answer from the others.
        return await asyncio.shield(self._begin(question, review))

    def _begin(self, question: object, review: Callable[[], Awaitable[T]]) -> "asyncio.Task[T]":
        if question not in self._open:
            self._admit(question)
            self._open[question] = asyncio.create_task(self._review(question, review), name="review")
            # An error that nobody waits for any more is nobody's.
            self._open[question].add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._open[question]

    def _admit(self, question: object) -> None:
        if len(self._open) >= _MOST_OPEN:
            raise TooManyReviewsError
        if question not in self._welcome:
            if self._ration.delay(self._clock()) > 0:
                raise TooManyReviewsError
            self._ration.take()

    async def _review(self, question: object, review: Callable[[], Awaitable[T]]) -> T:
        try:
            answer = await review()
        finally:
            del self._open[question]
        (self._given if answer else self._refused)[question] = answer
        if answer:
            self._welcome[question] = None
        return answer
