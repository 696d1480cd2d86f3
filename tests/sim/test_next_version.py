"""The version of the Workload API that is announced after v1beta1, and one whose shape nobody knows yet."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import orjson

from extender.core.protocol import BindRequest, Pass, Steer
from extender.process import Extender
from serried.api.level import ApiLevel
from serried.api.names import Key
from serried.kube.discovery import Discovery
from serried.kube.wire import JOBS, NODES, PODS, pod_groups, workloads
from tests.support.apiserver import SERVED, FakeApiServer
from tests.support.builders import node, pod
from tests.support.controller_harness import controller_on, gang, job_pod, wait_until
from tests.support.extender_process import run_extender
from tests.support.schemas import GROUP, V1BETA1_KINDS, Kinds, change

GROUPS = pod_groups(GROUP, "v1")
SIZE = 3
UNKNOWN = change(V1BETA1_KINDS, "PodGroup.spec.schedulingPolicy", None)


@asynccontextmanager
async def serving(kinds: Kinds) -> AsyncIterator[tuple[FakeApiServer, ApiLevel]]:
    """An API server whose v1 has these kinds, with room for a gang of three; and the level that is found there."""
    async with FakeApiServer((*SERVED, GROUPS, workloads(GROUP, "v1"))) as server, server.client() as client:
        server.schemas = {"v1": kinds}
        for name in ("n1", "n2"):
            server.add(NODES, node(name).cpu(2).raw())
        yield server, await Discovery(client).find()


async def test_a_gang_job_goes_from_its_workload_to_its_last_binding_through_v1() -> None:
    async with (
        serving(V1BETA1_KINDS) as (server, level),
        controller_on(server, level=level),
        run_extender(server, level=level) as extender,
    ):
        await wait_until(extender.feed.synced.is_set)
        server.add(JOBS, gang(size=SIZE).raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        for index in range(SIZE):
            server.add(PODS, job_pod("train", index).cpu(1).scheduler("serried").raw())
        await wait_until(lambda: "Planned" in reasons(extender))
        await schedule(extender)
        await wait_until(lambda: all(each["spec"].get("nodeName") for each in server.list_objects(PODS)))
        await wait_until(lambda: conditions(server) == [("True", "Scheduled")])
        assert extender.selfcheck.describe()["api"]["version"] == "v1"
    assert set(named_versions(server)) == {f"{GROUP}/v1"}


async def test_gangs_of_a_shape_that_nobody_knows_wait_with_the_reason_and_plain_pods_go_on() -> None:
    async with serving(UNKNOWN) as (server, level), run_extender(server, level=level) as extender:
        await wait_until(extender.feed.synced.is_set)
        server.add(PODS, pod("m0").cpu(1).scheduler("serried").in_group("g").raw())
        server.add(PODS, pod("plain").cpu(1).scheduler("serried").raw())
        await wait_until(lambda: "WorkloadAPIMissing" in reasons(extender))
        await wait_until(lambda: len(extender.store.pods) == 2)
        plain = next(each for each in extender.store.pods.values() if each.name == "plain")
        assert isinstance(extender.core.service.filter(plain, ["n1"]), Pass)
        said = extender.selfcheck.describe()["api"]
        assert (said["level"], len(said["refused"])) == ("fallback", 1)
        assert "PodGroup.spec.schedulingPolicy is missing" in said["refused"][0]
        extender.update_refused_versions(replace(level, refused=()))
        await wait_until(lambda: reasons(extender) == ["PodGroupMissing"])
        assert extender.selfcheck.describe()["api"]["refused"] == []


def reasons(extender: Extender) -> list[str]:
    """Return the reasons of the groups' verdicts."""
    states = extender.core.groups.states.values()
    return [state.verdict.reason.value for state in states if state.verdict is not None]


async def schedule(extender: Extender) -> None:
    """kube-scheduler filters and binds every pod."""
    service = extender.core.service
    calls = []
    for each in list(extender.store.pods.values()):
        answer = service.filter(each, ["n1", "n2"])
        assert isinstance(answer, Steer)
        request = BindRequest(Key(each.namespace, each.name), each.uid, answer.node)
        calls.append(service.bind(request, _never))
    async with asyncio.timeout(10):
        assert await asyncio.gather(*calls) == [""] * SIZE


async def _never() -> None:
    await asyncio.Event().wait()


def conditions(server: FakeApiServer) -> list[tuple[str, str]]:
    """Status and reason of the PodGroups' conditions."""
    told = [each for group in server.list_objects(GROUPS) for each in group.get("status", {}).get("conditions", ())]
    return [(each["status"], each["reason"]) for each in told]


def named_versions(server: FakeApiServer) -> Iterator[str]:
    """Yield every version of the group in the paths and bodies of the requests, references as well."""
    for request in server.requests:
        written = "" if request.body is None else orjson.dumps(request.body).decode()
        asked = request.path if "/podgroups" in request.path or "/workloads" in request.path else ""
        yield from re.findall(rf"{re.escape(GROUP)}/v\w+", f"{asked} {written}")
