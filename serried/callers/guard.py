"""The guard before metrics and debug: an ASGI application before the one that answers.

Whoever comes by loopback is in the pod already, where the verbs are: a port-forward, the scheduler beside us. Whoever
comes over the network comes by TLS and shows a bearer token whose owner may ask for that path. Probes are open.
"""

import ipaddress
import logging
import math
from collections.abc import Mapping
from enum import Enum

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serried.callers.reviews import Reviews, TooManyReviewsError
from serried.kube.errors import ApiError, Forbidden

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/livez", "/livez/filter", "/livez/pair", "/readyz"})
"""What anybody may ask: the kubelet has no token for it."""

TOKEN_HEADER = b"x-serried-token"
"""Where a token may be, too: the API server takes Authorization off before it passes a request on to a pod."""

_LOOPBACK = frozenset({ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")})
"""From where those come who are in this pod."""

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
    """``app`` for those who may."""

    def __init__(self, app: ASGIApp, demand: TokenDemand, reviews: Reviews) -> None:
        self._app = app
        self._demand = demand
        self._reviews = reviews

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        refusal = await self._refuse(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    async def _refuse(self, scope: Scope) -> Response | None:
        """The answer to one who may not; None for one who may."""
        if scope["path"] in OPEN_PATHS or not self._demands(scope):
            return None
        if scope["scheme"] != "https" and not is_loopback(scope):
            return _refuse(400, "this is plain HTTP, and a token would be seen on its way: ask by https, or " + _HOW)
        if len(scope["path"]) > _MAX_PATH:
            return _refuse(414, f"the path is longer than {_MAX_PATH} characters")
        token = read_token(scope["headers"])
        if not token:
            return _refuse(401, "a bearer token is needed here: " + _HOW)
        if len(token) > _MAX_TOKEN:
            return _refuse(401, f"the token is longer than {_MAX_TOKEN} characters, which no token is")
        scope[_SECONDS] = self._reviews.kept_seconds
        return await self._review(token, scope["method"].lower(), scope["path"])

    def _demands(self, scope: Scope) -> bool:
        return self._demand is TokenDemand.ALWAYS or (self._demand is TokenDemand.REMOTE and not is_loopback(scope))

    async def _review(self, token: str, verb: str, path: str) -> Response | None:
        try:
            caller = await self._reviews.identify(token)
            if caller is None:
                return _refuse(401, "the API server knows no user of this token, or it has expired: " + _HOW)
            if await self._reviews.allows(caller, verb, path):
                return None
        except TooManyReviewsError:
            return _refuse(503, "too many tokens wait for the API server's word")
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


def read_seconds(scope: Scope) -> float:
    """For how long the caller of a request may be answered; without end for who needs no token.

    An answer that takes longer has to end then: the token may have been taken away.
    """
    return float(scope.get(_SECONDS, math.inf))


def is_loopback(scope: Scope) -> bool:
    """Whether the caller is on this machine, or in this pod; not if nobody knows where it is.

    Not the whole of 127.0.0.0/8: a sidecar of a mesh comes from 127.0.0.6 for whoever called it over the network.
    """
    client = scope.get("client")
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address) in _LOOPBACK


def _refuse(status: int, sentence: str) -> Response:
    headers: Mapping[str, str] = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "5"}}.get(status, {})
    return JSONResponse({"detail": f"serried: {sentence}"}, status, headers)
