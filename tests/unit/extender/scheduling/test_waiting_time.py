"""Since when a gang waits: the API says it, so a new leader goes on with the order and the ageing of the last one."""

import pytest

from serried.api.names import GroupKey, write_time
from tests.support.builders import Builder, PodBuilder, pod, pod_group
from tests.support.clock import Clock
from tests.support.extender_harness import DAY, EPOCH, GANG, SCHEDULER, Harness, gang, members, small_nodes

pytestmark = pytest.mark.core

BEGUN = Clock()()
"""The loop's clock when a story begins."""

FULL = small_nodes(1, cpus=0)
"""A cluster in which everybody waits."""


def created(builder: PodBuilder, seconds_ago: float) -> PodBuilder:
    """A pod that was there so long before the story begins."""
    return builder.created(write_time(EPOCH + BEGUN - seconds_ago))


def waiting_gang(name: str, seconds_ago: float, priority: int = 0) -> tuple[GroupKey, list[Builder]]:
    """A gang of one whose pod was created so long ago."""
    group = pod_group(name).gang(1).priority(priority)
    member = pod(f"{name}-0").cpu(1).scheduler(SCHEDULER).in_group(name).priority(priority)
    return group.value().key, [group, created(member, seconds_ago)]


def since(world: Harness) -> float:
    """Since when gang g waits, in seconds since the story began."""
    found = world.groups.states[GANG].quorum_since
    assert found is not None
    return found - BEGUN


def order(world: Harness, *groups: GroupKey) -> list[str]:
    waiting = [world.queue.describe(group, world.groups.states.get(group)) for group in groups]
    return [each.group.name for each in world.queue.order.sort(waiting)]


def test_a_leader_that_sees_gangs_for_the_first_time_knows_who_came_first(world: Harness) -> None:
    (late, of_late), (early, of_early) = waiting_gang("a", 100), waiting_gang("b", 5_000)
    world.add(*FULL, *of_late)
    world.schedule_groups()
    world.clock.advance(60)
    world.add(*of_early)  # the watch shows it later, for whatever reason
    world.schedule_groups()
    assert order(world, late, early) == ["b", "a"]


def test_and_how_long_they_have_aged(world: Harness) -> None:
    (old, of_old), (new, of_new) = waiting_gang("a", 1.5 * DAY, priority=1), waiting_gang("b", 100, priority=5)
    world.add(*FULL, *of_old, *of_new)
    world.schedule_groups()
    assert order(world, new, old) == ["a", "b"]


def test_gangs_of_one_second_stand_in_the_order_of_their_names(world: Harness) -> None:
    (first, of_first), (second, of_second) = waiting_gang("a", 100), waiting_gang("b", 100)
    world.add(*FULL, *of_second)
    world.schedule_groups()
    world.clock.advance(0.3)
    world.add(*of_first)
    world.schedule_groups()
    assert order(world, second, first) == ["a", "b"]


def test_those_that_come_while_it_leads_stand_in_the_order_in_which_they_came(world: Harness) -> None:
    (first, of_first), (second, of_second) = waiting_gang("b", 0), waiting_gang("a", 0)
    world.add(*FULL, *of_first)
    world.schedule_groups()
    world.clock.advance(0.3)
    world.add(*of_second)
    world.schedule_groups()
    assert order(world, second, first) == ["b", "a"]


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        pytest.param([900, 500], -500, id="the last one that the quorum takes"),
        pytest.param([900, 500, 100], -500, id="not one beyond it"),
        pytest.param([900, None], 0, id="the first look, where a pod does not say when it came"),
        pytest.param([-900, -500], 0, id="the first look, where the clock of the API server is ahead"),
    ],
)
def test_a_gang_of_two_waits_since(world: Harness, ages: list[float | None], expected: float) -> None:
    pods = [
        builder if age is None else created(builder, age) for builder, age in zip(members(len(ages)), ages, strict=True)
    ]
    world.add(*FULL, gang(2), *pods)
    world.schedule_groups()
    assert since(world) == expected


def test_the_time_behind_a_gate_of_others_does_not_count_for_who_has_seen_it(world: Harness) -> None:
    """Otherwise a gang that Kueue kept for hours would not wait a moment for the domain that it prefers."""
    (member,) = members(1)
    world.add(*FULL, gang(1), created(member, 900).gate("example.com/quota"))
    world.clock.advance(60)
    world.schedule_groups()
    world.add(created(member, 900))
    world.schedule_groups()
    assert since(world) == 60


def test_a_second_term_asks_the_api_anew(world: Harness) -> None:
    first, second = members(2)
    world.add(*FULL, gang(2), created(first, 900), created(second, 900))
    world.schedule_groups()
    world.core.end_term()
    world.clock.advance(60)
    world.delete("m1")  # another instance leads, and its gang waits for a member
    world.add(created(second.uid("another"), -50))
    world.term.active = True
    world.group_scheduler.begin_term(world.wall_time())
    world.schedule_groups()
    assert since(world) == 50


def test_a_clock_that_was_set_counts_from_the_next_term_on(world: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    (member,) = members(1)
    world.add(*FULL, gang(1), created(member, 900))
    world.group_scheduler.begin_term(world.wall_time() + 3_600)
    world.schedule_groups()
    assert since(world) == -4_500
