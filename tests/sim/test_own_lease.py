"""Extenders that a scheduler elsewhere calls: they elect their leader themselves, and only that one is ready."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extender import process
from extender.process import Extender
from serried.kube.election import Timing
from serried.kube.wire import LEASES, NODES
from serried.model.lease import Lease
from serried.model.level import FALLBACK
from serried.observe.prometheus import PrometheusExtenderMetrics
from serried.settings import extender_settings
from tests.support.apiserver import FakeApiServer
from tests.support.builders import node
from tests.support.controller_harness import until

FLAGS = ["--lease-mode=hold", *(f"--{name}-listen=127.0.0.1:0" for name in ("filter", "bind", "ops"))]


class Pod:
    """An extender in a Pod of its own."""

    def __init__(self, server: FakeApiServer, name: str) -> None:
        self._client = server.client()
        settings = extender_settings([*FLAGS, "--lease-holder-prefix", name], {})
        self.extender = Extender(settings, self._client, FALLBACK, PrometheusExtenderMetrics())
        self._task = asyncio.create_task(self.extender.run())

    def is_ready(self) -> bool:
        return all(self.extender.readiness().values())

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    monkeypatch.setattr(process, "TIMING", Timing(retry=0.01))
    async with FakeApiServer() as made:
        made.add(NODES, node("n1").cpu(8).raw())
        yield made


async def test_one_leads_and_is_ready_and_the_next_one_when_it_has_gone(server: FakeApiServer) -> None:
    first = Pod(server, "a")
    await until(first.is_ready)
    second = Pod(server, "b")
    await until(second.extender.feed.synced.is_set)
    await until(lambda: second.extender.leadership.holder.startswith("a_"))
    assert not second.is_ready()
    assert second.extender.readiness()["synced"]
    await first.end()
    await until(second.is_ready)
    assert second.extender.core.term.plans
    await second.end()


async def test_what_another_leader_may_have_set_meanwhile_is_known_no_more(server: FakeApiServer) -> None:
    pod = Pod(server, "a")
    await until(pod.is_ready)
    pod.extender.holding.way = "gate"
    pod.extender.leadership.take(Lease("b_1"))
    assert pod.extender.holding.way == ""
    await pod.end()


async def test_what_is_on_its_way_ends_before_the_lease_is_given_up(server: FakeApiServer) -> None:
    pod = Pod(server, "a")
    await until(pod.is_ready)
    lease = pod.extender.settings.lease
    assert lease is not None
    holders: list[str] = []

    def look() -> str:
        return str((server.look(LEASES, lease.namespace, lease.name) or {})["spec"]["holderIdentity"])

    async def bind() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            holders.append(look())

    pod.extender.core.tasks.spawn(bind())
    await asyncio.sleep(0)
    await pod.end()
    assert holders == [pod.extender.leadership.holder]
    assert look() == ""
