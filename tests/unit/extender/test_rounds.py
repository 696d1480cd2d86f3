"""A namespace with thousands of groups to look at waits for itself."""

from extender.loop import Rounds
from serried.model.group import GroupKey


def keys(namespace: str, count: int, first: int = 0) -> set[GroupKey]:
    return {GroupKey(namespace, f"g{number:05}") for number in range(first, first + count)}


def make_rounds() -> Rounds:
    return Rounds(lambda due: sorted(due, key=lambda key: (key.name, key.namespace)))


def test_few_groups_are_all_looked_at_in_their_order() -> None:
    rounds = make_rounds()
    due = keys("a", 60) | keys("b", 60)
    assert rounds.next(due) == sorted(due, key=lambda key: (key.name, key.namespace))
    assert not rounds


def test_of_thousands_a_hundred_go_at_a_time_and_others_go_with_the_first() -> None:
    rounds = make_rounds()
    first = rounds.next(keys("greedy", 1_000) | keys("modest", 3))
    assert len(first) == 103
    assert {key for key in first if key.namespace == "modest"} == keys("modest", 3)
    seen = [*first]
    while rounds:
        seen += rounds.next(set())
    assert len(seen) == 1_003
    assert [key for key in seen if key.namespace == "greedy"] == sorted(keys("greedy", 1_000))


def test_who_comes_meanwhile_goes_with_the_next_round() -> None:
    rounds = make_rounds()
    rounds.next(keys("greedy", 1_000))
    assert keys("modest", 1) <= set(rounds.next(keys("modest", 1)))


def test_a_group_that_changes_while_it_is_left_goes_at_once_and_not_twice() -> None:
    rounds = make_rounds()
    rounds.next(keys("greedy", 300))
    last = keys("greedy", 1, first=299)
    assert last <= set(rounds.next(last))
    assert not last & set(rounds.next(set()))


def test_at_the_end_of_a_term_nobody_is_due_any_more() -> None:
    rounds = make_rounds()
    rounds.next(keys("greedy", 300))
    rounds.clear()
    assert rounds.next(set()) == []
