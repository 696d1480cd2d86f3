"""Leader election: one Lease, several candidates, and a clock that the test moves."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from serried.api.names import Key
from serried.kube.client import ApiClient
from serried.kube.election import Election, LeaseLostError, Timing
from serried.kube.wire import JSON, LEASES
from tests.support.apiserver import FakeApiServer
from tests.support.clock import Clock
from tests.support.faults import When, calls

LEASE = Key("serried-system", "serried-controller")
AT_ONCE = Timing(retry=0.001)
"""Timing without pauses in real time; Leases expire by the clock of the test."""

ASKS = calls("GET", "/leases")
WRITES = calls("PUT", "/leases")


class Scene:
    def __init__(self, server: FakeApiServer, client: ApiClient) -> None:
        self.server = server
        self.clock = Clock()
        self._client = client

    def elect(
        self, holder: str = "", clock: Clock | None = None, timing: Timing = AT_ONCE, wall: Clock | None = None
    ) -> Election:
        """Return a candidate. Its wall clock is ``clock`` unless ``wall`` is given."""
        clock = clock or self.clock
        return Election(self._client, LEASE, holder, clock=clock, wall=wall or clock, timing=timing)

    @property
    def lease(self) -> JSON:
        found = self.server.get_object(LEASES, LEASE.namespace, LEASE.name)
        assert found is not None
        spec: JSON = found["spec"]
        return spec

    async def wait(self, looks: int = 3) -> None:
        """Wait until the standby has read the Lease so many times."""
        await self._await_requests(ASKS, looks)

    async def renew(self) -> None:
        """Wait until the leader has renewed the Lease at the present time, and the standby has seen it."""
        await self._await_requests(WRITES, 2)  # the first one may be of a moment ago
        await self.wait(8)

    async def run_out(self, waiting: asyncio.Task[None]) -> None:
        """Let the Lease expire without a renewal: the standby acquires it as soon as it has expired, and no sooner."""
        await self.wait()
        self.clock.advance(14.9)
        await self.wait()
        assert not waiting.done()
        self.clock.advance(0.2)
        await waiting

    async def _await_requests(self, kind: When, number: int) -> None:
        seen = len(self.server.list_requests(kind))
        async with asyncio.timeout(5):
            while len(self.server.list_requests(kind)) < seen + number:  # noqa: ASYNC110 - requests have no event
                await asyncio.sleep(0.001)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with FakeApiServer() as server, server.client() as client:
        yield Scene(server, client)


async def test_the_first_one_takes_a_lease_that_nobody_has(scene: Scene) -> None:
    first = scene.elect("a")
    assert not first.leads()
    await first.acquire()
    assert first.leads()
    assert scene.lease["holderIdentity"] == first.identity
    assert (scene.lease["leaseDurationSeconds"], scene.lease["leaseTransitions"]) == (15, 0)
    assert len(scene.lease["renewTime"]) == len("2026-01-01T00:00:00.000000Z")


async def test_a_right_that_is_missing_is_a_warning_once_until_it_is_there(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    election = scene.elect("a")
    for _ in range(2):
        scene.server.reject(ASKS, times=3, status=403, reason="Forbidden")
        await election.acquire()
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned == ["cannot acquire or renew the Lease; trying again"] * 2


async def test_another_one_waits_until_it_has_run_out_since_it_was_seen_last(scene: Scene) -> None:
    await scene.elect("a").acquire()
    second = scene.elect("b")
    waiting = asyncio.create_task(second.acquire())
    await scene.run_out(waiting)
    assert second.leads()
    assert scene.lease["leaseTransitions"] == 1


async def test_who_renews_keeps_it_though_another_s_clock_is_hours_ahead(scene: Scene) -> None:
    first = scene.elect("a")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    ahead = Clock()
    ahead.advance(10_000)
    waiting = asyncio.create_task(scene.elect("b", ahead).acquire())
    for _ in range(5):
        await scene.wait(4)
        scene.clock.advance(9)
        ahead.advance(9)
    assert not waiting.done()
    assert first.leads()
    for task in (keeping, waiting):
        task.cancel()
    await asyncio.gather(keeping, waiting, return_exceptions=True)


@pytest.mark.parametrize("jump", [-3600, 3600], ids=["back", "ahead"])
@pytest.mark.parametrize("whose", ["a", "b"], ids=["of the one that leads", "of the one that waits"])
async def test_a_wall_clock_that_is_set_changes_nobodys_turn(scene: Scene, whose: str, jump: int) -> None:
    walls = {"a": Clock(10_000.0), "b": Clock(10_000.0)}
    first = scene.elect("a", wall=walls["a"])
    second = scene.elect("b", wall=walls["b"])
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    waiting = asyncio.create_task(second.acquire())
    await scene.wait()
    walls[whose].advance(jump)
    for _ in range(5):
        await scene.renew()
        for clock in (scene.clock, *walls.values()):
            clock.advance(9)
    assert not waiting.done()
    await scene.renew()
    assert first.leads()
    # A leader that has stopped is followed as soon as ever.
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await scene.run_out(waiting)
    assert second.leads()


async def test_one_that_is_given_up_is_free_at_once(scene: Scene) -> None:
    first, second = scene.elect("a"), scene.elect("b")
    await first.acquire()
    await first.release()
    assert not first.leads()
    assert scene.lease["holderIdentity"] == ""
    await second.acquire()
    assert second.leads()


async def test_the_lease_of_an_earlier_process_of_the_same_pod_is_taken_at_once(scene: Scene) -> None:
    await scene.elect("a").acquire()
    again = scene.elect("a")
    await again.acquire()
    assert scene.lease["holderIdentity"] == again.identity


async def test_without_a_pod_s_name_every_lease_is_another_s(scene: Scene) -> None:
    await scene.elect().acquire()
    waiting = asyncio.create_task(scene.elect().acquire())
    await scene.wait()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_leader_that_cannot_renew_stops_to_lead_seconds_before_others_begin(scene: Scene) -> None:
    first = scene.elect("a")
    await first.acquire()
    scene.server.reject(WRITES, times=1000, status=500)
    keeping = asyncio.create_task(first.keep())
    await scene.wait()
    scene.clock.advance(9.9)
    await scene.wait()
    assert first.leads()
    scene.clock.advance(0.2)
    assert not first.leads()  # without a word of anybody
    with pytest.raises(LeaseLostError):
        await keeping
    assert scene.lease["holderIdentity"] == first.identity


async def test_a_leader_that_finds_another_in_its_place_has_lost_it(scene: Scene) -> None:
    first = scene.elect("a")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    # The other one is no successor, though it has the same Pod: this leader is alive.
    found = scene.server.get_object(LEASES, LEASE.namespace, LEASE.name)
    assert found is not None
    scene.server.patch(LEASES, LEASE.namespace, LEASE.name, {"spec": {**found["spec"], "holderIdentity": "a_other"}})
    with pytest.raises(LeaseLostError):
        async with asyncio.timeout(10):
            await keeping
    assert not first.leads()
    await first.release()
    assert scene.lease["holderIdentity"] == "a_other"


async def test_of_two_that_ask_at_the_same_time_one_gets_it(scene: Scene) -> None:
    wanting = [scene.elect(name) for name in ("a", "b", "c")]
    tasks = [asyncio.create_task(each.acquire()) for each in wanting]
    await scene.wait(6)
    assert [each.leads() for each in wanting].count(True) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_lease_that_cannot_be_read_is_asked_for_again(scene: Scene) -> None:
    scene.server.reject(ASKS, times=3, status=500)
    first = scene.elect("a")
    await first.acquire()
    assert first.leads()


NO_LEASES = [
    pytest.param('{"status": "ok"}', id="an object of a proxy"),
    pytest.param('{"kind": "Status", "status": "Failure"}', id="a Status"),
    pytest.param('{"kind": "Lease"}', id="a Lease without metadata"),
    pytest.param("<html>a proxy</html>", id="a page"),
]
"""Answers with status 200 that are no Lease."""


@pytest.mark.parametrize("answer", NO_LEASES)
async def test_an_answer_that_is_no_lease_is_a_lost_answer(scene: Scene, answer: str) -> None:
    for kind in (ASKS, calls("POST", "/leases"), WRITES):
        scene.server.garble(kind, page=answer)
    first = scene.elect("a")
    await first.acquire()
    assert first.leads()
    await first.release()
    assert scene.lease["holderIdentity"] == ""


@pytest.mark.parametrize("answer", NO_LEASES)
async def test_nor_is_it_a_renewal(scene: Scene, answer: str) -> None:
    first = scene.elect("a")
    await first.acquire()
    renewed = scene.lease["renewTime"]
    scene.server.intercept(WRITES, times=1000, status=200, page=answer)
    keeping = asyncio.create_task(first.keep())
    scene.clock.advance(5.1)
    await scene.wait()
    scene.clock.advance(5.1)
    assert not first.leads()
    with pytest.raises(LeaseLostError):
        await keeping
    assert scene.lease["renewTime"] == renewed


async def test_a_renewal_that_arrives_while_the_lease_is_given_up_keeps_it_for_nobody(scene: Scene) -> None:
    first = scene.elect("a")
    await first.acquire()
    gate = scene.server.hold(WRITES, times=1)
    releasing = asyncio.create_task(first.release())
    await gate.reached.wait()
    # The last write of a `keep` that was cancelled: the API server had it, and does it only now.
    renewed = {**scene.lease, "renewTime": "2026-01-01T00:00:00.000000Z"}
    scene.server.patch(LEASES, LEASE.namespace, LEASE.name, {"spec": renewed})
    gate.open()
    await releasing
    assert scene.lease["holderIdentity"] == ""


async def test_an_answer_that_does_not_come_is_not_waited_for(scene: Scene) -> None:
    first = scene.elect("a", timing=Timing(release=0.01))
    await first.acquire()
    gate = scene.server.hold(WRITES)
    releasing = asyncio.create_task(first.release())
    await gate.reached.wait()
    await releasing  # it may be shutting down: nobody is kept waiting for it
    gate.open()
