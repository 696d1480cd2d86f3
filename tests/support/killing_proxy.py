"""A proxy of an API server that kills its client at a chosen write: before it is forwarded, or before it is answered.

Clients use plain HTTP/1.1, so that the proxy can read their requests. The proxy uses TLS to the API server.
"""

import asyncio
import contextlib
import os
import signal
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_CHUNK = 65536


class KillMoment(StrEnum):
    """The moment at which the client is killed."""

    BEFORE_SENDING = "before it is sent"
    BEFORE_ANSWER = "done, but before its answer is heard"


@dataclass
class KillOrder:
    """An order to kill a process at one write."""

    number: int
    """Index, from 0, of the write at which to kill, among the writes for which ``counts`` is true."""

    moment: KillMoment
    pid: int
    counts: Callable[[str], bool]
    """Returns whether a write to a path counts."""

    seen: list[str] = field(default_factory=list)
    """The counted writes so far, with method and path."""

    done: threading.Event = field(default_factory=threading.Event)
    """Set once the process was killed."""

    def should_kill(self, method: str, path: str) -> bool:
        """Return whether to kill at this request. If it is a write that counts, it is counted."""
        if method not in _WRITES or not self.counts(path):
            return False
        self.seen.append(f"{method} {path}")
        return len(self.seen) == self.number + 1

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.done.set()


class KillingProxy:
    """The proxy, as a context manager: listens on ``port`` of the loopback interface, and forwards to a target port."""

    def __init__(self, target: int, tls: ssl.SSLContext) -> None:
        self.port = 0
        self._target = target
        self._tls = tls
        self._order: KillOrder | None = None
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    def set_order(self, order: KillOrder) -> None:
        """Replace the present order."""
        self._order = order

    def _run(self) -> None:
        self._loop.run_until_complete(self._listen())

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._ended.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, near: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        far, requests = await asyncio.open_connection("127.0.0.1", self._target, ssl=self._tls)
        awaited: list[KillOrder] = []
        ways = [
            asyncio.create_task(self._pass_requests(near, requests, awaited)),
            asyncio.create_task(_pass_answers(far, answers, awaited)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for writer in (requests, answers):
                writer.close()

    async def _pass_requests(
        self, near: asyncio.StreamReader, requests: asyncio.StreamWriter, awaited: list[KillOrder]
    ) -> None:
        while True:
            head = await near.readuntil(b"\r\n\r\n")
            method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
            body = await near.readexactly(_find_length(head))
            order = self._order
            if order is not None and not order.done.is_set() and order.should_kill(method, path):
                if order.moment is KillMoment.BEFORE_SENDING:
                    order.kill()
                    return
                awaited.append(order)
            requests.write(head + body)
            await requests.drain()


async def _pass_answers(far: asyncio.StreamReader, answers: asyncio.StreamWriter, awaited: list[KillOrder]) -> None:
    while data := await far.read(_CHUNK):
        if awaited:
            # Clients do not pipeline requests, so this is the answer to the awaited write.
            awaited[0].kill()
            return
        answers.write(data)
        await answers.drain()


def _find_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
