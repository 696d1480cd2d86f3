"""Clients of the operations port that open much, send little or read nothing: probes are answered meanwhile."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from extender.look.simulations import whatif_routes
from serried.ops import server as ops_server
from serried.ops.server import Server, make_server, ops_routes
from tests.support.extender_harness import Harness, small_nodes
from tests.support.listener import SOON, wait_until
from tests.support.logged_errors import collect_errors

FEW = 10
PIECE = b"x" * 100_000
PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


class Operations:
    """A server with the probes, what-if, and an answer without end."""

    def __init__(self, world: Harness) -> None:
        self.app = FastAPI()
        self.app.include_router(ops_routes(lambda: {"x": True}, lambda: b""))
        self.app.include_router(whatif_routes(world.core))
        self.app.add_api_route("/endless", self._answer_endlessly)
        self.app.add_api_route("/deaf", self._wait, methods=["POST"])
        self.sent = 0
        self.streams = 0
        """The number of endless responses that are being sent."""
        self._lines: list[Line] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.server: Server = make_server(self.app, "127.0.0.1", 0)
        self.task = asyncio.create_task(self.server.serve([self._socket]))

    async def _answer_endlessly(self) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            self.streams += 1
            try:
                while True:
                    self.sent += len(PIECE)
                    yield PIECE
                    await asyncio.sleep(0)
            finally:
                self.streams -= 1

        return StreamingResponse(pieces())

    async def _wait(self, request: Request) -> None:
        await asyncio.sleep(10 * SOON)

    @property
    def connections(self) -> int:
        """The number of connections that the server has open."""
        return len(self.server.server_state.connections)

    async def connect(self) -> "Line":
        reader, writer = await asyncio.open_connection("127.0.0.1", self._socket.getsockname()[1])
        line = Line(reader, writer)
        self._lines.append(line)
        return line

    async def probe(self) -> bytes:
        """Send a probe over a new connection. Return the status."""
        line = await self.connect()
        await line.send(PROBE)
        status = await line.status()
        await line.close()
        return status

    async def close(self) -> None:
        for line in self._lines:
            await line.close()
        self.server.force_exit = True
        self.server.should_exit = True
        await self.task


class Line:
    """A bare connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_endlessly(self) -> None:
        async with asyncio.timeout(5):
            while True:
                await self.send(PIECE)

    async def status(self) -> bytes:
        """The status of the next answer, b"" for the end."""
        async with asyncio.timeout(5):
            line = await self.reader.readline()
        return line.split(b" ")[1] if line else b""

    async def refused(self) -> bool:
        """Return whether the next answer is 400, or the connection is closed, which may overtake the answer."""
        try:
            return await self.status() in {b"400", b""}
        except ConnectionError:
            return True

    async def until_ended(self) -> None:
        """Wait until the other side has ended the connection."""
        try:
            async with asyncio.timeout(5):
                while await self.reader.read(1 << 20):
                    pass
        except ConnectionError:
            pass

    async def close(self) -> None:
        self.writer.transport.abort()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts for the first byte of a connection and for slow clients."""
    monkeypatch.setattr(ops_server, "_FIRST_BYTE_SECONDS", SOON)
    monkeypatch.setattr(ops_server, "_CLIENT_SECONDS", SOON)


@pytest.fixture
async def operations(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Operations]:
    monkeypatch.setattr(ops_server, "_MAX_CONNECTIONS", FEW)
    world = Harness()
    await world.add(*small_nodes(2)).run_until_idle()
    made = Operations(world)
    await wait_until(lambda: made.server.started)
    yield made
    await made.close()
    await world.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\r\n\r\n", id="line ends"),
        pytest.param(b"GET /livez HTTP/1.1\r\nHost:", id="half a head"),
        pytest.param(b"POST /whatif HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nkind", id="half a body"),
        pytest.param(b"POST /whatif HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nkind\r\n", id="half the chunks"),
        pytest.param(PROBE + b"GET /", id="half a request behind a whole one"),
        pytest.param(b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", id="answered, without a body"),
        pytest.param(b"POST /deaf HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n" + PIECE, id="nobody reads it"),
    ],
)
async def test_a_request_that_does_not_arrive_is_ended_and_probes_are_answered_meanwhile(
    operations: Operations, sent: bytes
) -> None:
    line = await operations.connect()
    await line.send(sent)
    assert await operations.probe() == b"200"
    await line.until_ended()
    await line.close()
    await wait_until(lambda: operations.connections == 0)


async def test_a_question_that_arrives_slowly_keeps_nobody_else_from_asking(operations: Operations) -> None:
    slow, quick = await operations.connect(), await operations.connect()
    await slow.send(b"POST /whatif HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nkind")
    await quick.send(b"POST /whatif HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[]")
    assert await quick.status() == b"400"  # there is nothing in it to ask about


@pytest.mark.usefixtures("impatient")
async def test_a_connection_between_two_requests_may_rest_longer(operations: Operations) -> None:
    line = await operations.connect()
    for _ in range(2):
        await line.send(PROBE)
        assert b"ok" in await line.reader.readuntil(b"ok\n")
        await asyncio.sleep(2 * SOON)
    await line.close()


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(lambda: b"GET /livez HTTP/1.1\r\nX: " + b"x" * 200_000, id="one long header"),
        pytest.param(lambda: b"GET /livez HTTP/1.1\r\n" + b"X: y\r\n" * 50_000, id="many headers"),
        pytest.param(lambda: b"GET /" + b"x" * 200_000, id="a long path"),
    ],
)
async def test_a_head_without_end_is_refused(operations: Operations, head: Callable[[], bytes]) -> None:
    line = await operations.connect()
    with collect_errors() as errors:
        await line.send(head())
        assert await line.refused()
        assert await operations.probe() == b"200"
        await wait_until(lambda: operations.connections == 0)
    assert errors == []


async def test_a_head_without_end_behind_a_request_that_is_at_work_is_no_failure(operations: Operations) -> None:
    line = await operations.connect()
    with collect_errors() as errors:
        await line.send(b"POST /deaf HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\nGET /" + b"x" * 200_000)
        assert await line.status() == b"200"
        await line.until_ended()
        await wait_until(lambda: operations.connections == 0 and not operations.server.server_state.tasks)
    assert errors == []


async def test_who_goes_on_sending_after_a_refusal_is_cut_off(operations: Operations) -> None:
    line = await operations.connect()
    await line.send(b"GET /")
    with pytest.raises(ConnectionError):
        await line.send_endlessly()
    await wait_until(lambda: operations.connections == 0)


@pytest.mark.usefixtures("impatient")
async def test_who_does_not_read_the_answer_is_ended_and_no_more_of_it_is_made(operations: Operations) -> None:
    line = await operations.connect()
    await line.send(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
    await wait_until(lambda: operations.connections == 1)
    assert await operations.probe() == b"200"
    await wait_until(lambda: operations.connections == 0)
    sent = operations.sent
    await asyncio.sleep(SOON)
    assert operations.sent == sent
    await line.close()


async def test_of_too_many_connections_the_idle_give_way_and_a_probe_is_always_answered(operations: Operations) -> None:
    reading = await operations.connect()
    await reading.send(b"POST /deaf HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    for _ in range(5 * FEW):
        await operations.connect()
    assert await operations.probe() == b"200"
    assert operations.connections <= FEW
    assert await reading.status() == b"200"


async def test_where_all_wait_for_answers_a_probe_is_answered_all_the_same(operations: Operations) -> None:
    waiting = [await operations.connect() for _ in range(2 * FEW)]
    for line in waiting:
        await line.send(b"POST /deaf HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    assert await operations.probe() == b"200"


async def test_who_asks_thousands_of_times_at_once_is_answered_a_few_and_others_meanwhile(
    operations: Operations,
) -> None:
    line = await operations.connect()
    line.writer.write(PROBE * 20_000)
    assert await operations.probe() == b"200"
    assert len(operations.server.server_state.tasks) <= 2
    await line.until_ended()
    await wait_until(lambda: operations.connections <= 1)
    assert operations.server.server_state.total_requests <= 20


async def test_requests_behind_one_another_are_all_answered(operations: Operations) -> None:
    line = await operations.connect()
    await line.send(PROBE * 16)
    async with asyncio.timeout(5):
        heard = b""
        while heard.count(b"HTTP/1.1 200 OK") < 16:
            heard += await line.reader.read(1 << 16)


async def test_an_answer_ends_with_its_connection_also_where_others_wait_behind_it(operations: Operations) -> None:
    line = await operations.connect()
    await line.send(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n" + PROBE)
    await wait_until(lambda: operations.streams == 1)
    await line.close()
    await wait_until(lambda: operations.streams == 0)
