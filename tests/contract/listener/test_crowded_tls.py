"""Clients that open hundreds of TLS handshakes, or stall in one: the verbs still serve other clients."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from extender.core.http import server
from extender.core.http.server import Connections, Listener, Reply, Routes
from extender.process import secure_verbs
from serried.ops import server as intake
from serried.ops.server import IntakeLimits
from serried.settings import extender_settings
from tests.support.certificates import Authority
from tests.support.listener import Client, post, wait_until

BOUNDS = IntakeLimits(per_address=4, total=6)
HALF = b"\x16\x03\x01\x02\x00\x01\x00"

ONE = "127.0.0.1"
OTHER = "127.0.0.2"
THIRD = "127.0.0.3"


class Turns:
    """Turns that are given by hand."""

    def __init__(self) -> None:
        self.asked = 0
        self._given = asyncio.Semaphore(0)

    async def take(self) -> None:
        self.asked += 1
        await self._given.acquire()

    def give(self, count: int) -> None:
        for _ in range(count):
            self._given.release()


class Verbs:
    """A listener by TLS with one verb, and those who come to it."""

    def __init__(self, directory: Path) -> None:
        ours = Authority(directory / "server")
        theirs = Authority(directory / "clients")
        certificate, key = ours.sign("serried")
        flags = [f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}", f"--client-ca-file={theirs.file}"]
        security = secure_verbs(extender_settings(flags, {}))
        assert security is not None
        self.turns = Turns()
        self.peers = Connections()
        self.listener = Listener(Routes({b"/filter": Reply}, {}, 100), self.peers, security, self.turns.take)
        self.port = 0
        self._trust = ssl.create_default_context(cafile=str(ours.file))
        self._trust.load_cert_chain(*theirs.sign("system:kube-scheduler"))
        self._clients: list[Client] = []

    async def open(self) -> "Verbs":
        self.port = await self.listener.open(ONE, 0)
        return self

    async def connect(self, source: str = ONE, sent: bytes = b"") -> Client:
        """Open a connection from this address, and send these bytes."""
        client = Client(*await asyncio.open_connection(ONE, self.port, local_addr=(source, 0)))
        self._clients.append(client)
        if sent:
            with suppress(ConnectionError):
                await client.send(sent)
        return client

    async def call(self, source: str = ONE) -> Client:
        """A caller with a good certificate, who has been answered; the connection stays open."""
        made = await asyncio.open_connection(
            ONE, self.port, ssl=self._trust, server_hostname="localhost", local_addr=(source, 0)
        )
        client = Client(*made)
        self._clients.append(client)
        await client.send(post("/filter", b"{}"))
        assert await client.body() == {}
        return client

    async def close(self) -> None:
        self.turns.give(1000)
        for client in self._clients:
            await client.close()
        await self.listener.close()


@pytest.fixture
async def verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Verbs]:
    monkeypatch.setattr(server, "_limit_handshakes", lambda: BOUNDS)
    made = await Verbs(tmp_path).open()
    yield made
    await made.close()


def count_open(clients: list[Client]) -> int:
    return sum(not client.reader.at_eof() and client.reader.exception() is None for client in clients)


@pytest.mark.parametrize("sent", [pytest.param(b"", id="nothing"), pytest.param(HALF, id="half of a handshake")])
async def test_one_address_has_so_many_on_their_way_in_and_another_is_served(verbs: Verbs, sent: bytes) -> None:
    verbs.turns.give(1000)
    crowd = [await verbs.connect(ONE, sent) for _ in range(5 * BOUNDS.per_address)]
    await wait_until(lambda: count_open(crowd) == BOUNDS.per_address)
    await verbs.call(OTHER)
    assert count_open(crowd) == BOUNDS.per_address
    assert len(verbs.peers) == 1


async def test_of_too_many_the_oldest_goes_of_the_address_that_has_most(verbs: Verbs) -> None:
    verbs.turns.give(1000)
    crowd = [await verbs.connect(ONE, HALF) for _ in range(BOUNDS.per_address)]
    few = [await verbs.connect(OTHER, HALF) for _ in range(BOUNDS.total - BOUNDS.per_address)]
    late = [await verbs.connect(THIRD, HALF)]
    assert await crowd[0].closed()
    assert [count_open(clients) for clients in (crowd[1:], few, late)] == [BOUNDS.per_address - 1, len(few), 1]


async def test_who_has_come_in_counts_no_more(verbs: Verbs) -> None:
    verbs.turns.give(1000)
    for _ in range(2 * BOUNDS.total):
        await verbs.call()
    assert len(verbs.peers) == 2 * BOUNDS.total


async def test_those_who_hang_up_or_are_refused_make_room(verbs: Verbs) -> None:
    verbs.turns.give(1000)
    for sent in (b"", HALF, b"\x16nonsense" * 100, post("/filter", b"{}")):
        crowd = [await verbs.connect(ONE, sent) for _ in range(BOUNDS.per_address)]
        for client in crowd:
            await client.close()
        async with asyncio.timeout(10):
            while True:
                with suppress(OSError, asyncio.IncompleteReadError):
                    await (await verbs.call()).close()
                    break
                await asyncio.sleep(0.005)


async def test_each_handshake_waits_for_its_turn_and_one_address_follows_the_other(verbs: Verbs) -> None:
    crowd = [await verbs.connect(ONE, HALF) for _ in range(BOUNDS.per_address)]
    await wait_until(lambda: verbs.turns.asked == 1)
    calling = asyncio.create_task(verbs.call(OTHER))
    await wait_until(lambda: verbs.turns.asked == 2)
    verbs.turns.give(2)
    await calling
    await wait_until(lambda: verbs.turns.asked == 3)
    assert count_open(crowd) == BOUNDS.per_address


async def test_one_address_has_so_many_handshakes_under_way(verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_HANDSHAKES_PER_ADDRESS", 2)
    verbs.turns.give(1000)
    crowd = [await verbs.connect(ONE, HALF) for _ in range(BOUNDS.per_address)]
    await verbs.call(OTHER)
    await wait_until(lambda: verbs.turns.asked == 3)
    for client in crowd:
        await client.close()
    await wait_until(lambda: verbs.turns.asked == 5)


async def test_a_handshake_whose_turn_does_not_come_is_given_up(verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_HANDSHAKE_WAIT_SECONDS", 0.01)
    assert await (await verbs.connect(ONE, HALF)).closed()
