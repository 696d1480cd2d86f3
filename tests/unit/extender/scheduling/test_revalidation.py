"""A plan is looked at again by every rule that made it, before anything is reserved or anybody evicted for it."""

import asyncio

import pytest

from serried.api.names import GroupKey
from tests.support.builders import RACK, NodeBuilder, PodBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness


class SlowWatch:
    """Each step of a plan takes 20 ms, as on a large cluster, so plans are made in slices."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 0.02
        return self._now


@pytest.mark.parametrize("forked", [False, True], ids=["made straight", "made by a child"])
async def test_two_gangs_that_keep_off_each_other_s_rack_are_planned_in_two(
    monkeypatch: pytest.MonkeyPatch, *, forked: bool
) -> None:
    monkeypatch.setattr("serried.plan.limit._UNITS_PER_CHECK", 1)
    world = Harness(stopwatch=SlowWatch()) if forked else Harness()
    world.add(*(node(f"r{rack}n{index}").cpu(8).rack(f"r{rack}") for rack in (0, 1) for index in range(8)))
    for mine, other in (("ga", "gb"), ("gb", "ga")):
        world.add(pod_group(mine).gang(4).topology(RACK))
        members = (pod(f"{mine}-{index}").cpu(1).scheduler(SCHEDULER).in_group(mine) for index in range(4))
        world.add(*(each.label("gang", mine).anti_affinity({"gang": other}, RACK) for each in members))
    for _ in range(20):
        await world.run_until_idle()
    reservations = [world.ledger.of_group(GroupKey("default", each)) for each in ("ga", "gb")]
    assert {each.domain for each in reservations if each is not None} == {"r0", "r1"}
    await world.close()


HOSTS: list[NodeBuilder] = [node("a").cpu(4).rack("r0"), node("b").cpu(4).rack("r0")]
NOISE = pod("noise").label("app", "noise").priority(1000).on("a")


def quiet_members() -> list[PodBuilder]:
    """Members that lie where the two low pods are, and in no rack with noise."""
    members = (pod(f"m{index}").cpu(3).priority(100).scheduler(SCHEDULER).in_group("g") for index in range(2))
    return [each.anti_affinity({"app": "noise"}, RACK) for each in members]


async def begin_preemption(world: Harness) -> None:
    """The victims are chosen and nobody has been told to end: record and dry runs are on their way."""
    world.add(*HOSTS, *(pod(f"low{index}").cpu(4).on(name) for index, name in enumerate("ab")))
    world.add(pod_group("g").gang(2).priority(100), *quiet_members())
    for _ in range(2000):
        world.schedule_groups()
        state = world.groups.states.get(GANG)
        if state is not None and state.cycle is not None:
            break
        await asyncio.sleep(0)
        world.clock.advance(0.01)
    assert not world.api.list_evicted()


async def settle_down(world: Harness) -> None:
    for _ in range(300):
        world.schedule_groups()
        await asyncio.sleep(0)
        world.clock.advance(0.01)
    await world.run_until_idle()


async def test_nobody_is_evicted_for_a_gang_that_a_new_pod_keeps_off_its_rack(world: Harness) -> None:
    await begin_preemption(world)
    world.add(NOISE)
    await settle_down(world)
    assert world.api.list_evicted() == []
    await world.close()


async def test_without_that_pod_the_victims_end(world: Harness) -> None:
    await begin_preemption(world)
    await settle_down(world)
    assert sorted(world.api.list_evicted()) == ["low0", "low1"]
    await world.close()
