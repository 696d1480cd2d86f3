"""Two controllers: one works, one knows everything and writes nothing until its turn comes."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection

import pytest

from controller import process
from controller import process as idleness
from controller.process import Controller, IdleError, Idleness
from serried import feed
from serried.api.level import FALLBACK
from serried.kube.election import LeaseLostError, Timing
from serried.kube.reflector import WatchTiming
from serried.kube.wire import JOBS, LEASES, Resource, owners
from serried.ops.metrics import ControllerMetrics
from serried.settings import controller_settings
from tests.support.apiserver import FakeApiServer
from tests.support.controller_harness import CREATES_GROUP, CREATES_WORKLOAD, GROUPS, WORKLOADS, gang, wait_until
from tests.support.faults import calls
from tests.support.watching import Watch

NAMESPACE, NAME = "serried-system", "serried-controller"
PATIENCE = 0.3
FOR_EVER = 1_000_000


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    monkeypatch.setattr(process, "TIMING", Timing(retry=0.01))
    monkeypatch.setattr(process, "_IDLENESS_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(idleness, "BLIND_SECONDS", PATIENCE)
    monkeypatch.setattr(idleness, "STUCK_SECONDS", PATIENCE)
    monkeypatch.setattr(feed, "_WATCH_TIMING", WatchTiming(unserved=0.02, unserved_after=0.02, absent_after=0.02))
    async with FakeApiServer() as made:
        yield made


class Pod:
    """A controller in a Pod of its own."""

    def __init__(self, server: FakeApiServer, name: str) -> None:
        self._client = server.client()
        settings = controller_settings(["--lease-holder", name], {})
        self._metrics = ControllerMetrics()
        self.controller = Controller(settings, self._client, FALLBACK, self._metrics)
        self.task = asyncio.create_task(self.controller.run())

    def leads(self) -> bool:
        election = self.controller.election
        return election is not None and election.leads()

    def shows(self) -> str:
        """Return the line of the controller's metrics that says whether it is active."""
        text = self._metrics.render().decode()
        return next(line for line in text.splitlines() if line.startswith("serried_controller_active"))

    async def end_by_itself(self) -> None:
        """Wait until the controller ends, and raise its error."""
        async with asyncio.timeout(10):
            await self.task

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self._client.close()


async def test_a_standby_notes_everything_and_takes_over_what_is_left(server: FakeApiServer) -> None:
    first = Pod(server, "a")
    await wait_until(first.leads)
    standby = Pod(server, "b")
    server.reject(CREATES_GROUP, times=1_000_000, status=500)
    server.add(JOBS, gang("one").raw())
    await wait_until(lambda: server.list_objects(WORKLOADS) and len(standby.controller.queue) > 0)
    assert not standby.leads()
    assert (first.shows(), standby.shows()) == ("serried_controller_active 1.0", "serried_controller_active 0.0")
    await first.end()
    server.recover()
    await wait_until(lambda: server.list_objects(GROUPS))
    assert standby.leads()
    assert len(server.list_objects(WORKLOADS)) == 1
    await standby.end()


async def test_a_controller_that_loses_the_lease_ends(server: FakeApiServer) -> None:
    pod = Pod(server, "a")
    await wait_until(pod.leads)
    taken = {"holderIdentity": "b_1", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    server.patch(LEASES, NAMESPACE, NAME, {"spec": taken})
    with pytest.raises(ExceptionGroup) as caught:
        await pod.task
    assert caught.group_contains(LeaseLostError)
    assert not pod.leads()
    await pod.end()


def lease_holder(server: FakeApiServer) -> str:
    found = server.get_object(LEASES, NAMESPACE, NAME)
    return "" if found is None else str(found["spec"]["holderIdentity"])


async def outlasts_patience(pod: Pod) -> None:
    """The controller holds the Lease for longer than one may that does no work."""
    begun = time.monotonic()
    await wait_until(lambda: time.monotonic() > begun + 3 * PATIENCE)
    assert pod.leads()
    assert not pod.task.done()


async def asks_for_jobs_in_vain(server: FakeApiServer) -> None:
    """Wait until the controllers have requested Jobs three more times."""
    before = len(server.requests)
    await wait_until(lambda: sum("/jobs" in request.path for request in server.requests[before:]) >= 3)


def hide(server: FakeApiServer, resource: Resource, watches: Collection[Watch]) -> None:
    """Controllers may not list or watch these any more, and these watches of them end; others go on."""
    server.reject(calls("GET", f"/{resource.plural}"), FOR_EVER, status=403, reason="Forbidden")
    for watch in watches:
        if watch.resource == resource:
            watch.end()


async def test_a_leader_that_sees_nothing_gives_the_lease_up_and_asks_for_it_when_it_sees_again(
    server: FakeApiServer,
) -> None:
    blind = Pod(server, "a")
    await wait_until(blind.leads)
    hide(server, JOBS, server.watches)
    server.add(JOBS, gang("one").raw())
    with pytest.raises(ExceptionGroup) as caught:
        await blind.end_by_itself()
    assert caught.group_contains(IdleError, match="no watch has received an answer")
    assert lease_holder(server) == ""
    restarted = Pod(server, "a")
    await asks_for_jobs_in_vain(server)
    assert lease_holder(server) == ""
    server.recover()
    await wait_until(lambda: server.list_objects(GROUPS))
    assert restarted.leads()
    await restarted.end()
    await blind.end()


async def test_a_standby_that_still_sees_takes_over_from_one_that_does_not(server: FakeApiServer) -> None:
    blind = Pod(server, "a")
    await wait_until(blind.leads)
    its_watches = set(server.watches)
    standby = Pod(server, "b")
    await wait_until(standby.controller.feed.synced.is_set)
    hide(server, JOBS, its_watches)
    server.add(JOBS, gang("one").raw())
    await wait_until(lambda: server.list_objects(GROUPS))
    assert standby.leads()
    assert blind.task.done()
    await standby.end()
    await blind.end()


async def test_what_need_not_be_there_may_be_hidden(server: FakeApiServer) -> None:
    job_sets = owners("JobSet")
    server.served.add(job_sets)
    pod = Pod(server, "a")
    await wait_until(pod.leads)
    hide(server, job_sets, server.watches)
    await outlasts_patience(pod)
    await pod.end()


@pytest.mark.parametrize("gone", [GROUPS, WORKLOADS], ids=str)
async def test_without_the_api_of_gangs_the_leader_that_tells_jobs_so_keeps_the_lease(
    server: FakeApiServer, gone: Resource
) -> None:
    pod = Pod(server, "a")
    await wait_until(pod.leads)
    server.served.discard(gone)
    server.end_watches(gone)
    await wait_until(lambda: pod.controller.store.obstacles.native)
    server.add(JOBS, gang("one").raw())
    await wait_until(lambda: not pod.controller.queue.idle)
    await outlasts_patience(pod)
    await pod.end()


async def test_a_leader_whose_writes_are_rejected_keeps_the_lease(server: FakeApiServer) -> None:
    pod = Pod(server, "a")
    await wait_until(pod.leads)
    server.reject(CREATES_GROUP, FOR_EVER, status=500)
    server.add(JOBS, gang("one").raw())
    await wait_until(lambda: server.list_requests(CREATES_GROUP))
    await outlasts_patience(pod)
    await pod.end()


async def test_each_write_that_is_answered_counts_not_only_the_end_of_a_look(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Idleness] = []

    def note(idleness: Idleness) -> None:
        seen.append(idleness)

    monkeypatch.setattr(Idleness, "record_progress", note)
    pod = Pod(server, "a")
    await wait_until(pod.leads)
    await wait_until(lambda: seen)
    before = len(seen)
    group = server.hold(CREATES_GROUP)
    server.add(JOBS, gang("one").raw())
    await group.reached.wait()
    assert len(seen) == before + 1
    group.open()
    await wait_until(lambda: server.list_objects(GROUPS) and len(seen) > before + 2)
    await pod.end()


async def test_a_leader_that_makes_no_progress_gives_the_lease_up_and_the_next_one_does_its_work(
    server: FakeApiServer,
) -> None:
    stuck = Pod(server, "a")
    await wait_until(stuck.leads)
    standby = Pod(server, "b")
    await wait_until(standby.controller.feed.synced.is_set)
    never_answered = server.hold(CREATES_WORKLOAD)
    server.add(JOBS, gang("one").raw())
    with pytest.raises(ExceptionGroup) as caught:
        await stuck.end_by_itself()
    assert caught.group_contains(IdleError, match="none has been finished")
    never_answered.open()
    await wait_until(lambda: server.list_objects(GROUPS))
    assert standby.leads()
    await standby.end()
    await stuck.end()


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[Idleness]:
    """Return a list that grows with each check of whether a controller works."""
    looks: list[Idleness] = []
    look = Idleness.check

    def check(idleness: Idleness) -> None:
        looks.append(idleness)
        look(idleness)

    monkeypatch.setattr(Idleness, "check", check)
    return looks


async def test_the_time_as_a_standby_does_not_count(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Pod(server, "a")
    await wait_until(first.leads)
    standby = Pod(server, "b")
    await outlasts_patience(first)
    slow = server.hold(CREATES_WORKLOAD)
    server.add(JOBS, gang("one").raw())
    await wait_until(lambda: server.list_requests(CREATES_WORKLOAD) and len(standby.controller.queue) > 0)
    await first.end()
    await wait_until(lambda: len(server.list_requests(CREATES_WORKLOAD)) == 2)
    looks = count_looks(monkeypatch)
    await wait_until(lambda: len(looks) > 1)
    slow.open()
    await wait_until(lambda: server.list_objects(GROUPS))
    assert standby.leads()
    await standby.end()
