"""One call of the API server, and what every way to send it has in common: the token, and what a refusal says.

Processes send by aiohttp (`serried.kube.transport`), commands by httpx (`cli.transport`).
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from serried.kube.auth import TOKEN_LIFETIME_SECONDS, Credentials, CredentialsError
from serried.kube.errors import Unauthorized, Unavailable
from serried.kube.wire import Failure, decode_failure, limit_rest

JSON_TYPE = "application/json"

Check = Callable[[], None]
"""Called whenever a call is about to be sent, for the first time or again; what it raises ends the call.

It is called when the call has its connection, for which it may have waited long. What it raises must be no OSError and
no error of the HTTP library: those are taken for a connection that was lost.
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


class Transport(ABC):
    """The connections to one API server; they are opened at the first call."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._token = ""
        self._token_until = 0.0
        """The monotonic time from which on the token is read again."""
        self._token_lock = asyncio.Lock()

    @abstractmethod
    async def close(self) -> None:
        """Close all connections; idempotent."""

    async def send(self, call: Call, check: Check) -> Response:
        """One attempt at a call; raises a subclass of ApiError for any answer but 2xx.

        Without credentials it is Unavailable: their source may have them in a moment again, as a server may be there.
        """
        try:
            return await self._send(call, check)
        except Unauthorized:
            # A rotated token that we hold too long looks like this. Once: a wrong one stays wrong.
            await self._renew_token(call)
        return await self._send(call, check)

    @abstractmethod
    async def _send(self, call: Call, check: Check) -> Response:
        """As `send`, with the token that there is."""

    @abstractmethod
    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A call whose answer arrives in chunks for as long as the server sends; one attempt.

        Raises ApiError on entry for a refusal and for no answer within the timeout, and while reading for a
        connection that breaks. An orderly end just ends the iteration.
        """

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


def read_failure(status: int, body: bytes, retry_after: str) -> Failure:
    """What a refusal says. The header Retry-After counts before the body's retryAfterSeconds."""
    failure = decode_failure(status, body)
    stated = retry_after.isascii() and retry_after.isdigit()  # it may be a date as well, or anything
    seconds = limit_rest(float(retry_after)) if stated else failure.retry_after
    return replace(failure, retry_after=seconds)
