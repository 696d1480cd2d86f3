import math

import pytest

from serried.api.names import GroupKey
from serried.plan.request import Ageing, Waiting, order_groups

HOUR = 3600.0
AGEING = Ageing(HOUR, (0, 5, 100))


def waiting(name: str, priority: int = 0, since: float = 0.0) -> Waiting:
    return Waiting(GroupKey("ns", name), priority, since)


def test_priority_comes_before_age_and_age_before_name() -> None:
    late, early, urgent, twin = (
        waiting("late", 0, 20.0),
        waiting("early", 0, 10.0),
        waiting("urgent", 5, 30.0),
        waiting("a-twin", 0, 10.0),
    )
    assert order_groups([late, early, urgent, twin], AGEING, 40.0) == [urgent, twin, early, late]


@pytest.mark.parametrize(
    ("priority", "waited", "counts_as"),
    [
        pytest.param(0, HOUR - 1, 0, id="nothing before its first step"),
        pytest.param(0, HOUR, 5, id="the next priority after a step"),
        pytest.param(0, 2 * HOUR, 100, id="one more after two"),
        pytest.param(0, 50 * HOUR, 100, id="the highest that exists at most"),
        pytest.param(100, 50 * HOUR, 100, id="its own if that is the highest"),
        pytest.param(7, HOUR, 100, id="the next one also from between two that exist"),
        pytest.param(200, 50 * HOUR, 200, id="its own above all that exist"),
        pytest.param(0, -math.inf, 0, id="its own while its quorum does not stand"),
    ],
)
def test_a_group_that_has_waited_counts_with(priority: int, waited: float, counts_as: int) -> None:
    assert AGEING.raise_priority(waiting("g", priority, 100.0), 100.0 + waited) == counts_as


def test_a_group_that_has_risen_goes_before_those_that_came_later_on_its_new_level() -> None:
    old, new, top = waiting("old", 0, 0.0), waiting("new", 5, 1.0), waiting("top", 100, 2.0)
    assert order_groups([old, new, top], AGEING, HOUR - 1) == [top, new, old]
    assert order_groups([old, new, top], AGEING, HOUR + 0.5) == [top, old, new]


def test_without_ageing_priority_alone_decides_for_ever() -> None:
    old, new = waiting("old", 0, 0.0), waiting("new", 5, 1e9)
    assert order_groups([old, new], Ageing(levels=(0, 5)), 1e9) == [new, old]


def test_a_broken_gang_goes_before_all_others_of_its_priority_and_after_those_above() -> None:
    early, urgent = waiting("early", 0, 10.0), waiting("urgent", 5, 30.0)
    broken = Waiting(GroupKey("ns", "broken"), 0, 20.0, broken=True)
    assert order_groups([early, broken, urgent], AGEING, 40.0) == [urgent, broken, early]
