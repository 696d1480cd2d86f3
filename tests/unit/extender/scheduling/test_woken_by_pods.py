"""Waiting gangs are planned again when a pod comes or goes that decides about other nodes than its own."""

import pytest

from serried.api.names import GroupKey
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness

ZONE = "zone"
CACHE, RING = {"app": "cache"}, {"app": "ring"}
LARGE = GroupKey("default", "large")
"""A gang that waits for more CPU than there is, and has no rules."""


def cluster(world: Harness) -> None:
    """Two zones of a node with room, s1 and s2, and one without, f1 and f2."""
    for name, cpus in (("s1", 4), ("f1", 1), ("s2", 4), ("f2", 1)):
        world.add(node(name).cpu(cpus).label(ZONE, f"z{name[-1]}"))
    for name in ("f1", "f2"):
        world.add(pod(f"filler-{name}").cpu(1).on(name))


def other(name: str, on: str) -> PodBuilder:
    """A pod that takes no CPU."""
    return pod(name).on(on)


async def wait(world: Harness, like: PodBuilder) -> None:
    """Gang g of one such member, and gang large, wait."""
    world.add(pod_group("large").gang(1), pod("large-0").cpu(9).in_group("large").scheduler(SCHEDULER))
    await world.add(pod_group("g").gang(1), like).run_until_idle()
    await world.run_until_idle()
    world.group_scheduler.take_woken()
    assert GANG in world.queue
    assert LARGE in world.queue


def member() -> PodBuilder:
    return pod("m0").cpu(1).in_group("g").scheduler(SCHEDULER)


@pytest.fixture(autouse=True)
def zones(world: Harness) -> None:
    cluster(world)


async def test_a_gang_apart_from_a_pod_wakes_when_that_one_goes(world: Harness) -> None:
    world.add(other("c1", "f1").label("app", "cache"), other("c2", "f2").label("app", "cache"))
    await wait(world, member().anti_affinity(CACHE, ZONE))
    world.delete("c1")
    assert world.group_scheduler.take_woken() == {GANG}


async def test_a_gang_that_a_pod_keeps_away_wakes_when_that_one_goes(world: Harness) -> None:
    world.add(other("c1", "f1").anti_affinity(RING, ZONE), other("c2", "f2").anti_affinity(RING, ZONE))
    await wait(world, member().label("app", "ring"))
    world.delete("c2")
    assert world.group_scheduler.take_woken() == {GANG}


async def test_a_gang_apart_from_one_that_is_planned_wakes_when_that_is_given_up(world: Harness) -> None:
    """The room that is given back holds no member of the gang that waits, on that node or elsewhere."""
    first = pod("first").cpu(1).priority(10).label("app", "cache").node_selector("small", "yes")
    world.add(node("s3").cpu(1).label(ZONE, "z3").label("small", "yes"), node("s4").cpu(5).label(ZONE, "z3"))
    world.add(pod_group("h").gang(1).priority(10), first.in_group("h").scheduler(SCHEDULER))
    await world.run_until_idle()
    assert world.ledger.of_group(GroupKey("default", "h")) is not None
    await wait(world, pod("m0").cpu(5).in_group("g").scheduler(SCHEDULER).anti_affinity(CACHE, ZONE))
    world.delete("first")
    world.schedule_groups()
    await world.run_tasks()
    assert world.ledger.of_group(GANG) is not None


async def test_a_gang_that_must_be_beside_a_pod_wakes_when_that_one_comes(world: Harness) -> None:
    await wait(world, member().affinity(CACHE, ZONE))
    world.add(other("c1", "f1").label("app", "cache"))
    assert world.group_scheduler.take_woken() == {GANG}


async def test_a_gang_that_is_spread_wakes_when_a_pod_comes_that_counts(world: Harness) -> None:
    world.add(
        other("r1", "f1").label("app", "cache"), other("r2", "f1").label("app", "cache"), pod("big").cpu(4).on("s2")
    )
    await wait(world, member().label("app", "cache").spread(CACHE, ZONE, maxSkew=1))
    world.add(other("r3", "f2").label("app", "cache"), other("r4", "f2").label("app", "cache"))
    assert world.group_scheduler.take_woken() == {GANG}


async def test_a_pod_about_which_only_others_have_rules_wakes_neither(world: Harness) -> None:
    world.add(
        other("c1", "f1").label("app", "cache"),
        other("c2", "f2").label("app", "cache"),
        other("web", "f1").anti_affinity(RING, ZONE),
    )
    await wait(world, member().anti_affinity(CACHE, ZONE))
    world.add(other("r1", "f2").label("app", "ring"))
    world.delete("r1")
    world.delete("web")
    assert world.group_scheduler.take_woken() == set()


async def test_a_pod_wakes_nobody_who_only_counts_for_the_same_rule_of_others(world: Harness) -> None:
    world.add(other("web", "f1").anti_affinity(CACHE, ZONE), other("web2", "f2").anti_affinity(CACHE, ZONE))
    await wait(world, member().label("app", "cache"))
    world.add(other("c1", "f1").label("app", "cache"))
    assert world.group_scheduler.take_woken() == set()
