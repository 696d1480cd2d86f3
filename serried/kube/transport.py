"""The transport of the extender and the controller: sends calls to the API server with aiohttp.

It makes one attempt with a timeout; `client` decides about retries.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from io import BytesIO
from typing import cast

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import Connection
from yarl import URL

from serried.kube.auth import Credentials
from serried.kube.calls import JSON_TYPE, Call, Check, Response, Transport, read_failure
from serried.kube.errors import Unavailable, api_error
from serried.kube.wire import Failure

_REPEATED_BY_AIOHTTP = frozenset({"GET", "PUT", "DELETE"})
"""The methods that aiohttp itself sends again when the server has closed an idle connection."""

_KEEP_ALIVE_SECONDS = 75.0
"""The time for which an idle connection stays open: less than the 90 s after which kube-apiserver closes it.

More than aiohttp's default, so that a burst of calls after a quiet minute does not need new TLS handshakes.
"""

_CONNECT_SHARE = 0.8
"""The part of a call's timeout that the call may wait for a connection.

If this time passes, the call has certainly not been sent, and can be repeated safely. At the end of the whole timeout
that would not be known.
"""

_READ_BUFFER_BYTES = 2**20

_LARGE_BODY_BYTES = 2**19


class AiohttpTransport(Transport):
    """Sends calls over a pool of at most ``connections`` connections. A process has one."""

    def __init__(self, credentials: Credentials, *, agent: str, connections: int) -> None:
        super().__init__(credentials)
        self._agent = agent
        """The user agent."""
        self._connections = connections
        """The maximum number of open connections."""
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections; idempotent."""
        session = self._session
        self._session = None
        if session is not None:
            await session.close()

    async def _send(self, call: Call, check: Check) -> Response:
        try:
            return await self._attempt(call, check)
        except aiohttp.ServerDisconnectedError as err:
            # The server closed an idle connection while we picked it.
            if not call.repeatable or call.method in _REPEATED_BY_AIOHTTP:
                raise _no_answer(call, err) from err
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            raise _no_answer(call, err) from err
        try:
            return await self._attempt(call, check)
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            raise _no_answer(call, err) from err

    async def _attempt(self, call: Call, check: Check) -> Response:
        timeout = aiohttp.ClientTimeout(total=call.timeout_seconds, connect=call.timeout_seconds * _CONNECT_SHARE)
        async with self._get_session().request(
            call.method,
            self._url(call),
            data=_stream_if_large(call.body),
            headers=await self._headers(call),
            timeout=timeout,
            server_hostname=self._credentials.server_name or None,
            proxy=self._credentials.proxy or None,
            allow_redirects=False,
            middlewares=(_attach_check(check),),
        ) as answer:
            body = await answer.read()
            if answer.status >= 300:
                raise api_error(str(call), _failure(answer, body))
            return Response(answer.status, body, answer.headers.get("Date", ""))

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a call whose answer is an endless stream. Yield an iterator over its chunks; see `Transport.stream`."""
        try:
            async with asyncio.timeout(call.timeout_seconds):
                answer = await self._open_stream(call)
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            raise _no_answer(call, err) from err
        try:
            async with aclosing(_read_chunks(call, answer)) as chunks:
                yield chunks
        finally:
            answer.close()

    async def _open_stream(self, call: Call) -> aiohttp.ClientResponse:
        answer = await self._get_session().request(
            call.method,
            self._url(call),
            headers=await self._headers(call),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=None),
            read_bufsize=_READ_BUFFER_BYTES,
            server_hostname=self._credentials.server_name or None,
            proxy=self._credentials.proxy or None,
            allow_redirects=False,
        )
        if answer.status < 300:
            return answer
        async with answer:
            if answer.status == 401:
                await self._renew_token(call)
            raise api_error(str(call), _failure(answer, await answer.read()))

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._connections,
                ssl=self._credentials.tls or True,
                keepalive_timeout=_KEEP_ALIVE_SECONDS,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                request_class=_CheckedRequest,
                headers={"User-Agent": self._agent, "Accept": JSON_TYPE},
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept-Encoding",),
            )
        return self._session

    def _url(self, call: Call) -> URL:
        url = URL(self._credentials.host + call.path)
        return url.with_query(call.params) if call.params else url


class _CheckedRequest(aiohttp.ClientRequest):
    """An aiohttp request that calls the function ``check`` immediately before its first byte is written.

    If ``check`` raises an exception, for instance because this process does not lead any more, nothing is written.
    Check and write happen in the same step of the event loop. Between two steps the process may be suspended, and
    another process may hold the Lease when it continues. aiohttp writes head and body together; up to Python 3.11 it
    does so one iteration of the event loop after `send`.
    """

    check: Check | None = None

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        """Send the head; call ``check`` first if there is no body (else `write_bytes` does)."""
        if self.check is not None and not self.body:
            self.check()
        return await super().send(conn)

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> None:
        """Call ``check``, then write head and body.

        If ``check`` raises an exception, write nothing; the caller that awaits the answer gets the exception.
        """
        try:
            if self.check is not None:
                self.check()
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
            if conn.protocol is not None:
                conn.protocol.set_exception(error)
            return
        await super().write_bytes(writer, conn, content_length)


def _attach_check(check: Check) -> aiohttp.ClientMiddlewareType:
    """Return the aiohttp middleware that makes each request call ``check`` immediately before its first byte is sent.

    ``check`` raises an exception if the request must not be sent any more, see `_CheckedRequest`. aiohttp calls the
    middleware also for requests that it repeats itself.
    """

    async def attach(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        cast("_CheckedRequest", request).check = check
        return await send(request)

    return attach


def _stream_if_large(body: bytes | None) -> bytes | BytesIO | None:
    # aiohttp would write large bytes in one piece, and warns about that.
    return body if body is None or len(body) <= _LARGE_BODY_BYTES else BytesIO(body)


async def _read_chunks(call: Call, answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, TimeoutError, OSError) as err:
        raise _no_answer(call, err) from err


def _no_answer(call: Call, err: Exception) -> Unavailable:
    """Return the exception for a call that got no answer."""
    unsent = isinstance(err, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    if isinstance(err, aiohttp.ConnectionTimeoutError):
        seconds = call.timeout_seconds * _CONNECT_SHARE
        said = f"no connection in {seconds:g} s: too many requests are running, or the network has no route"
    elif isinstance(err, TimeoutError):
        said = f"no answer in {call.timeout_seconds:g} s"
    else:
        said = f"{type(err).__name__}: {err}"
    return Unavailable(str(call), Failure(0, "Unavailable", said), unsent=unsent)


def _failure(answer: aiohttp.ClientResponse, body: bytes) -> Failure:
    return read_failure(answer.status, body, answer.headers.get("Retry-After", ""))
