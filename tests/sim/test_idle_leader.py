"""A leader that cannot plan: its scheduler is told, so that the Lease goes to the other pair."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI

from extender.lead import leadership as idleness
from extender.lead import leadership as takeover
from extender.process import Extender
from serried import feed
from serried.api.names import write_time
from serried.kube import wire
from serried.kube.reflector import WatchTiming
from serried.kube.retry import Backoff
from serried.kube.wire import LEASES, NODES
from tests.support.apiserver import FakeApiServer
from tests.support.builders import node
from tests.support.controller_harness import wait_until
from tests.support.extender_process import run_extender
from tests.support.faults import calls

PATIENCE = 0.5
LONGER_THAN_PATIENCE = 0.8
PODS = calls("GET", "/pods")
RECORDS = calls("GET", "/reservations")


def lease(holder: str) -> dict[str, object]:
    spec = {"holderIdentity": holder, "renewTime": write_time(time.time()), "leaseDurationSeconds": 3600}
    return {"metadata": {"name": "serried", "namespace": "serried-system"}, "spec": spec}


def find_port() -> int:
    """Return a port on which no process listens at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Scene:
    """An extender, and the probe of the scheduler beside it."""

    def __init__(self, extender: Extender) -> None:
        self.extender = extender
        self._app = FastAPI()
        for router in extender.routes():
            self._app.include_router(router)

    async def probe(self) -> tuple[int, str]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://x") as client:
            answer = await client.get("/livez/pair")
        return answer.status_code, answer.text

    async def hears(self, status: int) -> None:
        """Wait until the probe gets this status."""
        async with asyncio.timeout(10.0):
            while (await self.probe())[0] != status:  # noqa: ASYNC110 - it is seen from outside
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(server: FakeApiServer, holder: str) -> AsyncIterator[Scene]:
    server.add(NODES, node("n1").cpu(2).raw())
    server.add(LEASES, lease(holder))
    flags = ("--lease=serried-system/serried", "--lease-holder-prefix=here", f"--filter-listen=127.0.0.1:{find_port()}")
    async with run_extender(server, *flags) as extender:
        yield Scene(extender)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idleness, "PATIENCE", Backoff(first=PATIENCE, cap=2.0))
    monkeypatch.setattr(feed, "_WATCH_TIMING", WatchTiming(unserved=0.02, unserved_after=0.02, absent_after=0.02))
    monkeypatch.setattr(takeover, "_BACKOFF", Backoff(first=0.02, cap=0.05))


async def test_the_scheduler_of_a_leader_that_may_not_see_pods_is_told() -> None:
    async with FakeApiServer() as server:
        server.reject(PODS, 10**6, status=403)
        async with running(server, "here_1") as scene:
            await wait_until(lambda: scene.extender.leadership.active)
            await scene.hears(503)
            assert await scene.probe() == (503, "[+]filter ok\n[+]scheduler ok\n[-]planning not ready\n")
            server.recover()
            await scene.hears(200)


async def test_the_scheduler_of_a_leader_that_is_shown_no_changes_any_more_is_told() -> None:
    async with FakeApiServer() as server, running(server, "here_1") as scene:
        await wait_until(lambda: scene.extender.core.term.plans)
        await scene.hears(200)
        server.reject(PODS, 10**6, status=403)
        server.break_watches(wire.PODS)
        await scene.hears(503)
        server.recover()
        await scene.hears(200)


async def test_a_watch_that_ends_now_and_then_is_no_reason_to_tell_it() -> None:
    async with FakeApiServer() as server, running(server, "here_1") as scene:
        await wait_until(lambda: scene.extender.core.term.plans)
        begin = scene.extender.core.loop.planned
        while scene.extender.core.loop.planned < begin + LONGER_THAN_PATIENCE:
            server.end_watches(wire.PODS)
            await server.await_watch(wire.PODS)
            assert (await scene.probe())[0] == 200


async def test_the_scheduler_of_a_standby_that_may_not_see_them_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeApiServer() as server:
        server.reject(PODS, 10**6, status=403)
        async with running(server, "there_1") as scene:
            monkeypatch.setattr(idleness, "PATIENCE", Backoff(first=0.0, cap=0.0))
            await wait_until(lambda: scene.extender.leadership.holder)
            await scene.hears(200)


async def test_nor_is_that_of_a_leader_that_has_said_what_keeps_it_from_planning() -> None:
    async with FakeApiServer() as server:
        server.reject(RECORDS, 10**6, status=403)
        async with running(server, "here_1") as scene:
            await wait_until(lambda: scene.extender.core.term.obstacle)
            begin = scene.extender.core.loop.planned
            await wait_until(lambda: scene.extender.core.loop.planned > begin + LONGER_THAN_PATIENCE)
            assert (await scene.probe())[0] == 200


async def test_the_scheduler_of_a_leader_is_told_when_one_decision_never_ends() -> None:
    def never_end() -> Iterator[None]:
        while True:
            yield

    async with FakeApiServer() as server, running(server, "here_1") as scene:
        await wait_until(lambda: scene.extender.core.term.plans)
        await scene.hears(200)
        scene.extender.core.group_scheduler.run_periodic_work = never_end  # type: ignore[method-assign, assignment]
        await scene.hears(503)


async def test_a_scheduler_that_calls_an_extender_which_cannot_see_its_lease_is_told() -> None:
    async with FakeApiServer() as server:
        server.reject(calls("GET", "/leases"), 10**6, status=403)
        async with running(server, "here_1") as scene:
            await scene.hears(200)
            assert scene.extender.verbs.filter(b"{}").status == 503
            await scene.hears(503)
            assert not scene.extender.leadership.active
