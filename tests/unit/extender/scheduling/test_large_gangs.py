"""The cost of a cycle whose members come one by one: each of them pays for itself, not for all the others.

Effort is counted in calls of functions. A gang that is ten times as large may cost a member a little more, never ten
times as much.
"""

from collections.abc import Awaitable, Callable

import pytest

from extender.core.scheduling.binding_cycle import CycleStage
from serried.api.names import GroupKey, GroupKind
from serried.api.reservation import ReservationPhase
from tests.support.builders import node, pod_group
from tests.support.composites import composite
from tests.support.effort import measured
from tests.support.extender_harness import GANG, Harness, gang, members

SMALL, LARGE = 30, 300
SLACK = 50
"""Calls: growing a set or a queue takes some now and then."""

TREE = GroupKey("default", "root", GroupKind.COMPOSITE)

Story = Callable[[Harness, int], Awaitable[int]]
"""A story that returns what one member costs in a gang of this size, in calls of functions."""


async def gather(world: Harness, size: int) -> None:
    """A gang of this size is planned, and all of its members but three are at bind."""
    await world.add(node("n1").cpu(size).pods(size), gang(size), *members(size)).run_until_idle()
    assert world.binding_cycle().stage is CycleStage.GATHERING
    await call_bind(world, size)


async def call_bind(world: Harness, size: int) -> None:
    for index in range(size - 3):
        world.bind(f"m{index}")
    await world.run_tasks()


async def come_to_bind(world: Harness, size: int) -> int:
    await gather(world, size)
    with measured() as effort:
        world.bind(f"m{size - 3}")
        await world.run_tasks()
    assert len(world.binding_cycle().at_bind) == size - 2
    return effort.calls


async def come_to_bind_in_a_tree(world: Harness, size: int) -> int:
    parts = [pod_group(name).gang(1 if name == "a" else size - 1).child_of("root") for name in "ab"]
    pods = [each.in_group("b" if number else "a") for number, each in enumerate(members(size))]
    await world.add(node("n1").cpu(size).pods(size), composite("root").gang(2), *parts, *pods).run_until_idle()
    await call_bind(world, size)
    with measured() as effort:
        world.bind(f"m{size - 3}")
        await world.run_tasks()
    assert len(world.binding_cycle(TREE).at_bind) == size - 2
    return effort.calls


async def come_when_the_gang_is_bound(world: Harness, size: int) -> int:
    await bind_most(world, size)
    await world.run_until_idle()
    return await bind_one_more(world, size)


async def come_before_the_watch_shows_the_gang_bound(world: Harness, size: int) -> int:
    await bind_most(world, size)
    return await bind_one_more(world, size)


async def bind_most(world: Harness, size: int) -> None:
    await world.add(node("n1").cpu(size).pods(size), gang(1), *members(size)).run_until_idle()
    await call_bind(world, size)
    await world.run_tasks()


async def bind_one_more(world: Harness, size: int) -> int:
    cycle = world.binding_cycle()
    assert (cycle.stage, len(cycle.bound)) == (CycleStage.BINDING, size - 3)
    with measured() as effort:
        world.bind(f"m{size - 3}")
        await world.run_tasks()
    assert world.node_of(f"m{size - 3}") == "n1"
    return effort.calls


async def be_put_aside(world: Harness, size: int) -> int:
    await gather(world, size)
    world.schedule_groups()
    world.mark_unschedulable(f"m{size - 1}")
    return look_at_the_change_of(world, size - 1)


async def be_shown_bound(world: Harness, size: int) -> int:
    await gather(world, size)
    world.api.hold("bind")
    for index in range(size - 3, size):
        world.bind(f"m{index}")
    await world.run_tasks()
    world.schedule_groups()
    assert world.binding_cycle().reservation.phase is ReservationPhase.COMMITTED
    world.api.release("bind")
    await world.run_tasks()
    assert len(world.binding_cycle().bound) == size
    look_at_the_change_of(world, 0)  # the first changes what is said of the gang
    return look_at_the_change_of(world, 1)


async def come_late_without_room(world: Harness, size: int) -> int:
    await world.add(node("n1").cpu(2).pods(size), gang(2), *members(size)).run_until_idle()
    world.schedule_groups()
    assert len(world.binding_cycle().late) == size - 2
    return look_at_the_change_of(world, size - 1)


def look_at_the_change_of(world: Harness, index: int) -> int:
    """Count the calls it takes when the watch shows a member again, and its gang is looked at."""
    changed = world.pod(f"m{index}")
    with measured() as effort:
        world.store.put_pod(changed)
        for key in world.group_scheduler.take_dirty():
            world.group_scheduler.consider(key)
    assert world.groups.states[GANG].cycle is not None
    return effort.calls


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(come_to_bind, id="a member comes to its bind call"),
        pytest.param(come_to_bind_in_a_tree, id="a member of a tree comes to its bind call"),
        pytest.param(come_when_the_gang_is_bound, id="a member that no quorum needs is bound"),
        pytest.param(come_before_the_watch_shows_the_gang_bound, id="one is bound before the watch shows the others"),
        pytest.param(be_put_aside, id="the scheduler puts a member aside"),
        pytest.param(be_shown_bound, id="the watch shows a member bound"),
        pytest.param(come_late_without_room, id="a member without a slot changes"),
    ],
)
async def test_a_member_of_a_large_gang_costs_no_more_than_one_of_a_small_gang(story: Story) -> None:
    costs = []
    for size in (SMALL, LARGE):
        world = Harness()
        costs.append(await story(world, size))
        await world.close()
    assert costs[1] <= costs[0] + SLACK
