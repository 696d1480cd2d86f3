"""The guard before metrics and debug: an ASGI application before the one that answers.

Whoever comes by loopback is in the pod already, where the verbs are: a port-forward, the scheduler beside us. But a web
page may come through somebody's port-forward: so who calls us by a name other than localhost shows a token. Whoever
comes over the network comes by TLS and shows a bearer token whose owner may ask for that path. Probes are open.

What strangers can have for nothing, refusals and very many probes, they wait for: each address behind itself alone.

Lines in which callers wait, each behind itself alone: whoever comes a thousand times holds up nobody else.

Whose a token is and what they may ask: the API server's word, by TokenReview and SubjectAccessReview, kept a while.

What is kept is bounded in number and time, and holds no token: tokens are known by a keyed hash of this process alone.
"""

import asyncio
import hashlib
import ipaddress
import logging
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import orjson
from cachetools import TTLCache
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serried.kube.client import ONCE, ApiClient
from serried.kube.errors import ApiError, Forbidden
from serried.kube.retry import Ration
from serried.ops.server import GONE, Turn, take_none


class Line:
    """Where one caller waits; ``width`` is how many of it have their turn at a time."""

    def __init__(self, width: int) -> None:
        self.length = 0
        """How many stand in it, those who have their turn included."""
        self._turns = asyncio.Semaphore(width)

    @asynccontextmanager
    async def stand(self) -> AsyncIterator[None]:
        """Wait for a turn, which the block is."""
        self.length += 1
        try:
            async with self._turns:
                yield
        finally:
            self.length -= 1


class Lines:
    """The lines of all callers, by name; a line lasts as long as somebody stands in it."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lines: WeakValueDictionary[str, Line] = WeakValueDictionary()

    def of(self, name: str) -> Line:
        """The line of one caller."""
        return self._lines.setdefault(name, Line(self._width))


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


log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/livez", "/livez/filter", "/livez/pair", "/readyz"})
"""What anybody may ask: the kubelet has no token for it."""

TOKEN_HEADER = b"x-serried-token"
"""Where a token may be, too: the API server takes Authorization off before it passes a request on to a pod."""

_LOOPBACK = frozenset({ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")})
"""From where those come who are in this pod."""

_PORT = re.compile(r":\d*\Z")

_PROBES_A_SECOND = 50.0
_PROBES_AT_ONCE = 100
"""How many probes are answered without a wait; kubelet and scheduler send a few."""

_SECONDS = "serried.seconds"
"""Where a request's scope says how long the answer to it may take."""

_MAX_PATH = 1000
_MAX_TOKEN = 16_384

_HOW = (
    "come by kubectl port-forward, or show the token of a user whom the ClusterRole serried-debug-reader is bound to "
    "(docs/operations.md, Who may look)"
)


class TokenDemand(Enum):
    """Of whom a token is demanded."""

    REMOTE = "remote"
    """Of those who come over the network."""

    ALWAYS = "always"
    """Of everybody, as others share our loopback where a pod has the network of its node."""

    OFF = "off"
    """Of nobody."""


class Guard:
    """``app`` for those who may; who is refused waits for a ``turn``, and so do probes of which there are too many."""

    def __init__(
        self,
        app: ASGIApp,
        demand: TokenDemand,
        reviews: Reviews,
        turn: Turn = take_none,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._demand = demand
        self._reviews = reviews
        self._turn = turn
        self._lines = Lines(width=1)
        self._probes = Ration(_PROBES_A_SECOND, _PROBES_AT_ONCE)
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        answer: ASGIApp = self._app
        if scope["type"] == "http" and (self._is_surplus(scope) or self._demands(scope)):
            admission = await _finish_unless_gone(self._admit(scope), scope)
            if admission is None:
                return  # nobody reads the answer
            answer = admission
        await answer(scope, receive, send)

    async def _admit(self, scope: Scope) -> ASGIApp:
        """What answers the request: the refusal, or the app; whoever shows nothing has waited for its turn."""
        refusal = await self._refuse(scope) if scope["path"] not in OPEN_PATHS else None
        if refusal is not None or scope["path"] in OPEN_PATHS:
            async with self._lines.of(find_address(scope)).stand():
                await self._turn()
        return refusal or self._app

    def _is_surplus(self, scope: Scope) -> bool:
        """Whether it is a probe of which there are too many; else it is counted, if it is one."""
        if scope["path"] not in OPEN_PATHS:
            return False
        if self._probes.delay(self._clock()) > 0:
            return True
        self._probes.take()
        return False

    async def _refuse(self, scope: Scope) -> Response | None:
        """The answer to one who may not; None for one who may."""
        if scope["scheme"] != "https" and not is_loopback(scope):
            return _refuse(400, "this is plain HTTP, and a token would be seen on its way: ask by https, or " + _HOW)
        if len(scope["path"]) > _MAX_PATH:
            return _refuse(414, f"the path is longer than {_MAX_PATH} characters")
        token = read_token(scope["headers"])
        if not token:
            return _refuse(401, self._name_need(scope) + _HOW)
        if len(token) > _MAX_TOKEN:
            return _refuse(401, f"the token is longer than {_MAX_TOKEN} characters, which no token is")
        scope[_SECONDS] = self._reviews.kept_seconds
        return await self._review(token, scope)

    def _demands(self, scope: Scope) -> bool:
        """Whether a token has to be shown for it."""
        if scope["path"] in OPEN_PATHS:
            return False
        if self._demand is not TokenDemand.REMOTE:
            return self._demand is TokenDemand.ALWAYS
        return not (is_loopback(scope) and names_address(scope["headers"]))

    def _name_need(self, scope: Scope) -> str:
        if self._demand is TokenDemand.REMOTE and is_loopback(scope):
            return "a bearer token is needed where this is called by a name: ask for localhost or 127.0.0.1, or "
        return "a bearer token is needed here: "

    async def _review(self, token: str, scope: Scope) -> Response | None:
        verb, path = scope["method"].lower(), scope["path"]
        try:
            caller = await self._reviews.identify(token, find_address(scope))
            if caller is None:
                return _refuse(401, "the API server knows no user of this token, or it has expired: " + _HOW)
            if await self._reviews.allows(caller, verb, path):
                return None
        except TooManyReviewsError:
            return _refuse(503, "too many tokens of your address, or rights of your user, wait for reviews: try again")
        except Forbidden as error:
            log.error("tokens cannot be reviewed", extra={"err": str(error)})
            return _refuse(503, "Serried's ServiceAccount may not review tokens: apply manifests/kustomize/rbac")
        except ApiError as error:
            log.warning("the API server does not say whose token it is", extra={"err": str(error)})
            return _refuse(503, "the API server, which knows whose token it is, does not answer: try again, or " + _HOW)
        return _refuse(403, f"{caller.name} may not {verb} {path}: bind the ClusterRole serried-debug-reader to it")


def read_token(headers: list[tuple[bytes, bytes]]) -> str:
    """The bearer token of a request; "" if it has none."""
    found = dict(headers)
    scheme, _, token = found.get(b"authorization", b"").decode("latin-1").strip().partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return found.get(TOKEN_HEADER, b"").decode("latin-1").strip()


def names_address(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a request calls us localhost or by an address, or by nothing.

    A web page elsewhere can have its own name mean 127.0.0.1 and so read what its visitor may, but no other name.
    """
    return all(_is_address(value.decode("latin-1")) for name, value in headers if name == b"host")


def _is_address(host: str) -> bool:
    name = _PORT.sub("", host)
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") else name)
    except ValueError:
        return False
    return True


def read_seconds(scope: Scope) -> float:
    """For how long the caller of a request may be answered; without end for who needs no token.

    An answer that takes longer has to end then: the token may have been taken away.
    """
    return float(scope.get(_SECONDS, math.inf))


def is_loopback(scope: Scope) -> bool:
    """Whether the caller is on this machine, or in this pod; not if nobody knows where it is.

    Not the whole of 127.0.0.0/8: a sidecar of a mesh comes from 127.0.0.6 for whoever called it over the network.
    """
    try:
        address = ipaddress.ip_address(find_address(scope))
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address) in _LOOPBACK


def find_address(scope: Scope) -> str:
    """From where a caller comes; "" if nobody knows."""
    client = scope.get("client")
    return client[0] if client else ""


async def _finish_unless_gone(work: Coroutine[Any, Any, T], scope: Scope) -> T | None:
    """Its result, or None if the caller has hung up meanwhile: then it is cancelled."""
    task = asyncio.create_task(work)
    gone: asyncio.Event = scope.get(GONE) or asyncio.Event()
    watch = asyncio.create_task(gone.wait())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        watch.cancel()


def _refuse(status: int, sentence: str) -> Response:
    headers: Mapping[str, str] = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "5"}}.get(status, {})
    return JSONResponse({"detail": f"serried: {sentence}"}, status, headers)
