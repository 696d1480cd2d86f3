"""Gangs with preferred levels, styles and closed nodes against an oracle that tries everything."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from serried.api.node import Node
from serried.api.verdict import Reason, Verdict
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, Snapshot
from tests.support.oracle import count_most, find_domains, find_most, is_sound
from tests.support.rules import PLAN_RULES
from tests.support.strategies import Problem, nodes, problems_with_blocks, problems_with_preferences

SMALL = {"most_nodes": 4, "most_members": 5}

Value = TypeVar("Value")


def solve(problem: Problem) -> Plan | Verdict:
    return plan_gang(problem.snapshot, problem.ask)


def list_rooms(problem: Problem) -> list[list[Node]]:
    """Return the domains that may hold the gang: those of its levels in the required one, and that one if it may."""
    snapshot, ask = problem.snapshot, problem.ask
    opened = Snapshot(
        {name: node for name, node in snapshot.nodes.items() if name not in ask.closed}, snapshot.used, rules=PLAN_RULES
    )
    found: list[list[Node]] = []
    for inside in find_domains(opened, ask).values():
        for level in ask.levels:
            values = {node.labels[level] for node in inside if level in node.labels}
            found += [[node for node in inside if node.labels.get(level) == value] for value in values]
        found += [inside] if ask.spills or set(ask.levels) <= {ask.topology_key} else []
    return found


@given(problem=problems_with_preferences(classes=3, **SMALL))
def test_a_plan_is_sound_whole_and_in_a_domain_that_is_open_to_it(problem: Problem) -> None:
    plan = solve(problem)
    if isinstance(plan, Plan):
        assert is_sound(problem.snapshot, problem.ask, dict(plan.nodes))
        assert len(plan.nodes) >= max(problem.ask.need, 1)
        rooms = [{node.name for node in inside} for inside in list_rooms(problem)]
        assert any(room.issuperset(plan.nodes.values()) for room in rooms)


@given(problem=problems_with_preferences(**SMALL))
def test_a_gang_of_one_class_is_placed_exactly_when_a_domain_that_is_open_to_it_holds_it(problem: Problem) -> None:
    most = max((count_most(problem.snapshot, problem.ask, inside) for inside in list_rooms(problem)), default=0)
    assert isinstance(solve(problem), Plan) == (most >= max(problem.ask.need, 1))


@given(problem=problems_with_preferences(classes=3, **SMALL), data=st.data())
def test_no_order_of_the_cluster_changes_the_answer(problem: Problem, data: st.DataObject) -> None:
    def shuffle(items: Mapping[str, Value]) -> dict[str, Value]:
        return {name: items[name] for name in data.draw(st.permutations(list(items)))}

    snapshot = problem.snapshot
    cluster = {name: replace(node, labels=shuffle(node.labels)) for name, node in snapshot.nodes.items()}
    assert plan_gang(Snapshot(shuffle(cluster), shuffle(snapshot.used), rules=PLAN_RULES), problem.ask) == solve(
        problem
    )


@given(problem=problems_with_blocks(), data=st.data())
def test_of_equal_racks_and_blocks_the_same_are_taken_whatever_the_order_of_the_nodes(
    problem: Problem, data: st.DataObject
) -> None:
    names = data.draw(st.permutations(list(problem.snapshot.nodes)))
    assert solve(problem.reordered(names)) == solve(problem)


@given(problem=problems_with_preferences(**SMALL), extra=nodes("n9"))
def test_an_added_empty_node_never_turns_a_plan_into_a_refusal(problem: Problem, extra: Node) -> None:
    if isinstance(solve(problem), Plan):
        assert isinstance(solve(problem.with_node(extra)), Plan)


@given(problem=problems_with_preferences(**SMALL))
def test_a_gang_that_waits_for_a_level_is_told_the_truth_about_it(problem: Problem) -> None:
    ask = replace(problem.ask, topology_key=None, pinned=frozenset[str](), spills=False)
    verdict = plan_gang(problem.snapshot, ask)
    if not isinstance(verdict, Verdict):
        return
    snapshot, level = problem.snapshot, ask.levels[-1]
    by_level = replace(ask, topology_key=level)
    opened = Snapshot(
        {name: node for name, node in snapshot.nodes.items() if name not in ask.closed}, snapshot.used, rules=PLAN_RULES
    )
    room = {domain: count_most(snapshot, ask, inside) for domain, inside in find_domains(opened, by_level).items()}
    told = {each.domain: each.slots for each in verdict.domains}
    assert (verdict.reason, verdict.key) == (Reason.NO_DOMAIN_FITS, level)
    assert {**dict.fromkeys(told, 0), **room} == told
    assert verdict.have == max(room.values(), default=0) < verdict.need
    whole = find_most(opened, ask)
    assert ("the whole cluster" in verdict.detail) == (whole >= max(ask.need, 1))
