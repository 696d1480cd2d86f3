"""Gangs while the API of Workloads and PodGroups is not there, and after it has come back."""

import pytest

from controller import loop
from serried import feed
from serried.kube.reflector import WatchTiming
from serried.kube.wire import JOBS, PODS, owners
from tests.support.apiserver import SERVED, FakeApiServer
from tests.support.controller_harness import (
    GROUPS,
    WORKLOADS,
    controller_on,
    events,
    gang,
    job_pod,
    starting_on,
    wait_until,
    wait_until_idle,
)
from tests.support.faults import calls
from tests.support.parents import job_set

JOB_SETS = owners("JobSet")
STOCK = tuple(resource for resource in SERVED if resource not in {GROUPS, WORKLOADS})


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses of seconds to milliseconds."""
    monkeypatch.setattr(loop, "_SECONDS_BETWEEN_API_CHECKS", 0.02)
    monkeypatch.setattr(loop, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(feed, "_WATCH_TIMING", WatchTiming(unserved=0.02, unserved_after=0.02, absent_after=0.02))


def told(server: FakeApiServer) -> dict[str, int]:
    """Return how many events about a failed Workload each Job has."""
    return {event["involvedObject"]["name"]: event["count"] for event in events(server, "FailedWorkloadCreate")}


async def test_without_the_crds_each_gang_is_told_once_and_gets_its_objects_when_they_are_there() -> None:
    async with FakeApiServer(served=STOCK) as server:
        for name in ("first", "second"):
            server.add(JOBS, gang(name).raw())
        server.add(JOBS, gang("loose").not_indexed().raw())
        async with starting_on(server):
            await wait_until(lambda: len(events(server, "FailedWorkloadCreate")) == 2)
            server.served |= set(SERVED)
            await wait_until(lambda: len(server.list_objects(GROUPS)) == 2)
        assert told(server) == {"first": 1, "second": 1}
        assert "the API server does not serve" in events(server, "FailedWorkloadCreate")[0]["message"]


async def test_without_the_crds_a_job_set_that_asks_is_told_once_and_gets_its_objects_when_they_are_there() -> None:
    async with FakeApiServer(served=(*STOCK, JOB_SETS)) as server:
        server.add(JOB_SETS, job_set("asks").gang_policy().replicated("workers", 2, 3).raw())
        server.add(JOB_SETS, job_set("asks-not").replicated("workers", 2, 3).raw())
        async with starting_on(server):
            await wait_until(lambda: events(server, "FailedWorkloadCreate"))
            server.served |= set(SERVED)
            await wait_until(lambda: server.list_objects(GROUPS))
        assert told(server) == {"asks": 1}


async def test_crds_that_are_deleted_and_installed_again(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(JOBS, gang("before").raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        server.served = set(STOCK)
        server.end_watches(WORKLOADS)
        server.end_watches(GROUPS)
        for resource in (GROUPS, WORKLOADS):
            for item in server.list_objects(resource):
                server.remove(resource, "default", item["metadata"]["name"])
        await wait_until(lambda: controller.store.obstacles.native)
        server.add(JOBS, gang("during").raw())
        await wait_until(lambda: told(server) == {"before": 1, "during": 1})
        server.served |= set(SERVED)
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 2)
        await wait_until_idle(controller, server)


@pytest.mark.parametrize("status", [403, 422])
async def test_refusals_of_every_create_end_for_all_when_they_end_for_one(server: FakeApiServer, status: int) -> None:
    refused = server.reject(calls("POST", "/workloads"), 10**6, status=status)
    async with controller_on(server):
        for number in range(20):
            server.add(JOBS, gang(f"train-{number}").raw())
        await wait_until(lambda: len(events(server, "FailedWorkloadCreate")) == 20)
        refused.left = 0
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 20)
        assert all(event["count"] == 1 for event in events(server, "FailedWorkloadCreate"))


async def test_a_job_that_cannot_be_read_is_told_of_once_and_stops_nobody(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(JOBS, gang("odd").completed_indexes("one, two").raw())
        server.add(JOBS, gang("even").raw())
        server.add(PODS, job_pod("odd").raw())
        await wait_until(lambda: events(server, "Malformed") and server.list_objects(GROUPS))
        server.patch(JOBS, "default", "odd", {"metadata": {"labels": {"still": "odd"}}})
        await wait_until_idle(controller, server)
        (event,) = events(server, "Malformed")
        assert event["involvedObject"]["kind"] == "Job"
        assert event["count"] == 1
        assert "completedIndexes is no list of indexes" in event["message"]

        server.patch(JOBS, "default", "odd", {"status": {"completedIndexes": ""}})
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 2)
