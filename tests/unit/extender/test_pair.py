"""The probes of a Pod check that filter would answer, and that the scheduler is alive."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI

from extender.core.http.server import Listener, Routes
from extender.lead import pair as module
from extender.lead.pair import Pair
from serried.settings import Address
from tests.support.clock import Clock
from tests.support.controller_harness import wait_until

NOBODY = Address("127.0.0.1", 1)
HOST = "127.0.0.1"


def plans() -> bool:
    return True


@asynccontextmanager
async def filtering() -> AsyncIterator[Address]:
    listener = Listener(Routes({}, {}, 1000))
    try:
        yield Address(HOST, await listener.open(HOST, 0))
    finally:
        await listener.close()


@asynccontextmanager
async def saying(said: bytes) -> AsyncIterator[str]:
    """A scheduler whose ``/livez`` says this; for b"" it accepts, and says nothing."""
    stopped = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        if said:
            writer.write(said)
        else:
            await stopped.wait()
        writer.close()

    server = await asyncio.start_server(answer, HOST, 0)
    try:
        yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}/livez"
    finally:
        stopped.set()
        server.close()


async def ask(pair: Pair, path: str) -> tuple[int, str]:
    app = FastAPI()
    app.include_router(pair.routes())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        answer = await client.get(path)
    return answer.status_code, answer.text


class Counted(Pair):
    """A pair whose checks are counted; each waits while ``open`` is not set."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(NOBODY, "", plans, clock=clock)
        self.checks: Counter[str] = Counter()
        self.works = True
        self.open = asyncio.Event()
        self.open.set()

    async def check_filter(self) -> bool:
        return await self._count("filter")

    async def check_scheduler(self) -> bool:
        return await self._count("scheduler")

    async def _count(self, name: str) -> bool:
        self.checks[name] += 1
        await self.open.wait()
        return self.works


OK = b"HTTP/1.1 200 OK\r\n\r\n"


async def test_a_pair_that_works_may_go_on() -> None:
    async with filtering() as address, saying(OK) as scheduler:
        pair = Pair(address, scheduler, plans)
        assert await ask(pair, "/livez/pair") == (200, "[+]filter ok\n[+]scheduler ok\n[+]planning ok\n")
        assert await ask(pair, "/livez/filter") == (200, "[+]filter ok\n")


async def test_without_filter_neither_does_the_scheduler_start_nor_go_on() -> None:
    async with saying(OK) as scheduler:
        pair = Pair(NOBODY, scheduler, plans)
        assert await ask(pair, "/livez/pair") == (503, "[-]filter not ready\n[+]scheduler ok\n[+]planning ok\n")
        assert (await ask(pair, "/livez/filter"))[0] == 503


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"HTTP/1.1 500 Internal Server Error\r\n\r\n", id="that says it is not alive"),
        pytest.param(b"", id="that says nothing"),
        pytest.param(b"\r\n", id="that says nonsense"),
    ],
)
async def test_a_scheduler_is_ended(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.3)
    async with filtering() as address, saying(said) as scheduler:
        assert await ask(Pair(address, scheduler, plans), "/livez/pair") == (
            503,
            "[+]filter ok\n[-]scheduler not ready\n[+]planning ok\n",
        )


async def test_a_scheduler_whose_extender_cannot_plan_is_ended() -> None:
    async with filtering() as address, saying(OK) as scheduler:
        pair = Pair(address, scheduler, lambda: False)
        assert await ask(pair, "/livez/pair") == (503, "[+]filter ok\n[+]scheduler ok\n[-]planning not ready\n")
        assert (await ask(pair, "/livez/filter"))[0] == 200


async def test_a_scheduler_that_is_not_to_be_asked_is_not() -> None:
    async with filtering() as address:
        assert (await ask(Pair(address, "", plans), "/livez/pair"))[0] == 200


class TestManyWhoAsk:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def pair(self, clock: Clock) -> Counted:
        return Counted(clock)

    @pytest.mark.parametrize("path", ["/livez/pair", "/livez/filter"])
    async def test_share_one_check_which_counts_for_a_moment(self, pair: Counted, clock: Clock, path: str) -> None:
        await asyncio.gather(*(ask(pair, path) for _ in range(20)))
        clock.advance(0.4)
        await ask(pair, path)
        assert set(pair.checks.values()) == {1}
        clock.advance(0.2)
        assert await ask(pair, "/livez/pair") == (200, "[+]filter ok\n[+]scheduler ok\n[+]planning ok\n")
        assert pair.checks["filter"] == 2

    async def test_hear_no_later_than_that_of_what_has_ended(self, pair: Counted, clock: Clock) -> None:
        assert (await ask(pair, "/livez/pair"))[0] == 200
        pair.works = False
        clock.advance(1.0)
        assert (await ask(pair, "/livez/pair"))[0] == 503

    async def test_are_none_the_worse_for_one_who_hangs_up(self, pair: Counted) -> None:
        pair.open.clear()
        asks = [asyncio.create_task(ask(pair, "/livez/pair")) for _ in range(2)]
        await wait_until(lambda: bool(pair.checks["filter"]))
        asks[0].cancel()
        pair.open.set()
        assert (await asks[1])[0] == 200
        assert pair.checks["filter"] == 1
