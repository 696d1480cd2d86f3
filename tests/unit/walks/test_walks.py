"""Walks: the number of files that a newcomer opens to follow what Serried does most. No walk may get longer.

A change that shortens a walk writes the new length here. The aim is a plan through 16 files beside the planner and the
values, and a filter call through 8 in all.
"""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest

from extender.core.http.verbs import Verbs
from serried.api.level import NATIVE
from serried.api.names import Key
from serried.cluster.cache import Store
from serried.feed import Feed, Kind
from serried.kube.wire import JOBS, LineSplitter, decode_change
from serried.ops.metrics import ExtenderMetrics
from serried.rules.all import RULES
from tests.support.apiserver import FakeApiServer
from tests.support.builders import node, pod
from tests.support.controller_harness import GROUPS, controller_on, wait_until
from tests.support.controller_harness import gang as gang_job
from tests.support.extender_harness import SCHEDULER, Harness, gang, members, small_nodes
from tests.support.steps import finish
from tests.support.volumes import csi_node
from tests.support.walks import PathLength, RequestPath


@pytest.fixture
async def world() -> AsyncIterator[Harness]:
    """Four nodes, a plain pod, and the first of two members."""
    world = Harness()
    world.add(*small_nodes(4), gang(2), *members(1), pod("plain").cpu(1).scheduler(SCHEDULER))
    await world.run_until_idle()
    yield world
    await world.close()


@pytest.fixture
def verbs(world: Harness) -> Verbs:
    return Verbs(world.service, lambda: True, ExtenderMetrics(), world.clock)


def filter_call(world: Harness, name: str) -> bytes:
    found = world.api.pods[Key("default", name)]
    return orjson.dumps({"Pod": found, "Nodes": None, "NodeNames": list(world.store.nodes)})


def bind_call(world: Harness, name: str) -> bytes:
    uid = world.pod(name).uid
    slot = world.ledger.slot_of(uid)
    assert slot is not None
    return orjson.dumps({"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": slot.node})


def look(world: Harness) -> None:
    """Run one round of the scheduling loop, without its tick."""
    scheduler = world.group_scheduler
    for key in finish(scheduler.sort_in_queue_order(scheduler.take_dirty() | scheduler.take_woken())):
        scheduler.consider(key)
        world.core.runner.carry_out()


async def never() -> None:
    await asyncio.Event().wait()


async def settle() -> None:
    for _ in range(80):
        await asyncio.sleep(0)


async def test_a_filter_call_of_a_plain_pod(world: Harness, verbs: Verbs) -> None:
    walk = RequestPath()
    verbs.filter(filter_call(world, "plain"))
    with walk.follow():
        verbs.filter(filter_call(world, "plain"))
    assert walk.measure() == PathLength(7, 7), list(walk.files)


async def test_a_plan_from_the_last_member_to_its_reservation(world: Harness) -> None:
    walk = RequestPath()
    world.add(*members(1, first=1))
    with walk.follow():
        look(world)
    assert world.ledger.slot_of("pod-m1") is not None
    assert walk.measure() == PathLength(36, 20), list(walk.files)


async def test_the_bind_calls_of_a_gang(world: Harness, verbs: Verbs) -> None:
    walk = RequestPath()
    world.add(*members(1, first=1))
    look(world)
    await world.run_tasks()
    for name in ("m0", "m1"):
        verbs.filter(filter_call(world, name))
    bodies = [bind_call(world, name) for name in ("m0", "m1")]
    with walk.follow():
        calls = [asyncio.create_task(verbs.bind(body, never)) for body in bodies]
        await settle()
    assert [call.done() and orjson.loads(call.result().body)["Error"] for call in calls] == ["", ""]
    assert walk.measure() == PathLength(33, 25), list(walk.files)


async def test_a_gang_that_no_feature_is_about_passes_none_of_their_files(world: Harness, verbs: Verbs) -> None:
    walk = RequestPath()
    world.add(*members(1, first=1))
    with walk.follow():
        look(world)
        await world.run_tasks()
        for name in ("m0", "m1"):
            verbs.filter(filter_call(world, name))
        calls = [asyncio.create_task(verbs.bind(bind_call(world, name), never)) for name in ("m0", "m1")]
        await settle()
    assert [call.done() for call in calls] == [True, True]
    assert [name for name in walk.files if name.startswith("extender/features/")] == []


async def test_a_watch_event_of_a_pod() -> None:
    walk = RequestPath()
    world = Harness()
    world.add(*small_nodes(2), gang(2), *members(2))
    async with FakeApiServer() as server, server.client() as client:
        feed = Feed(client, NATIVE, world.store, on_change=lambda _old, _new: world.groups.wake())
        reflector = feed.reflectors[Kind.PODS]
        reflector.known.begin_list()
        reflector.known.upsert(world.api.pods[Key("default", "m0")])
        reflector.known.end_list("1")
        bound = members(1)[0].on("n1").raw()
        bound["metadata"]["resourceVersion"] = "77"
        with walk.follow():
            for line in LineSplitter().feed(orjson.dumps({"type": "MODIFIED", "object": bound}) + b"\n"):
                await reflector._apply(decode_change(line))  # noqa: SLF001 - without the socket, whose tasks take turns
    assert world.store.pods["pod-m0"].bound
    assert walk.measure() == PathLength(21, 12), list(walk.files)
    await world.close()


def test_a_heartbeat_of_a_node_with_a_csi_driver_is_compared_and_no_more() -> None:
    store = Store([SCHEDULER], rules=RULES)
    store.put_object(csi_node("n1", ebs=4).value())
    store.put_node(node("n1").version("1").value())
    walk, again = RequestPath(), node("n1").version("2").value()
    with walk.follow():
        store.put_node(again)
    assert walk.measure() == PathLength(1, outside=1), walk.files


async def test_a_job_gets_its_workload_and_pod_group() -> None:
    walk = RequestPath()
    async with FakeApiServer() as server, controller_on(server) as controller:
        await wait_until(lambda: controller.queue.idle)
        with walk.follow():
            server.add(JOBS, gang_job("train", 3).raw())
            await wait_until(lambda: len(server.list_objects(GROUPS)) > 0 and controller.queue.idle)
    assert walk.measure() == PathLength(31, 24), list(walk.files)


async def test_a_preemption_to_its_evictions() -> None:
    walk = RequestPath()
    world = Harness()
    victims = [pod(f"v{index}").cpu(1).scheduler(SCHEDULER).on(f"n{index % 2 + 1}") for index in range(4)]
    world.add(*small_nodes(2), *victims, gang(2), *[member.priority(100) for member in members(2)])
    with walk.follow():
        for _ in range(7):
            world.schedule_groups()
            await world.run_tasks()
    assert world.api.list_calls("delete")
    assert walk.measure() == PathLength(59, 36), list(walk.files)
    await world.close()
