"""PodGroups at the fallback level get the priority of their class, once."""

from serried.api.level import FALLBACK, NATIVE
from serried.kube.wire import JOBS, JSON, PRIORITY_CLASSES, Resource, composites, pod_groups
from tests.support.apiserver import NATIVE_SERVED, FakeApiServer
from tests.support.builders import pod_group, workload
from tests.support.composites import composite
from tests.support.controller_harness import GROUPS, WORKLOADS, controller_on, gang, wait_until, wait_until_idle
from tests.support.faults import calls

COMPOSITES = composites(FALLBACK)


def priority_class(name: str, value: int, **more: bool) -> JSON:
    return {"metadata": {"name": name}, "value": value, **more}


def priorities(server: FakeApiServer, resource: Resource = GROUPS) -> dict[str, int | None]:
    return {item["metadata"]["name"]: item["spec"].get("priority") for item in server.list_objects(resource)}


async def test_the_pod_group_of_a_job_is_made_with_it(server: FakeApiServer) -> None:
    server.add(PRIORITY_CLASSES, priority_class("high", 1000))
    async with controller_on(server) as controller:
        server.add(JOBS, gang().with_field("high", "spec", "template", "spec", "priorityClassName").raw())
        await wait_until(lambda: list(priorities(server).values()) == [1000])
        await wait_until_idle(controller, server)
    assert not server.list_requests(calls("PATCH", "/podgroups"))


async def test_a_users_pod_group_gets_it_and_keeps_it(server: FakeApiServer) -> None:
    server.add(PRIORITY_CLASSES, priority_class("high", 1000))
    server.add(GROUPS, pod_group("named").gang(2).with_field("high", "spec", "priorityClassName").raw())
    server.add(GROUPS, pod_group("plain").gang(2).raw())
    server.add(GROUPS, pod_group("preset").gang(2).with_field(7, "spec", "priority").raw())
    async with controller_on(server) as controller:
        await wait_until(lambda: priorities(server) == {"named": 1000, "plain": 0, "preset": 7})
        server.patch(PRIORITY_CLASSES, "", "high", {"value": 2000})
        await wait_until_idle(controller, server)
    assert priorities(server)["named"] == 1000


async def test_the_global_default_counts_for_those_that_name_no_class(server: FakeApiServer) -> None:
    server.add(PRIORITY_CLASSES, priority_class("usual", 50, globalDefault=True))
    server.add(GROUPS, pod_group("plain").gang(2).raw())
    async with controller_on(server):
        await wait_until(lambda: priorities(server) == {"plain": 50})


async def test_a_class_that_comes_later_is_waited_for(server: FakeApiServer) -> None:
    server.add(GROUPS, pod_group("named").gang(2).with_field("high", "spec", "priorityClassName").raw())
    async with controller_on(server) as controller:
        await wait_until_idle(controller, server)
        assert priorities(server) == {"named": None}
        server.add(PRIORITY_CLASSES, priority_class("high", 1000))
        await wait_until(lambda: priorities(server) == {"named": 1000})


async def test_composite_groups_get_theirs_too(server: FakeApiServer) -> None:
    server.add(PRIORITY_CLASSES, priority_class("usual", 50, globalDefault=True))
    server.served.add(COMPOSITES)
    server.add(COMPOSITES, composite("plain").raw())
    server.add(COMPOSITES, composite("below").child_of("plain").with_field("high", "spec", "priorityClassName").raw())
    server.add(GROUPS, pod_group("leaf").gang(2).child_of("below").raw())
    async with controller_on(server) as controller:
        await wait_until(lambda: priorities(server, COMPOSITES) == {"plain": 50, "below": None})
        await wait_until(lambda: priorities(server) == {"leaf": 50})
        server.add(PRIORITY_CLASSES, priority_class("high", 1000))
        await wait_until(lambda: priorities(server, COMPOSITES) == {"plain": 50, "below": 1000})
        await wait_until_idle(controller, server)
    assert priorities(server) == {"leaf": 50}


async def test_what_a_template_of_somebodys_workload_says_beside_its_class_counts_for_nothing(
    server: FakeApiServer,
) -> None:
    template = {"name": "t", "schedulingPolicy": {"gang": {"minCount": 3}}, "priority": 1000000000}
    theirs = workload("theirs").for_job("train").with_item(template, "spec", "podGroupTemplates")
    server.add(WORKLOADS, theirs.raw())
    async with controller_on(server):
        server.add(JOBS, gang().raw())
        await wait_until(lambda: list(priorities(server).values()) == [0])


async def test_nothing_is_written_for_a_class_of_the_system(server: FakeApiServer) -> None:
    server.add(PRIORITY_CLASSES, priority_class("system-node-critical", 2000001000))
    server.add(GROUPS, pod_group("bold").gang(2).with_field("system-node-critical", "spec", "priorityClassName").raw())
    async with controller_on(server) as controller:
        await wait_until_idle(controller, server)
    assert priorities(server) == {"bold": None}


async def test_at_the_native_level_the_api_server_alone_resolves_it(server: FakeApiServer) -> None:
    groups = pod_groups(NATIVE.group, NATIVE.version)
    server.served |= set(NATIVE_SERVED)
    server.add(PRIORITY_CLASSES, priority_class("high", 1000))
    server.add(groups, pod_group("named").gang(2).with_field("high", "spec", "priorityClassName").raw())
    async with controller_on(server, level=NATIVE) as controller:
        await wait_until_idle(controller, server)
    assert priorities(server, groups) == {"named": None}
