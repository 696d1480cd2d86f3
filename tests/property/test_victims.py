"""Victims against an oracle that tries every set of them, on clusters of at most four nodes and eight units.

What an answer says is always true, and for members of one shape no victim is ever one too many. Where budgets bind, a
set that goes beyond one is no choice, neither for the search nor for the oracle. How near the search, which is greedy
at heart, comes to the cheapest set is counted here; for equal pods it is always the cheapest.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from serried.plan.eviction import Blocker, EvictionUnit, NoVictims, Preemption
from serried.plan.gang import plan_gang
from serried.plan.limit import Limit
from serried.plan.preemption import plan_victims
from serried.plan.request import Plan, PlanRequest, Snapshot
from tests.support.oracle import is_sound
from tests.support.preemption import HIGH, Occupied, count_violations, find_cheapest_victims, fits_without, price
from tests.support.preemption_cases import BINDING, EXCLUSIVE, MIXED, PLAIN, Features, draw_case
from tests.support.rules import PLAN_RULES

RANDOMS = st.randoms(use_true_random=False)
BINDING_MIXED = replace(BINDING, shapes=2)
BINDING_EXCLUSIVE = replace(BINDING, exclusive=True)
ONE_SHAPE = st.sampled_from([PLAIN, Features(), EXCLUSIVE, BINDING, BINDING_EXCLUSIVE])
FEATURES = st.sampled_from([PLAIN, Features(), MIXED, EXCLUSIVE, BINDING, BINDING_MIXED, BINDING_EXCLUSIVE])


@given(source=RANDOMS, features=FEATURES)
def test_a_plan_holds_when_the_victims_have_gone_and_its_members_share_a_domain(
    source: Random, features: Features
) -> None:
    field, ask = draw_case(source, features)
    found = field.plan(ask)
    event(type(found).__name__)
    if isinstance(found, Preemption):
        assert is_sound(field.without(found.victims), ask, dict(found.plan.nodes))
        assert len(found.plan.nodes) >= ask.need
        if ask.topology_key is not None:
            domains = {field.nodes[name].labels[ask.topology_key] for name in found.plan.nodes.values()}
            assert domains == {found.plan.domain}
            assert found.plan.domain not in field.request_after(ask, found.victims).taken


@given(source=RANDOMS, features=FEATURES)
def test_victims_have_a_lower_priority_and_no_protection_and_are_whole(source: Random, features: Features) -> None:
    field, ask = draw_case(source, features)
    found = field.plan(ask)
    if isinstance(found, Preemption):
        assert set(found.victims) <= set(field.units)
        assert len(set(found.victims)) == len(found.victims)
        assert all(unit.priority < HIGH and not unit.protection for unit in found.victims)


@given(source=RANDOMS, features=st.sampled_from([BINDING, BINDING_MIXED, BINDING_EXCLUSIVE]))
def test_where_budgets_bind_no_more_go_than_each_allows(source: Random, features: Features) -> None:
    field, ask = draw_case(source, features)
    found = field.plan(ask)
    event(type(found).__name__)
    if isinstance(found, Preemption):
        assert not count_violations(field, found.victims)


@given(source=RANDOMS, features=FEATURES)
def test_the_cost_is_that_of_the_victims_and_no_other_domain_is_cheaper(source: Random, features: Features) -> None:
    field, ask = draw_case(source, features)
    found = field.plan(ask)
    if isinstance(found, Preemption):
        assert found.cost.damages == price(field, found.victims)
        assert found.runner_up is None or found.runner_up.cost >= found.cost


@given(source=RANDOMS, features=ONE_SHAPE)
def test_a_gang_of_one_shape_gets_victims_exactly_when_victims_help(source: Random, features: Features) -> None:
    field, ask = draw_case(source, features)
    assert isinstance(field.plan(ask), Preemption) == (find_cheapest_victims(field, ask) is not None)


@given(source=RANDOMS, features=ONE_SHAPE)
def test_of_members_beyond_the_quorum_as_many_get_room_as_can_be_had_and_half_of_them_where_budgets_bind(
    source: Random, features: Features
) -> None:
    field, ask = draw_case(source, features)
    late = replace(ask, need=0)
    found = field.plan(late)
    counts = range(len(ask.members), 0, -1)
    most = next((each for each in counts if can_have(field, replace(ask, need=each))), 0)
    event(f"{most} of {len(ask.members)}")
    if isinstance(found, NoVictims):
        assert not most
    elif found.victims:
        placed = len(found.plan.nodes)
        assert placed * 2 >= most if field.binding else placed == most
        for spared in found.victims:
            assert not fits_without(field, set(found.victims) - {spared}, replace(ask, need=placed))


@given(source=RANDOMS, features=ONE_SHAPE)
def test_a_gang_of_one_shape_has_no_victim_too_many(source: Random, features: Features) -> None:
    field, ask = draw_case(source, features)
    found = field.plan(ask)
    if isinstance(found, Preemption):
        for spared in found.victims:
            assert not fits_without(field, set(found.victims) - {spared}, ask)


@given(source=RANDOMS)
def test_a_gang_of_two_shapes_has_no_victim_that_the_planner_would_do_without(source: Random) -> None:
    field, ask = draw_case(source, MIXED)
    found = field.plan(ask)
    if isinstance(found, Preemption):
        for spared in found.victims:
            assert not fits_by_plan(field, set(found.victims) - {spared}, ask)


@given(source=RANDOMS, features=ONE_SHAPE)
def test_no_victim_of_one_shape_has_a_higher_priority_than_it_takes(source: Random, features: Features) -> None:
    field, ask = draw_case(source, features)
    found = field.plan(ask)
    if isinstance(found, Preemption) and found.victims:
        least = find_cheapest_victims(field, ask)
        assert least
        assert found.cost.damages[0].priority == least[0][0]


@given(source=RANDOMS)
def test_of_equal_pods_the_cheapest_go(source: Random) -> None:
    field, ask = draw_case(source, PLAIN)
    found = field.plan(ask)
    event("with victims" if isinstance(found, Preemption) and found.victims else "without")
    assert (found.cost.damages if isinstance(found, Preemption) else None) == find_cheapest_victims(field, ask)


@given(source=RANDOMS, features=st.sampled_from([Features(), EXCLUSIVE, BINDING]))
def test_what_is_in_the_way_is_said_truly(source: Random, features: Features) -> None:
    field, ask = draw_case(source, features)
    found = field.plan(ask)
    if not isinstance(found, NoVictims):
        return
    event(found.blocker)
    lower = {unit for unit in field.units if unit.priority < HIGH}
    assert find_cheapest_victims(field, ask) is None
    assert fits_without(field, lower, ask) == (found.blocker is Blocker.PROTECTION)
    assert fits_without(field, field.units, ask) == (found.blocker is not Blocker.ROOM)


@example(source=Random(1123), features=Features(sizes=(1,), shapes=1), order=Random(1124))  # noqa: S311
@given(source=RANDOMS, features=FEATURES, order=RANDOMS)
def test_no_order_of_units_or_nodes_changes_the_answer(source: Random, features: Features, order: Random) -> None:
    field, ask = draw_case(source, features)
    units = order.sample(field.units, len(field.units))
    nodes = {name: field.nodes[name] for name in order.sample(sorted(field.nodes), len(field.nodes))}
    shuffled = Snapshot(nodes, field.snapshot.used, rules=PLAN_RULES)
    assert plan_victims(shuffled, ask, HIGH, units, field.allowances) == field.plan(ask)


@given(source=RANDOMS, features=FEATURES, steps=st.integers(0, 60))
def test_with_a_deadline_after_any_step_the_answer_holds_and_nobody_goes_who_may_not(
    source: Random, features: Features, steps: int
) -> None:
    field, ask = draw_case(source, features)
    found = plan_until(field, ask, steps)
    assert isinstance(found, Preemption) == isinstance(field.plan(ask), Preemption)
    if isinstance(found, Preemption):
        assert is_sound(field.without(found.victims), ask, dict(found.plan.nodes))
        assert len(found.plan.nodes) >= ask.need
        assert all(unit.priority < HIGH and not unit.protection for unit in found.victims)
        assert found.cost.damages == price(field, found.victims)
        assert not field.binding or not count_violations(field, found.victims)


@given(source=RANDOMS, features=ONE_SHAPE, steps=st.integers(0, 60))
def test_of_a_gang_of_one_shape_a_passed_deadline_takes_no_victim_too_many_either(
    source: Random, features: Features, steps: int
) -> None:
    field, ask = draw_case(source, features)
    found = plan_until(field, ask, steps)
    if isinstance(found, Preemption):
        for spared in found.victims:
            assert not fits_without(field, set(found.victims) - {spared}, ask)


@given(source=RANDOMS, features=FEATURES)
def test_nothing_is_touched(source: Random, features: Features) -> None:
    field, ask = draw_case(source, features)
    snapshot = field.snapshot
    before = {name: dict(amounts) for name, amounts in snapshot.used.items()}
    plan_victims(snapshot, ask, HIGH, field.units, field.allowances)
    assert snapshot.used == before


def can_have(field: Occupied, ask: PlanRequest) -> bool:
    """Return whether the gang fits with some set of victims evicted."""
    if field.binding:
        return find_cheapest_victims(field, ask) is not None
    return fits_without(field, [unit for unit in field.units if unit.priority < HIGH and not unit.protection], ask)


def fits_by_plan(field: Occupied, gone: Iterable[EvictionUnit], ask: PlanRequest) -> bool:
    away = list(gone)
    return isinstance(plan_gang(field.without(away), field.request_after(ask, away)), Plan)


def plan_until(field: Occupied, ask: PlanRequest, steps: int) -> Preemption | NoVictims:
    """Plan victims, and be content with any answer after this many checks of the time limit."""
    hurried = replace(field.snapshot, limit=Limit(partial(next, count()), content_after=steps))
    with patch("serried.plan.limit._UNITS_PER_CHECK", 1):
        return plan_victims(hurried, ask, HIGH, field.units, field.allowances)


@pytest.mark.parametrize(
    ("features", "bound"),
    [
        pytest.param(Features(gangs=0, budgets=0, together=1), 0.003, id="pods of several sizes"),
        pytest.param(Features(), 0.01, id="gangs and budgets, and units of two pods"),
        pytest.param(MIXED, 0.01, id="the same for members of two shapes"),
        pytest.param(EXCLUSIVE, 0.01, id="gangs that have racks for themselves"),
        pytest.param(BINDING, 0.01, id="budgets that bind"),
        pytest.param(BINDING_MIXED, 0.01, id="budgets that bind, for members of two shapes"),
    ],
)
def test_the_victims_are_nearly_always_the_cheapest(
    features: Features, bound: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """The victims found may not be the cheapest; this measures how often, and that it does not become worse."""
    tried, worse = count_worse(features, 600)
    with capsys.disabled():
        print(f"\n{features}: of {tried} with victims {worse} cost more than the cheapest")  # noqa: T201 - a figure to be seen in every run
    assert tried > 200
    assert worse / tried <= bound


def count_worse(features: Features, count: int) -> tuple[int, int]:
    """Return how many of ``count`` random cases have victims, and in how many of those others would be cheaper."""
    tried = worse = 0
    for seed in range(count):
        field, ask = draw_case(Random(seed), features)  # noqa: S311 - no secret
        found = field.plan(ask)
        least = find_cheapest_victims(field, ask)
        if least:
            tried += 1
            worse += not isinstance(found, Preemption) or found.cost.damages != least
    return tried, worse
