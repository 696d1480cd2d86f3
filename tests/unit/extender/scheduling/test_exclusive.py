"""A gang that wants a rack for itself gets that of an exclusive gang of lower priority, if all pods of that one may go.

The scene: two racks with room for both gangs in either, so nothing but exclusivity is in the way.
"""

from collections.abc import AsyncIterator

import pytest

from extender.features.exclusive import find_occupied_domains
from extender.features.preemption.search import find_preemption
from serried.api.names import GroupKey
from serried.api.preference import EXCLUSIVE
from serried.api.verdict import Reason
from tests.support.builders import Builder, PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, members
from tests.support.lines import count_lines

HIGH = 100


@pytest.fixture
async def world() -> AsyncIterator[Harness]:
    made = Harness()
    made.add(*(node(f"n{place}").cpu(8).rack(f"r{place}") for place in range(2)))
    yield made
    await made.close()


def alone(name: str, count: int = 2) -> PodGroupBuilder:
    return pod_group(name).gang(count).topology().annotation(EXCLUSIVE, "true")


def urgent() -> list[Builder]:
    """Gang g of two members."""
    return [alone("g").priority(HIGH), *[each.priority(HIGH) for each in members(2)]]


def holding(name: str, on: str, priority: int = 0) -> list[Builder]:
    """An exclusive gang of two that runs on a node."""
    pods = [member(f"{name}{place}", name).on(on).priority(priority) for place in range(2)]
    return [alone(name).priority(priority), *pods]


def member(name: str, group: str) -> PodBuilder:
    return pod(name).cpu(1).scheduler(SCHEDULER).in_group(group)


def list_left(world: Harness) -> list[str]:
    return sorted(key.name for key in world.api.pods if not key.name.startswith("m"))


async def test_the_holder_of_one_rack_goes_and_the_gang_is_there_alone(world: Harness) -> None:
    await world.add(*holding("a", "n0"), *holding("b", "n1"), pod("p").cpu(1).on("n0"), *urgent()).run_until_idle()
    assert list_left(world) in (["a0", "a1", "p"], ["b0", "b1", "p"])
    gone = "ab".replace(list_left(world)[0][0], "")
    for name in (f"{gone}0", f"{gone}1"):
        world.delete(name)
    await world.run_until_idle()
    assert world.binding_cycle().reservation.domain == {"a": "r0", "b": "r1"}[gone]


async def test_the_holder_of_lower_priority_goes(world: Harness) -> None:
    await world.add(*holding("a", "n0", 20), *holding("b", "n1", 10), *urgent()).run_until_idle()
    assert list_left(world) == ["a0", "a1"]


@pytest.mark.parametrize(
    "holder",
    [
        pytest.param([*holding("b", "n1", HIGH)], id="of the same priority"),
        pytest.param(
            [*holding("b", "n1"), member("late", "b").on("n1").controlled_by("DaemonSet", "d")],
            id="with a pod that may not go",
        ),
        pytest.param([alone("b"), *[member(f"b{place}", "b") for place in range(2)]], id="that is just being placed"),
    ],
)
async def test_a_rack_stays_closed_whose_holder_is(world: Harness, holder: list[Builder]) -> None:
    await world.add(*holding("a", "n0", HIGH), *holder).run_until_idle()
    before = list_left(world)
    await world.add(*urgent()).run_until_idle()
    assert list_left(world) == before
    assert world.reasons()[-1] is Reason.NO_DOMAIN_FITS


async def test_a_holder_that_ends_already_is_waited_for(world: Harness) -> None:
    ending = [member(f"b{place}", "b").on("n1").deleting() for place in range(2)]
    await world.add(*holding("a", "n0", HIGH), alone("b"), *ending, *urgent()).run_until_idle()
    await world.pass_time(60)
    assert find_preemption(world.groups.states[GANG]) is None or not hasattr(
        find_preemption(world.groups.states[GANG]), "victims"
    )
    for name in ("b0", "b1"):
        world.delete(name)
    world.store.drop_group(GroupKey("default", "b"))
    await world.run_until_idle()
    assert world.binding_cycle().reservation.domain == "r1"


async def test_a_gang_that_says_nothing_evicts_nobody_for_it(world: Harness) -> None:
    modest = pod_group("g").gang(2).topology().priority(HIGH)
    await world.add(
        *holding("a", "n0"), *holding("b", "n1"), modest, *[each.priority(HIGH) for each in members(2)]
    ).run_until_idle()
    assert len(list_left(world)) == 4
    assert world.binding_cycle().reservation.domain


async def test_exclusive_gangs_of_which_nobody_runs_cost_the_others_nothing(world: Harness) -> None:
    await world.add(*holding("a", "n0"), alone("g")).run_until_idle()
    alone_there = count_look(world)
    world.add(*(alone(f"empty{number}") for number in range(3000)))
    assert count_look(world) == alone_there


def count_look(world: Harness) -> int:
    """Count the lines that run to find the racks of other exclusive gangs."""
    group = world.store.groups[GANG]
    assert find_occupied_domains(group, world.store, world.core.ledger) == {"r0"}
    return count_lines(lambda: find_occupied_domains(group, world.store, world.core.ledger))


@pytest.mark.parametrize("goes", [False, True], ids=["it says so no more", "its PodGroup goes before its pods"])
async def test_a_rack_is_open_once_its_holder_wants_it_for_itself_no_more(world: Harness, *, goes: bool) -> None:
    """The change frees no room: there was always enough."""
    await world.add(*holding("a", "n0", HIGH), *holding("b", "n1", HIGH), *urgent()).run_until_idle()
    assert world.ledger.of_group(GANG) is None
    if goes:
        world.store.drop_group(GroupKey("default", "a"))
    else:
        world.add(pod_group("a").gang(2).topology().priority(HIGH))
    await world.run_until_idle()
    assert world.binding_cycle().reservation.domain == "r0"
