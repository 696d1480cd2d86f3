"""A listener with test verbs, and a raw client that can send what no HTTP library would."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Self

from extender.core.http.server import Connections, Hangup, Listener, Reply, Routes

SOON = 0.2
MOST = 4000


class ListenerHarness:
    """A listener with one verb that answers at once and one that waits for ``release``; both record their calls."""

    def __init__(self, peers: Connections | None = None) -> None:
        self.peers = Connections() if peers is None else peers
        self.seen: list[bytes] = []
        self.hung_up: list[bytes] = []
        self.release = asyncio.Event()
        routes = Routes({b"/quick": self.quick, b"/bug": self.fail}, {b"/slow": self.slow}, MOST)
        self.listener = Listener(routes, self.peers)
        self.port = 0

    def quick(self, body: bytes) -> Reply:
        """Answer at once."""
        self.seen.append(body)
        return Reply(b'{"size":%d}' % len(body), close=body == b"leave")

    def fail(self, body: bytes) -> Reply:
        """Raise an error."""
        raise RuntimeError("a secret")

    async def slow(self, body: bytes, hangup: Hangup) -> Reply:
        """Answer after ``release``, unless the client disconnects."""
        self.seen.append(body)
        if body == b"bug":
            raise RuntimeError("a secret")
        waits = [asyncio.ensure_future(self.release.wait()), asyncio.ensure_future(hangup())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if waits[1].done():
                self.hung_up.append(body)
            for wait in waits:
                wait.cancel()
        return Reply(b'{"slow":%d}' % len(body))

    async def open(self) -> Self:
        """Listen on any free port."""
        self.port = await self.listener.open("127.0.0.1", 0)
        return self

    async def connect(self) -> "Client":
        """Connect another client."""
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))

    async def close(self) -> None:
        """Close all clients and the listener."""
        self.release.set()
        await self.listener.close()

    async def await_requests(self, count: int) -> None:
        """Wait until this many requests have arrived."""
        await wait_until(lambda: len(self.seen) == count)

    async def await_hangups(self, *calls: bytes) -> None:
        """Wait until these calls have noticed that their client disconnected."""
        await wait_until(lambda: self.hung_up == list(calls))


async def wait_until(happened: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(5):
        while not happened():  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.005)


class Client:
    """A raw TCP connection that sends and reads HTTP/1.1."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next reply."""
        async with asyncio.timeout(5):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def reply(self) -> tuple[int, dict[str, str], Any]:
        """The next reply."""
        status, headers = await self.head()
        return status, headers, json.loads(await self.reader.readexactly(int(headers["content-length"])))

    async def body(self) -> Any:
        """The document of the next reply."""
        return (await self.reply())[2]

    async def closed(self, within: float = 5.0) -> bool:
        """Return whether the server closes the connection without sending anything."""
        try:
            async with asyncio.timeout(within):
                return await self.reader.read() == b""
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        """Abort the connection."""
        self.writer.transport.abort()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


def post(path: str, body: bytes = b"", *headers: str, version: str = "1.1") -> bytes:
    """Return the bytes of one HTTP request. ``headers`` are whole lines, such as "Expect: 100-continue"."""
    lines = [f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
