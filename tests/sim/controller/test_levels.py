"""The controller puts the label of a level into what it makes for a Job that names the level, and waits for one."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.process import Controller
from serried.api.names import REQUIRED_TOPOLOGY
from serried.api.preference import PREFERRED_TOPOLOGY
from serried.api.topology import LabelCount, LevelTable, Pool, write_table
from serried.kube.wire import JOBS, JSON, PODS, TOPOLOGY_LEVELS
from tests.support.apiserver import FakeApiServer
from tests.support.builders import JobBuilder
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

RACK, BLOCK, CLIQUE = "example.com/rack", "example.com/block", "nvidia.com/gpu.clique"
GPU = "nvidia.com/gpu"


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as made:
        yield made


def said(**labels: str) -> JSON:
    """A status in which these labels stand for levels on all nodes, and a clique for nvlink where there are GPUs."""
    everywhere = {level: LabelCount(label, 4) for level, label in labels.items()}
    pools = (Pool("", 4, everywhere), Pool(GPU, 2, {**everywhere, "nvlink": LabelCount(CLIQUE, 2)}))
    candidates = {level: (label,) for level, label in {**labels, "nvlink": CLIQUE}.items()}
    return write_table(LevelTable(candidates, pools))


def table(**labels: str) -> JSON:
    return {"metadata": {"name": "default"}, "status": said(**labels)}


def naming(level: str, preferred: str = "") -> JobBuilder:
    builder = gang().topology(level)
    return builder.annotation(PREFERRED_TOPOLOGY, preferred) if preferred else builder


def with_gpus(builder: JobBuilder) -> JobBuilder:
    containers = [{"name": "main", "resources": {"limits": {GPU: "8", "memory": "1Gi"}}}]
    return builder.with_field(containers, "spec", "template", "spec", "containers")


async def made_of(server: FakeApiServer) -> tuple[Any, Any]:
    """The constraints of the one template, and the annotations of the one PodGroup."""
    await wait_until(lambda: server.list_objects(GROUPS))
    ((workload,), (group,)) = server.list_objects(WORKLOADS), server.list_objects(GROUPS)
    constraints = workload["spec"]["podGroupTemplates"][0].get("schedulingConstraints")
    return constraints, group["metadata"]["annotations"]


async def test_the_label_of_the_level_is_written(server: FakeApiServer) -> None:
    server.add(TOPOLOGY_LEVELS, table(rack=RACK, block=BLOCK))
    server.add(JOBS, naming("block", "rack=30s").raw())
    async with controller_on(server):
        constraints, annotations = await made_of(server)
    assert constraints == {"topology": [{"key": BLOCK}]}
    assert (annotations[REQUIRED_TOPOLOGY], annotations[PREFERRED_TOPOLOGY]) == (BLOCK, f"{RACK}=30s")


async def test_that_of_nodes_with_the_devices_of_the_job(server: FakeApiServer) -> None:
    server.add(TOPOLOGY_LEVELS, table(rack=RACK))
    server.add(JOBS, with_gpus(naming("nvlink")).raw())
    async with controller_on(server):
        constraints, _ = await made_of(server)
    assert constraints == {"topology": [{"key": CLIQUE}]}


@pytest.mark.parametrize(
    "there",
    [
        pytest.param(None, id="no table"),
        pytest.param({"metadata": {"name": "default"}}, id="a table that the extender has not filled yet"),
        pytest.param(table(block=BLOCK), id="no label for the level"),
    ],
)
async def test_nothing_is_made_until_a_label_stands_for_the_level(server: FakeApiServer, there: JSON | None) -> None:
    if there is not None:
        server.add(TOPOLOGY_LEVELS, there)
    server.add(JOBS, naming("rack").raw())
    async with controller_on(server) as controller:
        await wait_until_idle(controller, server)
        assert server.list_objects(WORKLOADS) == []
        if there is None:
            server.add(TOPOLOGY_LEVELS, table(rack=RACK))
        else:
            server.patch(TOPOLOGY_LEVELS, "", "default", {"status": said(rack=RACK)})
        constraints, _ = await made_of(server)
    assert constraints == {"topology": [{"key": RACK}]}


async def test_a_preferred_level_without_a_label_is_left_out_and_the_job_is_told(server: FakeApiServer) -> None:
    server.add(TOPOLOGY_LEVELS, table(rack=RACK))
    server.add(JOBS, naming("rack", "nvlink,spine=1h").raw())
    async with controller_on(server):
        _, annotations = await made_of(server)
        assert PREFERRED_TOPOLOGY not in annotations
        await wait_until(lambda: events(server, "LevelLeftOut"))
    (event,) = events(server, "LevelLeftOut")
    assert event["message"].startswith("Serried knows no node label for level nvlink, spine and ignores it")
    assert event["type"] == "Normal"


async def test_without_a_table_a_preferred_level_is_waited_for(server: FakeApiServer) -> None:
    server.add(JOBS, gang().annotation(PREFERRED_TOPOLOGY, "spine,rack=30s").raw())
    async with controller_on(server) as controller:
        await wait_until_idle(controller, server)
        assert server.list_objects(WORKLOADS) == []
        assert events(server, "LevelLeftOut") == []
        server.add(TOPOLOGY_LEVELS, table(rack=RACK))
        _, annotations = await made_of(server)
    assert annotations[PREFERRED_TOPOLOGY] == f"{RACK}=30s"


async def touch(server: FakeApiServer, controller: Controller) -> None:
    """Something of the Job changes that asks for a look."""
    server.patch(JOBS, "default", "train", {"metadata": {"labels": {"touched": "yes"}}})
    await wait_until_idle(controller, server)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(naming("rack", "block"), id="one that runs"),
        pytest.param(naming("rack", "block").suspended(), id="one that is suspended"),
    ],
)
async def test_without_the_table_what_is_made_stays_and_nobody_is_blamed(
    server: FakeApiServer, job: JobBuilder
) -> None:
    server.add(TOPOLOGY_LEVELS, table(rack=RACK, block=BLOCK))
    server.add(JOBS, job.raw())
    async with controller_on(server) as controller:
        before = await made_of(server)
        server.remove(TOPOLOGY_LEVELS, "", "default")
        await wait_until(lambda: controller.store.levels.published is None)
        await touch(server, controller)
        assert await made_of(server) == before
        assert events(server, "GangChangeIgnored") == []


async def test_without_a_label_what_a_suspended_job_has_stays(server: FakeApiServer) -> None:
    server.add(TOPOLOGY_LEVELS, table(rack=RACK))
    server.add(JOBS, naming("rack").suspended().raw())
    async with controller_on(server) as controller:
        await made_of(server)
        before = uids(server)
        await look_again(server, controller, zone="example.com/zone")
        assert uids(server) == before


def uids(server: FakeApiServer) -> set[str]:
    return {each["metadata"]["uid"] for each in (*server.list_objects(WORKLOADS), *server.list_objects(GROUPS))}


async def test_a_pod_group_whose_template_has_a_label_is_made_without_a_table(server: FakeApiServer) -> None:
    server.add(TOPOLOGY_LEVELS, table(rack=RACK))
    server.add(JOBS, naming("rack").raw())
    async with controller_on(server) as controller:
        await made_of(server)
        server.remove(TOPOLOGY_LEVELS, "", "default")
        await wait_until(lambda: controller.store.levels.published is None)
        (group,), before = server.list_objects(GROUPS), uids(server)
        server.remove(GROUPS, "default", group["metadata"]["name"])
        await wait_until(lambda: len(uids(server)) == len(before) and uids(server) != before)
        _, annotations = await made_of(server)
    assert annotations[REQUIRED_TOPOLOGY] == RACK


async def test_a_job_that_is_gone_waits_for_nothing(server: FakeApiServer) -> None:
    server.add(JOBS, naming("rack").raw())
    async with controller_on(server) as controller:
        await wait_until_idle(controller, server)
        server.remove(JOBS, "default", "train")
        await wait_until(lambda: not controller.store.jobs)
        await wait_until_idle(controller, server)
        assert controller.loop.reconciler.pop_unresolved() == set()


async def look_again(server: FakeApiServer, controller: Controller, **labels: str) -> None:
    """The table changes, and something of the Job."""
    server.patch(TOPOLOGY_LEVELS, "", "default", {"status": said(**labels)})
    await touch(server, controller)


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param({"rack": "example.com/other", "nvlink": CLIQUE}, id="another label"),
        pytest.param({"block": BLOCK}, id="no label"),
    ],
)
async def test_what_is_made_keeps_its_label(server: FakeApiServer, labels: dict[str, str]) -> None:
    server.add(TOPOLOGY_LEVELS, table(rack=RACK))
    server.add(JOBS, naming("rack", "nvlink").raw())
    async with controller_on(server) as controller:
        before = await made_of(server)
        await look_again(server, controller, **labels)
        assert await made_of(server) == before
        assert events(server, "GangChangeIgnored") == []


async def test_a_level_that_a_job_names_when_it_runs_comes_too_late(server: FakeApiServer) -> None:
    server.add(TOPOLOGY_LEVELS, table(rack=RACK))
    server.add(JOBS, naming("rack").raw())
    async with controller_on(server):
        before = await made_of(server)
        server.add(PODS, job_pod("train").on("n1").raw())
        server.patch(JOBS, "default", "train", {"metadata": {"annotations": {REQUIRED_TOPOLOGY: "spine"}}})
        await wait_until(lambda: events(server, "GangChangeIgnored"))
        assert await made_of(server) == before


async def test_a_suspended_job_gets_a_new_label_as_soon_as_there_is_one(server: FakeApiServer) -> None:
    server.add(TOPOLOGY_LEVELS, table(rack=RACK))
    server.add(JOBS, naming("rack").suspended().raw())
    async with controller_on(server):
        await made_of(server)
        server.patch(TOPOLOGY_LEVELS, "", "default", {"status": said(rack="example.com/other")})
        other = {"topology": [{"key": "example.com/other"}]}
        await wait_until(
            lambda: [each["spec"].get("schedulingConstraints") for each in server.list_objects(GROUPS)] == [other]
        )
