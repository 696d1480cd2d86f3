"""The HTTP connections of a command, by httpx: a command sends few requests, so the time to start counts most."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import urlencode

import httpx

from serried import __version__
from serried.kube.auth import Credentials
from serried.kube.calls import JSON_TYPE, Call, Check, Response, Transport, read_failure
from serried.kube.client import ONCE, ApiClient
from serried.kube.errors import Unavailable, api_error
from serried.kube.wire import Failure

if TYPE_CHECKING:
    from serried.ops.metrics import Metrics

_CONNECT_SHARE = 0.8
"""Share of a call's timeout in which its connection must be established."""

_CONNECTIONS = 16
"""Greatest number of open connections."""


def open_client(credentials: Credentials) -> ApiClient:
    """Return a client of the API server, or of an extender, that does not retry."""
    metrics = cast("Metrics", _IgnoredMetrics())
    return ApiClient(credentials, component="cli", retry=ONCE, metrics=metrics, transport=HttpxTransport(credentials))


class _IgnoredMetrics:
    """Metrics that are dropped: the client reports them, and a command serves none."""

    def wrote(self, verb: str, resource: str) -> None:
        """Ignore a write; in place of `Metrics.wrote`."""

    def failed(self, method: str, status: int) -> None:
        """Ignore a failed request; in place of `Metrics.failed`."""


class Answer(NamedTuple):
    """An answer whose body is still being read."""

    status: int

    headers: Mapping[str, str]
    """The headers; names match in any case."""

    chunks: AsyncIterator[bytes]
    """The parts of the body, uncompressed."""


class HttpxTransport(Transport):
    """The connections of one command, closed when it ends."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__(credentials)
        self._opened: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close all connections. May be called again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.aclose()

    async def _send(self, call: Call, check: Check) -> Response:
        request = await self._make(call)
        check()
        try:
            async with asyncio.timeout(call.timeout_seconds):
                answer = await self._send_or_resend(request) if call.repeatable else await self._open().send(request)
        except (httpx.HTTPError, TimeoutError, OSError) as err:
            raise _unavailable(call, err) from err
        if answer.status_code >= 300:
            raise api_error(str(call), _failure(answer.status_code, answer.headers, answer.content))
        return Response(answer.status_code, answer.content, answer.headers.get("Date", ""))

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a call once and yield the body of the answer in parts, as the server sends them. Raises ApiError."""
        async with self.relay(call) as answer:
            if answer.status >= 300:
                body = b"".join([chunk async for chunk in answer.chunks])
                raise api_error(str(call), _failure(answer.status, answer.headers, body))
            yield answer.chunks

    @asynccontextmanager
    async def relay(self, call: Call) -> AsyncIterator[Answer]:
        """Send a call once and yield the answer, whatever its status, with its body in parts.

        Raises ApiError on entry if no answer comes within the timeout, and while reading if the connection breaks.
        """
        request = await self._make(call)
        try:
            async with asyncio.timeout(call.timeout_seconds):
                answer = await self._open().send(request, stream=True)
        except (httpx.HTTPError, TimeoutError, OSError) as err:
            raise _unavailable(call, err) from err
        try:
            async with aclosing(_chunks(call, answer)) as chunks:
                yield Answer(answer.status_code, answer.headers, chunks)
        finally:
            await answer.aclose()

    async def _send_or_resend(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and again if the server closed the idle connection at the same moment."""
        with suppress(httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            return await self._open().send(request)
        return await self._open().send(request)

    async def _make(self, call: Call) -> httpx.Request:
        seconds = call.timeout_seconds
        name = self._credentials.server_name
        return self._open().build_request(
            call.method,
            self._credentials.host + call.path + (f"?{urlencode(call.params, safe='/:,')}" if call.params else ""),
            content=call.body,
            headers=await self._headers(call),
            timeout=httpx.Timeout(None, connect=seconds * _CONNECT_SHARE, pool=seconds * _CONNECT_SHARE),
            extensions={"sni_hostname": name} if name else {},
        )

    def _open(self) -> httpx.AsyncClient:
        if self._opened is None:
            self._opened = httpx.AsyncClient(
                # An empty context without TLS: httpx would load all certificate authorities of the machine.
                verify=self._credentials.tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                proxy=self._credentials.proxy or None,
                headers={"User-Agent": f"serried/{__version__} (cli)", "Accept": JSON_TYPE},
                limits=httpx.Limits(max_connections=_CONNECTIONS),
                trust_env=False,  # proxies come from the credentials
            )
        return self._opened


async def _chunks(call: Call, answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in answer.aiter_bytes():
            yield chunk
    except (httpx.HTTPError, TimeoutError, OSError) as err:
        raise _unavailable(call, err) from err


def _unavailable(call: Call, err: Exception) -> Unavailable:
    """Return the exception for a call that got no answer."""
    unsent = isinstance(err, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    if isinstance(err, httpx.ConnectTimeout | httpx.PoolTimeout):
        said = f"no connection in {call.timeout_seconds * _CONNECT_SHARE:g} s"
    elif isinstance(err, TimeoutError | httpx.TimeoutException):
        said = f"no answer in {call.timeout_seconds:g} s"
    else:
        # The last cause is the system's message; the others are the libraries' words for it.
        said = "; ".join(dict.fromkeys(str(each) for each in _list_causes(err) if str(each))) or type(err).__name__
    return Unavailable(str(call), Failure(0, "Unavailable", said), unsent=unsent)


def _list_causes(err: BaseException) -> Iterator[BaseException]:
    """Yield an exception, then its causes, depth first; an exception group also yields its members."""
    yield err
    for each in err.exceptions if isinstance(err, BaseExceptionGroup) else ():
        yield from _list_causes(each)
    if cause := err.__cause__ or err.__context__:
        yield from _list_causes(cause)


def _failure(status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    return read_failure(status, body, headers.get("Retry-After", ""))
