"""The HTTP connections of a command, by httpx instead of the servers' HTTP client. Commands enter by `open_client`.

A command sends few requests, so the time to start counts more than the speed of each request.
"""

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
"""Fraction of a request's timeout within which the connection must be established."""

_CONNECTIONS = 16
"""The largest number of open connections."""


def open_client(credentials: Credentials) -> ApiClient:
    """Return a client of the API server or of an extender, whichever the credentials are for. It does not retry."""
    metrics = cast("Metrics", _IgnoredMetrics())
    return ApiClient(credentials, component="cli", retry=ONCE, metrics=metrics, transport=HttpxTransport(credentials))


class _IgnoredMetrics:
    """Accepts the client's metrics and drops them: a command has no page on which they could be read."""

    def wrote(self, verb: str, resource: str) -> None:
        """Do nothing about a successful write; stands in for `Metrics.wrote`."""

    def failed(self, method: str, status: int) -> None:
        """Do nothing about a failed request; stands in for `Metrics.failed`."""


class Answer(NamedTuple):
    """The answer to a request, while its body is still being received."""

    status: int

    headers: Mapping[str, str]
    """The headers; a lookup ignores the case of names."""

    chunks: AsyncIterator[bytes]
    """The parts of the body, which are yielded as they arrive, decompressed."""


class HttpxTransport(Transport):
    """The connections of one command to one server. The command closes them at its end."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__(credentials)
        self._opened: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close all connections. Does nothing if they are closed already."""
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
        """Send a request once, and yield an iterator of the body's parts as they arrive.

        Raises ApiError if no answer comes, or if its status is 300 or above.
        """
        async with self.relay(call) as answer:
            if answer.status >= 300:
                body = b"".join([chunk async for chunk in answer.chunks])
                raise api_error(str(call), _failure(answer.status, answer.headers, body))
            yield answer.chunks

    @asynccontextmanager
    async def relay(self, call: Call) -> AsyncIterator[Answer]:
        """Send a request once, and yield the answer, also one with an error status.

        Raises ApiError on entry if no answer comes within the timeout, and from `Answer.chunks` if the connection
        breaks.
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
        """Send a request. If the connection breaks before an answer, send it a second time.

        The server may close an idle connection at the moment at which the request is sent on it.
        """
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
    """Return the exception for a request that got no answer, with a message from ``err``."""
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
    """Yield an exception and all its causes, depth first; for an exception group, those of its members, too."""
    yield err
    for each in err.exceptions if isinstance(err, BaseExceptionGroup) else ():
        yield from _list_causes(each)
    if cause := err.__cause__ or err.__context__:
        yield from _list_causes(cause)


def _failure(status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    return read_failure(status, body, headers.get("Retry-After", ""))
