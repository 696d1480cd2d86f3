"""The connections to the API server: credentials, timeouts, one attempt at one call, streams of bytes.

Which calls are worth a second attempt is for `client` to say.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from typing import cast

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import Connection
from yarl import URL

from serried.kube.auth import TOKEN_LIFETIME_SECONDS, Credentials, CredentialsError
from serried.kube.errors import Unauthorized, Unavailable, api_error
from serried.kube.wire import Failure, decode_failure, limit_rest

JSON_TYPE = "application/json"

_REPEATED_BY_AIOHTTP = frozenset({"GET", "PUT", "DELETE"})
"""The methods that aiohttp itself sends again when the server has closed an idle connection."""

_KEEP_ALIVE_SECONDS = 75.0
"""Below the 90 s after which a kube-apiserver closes idle connections.

Longer than aiohttp's default, so that a burst after a quiet minute does not begin with a TLS handshake for each
connection.
"""

_CONNECT_SHARE = 0.8
"""The part of a call's time in which it must have got a connection: what fails before has certainly not been sent."""

_READ_BUFFER_BYTES = 2**20

_LARGE_BODY_BYTES = 2**19


Check = Callable[[], None]
"""Called whenever a call is about to be sent, for the first time or again; what it raises ends the call.

It is called when the call has its connection, for which it may have waited long. What it raises must be no OSError and
no error of aiohttp: those are taken for a connection that was lost.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the API server."""

    method: str

    path: str

    params: Mapping[str, str] | None = None
    """The query."""

    body: bytes | None = None

    content_type: str = ""
    """The type of the body."""

    timeout_seconds: float = 30.0
    """How long one attempt may take."""

    repeatable: bool = False
    """Whether the call has the same effect when it is sent twice."""

    headers: Mapping[str, str] | None = None
    """Headers beside those of every call."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Response:
    """A successful answer."""

    status: int
    body: bytes

    date: str = ""
    """The header Date: what the server's clock showed."""


class Transport:
    """The connections to one API server; they are opened at the first call."""

    def __init__(self, credentials: Credentials, *, agent: str, connections: int) -> None:
        self._credentials = credentials
        self._agent = agent
        """The user agent."""
        self._connections = connections
        """How many connections may be open at a time."""
        self._session: aiohttp.ClientSession | None = None
        self._token = ""
        self._token_until = 0.0
        """The monotonic time from which on the token is read again."""
        self._token_lock = asyncio.Lock()

    async def close(self) -> None:
        """Close all connections; idempotent."""
        session = self._session
        self._session = None
        if session is not None:
            await session.close()

    async def send(self, call: Call, check: Check) -> Response:
        """One attempt at a call; raises a subclass of ApiError for any answer but 2xx.

        Without credentials it is Unavailable: their source may have them in a moment again, as a server may be there.
        """
        try:
            return await self._send_fresh(call, check)
        except Unauthorized:
            # A rotated token that we hold too long looks like this. Once: a wrong one stays wrong.
            await self._renew_token(call)
        return await self._send_fresh(call, check)

    async def _send_fresh(self, call: Call, check: Check) -> Response:
        try:
            return await self._send(call, check)
        except aiohttp.ServerDisconnectedError as err:
            # The server closed an idle connection while we picked it.
            if not call.repeatable or call.method in _REPEATED_BY_AIOHTTP:
                raise _lost(call, err) from err
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            raise _lost(call, err) from err
        try:
            return await self._send(call, check)
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            raise _lost(call, err) from err

    async def _send(self, call: Call, check: Check) -> Response:
        timeout = aiohttp.ClientTimeout(total=call.timeout_seconds, connect=call.timeout_seconds * _CONNECT_SHARE)
        async with self._open().request(
            call.method,
            self._url(call),
            data=_stream_if_large(call.body),
            headers=await self._headers(call),
            timeout=timeout,
            server_hostname=self._credentials.server_name or None,
            proxy=self._credentials.proxy or None,
            allow_redirects=False,
            middlewares=(_carrying(check),),
        ) as answer:
            body = await answer.read()
            if answer.status >= 300:
                raise api_error(str(call), _failure(answer, body))
            return Response(answer.status, body, answer.headers.get("Date", ""))

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        """A call whose answer arrives in chunks for as long as the server sends; one attempt.

        Raises ApiError on entry for a refusal and for no answer within the timeout, and while reading for a
        connection that breaks. An orderly end just ends the iteration.
        """
        try:
            async with asyncio.timeout(call.timeout_seconds):
                answer = await self._open_stream(call)
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            raise _lost(call, err) from err
        try:
            async with aclosing(_chunks(call, answer)) as chunks:
                yield chunks
        finally:
            answer.close()

    async def _open_stream(self, call: Call) -> aiohttp.ClientResponse:
        answer = await self._open().request(
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

    def _open(self) -> aiohttp.ClientSession:
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

    async def _headers(self, call: Call) -> dict[str, str]:
        headers = dict(call.headers or {})
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        if token := await self._current_token(call):
            headers["Authorization"] = f"Bearer {token}"
        return headers

    async def _current_token(self, call: Call) -> str:
        if time.monotonic() >= self._token_until:
            async with self._token_lock:
                if time.monotonic() >= self._token_until:
                    await self._read_token(call, self._credentials.read_token)
        return self._token

    async def _renew_token(self, call: Call) -> None:
        async with self._token_lock:
            await self._read_token(call, self._credentials.renew_token)

    async def _read_token(self, call: Call, source: Callable[[], str]) -> None:
        try:
            self._token = await asyncio.to_thread(source)
        except (CredentialsError, OSError) as err:
            raise Unavailable(str(call), Failure(0, "NoCredentials", str(err)), unsent=True) from err
        self._token_until = time.monotonic() + TOKEN_LIFETIME_SECONDS


class _CheckedRequest(aiohttp.ClientRequest):
    """A request that is checked when it has its connection, in the same step as its first byte is written.

    The process may be stopped between two steps, and go on when another one leads. The first bytes are those of head
    and body together; up to Python 3.11 aiohttp writes them a turn of the loop after `send`.
    """

    check: Check | None = None

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        """As aiohttp's own, unless there is no body and the check raises."""
        if self.check is not None and not self.body:
            self.check()
        return await super().send(conn)

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> None:
        """As aiohttp's own. What the check raises goes to whoever waits for the answer, and nothing was written."""
        try:
            if self.check is not None:
                self.check()
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
            if conn.protocol is not None:
                conn.protocol.set_exception(error)
            return
        await super().write_bytes(writer, conn, content_length)


def _carrying(check: Check) -> aiohttp.ClientMiddlewareType:
    """What aiohttp runs ahead of each sending, its own second one included: each request is another object."""

    async def give(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        cast("_CheckedRequest", request).check = check
        return await send(request)

    return give


def _stream_if_large(body: bytes | None) -> bytes | BytesIO | None:
    # As bytes it would be written at once, and aiohttp warns of it.
    return body if body is None or len(body) <= _LARGE_BODY_BYTES else BytesIO(body)


async def _chunks(call: Call, answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, TimeoutError, OSError) as err:
        raise _lost(call, err) from err


def _lost(call: Call, err: Exception) -> Unavailable:
    """The exception for a call that got no answer."""
    unsent = isinstance(err, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    if isinstance(err, aiohttp.ConnectionTimeoutError):
        seconds = call.timeout_seconds * _CONNECT_SHARE
        said = f"no connection in {seconds:g} s: too many requests in flight, or no way there"
    elif isinstance(err, TimeoutError):
        said = f"no answer in {call.timeout_seconds:g} s"
    else:
        said = f"{type(err).__name__}: {err}"
    return Unavailable(str(call), Failure(0, "Unavailable", said), unsent=unsent)


def _failure(answer: aiohttp.ClientResponse, body: bytes) -> Failure:
    """What a refusal says. The header Retry-After counts before the body's retryAfterSeconds."""
    failure = decode_failure(answer.status, body)
    header = answer.headers.get("Retry-After", "")
    stated = header.isascii() and header.isdigit()  # it may be a date as well, or anything
    seconds = limit_rest(float(header)) if stated else failure.retry_after
    return replace(failure, retry_after=seconds)
