"""A call of the API server (`Call`), and the base class of what sends it (`Transport`).

`Transport` adds the bearer token and renews it after a 401. There are two implementations: the extender and the
controller send with aiohttp (`serried.kube.transport`), the commands with httpx (`cli.transport`).
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from serried.kube.auth import TOKEN_LIFETIME_SECONDS, Credentials, CredentialsError
from serried.kube.errors import Unauthorized, Unavailable
from serried.kube.wire import Failure, cap_retry_after, decode_failure

JSON_TYPE = "application/json"

Check = Callable[[], None]
"""A function that runs immediately before each attempt of a call is sent. If it raises an exception, nothing is sent.

The exception ends the call. For instance it checks that this process still leads: the wait for a free connection may
have been long. The exception must be neither an OSError nor one of the HTTP library, which the transport would treat as
a lost connection.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """A request to the API server, with the timeout of an attempt, and whether it may be sent again."""

    method: str

    path: str

    params: Mapping[str, str] | None = None
    """The query parameters."""

    body: bytes | None = None

    content_type: str = ""
    """The header Content-Type; not sent without a body."""

    timeout_seconds: float = 30.0
    """The timeout of one attempt."""

    repeatable: bool = False
    """True if the call has the same effect when it is sent twice, so that it may be retried after a lost answer."""

    headers: Mapping[str, str] | None = None
    """Additional HTTP headers."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Response:
    """An answer of the API server with a status of 2xx."""

    status: int
    body: bytes

    date: str = ""
    """The header Date, i.e. the time on the server's clock; "" if there is none."""


class Transport(ABC):
    """The connections to one API server; opened at the first call, closed by `close`. `ApiClient` owns it."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._token = ""
        self._token_until = 0.0
        """The monotonic time at which the token has to be read again."""
        self._token_lock = asyncio.Lock()

    @abstractmethod
    async def close(self) -> None:
        """Close all connections; idempotent."""

    async def send(self, call: Call, check: Check) -> Response:
        """Send a call once, and once more with a new token after 401. Return the answer if its status is 2xx.

        ``check`` runs immediately before each of these attempts; if it raises, nothing is sent. Raises a subclass of
        ApiError for every other answer, and Unavailable if the token cannot be read, which may be temporary.
        """
        try:
            return await self._send(call, check)
        except Unauthorized:
            # The token may have been rotated since it was read. Retry only once: a wrong token stays wrong.
            await self._renew_token(call)
        return await self._send(call, check)

    @abstractmethod
    async def _send(self, call: Call, check: Check) -> Response:
        """Send a call once with the current token. Call ``check`` right before; if it raises, send nothing.

        Return and raise as `send`, but without a second attempt after 401.
        """

    @abstractmethod
    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Send a call whose answer is an endless stream, such as a watch. Yield an iterator over its chunks.

        There is one attempt. Raises ApiError on entry if the call is rejected or not answered within the timeout, and
        during the iteration if the connection breaks. If the server ends the stream, the iteration ends.
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
    """Return the failure in an error response of the API server.

    ``retry_after`` is the header Retry-After, "" if there is none. If it is a number, it replaces the retryAfterSeconds
    in the body.
    """
    failure = decode_failure(status, body)
    stated = retry_after.isascii() and retry_after.isdigit()  # it may be a date as well, or anything
    seconds = cap_retry_after(float(retry_after)) if stated else failure.retry_after
    return replace(failure, retry_after=seconds)
