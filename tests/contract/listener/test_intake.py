"""One port for operations: plain HTTP, TLS, and connections that are neither."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI, Request

from serried.ops.server import MAX_PER_ADDRESS, Server, make_server
from serried.ops.tls import make_self_signed
from tests.support.listener import wait_until

LOOPBACK = "127.0.0.1"


@asynccontextmanager
async def serve(tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Serve an app that answers with the scheme of the request. Yield the port."""
    app = FastAPI()

    @app.get("/")
    async def show(request: Request) -> str:
        return request.url.scheme

    server = make_server(app, LOOPBACK, 0, tls=tls)
    serving = asyncio.create_task(server.serve())
    try:
        yield await find_port(server)
    finally:
        server.should_exit = True
        await serving


async def find_port(server: Server) -> int:
    async with asyncio.timeout(10):
        while not server.started:  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.005)
    return int(server.servers[0].sockets[0].getsockname()[1])


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with serve(make_self_signed()) as found:
        yield found


async def ask(scheme: str, port: int) -> str:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with httpx.AsyncClient(trust_env=False, verify=context) as client:
        return str((await client.get(f"{scheme}://{LOOPBACK}:{port}/")).json())


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_both_are_answered_on_one_port(port: int, scheme: str) -> None:
    assert await ask(scheme, port) == scheme


async def test_where_there_is_no_certificate_tls_is_refused_and_http_answered() -> None:
    async with serve(None) as port:
        with pytest.raises(httpx.TransportError):
            await ask("https", port)
        assert await ask("http", port) == "http"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x00\x01\x02", id="bytes that are no HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="half of a handshake"),
        pytest.param(b"\x16nonsense" * 100, id="a handshake that is none"),
        pytest.param(b"GET / HT", id="half of a request"),
    ],
)
async def test_what_is_neither_harms_nobody(port: int, sent: bytes) -> None:
    _, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(sent)
    await writer.drain()
    assert await ask("https", port) == "https"
    writer.transport.abort()
    assert await ask("http", port) == "http"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"G", id="the begin of a request"),
        pytest.param(b"\x16\x03\x01", id="the begin of a handshake"),
    ],
)
async def test_those_who_say_little_give_way_to_who_comes_last_from_their_address(port: int, sent: bytes) -> None:
    silent = [await asyncio.open_connection(LOOPBACK, port) for _ in range(MAX_PER_ADDRESS + 9)]
    try:
        for _, writer in silent:
            writer.write(sent)
        assert await ask("http", port) == "http"
        # Who said something comes to the server in any order, so it is not said which of them have to go.
        await wait_until(lambda: count_ended(silent) >= 9)
        assert count_ended(silent) <= 10  # the ninth is over, or the one that asked had to have room as well
    finally:
        for _, writer in silent:
            writer.transport.abort()


def count_ended(connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> int:
    return sum(reader.at_eof() or reader.exception() is not None for reader, _ in connections)


async def test_those_of_one_address_who_say_nothing_take_nothing_from_another(port: int) -> None:
    other = await asyncio.open_connection(LOOPBACK, port, local_addr=("127.0.0.2", 0))
    silent = [await asyncio.open_connection(LOOPBACK, port) for _ in range(2 * MAX_PER_ADDRESS)]
    other[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(5):
        assert (await other[0].readline()).startswith(b"HTTP/1.1 200")
    for _, writer in (other, *silent):
        writer.transport.abort()


async def test_a_listener_that_ends_takes_nobody_in_any_more() -> None:
    async with serve(make_self_signed()) as port:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    with pytest.raises(ConnectionError):
        await asyncio.open_connection(LOOPBACK, port)
    writer.transport.abort()
