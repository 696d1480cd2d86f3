"""Objects of a gang when its Job grows, shrinks, is suspended or is no longer a gang."""

import asyncio
from collections.abc import Iterator
from itertools import groupby

import pytest

from serried.api.level import NATIVE_LEVELS, V1ALPHA1, V1ALPHA2, ApiLevel
from serried.kube.wire import JOBS, JSON, PODS, pod_groups, workloads
from tests.support.apiserver import SERVED, FakeApiServer
from tests.support.builders import workload
from tests.support.controller_harness import (
    GROUPS,
    WORKLOADS,
    controller_on,
    events,
    gang,
    job_pod,
    wait_until,
    wait_until_idle,
)
from tests.support.faults import calls

V1ALPHA2_LEVEL = next(level for level in NATIVE_LEVELS if level.version == V1ALPHA2)
V1ALPHA1_LEVEL = next(level for level in NATIVE_LEVELS if level.version == V1ALPHA1)
OLDER_WORKLOADS = workloads(V1ALPHA2_LEVEL.group, V1ALPHA2)
OLDER_GROUPS = pod_groups(V1ALPHA2_LEVEL.group, V1ALPHA2)
WRITES = ("POST", "PATCH", "DELETE", "PUT")


def resize(server: FakeApiServer, name: str, size: int) -> None:
    server.patch(JOBS, "default", name, {"spec": {"parallelism": size, "completions": size}})


def counts(objects: list[JSON]) -> list[int]:
    """minCount, wherever the kind has it."""
    specs = [item["spec"] for item in objects]
    parts = [part for spec in specs for part in spec.get("podGroupTemplates") or spec.get("podGroups") or [spec]]
    return [(part.get("schedulingPolicy") or part["policy"])["gang"]["minCount"] for part in parts]


def object_writes(server: FakeApiServer) -> Iterator[tuple[str, str]]:
    """Method and path of the writes of Workloads and PodGroups."""
    for request in server.requests:
        if request.method in WRITES and ("/workloads" in request.path or "/podgroups" in request.path):
            yield request.method, request.path


@pytest.mark.parametrize("size", [5, 2], ids=["grows", "shrinks"])
async def test_min_count_follows_a_job_that_runs(server: FakeApiServer, size: int) -> None:
    async with controller_on(server) as controller:
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        server.add(PODS, job_pod("train").on("n1").raw())
        resize(server, "train", size)
        await wait_until(
            lambda: counts(server.list_objects(WORKLOADS)) == counts(server.list_objects(GROUPS)) == [size]
        )
        await wait_until(lambda: events(server, "MinCountChanged"))
        await wait_until_idle(controller, server)
    # The PodGroup may be patched again before the watch has shown the first patch.
    methods = [method for method, _ in object_writes(server)]
    assert methods[:4] == ["POST", "POST", "PATCH", "PATCH"]
    assert methods.count("PATCH") <= 3


async def test_refused_means_that_nothing_follows(server: FakeApiServer) -> None:
    async with controller_on(server, "--elastic-jobs", "refuse") as controller:
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        resize(server, "train", 5)
        await wait_until_idle(controller, server)
    assert counts(server.list_objects(GROUPS)) == [3]


async def test_a_users_workload_and_what_we_made_from_it_stay_as_they_are(server: FakeApiServer) -> None:
    server.add(WORKLOADS, workload("theirs").for_job("train").gang_template("t", 2).raw())
    async with controller_on(server) as controller:
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        resize(server, "train", 5)
        await wait_until_idle(controller, server)
    assert counts(server.list_objects(WORKLOADS)) == counts(server.list_objects(GROUPS)) == [2]


async def older_server(level: ApiLevel) -> FakeApiServer:
    served = [workloads(level.group, level.version)]
    return FakeApiServer(served=(*SERVED, *served, pod_groups(level.group, level.version)))


async def test_where_min_count_is_immutable_successors_come_before_their_predecessors_go() -> None:
    async with await older_server(V1ALPHA2_LEVEL) as server, controller_on(server, level=V1ALPHA2_LEVEL):
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(OLDER_GROUPS))
        server.add(PODS, job_pod("train").on("n1").raw())
        resize(server, "train", 5)
        await wait_until(
            lambda: counts(server.list_objects(OLDER_GROUPS)) == counts(server.list_objects(OLDER_WORKLOADS)) == [5]
        )
    # A delete may be sent again before the watch has shown the first.
    writes = [write for write, _ in groupby((method, path.split("/")[6]) for method, path in object_writes(server))]
    assert writes[2:] == [
        ("POST", "workloads"),
        ("POST", "podgroups"),
        ("DELETE", "podgroups"),
        ("DELETE", "workloads"),
    ]


@pytest.mark.parametrize(
    ("method", "part"),
    [("POST", "/workloads"), ("POST", "/podgroups"), ("DELETE", "/podgroups"), ("DELETE", "/workloads")],
)
async def test_killed_at_any_of_these_writes_the_next_process_does_what_is_left(method: str, part: str) -> None:
    async with await older_server(V1ALPHA2_LEVEL) as server:
        async with controller_on(server, level=V1ALPHA2_LEVEL):
            server.add(JOBS, gang().raw())
            await wait_until(lambda: server.list_objects(OLDER_GROUPS))
            server.add(PODS, job_pod("train").on("n1").raw())
            gate = server.hold(calls(method, part), times=1)
            resize(server, "train", 5)
            async with asyncio.timeout(10):
                await gate.reached.wait()
        async with controller_on(server, level=V1ALPHA2_LEVEL):
            await wait_until(
                lambda: counts(server.list_objects(OLDER_GROUPS)) == counts(server.list_objects(OLDER_WORKLOADS)) == [5]
            )


@pytest.mark.parametrize(
    ("change", "left"),
    [({"parallelism": 5, "completions": 5}, [5]), ({"suspend": True}, [])],
    ids=["resized", "suspended"],
)
async def test_in_1_35_the_workload_alone_gets_a_successor_or_goes(change: JSON, left: list[int]) -> None:
    older = workloads(V1ALPHA1_LEVEL.group, V1ALPHA1)
    async with (
        await older_server(V1ALPHA1_LEVEL) as server,
        controller_on(server, "--suspended-jobs", "delete", level=V1ALPHA1_LEVEL),
    ):
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(older))
        server.patch(JOBS, "default", "train", {"spec": change})
        await wait_until(lambda: counts(server.list_objects(older)) == left)
    assert all("/workloads" in path for _, path in object_writes(server))


async def test_a_suspended_job_may_lose_its_objects_once_its_pods_are_gone_and_gets_new_ones_when_it_is_resumed(
    server: FakeApiServer,
) -> None:
    async with controller_on(server, "--suspended-jobs", "delete") as controller:
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        server.add(PODS, job_pod("train").on("n1").raw())
        server.patch(JOBS, "default", "train", {"spec": {"suspend": True}})
        await wait_until_idle(controller, server)
        assert len(server.list_objects(GROUPS)) == 1
        server.remove(PODS, "default", "train-0")
        await wait_until(lambda: not server.list_objects(GROUPS) and not server.list_objects(WORKLOADS))
        await wait_until(lambda: events(server, "PodGroupDeleted") and events(server, "WorkloadDeleted"))
        server.patch(JOBS, "default", "train", {"spec": {"suspend": False}})
        await wait_until(lambda: server.list_objects(GROUPS))


async def test_every_job_may_be_tracked(server: FakeApiServer) -> None:
    async with controller_on(server, "--track-jobs", "all"):
        server.add(JOBS, gang("loose").not_indexed().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
    assert server.list_objects(GROUPS)[0]["spec"]["schedulingPolicy"] == {"basic": {}}


async def test_off_and_on_again(server: FakeApiServer) -> None:
    async with controller_on(server):
        server.add(JOBS, gang("first").raw())
        await wait_until(lambda: server.list_objects(GROUPS))
    async with controller_on(server, "--gang-jobs", "none") as controller:
        for name in ("runs", "waits"):
            server.add(JOBS, gang(name).raw())
            server.add(PODS, job_pod(name).raw())
        server.patch(PODS, "default", "runs-0", {"spec": {"nodeName": "n1"}})
        await wait_until_idle(controller, server)
        assert len(server.list_objects(GROUPS)) == 1
    async with controller_on(server) as controller:
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 2)
        await wait_until_idle(controller, server)
        assert {item["spec"]["controllerRef"]["name"] for item in server.list_objects(WORKLOADS)} == {"first", "waits"}


async def test_an_annotation_that_nobody_can_follow_is_told_once_and_nothing_is_made(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(JOBS, gang().annotation("scheduling.serried.dev/disruption-mode", "some").raw())
        await wait_until(lambda: events(server, "FailedWorkloadCompilation"))
        server.patch(JOBS, "default", "train", {"status": {"active": 1}})
        await wait_until_idle(controller, server)
        (event,) = events(server, "FailedWorkloadCompilation")
        assert event["count"] == 1
        assert "must be one of single, all" in event["message"]
    assert not server.list_objects(WORKLOADS)


async def test_an_annotation_that_nothing_reads_is_told_once_and_the_gang_is_made(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(JOBS, gang().annotation("scheduling.serried.dev/required-topolgy", "rack").raw())
        await wait_until(lambda: events(server, "UnknownName") and server.list_objects(GROUPS))
        server.patch(JOBS, "default", "train", {"status": {"active": 1}})
        await wait_until_idle(controller, server)
        (event,) = events(server, "UnknownName")
        assert (event["count"], event["type"]) == (1, "Warning")
        assert "did you mean the annotation scheduling.serried.dev/required-topology of the Job?" in event["message"]


async def test_the_field_wins_over_the_annotation_and_that_is_told(server: FakeApiServer) -> None:
    async with controller_on(server):
        said = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        server.add(JOBS, gang().scheduling(**said).gang_policy("NoGang").raw())
        await wait_until(lambda: events(server, "GangPolicyIgnored") and server.list_objects(GROUPS))
    assert counts(server.list_objects(GROUPS)) == [2]
