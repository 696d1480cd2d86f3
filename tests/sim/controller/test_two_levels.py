"""The controller after the cluster has turned to another API level, while gangs of the level before run."""

import pytest

from serried.api.level import FALLBACK, NATIVE, NATIVE_LEVELS
from serried.api.names import GANG
from serried.kube.wire import EVENTS, JOBS, PODS, pod_groups, workloads
from tests.support.apiserver import NATIVE_SERVED, FakeApiServer
from tests.support.builders import PodBuilder
from tests.support.controller_harness import (
    CREATES_GROUP,
    CREATES_WORKLOAD,
    GROUPS,
    WORKLOADS,
    controller_on,
    gang,
    job_pod,
    names,
    wait_until,
    wait_until_idle,
)

NATIVE_GROUPS = pod_groups(NATIVE.group, NATIVE.version)
NATIVE_WORKLOADS = workloads(NATIVE.group, NATIVE.version)
RUNS_AT_NATIVE = f"{NATIVE.api_version} train-6f8647cfc5"
RUNS_AT_FALLBACK = f"{FALLBACK.api_version} train-6f8647cfc5"


def running(index: int, gang_name: str) -> PodBuilder:
    """A pod of Job train that was bound as a member of a gang."""
    return job_pod("train", index).on("n1").annotation(GANG, gang_name)


@pytest.fixture(autouse=True)
def serves_both(server: FakeApiServer) -> None:
    server.served.update(NATIVE_SERVED)


async def begin_at_fallback(server: FakeApiServer) -> None:
    """Job train has its objects at the fallback level, and runs."""
    async with controller_on(server):
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
    for index in range(3):
        server.add(PODS, running(index, RUNS_AT_FALLBACK).raw())


async def test_a_gang_of_the_fallback_keeps_its_objects_at_the_native_level(server: FakeApiServer) -> None:
    await begin_at_fallback(server)
    async with controller_on(server, level=NATIVE) as controller:
        await wait_until_idle(controller, server)
        server.remove(PODS, "default", "train-0")
        await wait_until_idle(controller, server)
    assert server.list_objects(NATIVE_WORKLOADS) == []
    assert (len(server.list_objects(WORKLOADS)), len(server.list_objects(GROUPS))) == (1, 1)


async def test_its_quorum_follows_the_job_where_its_objects_are(server: FakeApiServer) -> None:
    await begin_at_fallback(server)
    async with controller_on(server, level=NATIVE):
        server.patch(JOBS, "default", "train", {"spec": {"parallelism": 2, "completions": 2}})
        await wait_until(
            lambda: server.list_objects(GROUPS)[0]["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
        )
        await wait_until(
            lambda: (
                server.list_objects(WORKLOADS)[0]["spec"]["podGroupTemplates"][0]["schedulingPolicy"]["gang"]
                == {"minCount": 2}
            )
        )


async def test_its_lost_pod_group_comes_again_where_its_workload_is(server: FakeApiServer) -> None:
    await begin_at_fallback(server)
    server.remove(GROUPS, "default", names(server.list_objects(GROUPS))[0])
    async with controller_on(server, level=NATIVE):
        await wait_until(lambda: server.list_objects(GROUPS))
        await wait_until(lambda: server.list_objects(GROUPS)[0]["spec"].get("priority") == 0)
    assert server.list_objects(NATIVE_GROUPS) == []


async def test_a_job_that_starts_after_the_change_gets_its_objects_at_the_level_in_use(server: FakeApiServer) -> None:
    await begin_at_fallback(server)
    async with controller_on(server, level=NATIVE):
        server.add(JOBS, gang("later").raw())
        await wait_until(lambda: server.list_objects(NATIVE_GROUPS))
    assert all("later" in name for name in names(server.list_objects(NATIVE_GROUPS)))
    assert len(server.list_objects(GROUPS)) == 1


async def test_a_gang_whose_objects_cannot_be_read_any_more_gets_new_ones(server: FakeApiServer) -> None:
    server.add(JOBS, gang().raw())
    for index in range(2):
        server.add(PODS, running(index, RUNS_AT_NATIVE).raw())
    async with controller_on(server, level=FALLBACK):
        await wait_until(lambda: server.list_objects(GROUPS))
    assert server.list_objects(GROUPS)[0]["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}


async def test_so_does_one_of_an_older_minor(server: FakeApiServer) -> None:
    older = NATIVE_LEVELS[-2]
    server.add(JOBS, gang().raw())
    server.add(PODS, running(0, f"{older.api_version} train-6f8647cfc5").raw())
    async with controller_on(server, level=NATIVE):
        await wait_until(lambda: server.list_objects(NATIVE_GROUPS))


async def test_a_job_that_runs_pod_by_pod_gets_none(server: FakeApiServer) -> None:
    server.add(JOBS, gang().raw())
    server.add(PODS, running(0, RUNS_AT_NATIVE).raw())
    server.add(PODS, job_pod("train", 1).on("n1").raw())
    async with controller_on(server, level=FALLBACK) as controller:
        await wait_until_idle(controller, server)
    assert server.list_requests(CREATES_WORKLOAD) == []


async def test_nor_does_one_whose_objects_were_deleted_where_they_can_be_read(server: FakeApiServer) -> None:
    server.add(JOBS, gang().raw())
    server.add(PODS, running(0, RUNS_AT_FALLBACK).raw())
    for level in (FALLBACK, NATIVE):
        async with controller_on(server, level=level) as controller:
            await wait_until_idle(controller, server)
    assert server.list_requests(CREATES_WORKLOAD) + server.list_requests(CREATES_GROUP) == []
    assert [event for event in server.list_objects(EVENTS) if event["type"] == "Warning"] == []
