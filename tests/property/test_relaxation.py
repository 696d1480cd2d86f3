"""Advice on how to make a gang fit is right: each advice is carried out here, and the gang is planned anew."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import assume, event, given
from hypothesis import strategies as st

from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.api.resources import Resources, add, subtract
from serried.plan.explain import Advice, Change, RunningGang, diagnose, find_advice
from serried.plan.fit import UNSCHEDULABLE
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest, Snapshot
from tests.support.builders import RACK
from tests.support.rules import PLAN_RULES
from tests.support.strategies import BLOCK, Problem, problems, problems_with_preferences

BLOCK_OF = {"r1": "b1", "r2": "b1", "r3": "b2"}


@st.composite
def odd_clusters(draw: st.DrawFn) -> tuple[Problem, list[RunningGang]]:
    """Any small cluster and gang."""
    problem = draw(st.one_of(problems(classes=2), problems_with_preferences(classes=2)))
    return problem, []


@st.composite
def crowded_racks(draw: st.DrawFn) -> tuple[Problem, list[RunningGang]]:
    """A gang that would fit if there were not others, cordons, racks, or nodes that are kept."""
    names = [f"n{index}" for index in range(draw(st.integers(2, 6)))]
    nodes = {}
    for name in names:
        rack = draw(st.sampled_from(sorted(BLOCK_OF)))
        cordoned = draw(st.sampled_from([False, False, True]))
        room = {"cpu": draw(st.integers(4, 6)), "pods": 9}
        nodes[name] = Node(name, room, {RACK: rack, BLOCK: BLOCK_OF[rack]}, unschedulable=cordoned)
    used: dict[str, dict[str, int]] = {name: {} for name in names}
    residents = []
    for number in range(draw(st.integers(0, 3))):
        shape = Shape((("cpu", draw(st.integers(1, 4))), ("pods", 1)))
        pods = []
        for place, home in enumerate(draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))):
            if used[home].get("cpu", 0) + dict(shape.requests)["cpu"] <= 4:
                pods.append(Pod("default", f"z{number}-{place}", f"z{number}-{place}", shape, node=home))
                used[home] = add(used[home], dict(shape.requests))
        residents.append(RunningGang(f"default/z{number}", pods, draw(st.sampled_from([RACK, None]))))
    shape = Shape((("cpu", draw(st.integers(2, 4))), ("pods", 1)))
    members = [Pod("default", f"p{i}", f"u{i}", shape) for i in range(draw(st.integers(1, 4)))]
    closed = frozenset(draw(st.lists(st.sampled_from(names), max_size=1)))
    key = draw(st.sampled_from([RACK, RACK, None]))
    ask = PlanRequest(members, len(members), topology_key=key, closed=closed)
    return Problem(Snapshot(nodes, used, rules=PLAN_RULES), ask), residents


crowded = st.one_of(crowded_racks(), crowded_racks(), odd_clusters())


def fits(nodes: Mapping[str, Node], used: Mapping[str, Resources], ask: PlanRequest) -> bool:
    answer = plan_gang(Snapshot(nodes, used, rules=PLAN_RULES), ask)
    return isinstance(answer, Plan) and len(answer.nodes) >= max(1, ask.need)


def remove(used: dict[str, dict[str, int]], gang: RunningGang) -> None:
    for pod in gang.pods:
        used[pod.node] = subtract(used[pod.node], dict(pod.shape.requests))


def carry_out(advice: Advice, problem: Problem, residents: list[RunningGang]) -> bool:
    """Apply the advice. Return whether all pods that it is about fit then."""
    nodes = dict(problem.snapshot.nodes)
    used = {name: dict(amounts) for name, amounts in problem.snapshot.used.items()}
    if advice.change in (Change.END, Change.MOVE):
        gang = next(each for each in residents if each.name == advice.name)
        remove(used, gang)
        if advice.change is Change.END:
            return fits(nodes, used, problem.ask)
        for pod in problem.ask.members:
            if pod.uid in advice.plan.nodes:
                home = advice.plan.nodes[pod.uid]
                used[home] = add(used.get(home, {}), dict(pod.shape.requests))
                assert used[home]["pods"] <= nodes[home].allocatable["pods"]
        return fits(nodes, used, PlanRequest(gang.pods, len(gang.pods), topology_key=gang.topology_key))
    if advice.change is Change.UNCORDON:
        for name in advice.nodes:
            kept = tuple(taint for taint in nodes[name].taints if taint != UNSCHEDULABLE)
            nodes[name] = replace(nodes[name], unschedulable=False, taints=kept)
    if advice.change is Change.LABEL:
        nodes = {name: replace(node, labels={**node.labels, advice.name: "one"}) for name, node in nodes.items()}
    return fits(nodes, used, change(problem.ask, advice, nodes))


def change(ask: PlanRequest, advice: Advice, nodes: Mapping[str, Node]) -> PlanRequest:
    """Return the gang's request, changed as the advice says."""
    match advice.change:
        case Change.SMALLER:
            assert advice.after < advice.before
            return replace(ask, members=[shrink(pod, advice.name, advice.after) for pod in ask.members])
        case Change.WIDER:
            assert ask.topology_key == RACK
            around = {node.labels[advice.name] for node in nodes.values() if node.labels.get(RACK) in ask.pinned}
            return replace(ask, topology_key=advice.name, pinned=frozenset(around))
        case Change.PREFERRED:
            levels = (*(level for level in ask.levels if level != RACK), RACK)
            return replace(ask, topology_key=None, pinned=frozenset(), levels=levels, spills=True)
        case Change.FEWER:
            assert advice.after < advice.before == ask.need
            return replace(ask, need=advice.after)
        case Change.RELEASE:
            return replace(ask, closed=frozenset())
    return ask


def shrink(pod: Pod, resource: str, most: int) -> Pod:
    requests = tuple((name, min(amount, most) if name == resource else amount) for name, amount in pod.shape.requests)
    return replace(pod, shape=replace(pod.shape, requests=requests))


@given(crowded)
def test_with_each_advice_carried_out_the_gang_fits(case: tuple[Problem, list[RunningGang]]) -> None:
    problem, residents = case
    assume(not fits(problem.snapshot.nodes, problem.snapshot.used, problem.ask))
    found = find_advice(problem.snapshot, problem.ask, residents, keys={BLOCK, RACK})
    assert len({advice.change for advice in found}) == len(found), "one of each kind"
    for advice in found:
        event(advice.change)
        assert carry_out(advice, problem, residents), advice


@given(crowded)
def test_a_diagnosis_counts_every_node_that_takes_no_member_once(case: tuple[Problem, list[RunningGang]]) -> None:
    problem, _ = case
    found = diagnose(problem.snapshot, problem.ask)
    for domain in found.domains:
        assert sum(each.nodes for each in domain.hurdles) <= domain.nodes
        if not domain.slots and not domain.taken and len({pod.shape for pod in problem.ask.members}) == 1:
            assert sum(each.nodes for each in domain.hurdles) == domain.nodes, "no room, so each node has its hurdle"
    blamed = sum(each.nodes for each in found.hurdles)
    assert blamed == sum(each.nodes for domain in found.domains for each in domain.hurdles)
