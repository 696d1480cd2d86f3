"""The guard before metrics and debug: an ASGI application before the one that answers.

Whoever comes by loopback is in the pod already, where the verbs are: a port-forward, the scheduler beside us. But a web
page may come through somebody's port-forward: so who calls us by a name other than localhost shows a token. Whoever
comes over the network comes by TLS and shows a bearer token whose owner may ask for that path. Probes are open.

What strangers can have for nothing, refusals and very many probes, they wait for: each address behind itself alone.
"""

import asyncio
import ipaddress
import logging
import math
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from typing import Any, TypeVar

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serried.callers.lines import Lines
from serried.callers.reviews import Reviews, TooManyReviewsError
from serried.kube.errors import ApiError, Forbidden
from serried.model.ration import Ration
from serried.observe.bounded import GONE
from serried.observe.intake import Turn, take_none

T = TypeVar("T")

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
