import random
from collections import Counter
from collections.abc import Callable

from serried.kube.retry import FairQueue
from tests.support.lines import find_growth


def take_all(turns: FairQueue[str]) -> list[str]:
    items = []
    while (item := turns.take()) is not None:
        items.append(item)
    return items


def fill(*items: str) -> FairQueue[str]:
    """Items whose first letter is their namespace."""
    turns: FairQueue[str] = FairQueue()
    for item in items:
        turns.add(item[0], item)
    return turns


def test_namespaces_take_turns_and_each_keeps_its_order() -> None:
    assert take_all(fill("a1", "a2", "a3", "b1", "c1", "b2")) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_namespace_that_comes_late_waits_for_one_turn_of_each_other() -> None:
    turns = fill("a1", "a2", "a3", "b1", "b2")
    assert [turns.take(), turns.take(), turns.take()] == ["a1", "b1", "a2"]
    turns.add("c", "c1")
    assert take_all(turns) == ["b2", "a3", "c1"]


def test_a_namespace_that_comes_back_has_no_turn_before_those_that_stayed() -> None:
    turns = fill("a1", "b1", "b2")
    assert turns.take() == "a1"
    turns.add("a", "a2")
    assert take_all(turns) == ["b1", "a2", "b2"]


def test_nothing_is_taken_from_an_empty_queue() -> None:
    turns = fill("a1")
    assert turns.take() == "a1"
    assert turns.take() is None
    assert not turns


def test_room_is_made_by_the_last_item_of_the_key_with_most_items() -> None:
    turns = fill("a1", "b1", "b2", "b3", "c1")
    assert turns.pop_newest_for("a") == "b3"
    turns.add("a", "a2")
    assert take_all(turns) == ["a1", "b1", "c1", "a2", "b2"]


def test_no_room_is_made_where_another_would_be_left_with_less() -> None:
    turns = fill("a1", "b1", "b2")
    assert turns.pop_newest_for("b") is None
    assert turns.pop_newest_for("a") is None
    assert turns.pop_newest_for("c") == "b2"
    assert turns.pop_newest_for("c") is None
    assert len(turns) == 2


def test_it_always_knows_who_has_most() -> None:
    turns: FairQueue[str] = FairQueue()
    held: Counter[str] = Counter()
    rand = random.Random(7)  # noqa: S311
    for _ in range(5000):
        step = rand.random()
        if step < 0.5:
            name = rand.choice("abcdef")
            turns.add(name, name)
            held[name] += 1
        elif step < 0.8:
            taken = turns.take()
            held.subtract([taken] if taken is not None else [])
        else:
            given = turns.pop_newest_for("new")
            most = max(held.values(), default=0)
            assert (given is not None) == (most >= 2)
            if given is not None:
                assert held[given] == most
                held[given] -= 1
        assert len(turns) == held.total()


def test_a_step_costs_the_same_with_many_namespaces() -> None:
    def take_steps(namespaces: int) -> Callable[[], None]:
        turns: FairQueue[int] = FairQueue()
        for number in range(namespaces):
            turns.add(str(number), number)
            turns.add("most", number)

        def take() -> None:
            for _ in range(100):
                assert turns.pop_newest_for("new") is not None
                assert turns.take() is not None

        return take

    assert find_growth(take_steps, 1_000) < 1.5
