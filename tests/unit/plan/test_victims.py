"""The victims that a gang needs in order to fit: no more of them, none in vain, and which cost counts first."""

from dataclasses import replace

import pytest

from serried.api.pod import Pod
from serried.api.verdict import Reason
from serried.plan.eviction import Alternative, Blocker, Cost, Damage, NoVictims, Preemption
from serried.plan.request import PlanRequest
from tests.support.builders import RACK, NodeBuilder, PodBuilder, node, pod
from tests.support.preemption import HIGH, Occupied, names, occupied

POOL = "example.com/pool"


def gang(count: int, cpu: int = 4, prefix: str = "m") -> list[Pod]:
    return [pod(f"{prefix}{place}").cpu(cpu).value() for place in range(count)]


def host(name: str, rack: str = "a") -> NodeBuilder:
    """A node of four CPUs."""
    return node(name).rack(rack).cpu(4)


def one(name: str, on: str, cpu: int = 4, at: int = 0) -> PodBuilder:
    """A pod that began so many seconds after midnight."""
    return pod(name).cpu(cpu).on(on).started(f"2026-01-01T00:00:{at:02}Z")


def preempted(field: Occupied, ask: PlanRequest) -> Preemption:
    found = field.plan(ask)
    assert isinstance(found, Preemption), found
    return found


def blocked(field: Occupied, ask: PlanRequest) -> NoVictims:
    found = field.plan(ask)
    assert isinstance(found, NoVictims), found
    return found


def victims(field: Occupied, ask: PlanRequest) -> list[str]:
    return names(preempted(field, ask).victims)


RACKS = occupied(host("a1"), host("a2"), host("b1", "b"), host("b2", "b"))
PAIR = occupied(host("n1"), host("n2"))


class TestNobodyGoesInVain:
    def test_of_a_gang_that_fits_already(self) -> None:
        field = RACKS.running(one("p", "a1"))
        found = preempted(field, PlanRequest(gang(2), 2, RACK))
        assert (found.victims, found.cost, found.plan.domain) == ((), Cost(), "b")

    def test_for_one_that_would_not_fit_if_everything_went(self) -> None:
        field = RACKS.running(one("p", "a1"), one("q", "b1"))
        found = blocked(field, PlanRequest(gang(3), 3, RACK))
        assert (found.blocker, found.verdict.reason, found.verdict.have) == (Blocker.ROOM, Reason.NO_DOMAIN_FITS, 2)

    def test_for_one_with_too_few_members(self) -> None:
        field = RACKS.running(one("p", "a1"), one("q", "b1"))
        assert blocked(field, PlanRequest(gang(1), 2, RACK)).verdict.reason is Reason.QUORUM_MISSING

    def test_for_one_whose_members_run_in_two_domains(self) -> None:
        field = RACKS.running(one("p", "a1"))
        both = PlanRequest(gang(1), 1, RACK, pinned=frozenset({"a", "b"}))
        assert blocked(field, both).verdict.reason is Reason.DOMAIN_CONFLICT

    def test_for_members_beyond_the_quorum(self) -> None:
        field = PAIR.running(one("p", "n1"), one("q", "n2"))
        found = preempted(field, PlanRequest(gang(2), 1))
        assert len(found.victims) == len(found.plan.nodes) == 1

    def test_elsewhere_than_in_the_gangs_domain(self) -> None:
        field = RACKS.running(one("a1", "a1"), one("a2", "a2"), one("b1", "b1", at=9), one("b2", "b2"))
        assert victims(field, PlanRequest(gang(1), 1, RACK, pinned=frozenset({"b"}))) == ["b1"]

    def test_on_a_node_that_is_closed_to_the_gang_or_that_it_may_not_use(self) -> None:
        field = PAIR.running(one("p", "n1"), one("q", "n2", at=9))
        assert victims(field, PlanRequest(gang(1), 1, closed=frozenset({"n2"}))) == ["p"]
        assert victims(field, PlanRequest(gang(1), 1, excluded=frozenset({("pod-m0", "n2")}))) == ["p"]
        picky = [pod("m").cpu(4).node_selector(POOL, "x").value()]
        assert blocked(field, PlanRequest(picky, 1)).blocker is Blocker.ROOM

    def test_on_a_node_that_is_gone(self) -> None:
        field = PAIR.running(one("p", "n1"), one("q", "n2"), one("ghost", "gone", at=9))
        assert "ghost" not in victims(field, PlanRequest(gang(2), 2))


class TestOnlyLowerPriorities:
    def test_pods_of_the_same_priority_stay_and_it_is_said_which_would_have_to_go(self) -> None:
        field = PAIR.running(one("p", "n1"), priority=HIGH).running(one("q", "n2"), priority=HIGH + 5)
        found = blocked(field, PlanRequest(gang(1), 1))
        assert (found.blocker, found.priority, found.domain) == (Blocker.PRIORITY, HIGH, "")
        assert (found.verdict.reason, found.verdict.have) == (Reason.NO_CAPACITY, 0)

    def test_protected_pods_stay_and_it_is_said_why(self) -> None:
        field = (
            RACKS.running(one("p", "a1"), protection="it began a minute ago")
            .running(one("q", "a2"), protection="its budget refuses")
            .running(one("r", "b1"), priority=HIGH)
            .running(one("s", "b2"), protection="of no interest")
        )
        found = blocked(field, PlanRequest(gang(2), 2, RACK))
        assert (found.blocker, found.domain) == (Blocker.PROTECTION, "a")
        assert found.protections == ("it began a minute ago", "its budget refuses")

    def test_what_may_not_go_keeps_its_room_while_others_go(self) -> None:
        field = PAIR.running(one("p", "n1"), priority=HIGH).running(one("q", "n2"))
        assert victims(field, PlanRequest(gang(1), 1)) == ["q"]


class TestWhatCountsFirst:
    def test_one_of_a_high_priority_is_worse_than_many_of_a_low_one(self) -> None:
        field = RACKS.running(one("high", "a1"), priority=2).running(*(one(f"low{i}", "b1", cpu=1) for i in range(4)))
        field = field.running(one("a2", "a2"), one("b2", "b2"), priority=HIGH)
        found = preempted(field, PlanRequest(gang(1), 1, RACK))
        assert names(found.victims) == ["low0", "low1", "low2", "low3"]
        assert found.cost.damages == (Damage(0, violations=0, broken=0, pods=4),)
        assert found.runner_up == Alternative("a", Cost((Damage(2, violations=0, broken=0, pods=1),)))

    def test_of_equal_highest_priorities_the_fewest_pods_of_these_go(self) -> None:
        field = RACKS.running(one("a1", "a1"), one("a2", "a2"), priority=2)
        field = field.running(one("b1", "b1"), priority=2).running(*(one(f"low{i}", "b2", cpu=1) for i in range(4)))
        found = preempted(field, PlanRequest(gang(2), 2, RACK))
        assert found.plan.domain == "b"
        assert [(damage.priority, damage.pods) for damage in found.cost.damages] == [(2, 1), (0, 4)]

    def test_no_budget_is_violated_where_more_pods_help_too(self) -> None:
        field = PAIR.running(one("counted", "n1"), budget="b").with_budget("b", 0)
        field = field.running(*(one(f"p{i}", "n2", cpu=1) for i in range(4)))
        assert victims(field, PlanRequest(gang(1), 1)) == ["p0", "p1", "p2", "p3"]

    def test_as_many_as_a_budget_allows_may_go(self) -> None:
        field = PAIR.running(one("c1", "n1"), one("c2", "n2"), budget="b")
        found = preempted(field.with_budget("b", 1), PlanRequest(gang(1), 1))
        assert found.cost.damages == (Damage(0, violations=0, broken=0, pods=1),)
        found = preempted(field.with_budget("b", 1), PlanRequest(gang(2), 2))
        assert found.cost.damages == (Damage(0, violations=1, broken=0, pods=2),)

    def test_surplus_members_of_an_elastic_gang_go_before_another_gang_breaks(self) -> None:
        field = PAIR.running(one("tight", "n1"), gang="t").with_gang("t")
        field = field.running(*(one(f"p{i}", "n2", cpu=1) for i in range(4)), gang="e").with_gang("e", spare=4)
        assert victims(field, PlanRequest(gang(1), 1)) == ["p0", "p1", "p2", "p3"]

    def test_a_gang_of_single_mode_that_breaks_counts_once_and_then_gives_what_it_has(self) -> None:
        field = occupied(*(host(f"n{i}") for i in range(4)))
        field = field.running(one("g0", "n0"), one("g1", "n1"), gang="g").with_gang("g")
        field = field.running(one("h0", "n2"), one("h1", "n3"), gang="h").with_gang("h")
        found = preempted(field, PlanRequest(gang(2), 2))
        assert found.cost.damages == (Damage(0, violations=0, broken=1, pods=2),)
        assert names(found.victims) in (["g0", "g1"], ["h0", "h1"])

    def test_fewer_pods_go_rather_than_younger_ones(self) -> None:
        field = PAIR.running(one("old", "n1")).running(*(one(f"new{i}", "n2", cpu=1, at=50) for i in range(4)))
        assert victims(field, PlanRequest(gang(1), 1)) == ["old"]

    def test_of_equal_ones_those_go_that_have_run_least(self) -> None:
        field = PAIR.running(one("a", "n1", at=10), one("b", "n2", at=30))
        found = preempted(field, PlanRequest(gang(1), 1))
        assert (names(found.victims), found.cost.lost) == (["b"], 0)
        assert preempted(field, PlanRequest(gang(2), 2)).cost.lost == 20

    def test_a_pod_that_has_not_begun_counts_as_the_youngest(self) -> None:
        field = PAIR.running(one("a", "n1", at=10), pod("waiting").cpu(4).on("n2")).running(one("b", "gone", at=30))
        assert victims(field, PlanRequest(gang(1), 1)) == ["waiting"]


class TestGroupsThatGoWhole:
    def test_all_of_a_group_goes_or_none_of_it(self) -> None:
        field = PAIR.running_together(one("g0", "n1"), one("g1", "n2"), gang="g").with_gang("g")
        found = preempted(field, PlanRequest(gang(1), 1))
        assert (names(found.victims), found.cost.damages[0].broken) == (["g0", "g1"], 1)

    def test_plain_pods_go_rather_than_a_whole_group(self) -> None:
        field = occupied(host("n1"), host("n2"), host("n3"))
        field = field.running_together(one("g0", "n1"), one("g1", "n2"), gang="g").with_gang("g")
        field = field.running(*(one(f"p{i}", "n3", cpu=1) for i in range(4)))
        assert victims(field, PlanRequest(gang(1), 1)) == ["p0", "p1", "p2", "p3"]

    def test_a_group_goes_rather_than_one_pod_of_a_higher_priority(self) -> None:
        field = occupied(host("n1"), host("n2"), host("n3"))
        field = field.running_together(one("g0", "n1"), one("g1", "n2"), gang="g").with_gang("g")
        assert victims(field.running(one("p", "n3"), priority=1), PlanRequest(gang(1), 1)) == ["g0", "g1"]

    def test_the_smaller_of_two_groups_goes(self) -> None:
        field = occupied(*(host(f"n{i}") for i in range(5)))
        field = field.running_together(*(one(f"l{i}", f"n{i}") for i in range(3)), gang="large").with_gang("large")
        field = field.running_together(one("s0", "n3"), one("s1", "n4"), gang="small").with_gang("small")
        assert victims(field, PlanRequest(gang(2), 2)) == ["s0", "s1"]

    def test_a_group_with_pods_in_other_domains_goes_from_there_too(self) -> None:
        field = RACKS.running_together(one("g0", "a1"), one("g1", "b1"), gang="g").with_gang("g")
        field = field.running(one("a2", "a2"), one("b2", "b2"), priority=HIGH)
        assert victims(field, PlanRequest(gang(1), 1, RACK)) == ["g0", "g1"]

    def test_a_group_of_a_tree_breaks_rather_than_one_without_which_the_tree_breaks(self) -> None:
        field = PAIR.with_gang("loose", spare=1).with_gang("tight", spare=0)
        field = field.with_gang("g", above="tight").with_gang("h", above="loose")
        field = field.running(one("g0", "n1", at=9), gang="g").running(one("h0", "n2"), gang="h")
        found = preempted(field, PlanRequest(gang(1), 1))
        assert (names(found.victims), found.cost.damages[0].broken) == (["h0"], 1)
        both = preempted(field, PlanRequest(gang(2), 2))
        assert both.cost.damages[0].broken == 3


class TestGangsThatAreNotSimple:
    def test_members_of_several_shapes_each_get_their_room(self) -> None:
        field = RACKS.running(one("a1", "a1"), one("a2", "a2")).running(one("b1", "b1"), one("b2", "b2"), priority=1)
        members = [*gang(1), pod("s").cpu(1).value()]
        found = preempted(field, PlanRequest(members, 2, RACK))
        assert (names(found.victims), len(found.plan.nodes)) == (["a1", "a2"], 2)

    def test_members_of_several_shapes_leave_those_alone_beside_whom_they_fit(self) -> None:
        field = PAIR.running(one("p", "n1"), one("q", "n2", cpu=3))
        members = [*gang(1), pod("s").cpu(1).value()]
        assert victims(field, PlanRequest(members, 2)) == ["p"]

    @pytest.mark.parametrize("wanted", [1, 2], ids=["one group of two", "both groups"])
    def test_a_tree_takes_room_for_so_many_of_its_groups(self, wanted: int) -> None:
        field = RACKS.running(one("a1", "a1"), one("a2", "a2"), one("b1", "b1"), one("b2", "b2"))
        parts = tuple(PlanRequest(gang(2, prefix=name), 2, RACK, name=name) for name in "gh")
        members = [member for part in parts for member in part.members]
        ask = PlanRequest(members, 2 * wanted, name="root", parts=parts, wanted=wanted)
        found = preempted(field, ask)
        assert len(found.victims) == len(found.plan.nodes) == 2 * wanted

    def test_surplus_members_of_a_trees_groups_evict_nobody(self) -> None:
        field = RACKS.running(one("a1", "a1"), one("a2", "a2"), one("b1", "b1"), one("b2", "b2"))
        parts = tuple(PlanRequest(gang(2, prefix=name), 1, RACK, name=name) for name in "gh")
        members = [member for part in parts for member in part.members]
        ask = PlanRequest(members, 2, name="root", parts=parts, wanted=2)
        assert len(preempted(field, ask).victims) == 2

    def test_one_goes_for_a_tree_that_needs_any_one_of_three_members_of_whom_the_first_fits_nowhere(self) -> None:
        field = PAIR.running(one("p", "n1"), one("q", "n2"))
        members = [pod("huge").cpu(99).value(), *gang(2)]
        ask = PlanRequest(members, 1, name="root", parts=(PlanRequest(members, 1, name="g"),), wanted=1)
        assert len(victims(field, ask)) == 1

    def test_a_gang_that_does_not_spill_gets_room_in_one_domain_of_its_level(self) -> None:
        field = RACKS.running(one("a1", "a1"), one("b1", "b1"))
        narrow = PlanRequest(gang(2), 2, levels=(RACK,), spills=False)
        found = preempted(field, narrow)
        assert len(found.victims) == 1
        assert {name[0] for name in found.plan.nodes.values()} == {found.victims[0].pods[0].node[0]}
        assert preempted(field, replace(narrow, spills=True)).victims == ()

    @pytest.mark.parametrize(
        ("waiting", "allowed", "placed"),
        [
            pytest.param(2, 3, 2, id="all"),
            pytest.param(5, 3, 3, id="as many as there is room for"),
            pytest.param(3, 1, 1, id="as many as a budget allows"),
        ],
    )
    def test_of_late_members_as_many_get_room_as_can_be_had(self, waiting: int, allowed: int, placed: int) -> None:
        field = occupied(*map(host, ("n1", "n2", "n3"))).with_budget("b", allowed).with_binding_budgets()
        field = field.running(*(one(f"p{name}", name) for name in ("n1", "n2", "n3")), budget="b")
        found = preempted(field, PlanRequest(gang(waiting), 0))
        assert (len(found.victims), len(found.plan.nodes)) == (placed, placed)

    @pytest.mark.parametrize(("free", "placed"), [pytest.param("b2", 4, id="all"), pytest.param("b3", 1, id="or some")])
    def test_so_do_late_members_of_a_tree_each_where_its_group_is(self, free: str, placed: int) -> None:
        field = occupied(*(host(name, name[0]) for name in ("a1", "a2", "b1", free)))
        field = field.running(one("a1", "a1"), one("a2", "a2"), one("b1", "b1"))
        field = field.running(one("b2", free), priority=HIGH if free == "b3" else 0)
        parts = tuple(
            PlanRequest(
                gang(2, prefix=rack), 0, RACK, frozenset({rack}), name=rack, assigned_nodes=frozenset({f"{rack}1"})
            )
            for rack in "ab"
        )
        ask = PlanRequest([member for part in parts for member in part.members], 0, name="root", parts=parts)
        found = preempted(field, ask)
        assert len(found.victims) == len(found.plan.nodes) == placed


def test_the_runner_up_is_a_domain_and_what_it_would_cost() -> None:
    field = RACKS.running(one("a1", "a1"), one("a2", "a2")).running(one("b1", "b1"), one("b2", "b2"), priority=3)
    found = preempted(field, PlanRequest(gang(2), 2, RACK))
    assert found.plan.domain == "a"
    assert found.runner_up == Alternative("b", Cost((Damage(3, violations=0, broken=0, pods=2),)))
    assert (found.domains_fitting, found.domains_examined) == (2, 2)


def test_of_very_many_domains_the_promising_ones_are_examined() -> None:
    racks = [f"r{place:02}" for place in range(40)]
    field = occupied(*(host(rack, rack) for rack in racks))
    for rack in racks[:-1]:
        field = field.running(one(f"x{rack}", rack), gang=rack).with_gang(rack)
    field = field.running(*(one(f"y{place}", racks[-1], cpu=1) for place in range(4)))
    found = preempted(field, PlanRequest(gang(1), 1, RACK))
    assert (found.plan.domain, found.cost.damages[0].broken) == (racks[-1], 0)
    assert (found.domains_fitting, found.domains_examined) == (40, 16)


def test_of_a_full_cluster_only_the_nodes_of_the_members_are_emptied() -> None:
    hosts = [f"n{place:03}" for place in range(100)]
    field = occupied(*(host(name) for name in hosts))
    for place, name in enumerate(hosts):
        field = field.running(*(one(f"p{name}-{number}", name, cpu=1, at=place % 60) for number in range(4)))
    found = preempted(field, PlanRequest(gang(10), 10))
    used = set(found.plan.nodes.values())
    assert len(found.victims) == 40
    assert {unit.pods[0].node for unit in found.victims} == used
