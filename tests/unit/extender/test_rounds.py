"""A namespace with thousands of groups to look at waits for itself."""

import pytest

from extender.core.scheduling.group import GroupState
from extender.core.scheduling.unschedulable import QueueEntry
from extender.wiring import Rounds
from serried.api.names import GroupKey
from serried.ops.steps import finish, sort_in_steps
from tests.support.builders import pod_group
from tests.support.extender_harness import Harness

pytestmark = pytest.mark.core


def keys(namespace: str, count: int, first: int = 0) -> set[GroupKey]:
    return {GroupKey(namespace, f"g{number:05}") for number in range(first, first + count)}


def make_rounds() -> Rounds:
    return Rounds(lambda due: sort_in_steps(due, key=lambda key: (key.name, key.namespace)))


def deal(rounds: Rounds, due: set[GroupKey]) -> list[GroupKey]:
    return finish(rounds.next(due))


def test_few_groups_are_all_looked_at_in_their_order() -> None:
    rounds = make_rounds()
    due = keys("a", 60) | keys("b", 60)
    assert deal(rounds, due) == sorted(due, key=lambda key: (key.name, key.namespace))
    assert not rounds


def test_of_ten_thousand_a_hundred_go_at_a_time_and_others_go_with_the_first() -> None:
    rounds = make_rounds()
    first = deal(rounds, keys("greedy", 10_000) | keys("modest", 3))
    assert len(first) == 103
    assert {key for key in first if key.namespace == "modest"} == keys("modest", 3)
    seen = [*first]
    while rounds:
        seen += deal(rounds, set())
    assert len(seen) == 10_003
    assert [key for key in seen if key.namespace == "greedy"] == sorted(keys("greedy", 10_000))


def test_who_comes_meanwhile_goes_with_the_next_round() -> None:
    rounds = make_rounds()
    deal(rounds, keys("greedy", 1_000))
    assert keys("modest", 1) <= set(deal(rounds, keys("modest", 1)))


def test_a_group_that_changes_while_it_is_left_goes_at_once_and_not_twice() -> None:
    rounds = make_rounds()
    deal(rounds, keys("greedy", 300))
    last = keys("greedy", 1, first=299)
    assert last <= set(deal(rounds, last))
    assert not last & set(deal(rounds, set()))


def test_at_the_end_of_a_term_nobody_is_due_any_more() -> None:
    rounds = make_rounds()
    deal(rounds, keys("greedy", 300))
    rounds.clear()
    assert deal(rounds, set()) == []


async def test_the_order_of_thousands_is_found_in_steps() -> None:
    world = Harness()
    for number in range(2_000):
        world.store.put_group(pod_group(f"g{number}").gang(1).priority(number % 7).value())
    due = set(world.store.groups)
    work = world.group_scheduler.sort_in_queue_order(due)
    steps = 1
    while True:
        try:
            next(work)
        except StopIteration as done:
            found: list[GroupKey] = done.value
            break
        steps += 1
    assert steps > 20
    assert found == [each.group for each in world.queue.order.sort(world.queue.describe(key, None) for key in due)]
    await world.close()


async def test_a_tick_looks_through_thousands_of_groups_in_steps() -> None:
    world = Harness()
    for number in range(2_000):
        world.groups.states[GroupKey("default", f"g{number}")] = GroupState(0.0, entry=QueueEntry(retry_at=0.0))
    work = world.group_scheduler.run_periodic_work()
    next(work)
    del world.groups.states[GroupKey("default", "g1999")]
    found = finish(work)
    assert GroupKey("default", "g1999") not in found
    await world.close()
