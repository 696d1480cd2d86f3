"""A set of victims that exceeds a binding PodDisruptionBudget is no choice: the search goes on."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from serried.api.names import Key
from serried.api.pod import Pod
from serried.plan import budget_reprieve
from serried.plan import preemption as survey
from serried.plan.budget_reprieve import SearchLimit
from serried.plan.eviction import Blocker, EvictionUnit, NoVictims, Preemption
from serried.plan.limit import Limit
from serried.plan.preemption import plan_victims
from serried.plan.request import PlanRequest
from tests.support.builders import RACK, NodeBuilder, PodBuilder, node, pod
from tests.support.preemption import HIGH, Occupied, find_cheapest_victims, names, occupied, price


def host(name: str, rack: str = "a") -> NodeBuilder:
    """A node of two CPUs."""
    return node(name).rack(rack).cpu(2)


def one(name: str, on: str, cpu: int = 2) -> PodBuilder:
    return pod(name).cpu(cpu).on(on)


def gang(*cpus: int) -> list[Pod]:
    return [pod(f"m{place}").cpu(cpu).value() for place, cpu in enumerate(cpus)]


ONE = PlanRequest(gang(2), 1)
PAIR = PlanRequest(gang(2, 2), 2, RACK)


def services_of_two(count: int) -> Occupied:
    """A full node for each service, whose budget allows one of two pods to go; one node of a higher priority."""
    field = occupied(*(host(f"n{i:02}") for i in range(count)), host("z"))
    for i in range(count):
        field = field.running(one(f"s{i}-0", f"n{i:02}", 1), one(f"s{i}-1", f"n{i:02}", 1), budget=f"b{i}")
        field = field.with_budget(f"b{i}", 1)
    return field.running(one("batch", "z"), priority=10)


def racks(guarded: int, free: int) -> Occupied:
    """Racks of two nodes with a pod each: the first ones under a budget that allows one of a rack, the others free."""
    count = guarded + free
    field = occupied(*(host(f"r{i:02}-{j}", f"r{i:02}") for i in range(count) for j in (0, 1)))
    for i in range(count):
        pods = [one(f"s{i:02}-{j}", f"r{i:02}-{j}") for j in (0, 1)]
        field = field.running(*pods, budget=f"b{i}" if i < guarded else "").with_budget(f"b{i}", 1)
    return field


def web_everywhere(both: int, half: int) -> Occupied:
    """Racks of two nodes with a pod each: in the first ones both are of one service, in the others one of the two."""
    count = both + half
    field = occupied(*(host(f"r{i:02}-{j}", f"r{i:02}") for i in range(count) for j in (0, 1))).with_budget("web", 1)
    for i in range(count):
        field = field.running(one(f"p{i:02}-0", f"r{i:02}-0"), budget="web")
        field = field.running(one(f"p{i:02}-1", f"r{i:02}-1"), budget="web" if i < both else "")
    return field


SPLIT = (
    occupied(host("n1"), host("n2"))
    .with_budget("web", 1)
    .running(one("p1", "n1", 1), one("p2", "n1", 1), one("p5", "n2", 1), budget="web")
    .running(one("q", "n2", 1), priority=10)
)
"""Two web pods on one node, of which one may go; one on another, beside a pod of a higher priority."""


@pytest.mark.parametrize(
    ("field", "ask", "victims"),
    [
        pytest.param(services_of_two(8), ONE, ["batch"], id="a higher priority, behind services that may lose one pod"),
        pytest.param(racks(20, 5), PAIR, ["s20-0", "s20-1"], id="a rack behind 20 that a budget keeps each"),
        pytest.param(racks(40, 1), PAIR, ["s40-0", "s40-1"], id="the last of very many racks"),
        pytest.param(web_everywhere(16, 5), PAIR, ["p16-0", "p16-1"], id="a rack behind 16 that one budget keeps"),
        pytest.param(SPLIT, ONE, ["p5", "q"], id="what is left of a budget, with a pod of a higher priority"),
    ],
)
def test_what_no_budget_keeps_is_found_in_one_search(field: Occupied, ask: PlanRequest, victims: list[str]) -> None:
    found = field.with_binding_budgets().plan(ask)
    assert isinstance(found, Preemption)
    assert names(found.victims) == victims


def test_a_pair_that_one_budget_keeps_takes_nothing_of_the_other_budgets_that_allow_it() -> None:
    """Each pair goes whole and fills a node. All have a pod of web, of which two may go, two have one of db, too."""
    field = occupied(host("n1"), host("n2"), host("n3")).with_budget("web", 2).with_budget("db", 1)
    for place, budgets in enumerate((["web", "db"], ["web", "db"], ["web"]), 1):
        pair = [one(f"p{place}-{index}", f"n{place}", 1).value() for index in (0, 1)]
        unit = EvictionUnit(tuple(pair), 0, budgets=tuple(Key("default", name) for name in budgets))
        field = replace(field, units=(*field.units, unit))
    found = field.with_binding_budgets().plan(PlanRequest(gang(2, 2), 2))
    assert isinstance(found, Preemption)
    assert names(found.victims) == ["p1-0", "p1-1", "p3-0", "p3-1"]


def test_the_oracle_does_not_go_beyond_a_budget_either() -> None:
    assert find_cheapest_victims(SPLIT, ONE) == ((0, 1, 0, 2),)
    assert find_cheapest_victims(SPLIT.with_binding_budgets(), ONE) == ((10, 0, 0, 1), (0, 0, 0, 1))


@pytest.mark.parametrize("field", [racks(3, 0), web_everywhere(3, 0)], ids=["of each rack", "one of all racks"])
def test_a_budget_that_keeps_every_rack_is_what_is_in_the_way(field: Occupied) -> None:
    found = field.with_binding_budgets().plan(PAIR)
    assert isinstance(found, NoVictims)
    assert (found.blocker, found.protections) == (
        Blocker.PROTECTION,
        ("their PodDisruptionBudgets do not allow it",),
    )


def test_that_a_budget_is_in_the_way_is_said_beside_other_protections() -> None:
    field = occupied(host("n1"), host("n2")).with_budget("web", 1)
    field = field.running(one("p1", "n1", 1), one("p2", "n1", 1), budget="web")
    field = field.running(one("q", "n2"), protection="it is dear").with_binding_budgets()
    found = field.plan(PlanRequest(gang(2, 2), 2))
    assert isinstance(found, NoVictims)
    assert found.protections == ("it is dear", "their PodDisruptionBudgets do not allow it")


def test_racks_that_are_no_choice_keep_no_other_from_being_looked_at_however_promising_they_were() -> None:
    """A gang breaks in the last rack, which looks worse than 20 times a pod too many. There are too many, too."""
    field = racks(20, 0).with_gang("whole").with_budget("last", 1)
    more = occupied(*(host(f"z{i}", "z") for i in range(3))).nodes
    field = replace(field, nodes={**field.nodes, **more}).running(one("g0", "z0"), one("g1", "z1"), gang="whole")
    field = field.running(one("c0", "z2", 1), one("c1", "z2", 1), budget="last")
    found = field.with_binding_budgets().plan(PAIR)
    assert isinstance(found, Preemption)
    assert names(found.victims) == ["g0", "g1"]


def test_what_makes_no_more_room_may_still_go_instead_of_what_a_budget_keeps() -> None:
    """The three make room for one member, as any two do. That takes a plan, because there are two shapes."""
    field = occupied(node("n1").cpu(3).memory("4Gi")).with_budget("web", 1)
    field = field.running(one("a", "n1", 1), one("b", "n1", 1), budget="web").running(one("q", "n1", 1), priority=10)
    shapes = [pod("m0").cpu(2).value(), pod("m1").cpu(2).memory("1Gi").value()]
    found = field.running(one("r", "n1", 0), priority=20).with_binding_budgets().plan(PlanRequest(shapes, 1))
    assert isinstance(found, Preemption)
    assert [damage.priority for damage in found.cost.damages] == [10, 0]


def test_budgets_that_do_not_bind_are_a_cost_after_priority() -> None:
    found = SPLIT.plan(ONE)
    assert isinstance(found, Preemption)
    assert names(found.victims) == ["p1", "p2"]
    assert [damage.violations for damage in found.cost.damages] == [1]


def test_of_racks_where_budgets_are_a_cost_that_one_is_promising_in_which_fewest_are_violated() -> None:
    """Each pod alone violates none: only together they do, in all racks but the last."""
    found = racks(40, 1).plan(PAIR)
    assert isinstance(found, Preemption)
    assert names(found.victims) == ["s40-0", "s40-1"]


def test_a_node_is_emptied_whole_or_not_at_all() -> None:
    """The budget would let one pod go of each node, and then no node were free."""
    field = occupied(*(host(f"n{i}") for i in range(4))).with_budget("web", 4)
    for i in range(4):
        field = field.running(one(f"p{i}-0", f"n{i}", 1), one(f"p{i}-1", f"n{i}", 1), budget="web")
    field = field.with_binding_budgets()
    found = field.plan(PlanRequest(gang(2, 2), 2))
    assert isinstance(found, Preemption)
    assert price(field, found.victims) == ((0, 0, 0, 4),)
    assert isinstance(field.plan(PlanRequest(gang(2, 2, 2), 3)), NoVictims)


def crossed() -> Occupied:
    """Nodes of pods of two services: whichever is emptied first must not take what the other two need."""
    field = occupied(host("n1"), host("n2"), host("n3")).with_budget("a", 2).with_budget("b", 2)
    field = field.running(one("a1", "n1", 1), budget="a").running(one("b1", "n1", 1), budget="b")
    field = field.running(one("a2", "n2", 1), one("a3", "n2", 1), budget="a")
    return field.running(one("b2", "n3", 1), one("b3", "n3", 1), budget="b").with_binding_budgets()


def test_where_the_first_way_is_not_enough_others_are_tried() -> None:
    found = crossed().plan(PlanRequest(gang(2, 2), 2))
    assert isinstance(found, Preemption)
    assert names(found.victims) == ["a2", "a3", "b2", "b3"]


def test_other_ways_are_tried_for_so_long_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_reprieve, "_MAX_MOVES", 1)
    found = crossed().plan(PlanRequest(gang(2, 2), 2))
    assert isinstance(found, NoVictims)
    assert found.blocker is Blocker.PROTECTION


@pytest.mark.parametrize("ask", [PlanRequest(gang(2, 2), 2), PlanRequest(gang(2, 1), 2)], ids=["a count", "a plan"])
def test_so_is_whether_they_would_do_which_takes(ask: PlanRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rack that is no choice takes work, too: with very many of them there would be no end."""
    assert isinstance(crossed().plan(ask), Preemption)
    monkeypatch.setattr(survey, "SearchLimit", lambda: SearchLimit(units=0))
    found = crossed().plan(ask)
    assert isinstance(found, NoVictims)
    assert found.blocker is Blocker.PROTECTION


def tell_together() -> tuple[Occupied, PlanRequest, list[str]]:
    field = occupied(host("n1"), host("n2"), host("n3")).with_budget("web", 2)
    field = field.running_together(one("a1", "n1"), one("a2", "n2"), budget="web")
    field = field.running(one("c", "n3", 1), budget="web").running(one("x", "n3", 1), protection="it is dear")
    return field, PlanRequest(gang(2, 2), 2), ["a1", "a2"]


def tell_small() -> tuple[Occupied, PlanRequest, list[str]]:
    field = occupied(*(node(f"n{i}").cpu(3) for i in range(3))).with_budget("web", 3)
    for i in range(3):
        field = field.running(one(f"large{i}", f"n{i}", 2), one(f"small{i}", f"n{i}", 1), budget="web")
    return field, PlanRequest(gang(2, 2, 2), 3), ["large0", "large1", "large2"]


def tell_memory() -> tuple[Occupied, PlanRequest, list[str]]:
    field = occupied(*(node(f"n{i}").cpu(2).memory("4Gi") for i in range(2))).with_budget("web", 1)
    field = field.running(*(one(f"p{i}", f"n{i}", 0).memory("4Gi") for i in range(2)), budget="web")
    shapes = [pod("m0").cpu(1).value(), pod("m1").cpu(1).memory("4Gi").value()]
    return field, PlanRequest(shapes, 2), ["p0"]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(tell_together, id="pods that go together take of their budget together"),
        pytest.param(tell_small, id="what makes no room of a node takes nothing of a budget"),
        pytest.param(tell_memory, id="what is in the way of the larger members goes though smaller ones had room"),
    ],
)
def test_the_first_way_is_a_good_one(
    case: Callable[[], tuple[Occupied, PlanRequest, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_reprieve, "_MAX_MOVES", 0)
    field, ask, victims = case()
    found = field.with_binding_budgets().plan(ask)
    assert isinstance(found, Preemption)
    assert names(found.victims) == victims


def test_a_rack_is_not_had_for_itself_where_a_budget_keeps_one_of_its_holders() -> None:
    field = occupied(host("a1"), host("a2"), host("b1", "b"), host("b2", "b")).with_budget("web", 1)
    field = field.running(one("h1", "a1"), one("h2", "a2"), budget="web", holds_domain=True)
    field = field.running(one("q1", "b1"), one("q2", "b2"), priority=10).with_binding_budgets()
    found = field.plan(field.request_after(PAIR))
    assert isinstance(found, Preemption)
    assert names(found.victims) == ["q1", "q2"]


def test_members_of_several_shapes_find_a_rack_behind_those_that_budgets_keep() -> None:
    """A few racks with a plan are enough, and racks that budgets rule out do not count among them."""
    field = racks(8, 1).with_binding_budgets()
    found = field.plan(PlanRequest(gang(2, 1), 2, RACK))
    assert isinstance(found, Preemption)
    assert names(found.victims) == ["s08-0", "s08-1"]


def test_at_its_deadline_no_more_go_than_budgets_allow_either() -> None:
    field = SPLIT.with_binding_budgets()
    hurried = replace(field.snapshot, limit=Limit(lambda: 0.0, content_after=0.0))
    found = plan_victims(hurried, ONE, HIGH, field.units, field.allowances)
    assert isinstance(found, Preemption)
    assert names(found.victims) == ["p5", "q"]
