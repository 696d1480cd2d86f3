"""One Lease, two extenders that want it, and one of them does not plan."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from extender.lead.by_service import REST_SECONDS, Candidacy
from extender.lead.leadership import Leadership
from serried.api.names import Key
from serried.kube.client import ApiClient
from serried.kube.election import Election, Lease, Timing, decode_lease
from serried.kube.wire import LEASES
from tests.support.apiserver import FakeApiServer
from tests.support.clock import Clock
from tests.support.controller_harness import wait_until
from tests.support.faults import calls

LEASE = Key("serried-system", "serried-extender")
TIMING = Timing(retry=0.001)
"""Retries without a wait in real time; Leases and pauses run out by the clock of the story."""


class Extender:
    """A candidate for the Lease; the story sets whether it plans."""

    def __init__(self, scene: "Scene", name: str) -> None:
        self.plans = True
        self.asked = 0
        self.heard: list[bool] = []
        """One entry for each time that it looked whether it plans: True if it held the Lease."""

        self.steps: list[str] = []
        self.leadership = Leadership(name, self._turn, scene.clock, scene.clock)
        self.election = Election(scene.client, LEASE, name, clock=scene.clock, wall=scene.clock, timing=TIMING)
        self._scene = scene
        candidacy = Candidacy(
            self.election, self.leadership, self._may_keep_leading, self._settle, scene.clock, check_seconds=0.001
        )
        self.task = asyncio.create_task(candidacy.run())

    def see(self) -> None:
        """The watch of the Lease catches up."""
        lease = decode_lease(self._scene.lease)
        assert isinstance(lease, Lease)
        self.leadership.set_lease(lease)

    @property
    def holds(self) -> bool:
        return bool(self._scene.holder == self.election.identity)

    def _may_keep_leading(self) -> bool:
        self.asked += 1
        self.heard.append(self.election.leads())
        return self.plans or not self.election.leads()

    def _turn(self, active: bool) -> None:  # noqa: FBT001
        self.steps.append("leads" if active else "leads no more")

    async def _settle(self) -> None:
        self.steps.append(f"settles, {'and holds the Lease' if self.holds else 'too late'}")


class Scene:
    def __init__(self, server: FakeApiServer, client: ApiClient) -> None:
        self.server = server
        self.client = client
        self.clock = Clock(1_700_000_000.0)
        self._extenders: list[Extender] = []

    def begin(self, name: str) -> Extender:
        self._extenders.append(Extender(self, name))
        return self._extenders[-1]

    @property
    def lease(self) -> dict[str, Any]:
        return self.server.get_object(LEASES, LEASE.namespace, LEASE.name) or {"metadata": {"name": LEASE.name}}

    @property
    def holder(self) -> str:
        return str(self.lease.get("spec", {}).get("holderIdentity", ""))

    async def look(self, extender: Extender) -> None:
        """Until it has looked several times whether it plans."""
        asked = extender.asked
        await wait_until(lambda: extender.asked >= asked + 5)

    async def ask(self) -> None:
        """Until somebody has asked several times for the Lease."""
        asks = len(self.server.list_requests(calls("GET", "/leases")))
        await wait_until(lambda: len(self.server.list_requests(calls("GET", "/leases"))) >= asks + 5)

    async def close(self) -> None:
        tasks = [each.task for each in self._extenders]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with FakeApiServer() as server, server.client() as client:
        made = Scene(server, client)
        yield made
        await made.close()


async def test_one_that_does_not_plan_gives_the_lease_to_the_other_and_gets_it_when_that_one_has_gone(
    scene: Scene,
) -> None:
    first = scene.begin("a")
    await wait_until(lambda: first.holds)
    second = scene.begin("b")
    first.plans = False
    await wait_until(lambda: second.holds)
    first.plans = True
    scene.clock.advance(REST_SECONDS)
    await scene.ask()
    assert second.holds
    second.task.cancel()
    await asyncio.gather(second.task, return_exceptions=True)
    await second.election.release()
    await wait_until(lambda: first.holds)


async def test_where_there_is_no_other_it_has_the_lease_again_after_its_rest(scene: Scene) -> None:
    only = scene.begin("a")
    await wait_until(lambda: only.holds)
    only.plans = False
    await wait_until(lambda: scene.holder == "")
    only.plans = True
    scene.clock.advance(REST_SECONDS - 0.1)
    await scene.look(only)
    assert scene.holder == ""
    scene.clock.advance(0.2)
    await wait_until(lambda: only.holds)
    only.see()
    assert only.leadership.leads()


async def test_what_is_on_its_way_ends_before_the_other_may_begin_though_the_watch_shows_the_lease_late(
    scene: Scene,
) -> None:
    first = scene.begin("a")
    await wait_until(lambda: first.holds)
    first.see()
    assert first.leadership.leads()
    shown = decode_lease(scene.lease)
    assert isinstance(shown, Lease)
    first.plans = False
    await wait_until(lambda: scene.holder == "")
    assert first.steps == ["leads", "leads no more", "settles, and holds the Lease"]
    first.leadership.set_lease(shown)
    assert not first.leadership.leads()
    assert not first.leadership.active


async def test_one_that_plans_keeps_it(scene: Scene) -> None:
    first = scene.begin("a")
    await wait_until(lambda: first.holds)
    second = scene.begin("b")
    await scene.ask()
    await scene.look(first)
    assert (first.holds, second.holds, first.steps) == (True, False, [])


async def test_the_end_of_a_lost_term_is_reported_to_those_that_count_its_time(scene: Scene) -> None:
    first = scene.begin("a")
    await wait_until(lambda: first.holds)
    taken = {**scene.lease["spec"], "holderIdentity": "b_1"}
    scene.server.patch(LEASES, LEASE.namespace, LEASE.name, {"spec": taken})
    await wait_until(lambda: first.heard[-1:] == [False])
    await scene.ask()
    assert (first.heard[-2:], first.steps, scene.holder) == ([True, False], [], "b_1")
