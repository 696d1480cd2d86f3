"""Clients that open much and send little: they are ended, and others are served meanwhile."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extender.core.http import server as listener
from extender.core.http.server import Connections
from tests.support.listener import SOON, Client, ListenerHarness, post, wait_until

FEW = 20


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests have a moment to arrive."""
    monkeypatch.setattr(listener, "_ARRIVAL_SECONDS", SOON)


async def drip(client: Client, data: bytes) -> None:
    """A byte now and then, for longer than a request may take."""
    try:
        for byte in data:
            await client.send(bytes([byte]))
            await asyncio.sleep(SOON / 10)
    except ConnectionError:
        pass


@pytest.mark.usefixtures("short")
class TestArrival:
    @pytest.mark.parametrize(
        "sent",
        [
            pytest.param(b"P", id="one byte"),
            pytest.param(b"POST /quick HTTP/1.1\r\nHost: x\r\n", id="half a head"),
            pytest.param(post("/quick", b"x" * 100)[:-1], id="a body without its end"),
            pytest.param(b"POST /quick HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", id="half a chunk"),
            pytest.param(post("/quick") + b"POST /", id="half a request behind a whole one"),
        ],
    )
    async def test_a_request_that_does_not_arrive_is_408_and_the_end(
        self, harness: ListenerHarness, client: Client, sent: bytes
    ) -> None:
        await client.send(sent)
        other = await harness.connect()
        await other.send(post("/quick", b"ab"))
        assert await other.body() == {"size": 2}
        if sent.startswith(post("/quick")):
            assert await client.body() == {"size": 0}
        status, headers, body = await client.reply()
        assert (status, headers["connection"]) == (408, "close")
        assert body == {"Error": "serried: the request has not arrived in time"}
        await client.close()
        await other.close()
        await wait_until(lambda: len(harness.peers) == 0)

    async def test_a_byte_now_and_then_does_not_help(self, client: Client) -> None:
        dripping = asyncio.create_task(drip(client, post("/quick", b"x" * 200)))
        assert (await client.reply())[0] == 408
        await dripping

    async def test_a_connection_between_two_requests_may_rest_longer(self, client: Client) -> None:
        await client.send(post("/quick", b"a"))
        assert await client.body() == {"size": 1}
        await asyncio.sleep(2 * SOON)
        await client.send(post("/quick", b"ab"))
        assert await client.body() == {"size": 2}

    async def test_a_call_may_be_open_for_longer(self, harness: ListenerHarness, client: Client) -> None:
        await client.send(post("/slow", b"s"))
        await asyncio.sleep(2 * SOON)
        harness.release.set()
        assert await client.body() == {"slow": 1}


class TestCrowds:
    @pytest.fixture
    async def harness(self) -> AsyncIterator[ListenerHarness]:
        made = await ListenerHarness(Connections(FEW)).open()
        yield made
        await made.close()

    async def test_of_too_many_the_one_that_was_of_use_longest_ago_gives_way(
        self, harness: ListenerHarness, client: Client
    ) -> None:
        await client.send(post("/slow", b"waits"))
        await harness.await_requests(1)
        crowd = [await harness.connect() for _ in range(3 * FEW)]
        used = crowd[-FEW + 2]
        await used.send(post("/quick", b"a"))
        assert await used.body() == {"size": 1}
        late = [await harness.connect() for _ in range(FEW - 2)]
        for each in (used, late[-1]):
            await each.send(post("/quick", b"ab"))
            assert await each.body() == {"size": 2}
        await wait_until(lambda: len(harness.peers) <= FEW)
        harness.release.set()
        assert await client.body() == {"slow": 5}  # an open call does not give way
        for each in (*crowd, *late):
            await each.close()
        await wait_until(lambda: len(harness.peers) == 1)

    async def test_where_all_have_open_calls_the_newest_gives_way(self, harness: ListenerHarness) -> None:
        calls = [await harness.connect() for _ in range(FEW)]
        for each in calls:
            await each.send(post("/slow", b"s"))
        await harness.await_requests(FEW)
        one_more = await harness.connect()
        assert await one_more.closed()
        await one_more.close()
        harness.release.set()
        for each in calls:
            assert await each.body() == {"slow": 1}
            await each.close()
