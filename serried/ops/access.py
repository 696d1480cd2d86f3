"""The guard before metrics and debug: an ASGI application before the one that answers.

Whoever comes by loopback is in the pod already, where the verbs are: a port-forward, the scheduler beside us. But a web
page may come through somebody's port-forward: so who calls us by a name other than localhost shows a token. Whoever
comes over the network comes by TLS and shows a bearer token whose owner may ask for that path. Probes are open.

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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import orjson
from cachetools import TLRUCache
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serried.kube.client import ONCE, ApiClient
from serried.kube.errors import ApiError, Forbidden
from serried.kube.retry import RateLimiter
from serried.ops.server import Turn, take_none

log = logging.getLogger(__name__)

T = TypeVar("T")

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_MOST_KEPT = 8192
"""How many answers are kept."""

_REVIEWS_A_SECOND = 50.0
_REVIEWS_AT_ONCE = 200
"""How often it is asked: whoever invents tokens or paths costs it no more, and others wait behind them."""

_REFUSAL_SECONDS = 10.0
"""How long a refusal counts at most: whoever has just been given a right should not wait long."""

_REVIEW_SECONDS = 5.0
"""How long a review may take."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose token it is."""

    name: str
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What the API server says of the user, for its own eyes: name, uid, groups, extra."""


class Reviews:
    """Asks the API server; an answer counts for ``kept_seconds``. ``rest`` sleeps.

    Raises ApiError where there is no answer.
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
        self._clock = clock
        self._rest = rest
        self._kept: TLRUCache[object, tuple[Any]] = TLRUCache(_MOST_KEPT, self._find_end, clock)
        """Answers by question; one that is falsy is a refusal."""
        self._asking = asyncio.Lock()
        """Whoever has it asks: one alone does, so that a crowd has one review under way."""
        self._rate_limiter = RateLimiter(_REVIEWS_A_SECOND, _REVIEWS_AT_ONCE)

    async def identify(self, token: str) -> Caller | None:
        """Whose token it is; None if it is nobody's, or has expired."""
        key = hashlib.blake2b(token.encode(), key=self._salt).digest()
        return await self._find(key, lambda: self._review_token(token))

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
        return await self._find(question, lambda: self._review_access(spec))

    def _find_end(self, _: object, kept: tuple[object], now: float) -> float:
        return now + (self.kept_seconds if kept[0] else min(self.kept_seconds, _REFUSAL_SECONDS))

    async def _find(self, question: object, review: Callable[[], Awaitable[T]]) -> T:
        if (kept := self._kept.get(question)) is None:
            async with self._asking:
                # Those who asked the same a moment ago have their answer by now.
                if (kept := self._kept.get(question)) is None:
                    if (left := self._rate_limiter.delay(self._clock())) > 0:
                        await self._rest(left)
                    self._rate_limiter.take()
                    self._kept[question] = kept = (await review(),)
        answer: T = kept[0]
        return answer

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


OPEN_PATHS = frozenset({"/livez", "/livez/filter", "/livez/pair", "/readyz"})
"""What anybody may ask: the kubelet has no token for it."""

TOKEN_HEADER = b"x-serried-token"
"""Where a token may be, too: the API server takes Authorization off before it passes a request on to a pod."""

_LOOPBACK = frozenset({ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")})
"""From where those come who are in this pod."""

_PORT = re.compile(r":\d*\Z")

_MOST_READERS = 64
"""How many may be answered at a time, streams that go on among them: who comes then is told to come back."""

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
    """``app`` for those who may, and for so many of them at a time. A refusal, which is free, takes a ``turn``."""

    def __init__(self, app: ASGIApp, demand: TokenDemand, reviews: Reviews, turn: Turn = take_none) -> None:
        self._app = app
        self._demand = demand
        self._reviews = reviews
        self._turn = turn
        self._readers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
        elif (refusal := await self._find_refusal(scope)) is not None:
            await self._turn()
            await refusal(scope, receive, send)
        else:
            self._readers += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._readers -= 1

    async def _find_refusal(self, scope: Scope) -> Response | None:
        if self._demands(scope) and (refusal := await self._refuse(scope)) is not None:
            return refusal
        crowded = self._readers >= _MOST_READERS
        return _refuse(503, "too many readers are answered, come back later") if crowded else None

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
            caller = await self._reviews.identify(token)
            if caller is None:
                return _refuse(401, "the API server knows no user of this token, or it has expired: " + _HOW)
            if await self._reviews.allows(caller, verb, path):
                return None
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


def _refuse(status: int, sentence: str) -> Response:
    headers: Mapping[str, str] = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "5"}}.get(status, {})
    return JSONResponse({"detail": f"serried: {sentence}"}, status, headers)
