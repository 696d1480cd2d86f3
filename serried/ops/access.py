"""Authentication and authorization for metrics and debug pages (`Guard`, an ASGI middleware).

Callers by loopback are in the pod, where the verbs are open anyway: a port-forward, or kube-scheduler in the same pod.
But a web page may use somebody's port-forward, so a request with a Host other than localhost or an address needs a
token. Callers over the network use TLS and a bearer token of a user who may read the path. Probes are open.

The API server authenticates and authorizes (TokenReview, SubjectAccessReview). Its answers are cached for a while,
bounded in number. Tokens are not kept, only their hashes with a key of this process.
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
from serried.ops.server import Turn, no_turn

log = logging.getLogger(__name__)

T = TypeVar("T")

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_MOST_KEPT = 8192
"""The maximum number of cached answers."""

_REVIEWS_A_SECOND = 50.0
_REVIEWS_AT_ONCE = 200
"""The rate limit for reviews, so that callers with invented tokens or paths do not load the API server."""

_REFUSAL_SECONDS = 10.0
"""The maximum time for which a refusal is cached, so that newly granted rights work soon."""

_REVIEW_SECONDS = 5.0
"""The timeout of a review."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a token."""

    name: str
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The user as the API server describes it in a TokenReview: username, uid, groups, extra."""


class Reviews:
    """A cache of TokenReviews and SubjectAccessReviews.

    Answers are valid for ``kept_seconds``. ``rest`` sleeps. Its methods raise ApiError if the API server does not
    answer.
    """

    def __init__(
        self,
        client: ApiClient,
        kept_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.kept_seconds = kept_seconds
        """The time for which an answer is valid."""
        self._client = client
        self._salt = secrets.token_bytes(32)
        self._clock = clock
        self._rest = rest
        self._kept: TLRUCache[object, tuple[Any]] = TLRUCache(_MOST_KEPT, self._find_end, clock)
        """Answers by question. A falsy answer is a refusal."""
        self._asking = asyncio.Lock()
        """Held by the only caller that sends a review, so that many callers cause one review at a time."""
        self._rate_limiter = RateLimiter(_REVIEWS_A_SECOND, _REVIEWS_AT_ONCE)

    async def identify(self, token: str) -> Caller | None:
        """Return the user of a token; None if the token is invalid or expired."""
        key = hashlib.blake2b(token.encode(), key=self._salt).digest()
        return await self._find(key, lambda: self._review_token(token))

    async def allows(self, caller: Caller, verb: str, path: str) -> bool:
        """Return whether the caller may do this; ``verb`` is the HTTP method in lower case, as in a role."""
        about = caller.about
        spec = {
            "user": caller.name,
            "uid": about.get("uid", ""),
            "groups": about.get("groups") or [],
            "extra": about.get("extra") or {},
            "nonResourceAttributes": {"path": path, "verb": verb},
        }
        # All of them may grant rights: two tokens of one user need not have the same.
        question = orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)
        return await self._find(question, lambda: self._review_access(spec))

    def _find_end(self, _: object, kept: tuple[object], now: float) -> float:
        return now + (self.kept_seconds if kept[0] else min(self.kept_seconds, _REFUSAL_SECONDS))

    async def _find(self, question: object, review: Callable[[], Awaitable[T]]) -> T:
        if (kept := self._kept.get(question)) is None:
            async with self._asking:
                # Another caller may have cached the answer meanwhile.
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
"""The paths that need no token, because the kubelet has none."""

TOKEN_HEADER = b"x-serried-token"
"""An additional header for the token: the API server's proxy removes Authorization before it calls a pod."""

_LOOPBACK = frozenset({ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")})
"""The addresses of callers in this pod."""

_PORT = re.compile(r":\d*\Z")

_MOST_READERS = 64
"""The maximum number of concurrent readers, including streams. Further ones get 503."""

_SECONDS = "serried.seconds"
"""The key in a request's scope for the time within which the answer must end."""

_MAX_PATH = 1000
_MAX_TOKEN = 16_384

_HOW = (
    "come by kubectl port-forward, or show the token of a user whom the ClusterRole serried-debug-reader is bound to "
    "(docs/operations.md, Who may look)"
)


class TokenDemand(Enum):
    """The callers that need a token."""

    REMOTE = "remote"
    """Callers over the network."""

    ALWAYS = "always"
    """All callers, because pods with the node's network share the loopback with others."""

    OFF = "off"
    """No callers."""


class Guard:
    """ASGI middleware that authenticates and authorizes callers, and limits how many are served at once.

    A refusal costs the caller nothing, so each one waits for a ``turn``.
    """

    def __init__(self, app: ASGIApp, demand: TokenDemand, reviews: Reviews, turn: Turn = no_turn) -> None:
        self._app = app
        self._demand = demand
        self._reviews = reviews
        self._turn = turn
        self._readers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
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
        """Return the refusal of a request; None if it is allowed."""
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
        """Return whether the request needs a token."""
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
    """Return the bearer token of a request; "" if it has none."""
    found = dict(headers)
    scheme, _, token = found.get(b"authorization", b"").decode("latin-1").strip().partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return found.get(TOKEN_HEADER, b"").decode("latin-1").strip()


def names_address(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether the Host of a request is localhost, an address, or missing.

    A web page can make its own host name resolve to 127.0.0.1, and read what its visitor may read. It cannot use these
    names.
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
    """Return within how many seconds the answer to a request must end; infinity for callers without a token.

    A longer answer has to be cut off, because the token may have been revoked.
    """
    return float(scope.get(_SECONDS, math.inf))


def is_loopback(scope: Scope) -> bool:
    """Return whether the caller is on this machine or in this pod; False if its address is unknown.

    Not all of 127.0.0.0/8 counts: the sidecar of a mesh uses 127.0.0.6 for callers over the network.
    """
    try:
        address = ipaddress.ip_address(find_address(scope))
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address) in _LOOPBACK


def find_address(scope: Scope) -> str:
    """Return the address of a caller; "" if it is unknown."""
    client = scope.get("client")
    return client[0] if client else ""


def _refuse(status: int, sentence: str) -> Response:
    headers: Mapping[str, str] = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "5"}}.get(status, {})
    return JSONResponse({"detail": f"serried: {sentence}"}, status, headers)
