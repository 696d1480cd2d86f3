"""Extenders that a scheduler elsewhere calls: they elect their leader themselves, and only that one is ready."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime

import pytest

from extender import process
from extender.lead import leadership as idleness
from serried.api.level import FALLBACK
from serried.kube.election import Lease, Timing
from serried.kube.retry import Backoff
from serried.kube.wire import LEASES, NODES, PODS, pod_groups
from tests.support.apiserver import FakeApiServer
from tests.support.builders import node, pod, pod_group
from tests.support.controller_harness import wait_until
from tests.support.extender_process import make_extender
from tests.support.faults import calls

FLAGS = ("--lease=serried-system/serried", "--lease-mode=hold")


class Pod:
    """An extender in a Pod of its own."""

    def __init__(self, server: FakeApiServer, name: str, *flags: str) -> None:
        self._client = server.client()
        self.extender = make_extender(self._client, *FLAGS, f"--lease-holder-prefix={name}", *flags)
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
    await wait_until(first.is_ready)
    second = Pod(server, "b")
    await wait_until(second.extender.feed.synced.is_set)
    await wait_until(lambda: second.extender.leadership.holder.startswith("a_"))
    assert not second.is_ready()
    assert second.extender.readiness()["synced"]
    await first.end()
    await wait_until(second.is_ready)
    assert second.extender.core.term.plans
    await second.end()


@pytest.mark.parametrize("jump", [-3600.0, 3600.0], ids=["back", "ahead"])
async def test_the_one_that_leads_goes_on_when_its_wall_clock_is_set(server: FakeApiServer, jump: float) -> None:
    """The leader reads off its own Lease whether it leads: until the next renewal it may believe that it does not."""
    usual = time.time
    offset = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: usual() + offset)
        first = Pod(server, "a")  # its own clock from now on, and nobody else's
    await wait_until(first.is_ready)
    second = Pod(server, "b")
    await wait_until(lambda: second.extender.leadership.holder.startswith("a_"))
    lease = first.extender.settings.lease
    assert lease is not None

    def told() -> float:
        """Return by how many seconds the clock that renews the Lease is off."""
        found = server.get_object(LEASES, lease.namespace, lease.name)
        assert found is not None
        return datetime.fromisoformat(found["spec"]["renewTime"]).timestamp() - usual()

    offset = jump
    await wait_until(lambda: abs(told() - jump) < 60.0)
    await wait_until(first.is_ready)
    assert first.extender.core.term.plans
    assert not second.extender.leadership.active
    assert second.extender.leadership.holder.startswith("a_")
    for each in (first, second):
        await each.end()


def never_end() -> Iterator[None]:
    while True:
        yield


async def test_one_whose_decision_never_ends_gives_the_lease_to_the_other(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Pod(server, "a")
    await wait_until(first.is_ready)
    second = Pod(server, "b")
    await wait_until(lambda: second.extender.leadership.holder.startswith("a_"))
    first.extender.core.group_scheduler.run_periodic_work = never_end  # type: ignore[method-assign, assignment]
    monkeypatch.setattr(idleness, "PATIENCE", Backoff(first=1.5, cap=1.5))  # the loop of the other looks each 0.5 s
    await wait_until(second.is_ready)
    assert second.extender.core.term.plans
    assert not first.extender.leadership.active
    for each in (first, second):
        await each.end()


async def test_so_does_one_that_holds_the_lease_and_cannot_see_that(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idleness, "PATIENCE", Backoff(first=0.3, cap=0.3))
    server.reject(lambda request: request.path.endswith("/leases"), 10**6, status=403)  # no list and no watch of it
    first = Pod(server, "a")
    lease = first.extender.settings.lease
    assert lease is not None

    def look() -> str:
        return str(
            (server.get_object(LEASES, lease.namespace, lease.name) or {"spec": {}})["spec"].get("holderIdentity")
        )

    server.add(LEASES, {"kind": "Lease", "metadata": {"name": lease.name, "namespace": lease.namespace}, "spec": {}})
    await wait_until(lambda: look().startswith("a_"))
    assert not first.extender.leadership.active
    await wait_until(lambda: look() == "")
    await first.end()


async def test_what_another_leader_may_have_set_meanwhile_is_known_no_more(server: FakeApiServer) -> None:
    pod = Pod(server, "a")
    await wait_until(pod.is_ready)
    pod.extender.holding.way = "gate"
    pod.extender.leadership.set_lease(Lease("b_1"))
    assert pod.extender.holding.way == ""
    await pod.end()


async def test_what_is_on_its_way_ends_before_the_lease_is_given_up(server: FakeApiServer) -> None:
    pod = Pod(server, "a")
    await wait_until(pod.is_ready)
    lease = pod.extender.settings.lease
    assert lease is not None
    holders: list[str] = []

    def look() -> str:
        return str((server.get_object(LEASES, lease.namespace, lease.name) or {})["spec"]["holderIdentity"])

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


async def test_a_nomination_on_its_way_ends_before_the_lease_is_given_up(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader clears the nominations that are left of ours, so none of them may arrive after that."""
    gate = server.hold(calls("PATCH", "/pods/m0/status"))
    first = Pod(server, "a", "--stamp=always")
    await wait_until(first.is_ready)
    lease = first.extender.settings.lease
    assert lease is not None
    server.add(pod_groups(FALLBACK.group, FALLBACK.version), pod_group("g").gang(1).raw())
    server.add(PODS, pod("m0").cpu(1).scheduler("serried").in_group("g").raw())
    await asyncio.wait_for(gate.reached.wait(), 10)
    first.extender.core.group_scheduler.run_periodic_work = never_end  # type: ignore[method-assign, assignment]
    monkeypatch.setattr(idleness, "PATIENCE", Backoff(first=0.3, cap=0.3))
    await wait_until(
        lambda: (server.get_object(LEASES, lease.namespace, lease.name) or {})["spec"]["holderIdentity"] == ""
    )
    gate.open()
    await asyncio.sleep(0.1)
    assert not (server.get_object(PODS, "default", "m0") or {}).get("status", {}).get("nominatedNodeName")
    await first.end()


async def test_a_leader_that_cannot_write_the_endpoint_slice_says_so(server: FakeApiServer) -> None:
    """The API server serves no EndpointSlices here."""
    flags = ("--endpoint-slice=serried-system/serried-verbs", "--endpoint-address=10.0.0.1")
    pod = Pod(server, "a", *flags)
    await wait_until(pod.is_ready)
    await wait_until(lambda: bool(pod.extender.selfcheck.describe()["endpointSlice"]["obstacle"]))
    await pod.end()
