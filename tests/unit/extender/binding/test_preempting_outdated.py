"""A plan that others have overtaken before the first eviction takes nobody with it."""

from collections.abc import Callable

import pytest

from extender.core.scheduling.binding_cycle import CycleStage
from serried.api.names import Disruption, Key
from serried.api.verdict import Reason
from tests.support.builders import PodBuilder, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes

HIGH = 100


def running(name: str, node: str, priority: int = 0, cpus: int = 2) -> PodBuilder:
    return pod(name).cpu(cpus).on(node).priority(priority)


def member(index: int) -> PodBuilder:
    """Return a running member of a gang of mode all, on a node of its own."""
    return running(f"v{index}", f"n{index + 1}").scheduler(SCHEDULER).in_group("v")


def take_room(world: Harness) -> None:
    """A plain pod is bound into room that the plan counts on."""
    world.add(running("thief", "n1", HIGH))


def take_a_node(world: Harness) -> None:
    """A node of the plan goes."""
    world.store.drop_node("n1")


def join(world: Harness) -> None:
    """A member that goes with the victims begins to run."""
    world.add(member(2))


CHANGES = pytest.mark.parametrize("change", [take_room, take_a_node, join])
TIMES = pytest.mark.parametrize(
    "verb",
    [pytest.param("rehearse", id="during the dry runs"), pytest.param("mark", id="while the conditions are written")],
)


async def decide(world: Harness) -> Harness:
    """A gang of two is to get the nodes of a gang of mode all."""
    world.api.graceful.update(Key("default", f"v{i}") for i in range(2))
    world.add(*small_nodes(2), pod_group("v").gang(2).disruption(Disruption.ALL), *(member(i) for i in range(2)))
    await world.add(gang(2).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(2))).run_until_idle()
    return world


@CHANGES
@TIMES
async def test_nobody_ends_for_it_and_what_was_said_is_taken_back(
    world: Harness, change: Callable[[Harness], None], verb: str
) -> None:
    world.api.hold(verb)
    await decide(world)
    assert world.binding_cycle().stage is CycleStage.PREEMPTING
    change(world)
    world.api.release(verb)
    await world.run_tasks()
    world.sync_pods()
    assert not world.api.list_evicted()
    assert Reason.PLAN_OUTDATED in world.reasons()
    assert [world.pod(f"v{i}").disruption for i in range(2)] == ["", ""]


@TIMES
async def test_one_that_still_holds_is_carried_out(world: Harness, verb: str) -> None:
    world.api.hold(verb)
    await decide(world)
    world.add(*small_nodes(4)[2:], running("other", "n3", HIGH))
    world.api.release(verb)
    await world.run_until_idle()
    assert sorted(world.api.list_evicted()) == ["v0", "v1"]


async def test_others_end_for_it_at_once(world: Harness) -> None:
    """No victim has been evicted yet, so there is nothing to wait for."""
    world.api.hold("mark")
    world.add(*small_nodes(3), *(running(f"low{i}", f"n{i}") for i in range(1, 3)), running("dear", "n3", priority=1))
    await world.add(gang(2).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(2))).run_until_idle()
    take_room(world)
    world.api.release("mark")
    await world.run_until_idle()
    assert Reason.PLAN_OUTDATED in world.reasons()
    assert sorted(world.api.list_evicted()) == ["dear", "low2"]


async def test_one_that_is_overtaken_again_and_again_waits_longer_each_time(world: Harness) -> None:
    world.api.hold("rehearse")
    world.add(*small_nodes(9), *(running(f"low{i}", f"n{i}") for i in range(1, 10)))
    await world.add(gang(1).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(1))).run_until_idle()
    for turn in range(4):
        (slot,) = world.binding_cycle().reservation.slots.values()
        world.add(running(f"thief{turn}", slot.node, HIGH))
        world.api.release("rehearse")
        world.api.hold("rehearse")
        await world.run_until_idle()
    assert world.groups.states[GANG].cycle is None
    assert world.reasons().count(Reason.PLAN_OUTDATED) == 4
    await world.pass_time(2.0)
    assert world.binding_cycle().stage is CycleStage.PREEMPTING
    assert not world.api.list_evicted()
