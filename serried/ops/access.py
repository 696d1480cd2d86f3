"""Authentication and authorization for metrics and debug pages (`Guard`, an ASGI middleware).

By default callers over loopback need no token. They are in the pod (kubectl port-forward, or kube-scheduler in the same
pod), where filter and bind calls need none either. With one exception: a web page in the browser of a person with a
port-forward can send requests through it, so a request whose Host header is neither localhost nor an IP address needs a
token. Callers over the network need TLS, and a bearer token of a user who may read the path. Probes never need a token.

The API server authenticates and authorizes (TokenReview, SubjectAccessReview). Its answers are cached for a limited
time. Tokens are not stored, only their hashes, which are keyed with a random key of this process.
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
from serried.ops.server import Throttle, no_throttle

log = logging.getLogger(__name__)

T = TypeVar("T")

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_MAX_CACHED = 8192
"""The maximum number of answers of the API server in the cache."""

_REVIEWS_A_SECOND = 50.0
_REVIEWS_AT_ONCE = 200
"""The number of reviews that may be sent at once before _REVIEWS_A_SECOND applies (a token bucket).

The limit keeps callers with invented tokens or paths from loading the API server.
"""

_DENIAL_SECONDS = 10.0
"""The maximum time for which a negative answer of the API server is cached, so that newly granted rights work soon."""

_REVIEW_SECONDS = 5.0
"""The timeout of one TokenReview or SubjectAccessReview."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The user whom the API server has found for a bearer token."""

    name: str
    info: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The user as the API server describes it in a TokenReview: username, uid, groups, extra."""


class Reviews:
    """Asks the API server who a caller is and what it may read, and caches the answers.

    A positive answer is cached for ``cache_seconds``, a negative one for 10 s at most. Reviews are sent one at a time
    and at a limited rate; ``sleep`` waits for that rate. Methods raise ApiError if the API server does not answer.
    """

    def __init__(
        self,
        client: ApiClient,
        cache_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.cache_seconds = cache_seconds
        """The time for which a positive answer may be used."""
        self._client = client
        self._salt = secrets.token_bytes(32)
        self._clock = clock
        self._sleep = sleep
        self._cached: TLRUCache[object, tuple[Any]] = TLRUCache(_MAX_CACHED, self._find_end, clock)
        """The API server's answers by token hash (a `Caller`, or None) or by serialized review (a bool)."""
        self._asking = asyncio.Lock()
        """Held while a review is sent, so that many concurrent requests cause one review at a time."""
        self._rate_limiter = RateLimiter(_REVIEWS_A_SECOND, _REVIEWS_AT_ONCE)

    async def identify(self, token: str) -> Caller | None:
        """Return the user of a token; None if the token is invalid or expired."""
        key = hashlib.blake2b(token.encode(), key=self._salt).digest()
        return await self._find(key, lambda: self._review_token(token))

    async def allows(self, caller: Caller, verb: str, path: str) -> bool:
        """Return whether the caller's roles allow ``verb`` on the URL path ``path`` (nonResourceURLs of a ClusterRole).

        ``verb`` is the HTTP method in lower case.
        """
        info = caller.info
        spec = {
            "user": caller.name,
            "uid": info.get("uid", ""),
            "groups": info.get("groups") or [],
            "extra": info.get("extra") or {},
            "nonResourceAttributes": {"path": path, "verb": verb},
        }
        # Each of these fields may grant rights, and two tokens of one user may differ in them.
        question = orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)
        return await self._find(question, lambda: self._review_access(spec))

    def _find_end(self, _: object, cached: tuple[object], now: float) -> float:
        return now + (self.cache_seconds if cached[0] else min(self.cache_seconds, _DENIAL_SECONDS))

    async def _find(self, question: object, review: Callable[[], Awaitable[T]]) -> T:
        if (cached := self._cached.get(question)) is None:
            async with self._asking:
                # Another caller may have cached the answer meanwhile.
                if (cached := self._cached.get(question)) is None:
                    if (left := self._rate_limiter.delay(self._clock())) > 0:
                        await self._sleep(left)
                    self._rate_limiter.take()
                    self._cached[question] = cached = (await review(),)
        answer: T = cached[0]
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
"""The paths of probes, which need no token: the kubelet sends none."""

TOKEN_HEADER = b"x-serried-token"
"""An additional header for the token: the API server's proxy removes Authorization before it calls a pod."""

_LOOPBACK = frozenset({ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")})
"""The source addresses of callers in this pod, and of kubectl port-forward."""

_PORT = re.compile(r":\d*\Z")

_MAX_READERS = 64
"""The maximum number of requests for metrics or debug pages in flight, including streams. Further ones get 503."""

_LIMIT_KEY = "serried.seconds"
"""The key in the ASGI scope of a request under which `Guard` stores the result of `read_seconds`."""

_MAX_PATH = 1000
_MAX_TOKEN = 16_384

_HOW = (
    "use kubectl port-forward, or send the token of a user whom the ClusterRole serried-debug-reader is bound to "
    "(docs/operations.md, Who may look)"
)


class TokenDemand(Enum):
    """Says which callers need a bearer token: remote ones, all or none. Probes never need one.

    The values are those of ``--ops-auth``.
    """

    REMOTE = "remote"
    """Only callers over the network need a token; callers over loopback need none."""

    ALWAYS = "always"
    """All callers need a token. For pods with hostNetwork, whose loopback every process of the node can reach."""

    OFF = "off"
    """No caller needs a token."""


class Guard:
    """ASGI middleware: authenticates and authorizes each caller of ``app``, and limits how many are served at once.

    ``demand`` says which callers need a token, and ``reviews`` checks it. A rejected caller can try again immediately,
    so ``throttle`` is awaited before each rejection.
    """

    def __init__(self, app: ASGIApp, demand: TokenDemand, reviews: Reviews, throttle: Throttle = no_throttle) -> None:
        self._app = app
        self._demand = demand
        self._reviews = reviews
        self._throttle = throttle
        self._readers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on to the application, or answer it with an error."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
        elif (refusal := await self._find_error(scope)) is not None:
            await self._throttle()
            await refusal(scope, receive, send)
        else:
            self._readers += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._readers -= 1

    async def _find_error(self, scope: Scope) -> Response | None:
        if self._needs_token(scope) and (refusal := await self._check_token(scope)) is not None:
            return refusal
        crowded = self._readers >= _MAX_READERS
        return _make_error(503, "too many requests are running: try again later") if crowded else None

    async def _check_token(self, scope: Scope) -> Response | None:
        """Return the error response if the token is missing, invalid or not enough for the path; None if it is fine.

        Plain HTTP is an error unless the caller's address is local (`is_loopback`); a path that is too long always is.
        """
        if scope["scheme"] != "https" and not is_loopback(scope):
            return _make_error(400, "this is plain HTTP, on which others can read a token: use https, or " + _HOW)
        if len(scope["path"]) > _MAX_PATH:
            return _make_error(414, f"the path is longer than {_MAX_PATH} characters")
        token = read_token(scope["headers"])
        if not token:
            return _make_error(401, self._name_need(scope) + _HOW)
        if len(token) > _MAX_TOKEN:
            return _make_error(401, f"the token is longer than {_MAX_TOKEN} characters, so it is not valid")
        scope[_LIMIT_KEY] = self._reviews.cache_seconds
        return await self._review(token, scope)

    def _needs_token(self, scope: Scope) -> bool:
        """Return whether the caller must send a token, by its address, its Host header and the setting."""
        if self._demand is not TokenDemand.REMOTE:
            return self._demand is TokenDemand.ALWAYS
        return not (is_loopback(scope) and names_address(scope["headers"]))

    def _name_need(self, scope: Scope) -> str:
        if self._demand is TokenDemand.REMOTE and is_loopback(scope):
            return "a request to a host name needs a bearer token: use localhost or 127.0.0.1, or "
        return "this address requires a bearer token: "

    async def _review(self, token: str, scope: Scope) -> Response | None:
        verb, path = scope["method"].lower(), scope["path"]
        try:
            caller = await self._reviews.identify(token)
            if caller is None:
                return _make_error(401, "the API server knows no user of this token, or it has expired: " + _HOW)
            if await self._reviews.allows(caller, verb, path):
                return None
        except Forbidden as error:
            log.error(
                "the API server does not let Serried review tokens, so requests with tokens are rejected",
                extra={"err": str(error)},
            )
            return _make_error(503, "Serried's ServiceAccount may not review tokens: apply manifests/kustomize/rbac")
        except ApiError as error:
            log.warning(
                "could not review the token of a request, so the request is rejected", extra={"err": str(error)}
            )
            return _make_error(
                503, "the API server does not answer, so Serried cannot check the token: try again, or " + _HOW
            )
        return _make_error(403, f"{caller.name} may not {verb} {path}: bind the ClusterRole serried-debug-reader to it")


def read_token(headers: list[tuple[bytes, bytes]]) -> str:
    """Return the bearer token in the headers Authorization or `TOKEN_HEADER`; "" if there is none."""
    found = dict(headers)
    scheme, _, token = found.get(b"authorization", b"").decode("latin-1").strip().partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return found.get(TOKEN_HEADER, b"").decode("latin-1").strip()


def names_address(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether the Host header of a request is localhost or an IP address, or is missing.

    False is suspicious. A web page can let its own host name resolve to 127.0.0.1 (DNS rebinding), and then read the
    answers to its requests. The Host header of these requests is the page's host name.
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
    """Return for how many seconds the answer to an authorized request may last; infinity if no token was needed.

    A stream must be ended after this time, because the token may have been revoked. The client then connects again.
    """
    return float(scope.get(_LIMIT_KEY, math.inf))


def is_loopback(scope: Scope) -> bool:
    """Return whether the caller's address is 127.0.0.1 or ::1; False if the address is unknown.

    Other addresses in 127.0.0.0/8 do not count: the sidecar of a service mesh uses 127.0.0.6 for remote callers.
    """
    try:
        address = ipaddress.ip_address(find_address(scope))
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address) in _LOOPBACK


def find_address(scope: Scope) -> str:
    """Return the IP address of the caller of a request; "" if it is unknown."""
    client = scope.get("client")
    return client[0] if client else ""


def _make_error(status: int, sentence: str) -> Response:
    headers: Mapping[str, str] = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "5"}}.get(status, {})
    return JSONResponse({"detail": f"serried: {sentence}"}, status, headers)
