"""PodGroups at the fallback level get the priority of their class, once."""

from serried.kube.wire import JOBS, JSON, PRIORITY_CLASSES
from tests.support.apiserver import FakeApiServer
from tests.support.builders import pod_group
from tests.support.controller_harness import GROUPS, controller_on, gang, settle, until
from tests.support.faults import calls


def priority_class(name: str, value: int, **more: bool) -> JSON:
    return {"metadata": {"name": name}, "value": value, **more}


def priorities(server: FakeApiServer) -> dict[str, int | None]:
    return {item["metadata"]["name"]: item["spec"].get("priority") for item in server.all(GROUPS)}


async def test_the_pod_group_of_a_job_is_made_with_it(server: FakeApiServer) -> None:
    server.add(PRIORITY_CLASSES, priority_class("high", 1000))
    async with controller_on(server) as controller:
        server.add(JOBS, gang().having("high", "spec", "template", "spec", "priorityClassName").raw())
        await until(lambda: list(priorities(server).values()) == [1000])
        await settle(controller, server)
    assert not server.seen(calls("PATCH", "/podgroups"))


async def test_a_users_pod_group_gets_it_and_keeps_it(server: FakeApiServer) -> None:
    server.add(PRIORITY_CLASSES, priority_class("high", 1000))
    server.add(GROUPS, pod_group("named").gang(2).having("high", "spec", "priorityClassName").raw())
    server.add(GROUPS, pod_group("plain").gang(2).raw())
    server.add(GROUPS, pod_group("preset").gang(2).having(7, "spec", "priority").raw())
    async with controller_on(server) as controller:
        await until(lambda: priorities(server) == {"named": 1000, "plain": None, "preset": 7})
        server.change(PRIORITY_CLASSES, "", "high", {"value": 2000})
        await settle(controller, server)
    assert priorities(server)["named"] == 1000


async def test_the_global_default_counts_for_those_that_name_no_class(server: FakeApiServer) -> None:
    server.add(PRIORITY_CLASSES, priority_class("usual", 50, globalDefault=True))
    server.add(GROUPS, pod_group("plain").gang(2).raw())
    async with controller_on(server):
        await until(lambda: priorities(server) == {"plain": 50})


async def test_a_class_that_comes_later_is_waited_for(server: FakeApiServer) -> None:
    server.add(GROUPS, pod_group("named").gang(2).having("high", "spec", "priorityClassName").raw())
    async with controller_on(server) as controller:
        await settle(controller, server)
        assert priorities(server) == {"named": None}
        server.add(PRIORITY_CLASSES, priority_class("high", 1000))
        await until(lambda: priorities(server) == {"named": 1000})
