"""The planner against brute force on clusters of at most six nodes and gangs of at most six members."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.resources import Resources, total
from serried.api.verdict import Reason, Verdict
from serried.plan.gang import plan_gang
from serried.plan.request import Plan
from tests.support.builders import RACK
from tests.support.strategies import DEDICATED, Problem, nodes, problems, without_exclusions


def accepts(node: Node, member: Pod) -> bool:
    tainted = DEDICATED in node.taints and not member.shape.tolerations
    chosen = all(node.labels.get(key) == value for key, value in member.shape.node_selector)
    return chosen and not tainted and not node.unschedulable


def holds(node: Node, used: Resources, members: list[Pod]) -> bool:
    """Return whether a node holds all members at once. Resources that no member requests may be over-committed."""
    asked = total(dict(member.shape.requests) for member in members)
    return all(used.get(name, 0) + amount <= node.allocatable.get(name, 0) for name, amount in asked.items())


def domains(problem: Problem) -> dict[str, list[Node]]:
    key, found = problem.ask.topology_key, dict[str, list[Node]]()
    for node in problem.snapshot.nodes.values():
        domain = "" if key is None else node.labels.get(key)
        if domain is not None and (not problem.ask.pinned or domain in problem.ask.pinned):
            found.setdefault(domain, []).append(node)
    return found


def most(problem: Problem, inside: list[Node]) -> int:
    """The largest number of members that these nodes can hold, by trying everything."""
    snapshot, members = problem.snapshot, list(problem.ask.members)
    on: dict[str, list[Pod]] = {node.name: [] for node in inside}
    best = 0

    def attempt(position: int, placed: int) -> None:
        nonlocal best
        best = max(best, placed)
        if position == len(members) or placed + len(members) - position <= best:
            return
        member = members[position]
        for node in inside:
            if (member.uid, node.name) in problem.ask.excluded or not accepts(node, member):
                continue
            if holds(node, snapshot.used.get(node.name, {}), [*on[node.name], member]):
                on[node.name].append(member)
                attempt(position + 1, placed + 1)
                on[node.name].pop()
        attempt(position + 1, placed)

    attempt(0, 0)
    return best


def solve(problem: Problem) -> Plan | Verdict:
    return plan_gang(problem.snapshot, problem.ask)


@given(problem=problems(classes=3))
def test_a_plan_never_over_commits_a_node(problem: Problem) -> None:
    plan = solve(problem)
    if isinstance(plan, Plan):
        for name in set(plan.nodes.values()):
            guests = [member for member in problem.ask.members if plan.nodes.get(member.uid) == name]
            assert holds(problem.snapshot.nodes[name], problem.snapshot.used.get(name, {}), guests)


@given(problem=problems(classes=3))
def test_a_plan_uses_only_nodes_that_admit_the_member(problem: Problem) -> None:
    plan = solve(problem)
    if isinstance(plan, Plan):
        members = {member.uid: member for member in problem.ask.members}
        for uid, name in plan.nodes.items():
            assert accepts(problem.snapshot.nodes[name], members[uid])
            assert (uid, name) not in problem.ask.excluded


@given(problem=problems(classes=3))
def test_a_plan_holds_the_quorum_or_there_is_none(problem: Problem) -> None:
    plan = solve(problem)
    if isinstance(plan, Plan):
        assert len(plan.nodes) >= max(problem.ask.need, 1)


@given(problem=problems(classes=3))
def test_a_plan_stays_in_one_domain_and_in_the_pinned_one(problem: Problem) -> None:
    plan = solve(problem)
    if isinstance(plan, Plan) and problem.ask.topology_key:
        assert {problem.snapshot.nodes[name].labels.get(RACK) for name in plan.nodes.values()} == {plan.domain}
        assert plan.domain in (problem.ask.pinned or {"r1", "r2", "r3"})


@given(problem=problems())
def test_members_of_one_class_are_placed_whenever_that_is_possible_and_as_many_as_possible(problem: Problem) -> None:
    best = max((most(problem, inside) for inside in domains(problem).values()), default=0)
    plan = solve(problem)
    assert isinstance(plan, Plan) == (best >= max(problem.ask.need, 1))
    if isinstance(plan, Plan):
        assert len(plan.nodes) == best


@given(problem=problems(classes=3, most_nodes=4, most_members=5).map(without_exclusions))
def test_a_few_members_of_several_classes_are_placed_whenever_that_is_possible(problem: Problem) -> None:
    best = max((most(problem, inside) for inside in domains(problem).values()), default=0)
    assert isinstance(solve(problem), Plan) == (best >= max(problem.ask.need, 1))


@given(problem=problems())
def test_members_of_one_class_get_room_in_their_order(problem: Problem) -> None:
    plan = solve(without_exclusions(problem))
    if isinstance(plan, Plan):
        assert list(plan.nodes) == [member.uid for member in problem.ask.members[: len(plan.nodes)]]


@given(problem=problems(classes=3))
def test_the_best_domain_is_full_of_members_before_another_is_taken(problem: Problem) -> None:
    """No other domain alone would have got more members from the planner itself."""
    plan = solve(problem)
    if isinstance(plan, Plan) and problem.ask.topology_key:
        for domain in domains(problem):
            other = plan_gang(problem.snapshot, replace(problem.ask, pinned=frozenset({domain})))
            assert isinstance(other, Verdict) or len(other.nodes) <= len(plan.nodes)


@given(problem=problems(classes=3), data=st.data())
def test_the_order_of_nodes_changes_nothing(problem: Problem, data: st.DataObject) -> None:
    names = data.draw(st.permutations(list(problem.snapshot.nodes)))
    assert solve(problem.reordered(names)) == solve(problem)


@given(problem=problems(), extra=nodes("n9"))
def test_an_added_empty_node_never_turns_a_plan_into_a_refusal(problem: Problem, extra: Node) -> None:
    before, after = solve(problem), solve(problem.with_node(extra))
    if isinstance(before, Plan):
        assert isinstance(after, Plan)
        assert len(after.nodes) >= len(before.nodes)


@given(problem=problems())
def test_the_numbers_of_a_refusal_are_true(problem: Problem) -> None:
    verdict = solve(problem)
    if not isinstance(verdict, Verdict):
        return
    room = {domain: most(problem, inside) for domain, inside in domains(problem).items()}
    if verdict.reason is Reason.NO_CAPACITY:
        assert verdict.have == room.get("", 0) < verdict.need
        return
    told = {shortage.domain: shortage.slots for shortage in verdict.domains}
    assert told == {**dict.fromkeys(problem.ask.pinned, 0), **room}
    assert verdict.domain_count == len(told)
    assert list(told.values()) == sorted(told.values(), reverse=True)
    assert verdict.have == max(told.values(), default=0)
    assert verdict.have < verdict.need


@given(problem=problems())
def test_whether_the_whole_cluster_would_do_is_said_truly(problem: Problem) -> None:
    verdict = solve(problem)
    if isinstance(verdict, Verdict) and verdict.reason is Reason.NO_DOMAIN_FITS:
        whole = most(problem, list(problem.snapshot.nodes.values()))
        assert ("the whole cluster" in verdict.detail) == (whole >= max(problem.ask.need, 1))


@given(problem=problems(classes=3, most_nodes=4, most_members=5))
def test_a_refusal_of_mixed_classes_promises_no_more_than_there_is(problem: Problem) -> None:
    verdict = solve(problem)
    if isinstance(verdict, Verdict):
        inside = domains(problem)
        for shortage in verdict.domains:
            assert shortage.slots <= most_alone(problem, inside.get(shortage.domain, []))


def most_alone(problem: Problem, inside: list[Node]) -> int:
    """Return ``most``, or the number of pods of the only class that fit if that is more."""
    classes = {member.shape for member in problem.ask.members}
    if len(classes) > 1:
        return most(problem, inside)
    member = problem.ask.members[0]
    many = [replace(member, uid=f"{member.uid}-{index}") for index in range(6)]
    return max(most(Problem(problem.snapshot, replace(problem.ask, members=many)), inside), most(problem, inside))


@given(problem=problems(most_members=6))
def test_no_more_nodes_are_touched_than_needed(problem: Problem) -> None:
    free = without_exclusions(problem)
    plan = solve(free)
    if isinstance(plan, Plan):
        used = Counter(plan.nodes.values())
        inside = domains(free)[plan.domain]
        shape = free.ask.members[0]
        sizes = sorted((most(replace_members(free, shape), [node]) for node in inside), reverse=True)
        fewest = next(count for count in range(len(sizes) + 1) if sum(sizes[:count]) >= len(plan.nodes))
        assert len(used) == fewest


def replace_members(problem: Problem, member: Pod) -> Problem:
    many = [replace(member, uid=f"{member.uid}-{index}") for index in range(6)]
    return Problem(problem.snapshot, replace(problem.ask, members=many))
