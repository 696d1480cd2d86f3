"""Addresses of the listeners on machines with IPv4, with IPv6 and with both."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI

from extender.core.http.server import Listener, Reply, Routes
from serried.ops.server import Server, listen_everywhere, make_server, ops_routes
from serried.settings import controller_settings


def has_ipv6_loopback() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


ipv6 = pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6 loopback address")


@asynccontextmanager
async def operations(address: str) -> AsyncIterator[int]:
    """The operations listener of a process with this flag; its port."""
    app = FastAPI()
    app.include_router(ops_routes(dict, lambda: b""))
    server = make_server(app, *controller_settings(["--ops-listen", address], {}).ops_listen)
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


async def ask(host: str, port: int) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"http://{host}:{port}/livez")).status_code


class TestOperations:
    @pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("[::1]", marks=ipv6)])
    async def test_without_a_host_every_address_answers(self, host: str) -> None:
        async with operations(":0") as port:
            assert await ask(host, port) == 200

    async def test_a_machine_without_ipv6_answers_on_ipv4(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
        async with operations(":0") as port:
            assert await ask("127.0.0.1", port) == 200

    def test_where_ipv6_is_switched_off_ipv4_is_listened_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        create = socket.create_server

        def create_ipv4(address: tuple[str, int], **how: object) -> socket.socket:
            if how.get("family") == socket.AF_INET6:
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            return create(address)

        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: True)
        monkeypatch.setattr(socket, "create_server", create_ipv4)
        with listen_everywhere(0) as listener:
            assert listener.family == socket.AF_INET

    @ipv6
    async def test_one_address_is_that_address_alone(self) -> None:
        async with operations("[::1]:0") as port:
            assert await ask("[::1]", port) == 200
            with pytest.raises(httpx.ConnectError):
                await ask("127.0.0.1", port)

    async def test_a_port_that_is_taken_is_said(self) -> None:
        with listen_everywhere(0) as taken, pytest.raises(OSError, match="in use"):
            listen_everywhere(taken.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=ipv6)])
async def test_the_verbs_answer_on_either_loopback_address(host: str) -> None:
    listener = Listener(Routes({b"/filter": Reply}, {}, 100))
    port = await listener.open(host, 0)
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        assert (await client.post("/filter", content=b"{}")).content == b"{}"
    await listener.close()


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("[::1]", marks=ipv6)])
async def test_the_verbs_answer_on_every_address_if_they_are_told_so(host: str) -> None:
    listener = Listener(Routes({b"/filter": Reply}, {}, 100))
    port = await listener.open("::", 0)
    try:
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False) as client:
            assert (await client.post("/filter", content=b"{}")).content == b"{}"
    finally:
        await listener.close()
