from collections.abc import Iterable

import pytest

from serried.api.pod import Pod
from serried.api.verdict import DomainShortage, Reason, Verdict, render
from serried.plan.capacity import Capacity
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest, Snapshot
from tests.support.builders import RACK, NodeBuilder, PodBuilder, node, pod
from tests.support.rules import PLAN_RULES


def cluster(*nodes: NodeBuilder, used: dict[str, int] | None = None) -> Snapshot:
    """Nodes, and how many CPUs of each are used."""
    values = {value.name: value for value in (each.value() for each in nodes)}
    return Snapshot(
        values, {name: {"cpu": cpus * 1000, "pods": 1} for name, cpus in (used or {}).items()}, rules=PLAN_RULES
    )


def racks(*sizes: Iterable[int]) -> Snapshot:
    """Racks r1, r2, ... of nodes with so many CPUs; the first node of the first rack is r1-1."""
    return cluster(
        *(
            node(f"r{rack}-{place}").rack(f"r{rack}").cpu(cpus)
            for rack, cpus_of in enumerate(sizes, 1)
            for place, cpus in enumerate(cpus_of, 1)
        )
    )


def gang(count: int, template: PodBuilder | None = None, first: int = 0) -> list[Pod]:
    """Members p0, p1, ... of one CPU, or like the template."""
    builder = template or pod("p").cpu(1)
    names = [f"p{index}" for index in range(first, first + count)]
    return [builder.with_field(name, "metadata", "name").uid(name).value() for name in names]


def planned(snapshot: Snapshot, ask: PlanRequest) -> Plan:
    result = plan_gang(snapshot, ask)
    assert isinstance(result, Plan), result
    return result


def on_ground(snapshot: Snapshot) -> Capacity:
    """A capacity that knows the nodes without what runs on them, as the Store's does."""
    return Capacity(snapshot.nodes, snapshot.used, Capacity(snapshot.nodes, {}))


def refused(snapshot: Snapshot, ask: PlanRequest) -> Verdict:
    result = plan_gang(snapshot, ask)
    assert isinstance(result, Verdict), result
    return result


class TestWithoutTopology:
    def test_members_go_onto_as_few_nodes_as_possible_in_rank_order(self) -> None:
        plan = planned(racks([4, 4], [4]), PlanRequest(gang(8), 8))
        assert plan.domain == ""
        assert list(plan.nodes.items()) == [(f"p{i}", "r1-1" if i < 4 else "r1-2") for i in range(8)]

    def test_the_rest_goes_to_the_fullest_node_that_holds_it(self) -> None:
        plan = planned(racks([8, 3, 2]), PlanRequest(gang(10), 10))
        assert {name: list(plan.nodes.values()).count(name) for name in plan.nodes.values()} == {"r1-1": 8, "r1-3": 2}

    def test_members_that_are_in_each_others_way_go_to_different_nodes_or_nowhere(self) -> None:
        for template in (pod("p").host_port(80), pod("p").label("a", "b").anti_affinity({"a": "b"})):
            plan = planned(racks([8, 8, 8]), PlanRequest(gang(3, template), 3))
            assert sorted(plan.nodes.values()) == ["r1-1", "r1-2", "r1-3"]
            assert refused(racks([8, 8, 8]), PlanRequest(gang(4, template), 4)) == Verdict(Reason.NO_CAPACITY, 3, 4)

    def test_neighbours_in_rank_are_neighbours_by_name(self) -> None:
        plan = planned(racks([2, 4]), PlanRequest(gang(6), 6))
        assert list(plan.nodes.values()) == ["r1-1"] * 2 + ["r1-2"] * 4

    def test_what_is_used_is_not_free(self) -> None:
        snapshot = cluster(node("a").cpu(4), node("b").cpu(4), used={"a": 2})
        assert set(planned(snapshot, PlanRequest(gang(2), 2)).nodes.values()) == {"a"}
        assert refused(snapshot, PlanRequest(gang(7), 7)) == Verdict(Reason.NO_CAPACITY, have=6, need=7)

    def test_members_beyond_the_quorum_are_taken_as_many_as_fit(self) -> None:
        assert list(planned(racks([3]), PlanRequest(gang(5), 2)).nodes) == ["p0", "p1", "p2"]

    def test_one_member_short_is_no_gang(self) -> None:
        verdict = refused(racks([3]), PlanRequest(gang(5), 4))
        assert render(verdict) == "NoCapacity: only 3 of 4 members fit into the cluster"

    def test_a_gang_of_nobody_is_placed(self) -> None:
        assert planned(racks([1]), PlanRequest([], 0)) == Plan("", {})

    def test_fewer_members_than_the_quorum_are_not_planned(self) -> None:
        assert refused(racks([9]), PlanRequest(gang(2), 3)) == Verdict(Reason.QUORUM_MISSING, have=2, need=3)

    def test_a_cluster_without_nodes_has_no_room(self) -> None:
        assert refused(cluster(), PlanRequest(gang(1), 1)) == Verdict(Reason.NO_CAPACITY, have=0, need=1)


class TestOneDomain:
    def test_the_whole_gang_goes_into_one_rack(self) -> None:
        plan = planned(racks([3], [2, 2], [3]), PlanRequest(gang(4), 4, RACK))
        assert plan.domain == "r2"
        assert set(plan.nodes.values()) == {"r2-1", "r2-2"}

    def test_the_tightest_rack_is_taken(self) -> None:
        assert planned(racks([8], [4], [6]), PlanRequest(gang(4), 4, RACK)).domain == "r2"

    def test_more_members_come_before_tightness(self) -> None:
        assert planned(racks([4], [9]), PlanRequest(gang(6), 4, RACK)).domain == "r2"

    def test_equal_racks_are_taken_by_name(self) -> None:
        assert planned(racks([4], [4]), PlanRequest(gang(4), 4, RACK)).domain == "r1"

    def test_a_node_without_the_label_is_in_no_rack(self) -> None:
        verdict = refused(cluster(node("a").cpu(9)), PlanRequest(gang(2), 2, RACK))
        assert (verdict.reason, verdict.domain_count) == (Reason.NO_DOMAIN_FITS, 0)
        assert verdict.detail == "no node has this label; 9 members fit into the whole cluster"

    def test_a_refusal_names_the_best_racks_first_and_what_the_cluster_has(self) -> None:
        verdict = refused(racks([2], [3], [1]), PlanRequest(gang(4), 4, RACK))
        assert verdict.domains == (DomainShortage("r2", 3), DomainShortage("r1", 2), DomainShortage("r3", 1))
        assert render(verdict) == (
            f"NoDomainFits: 4 members do not fit into any domain of {RACK} (r2: 3, r1: 2, r3: 1)"
            "; 6 members fit into the whole cluster"
        )

    def test_a_refusal_says_nothing_of_the_cluster_if_that_is_too_small_as_well(self) -> None:
        assert refused(racks([2], [1]), PlanRequest(gang(4), 4, RACK)).detail == ""

    def test_a_refusal_says_if_no_rack_would_hold_the_gang_empty(self) -> None:
        """A gang larger than every rack does not wait for room: nodes are counted, whatever runs on them."""
        snapshot = racks([4, 4], [4, 3], [2])
        found = plan_gang(snapshot, PlanRequest(gang(9), 9, RACK), on_ground(snapshot))
        assert isinstance(found, Verdict)
        assert found.detail == (
            "even if nothing ran, at most 8 members would fit (in r1), so waiting does not help"
            "; 17 members fit into the whole cluster"
        )

    def test_a_refusal_for_want_of_room_does_not(self) -> None:
        busy = Snapshot(racks([4, 4]).nodes, {"r1-1": {"cpu": 3000, "pods": 1}}, rules=PLAN_RULES)
        found = plan_gang(busy, PlanRequest(gang(8), 8, RACK), on_ground(busy))
        assert isinstance(found, Verdict)
        assert found.detail == ""

    def test_of_members_of_several_shapes_it_says_so_only_where_it_is_certain(self) -> None:
        snapshot = racks([4, 4])
        mixed = [*gang(4), *gang(3, pod("p").cpu(2), first=4)]
        found = plan_gang(snapshot, PlanRequest(mixed, 7, RACK), on_ground(snapshot))
        assert isinstance(found, Verdict)
        assert found.detail == ""
        found = plan_gang(snapshot, PlanRequest([*mixed, *gang(2, first=7)], 9, RACK), on_ground(snapshot))
        assert isinstance(found, Verdict)
        assert "at most 8 members would fit (in r1)" in found.detail

    def test_of_many_racks_the_best_ten_are_named_and_all_counted(self) -> None:
        verdict = refused(racks(*([1] for _ in range(12))), PlanRequest(gang(2), 2, RACK))
        assert (len(verdict.domains), verdict.domain_count) == (10, 12)


class TestSpareRoom:
    def test_it_counts_the_chosen_rack_only(self) -> None:
        assert planned(racks([5], [9]), PlanRequest(gang(2), 2, RACK)).spare == 3

    def test_without_a_key_it_counts_the_whole_cluster(self) -> None:
        assert planned(racks([5], [9]), PlanRequest(gang(2), 2)).spare == 12

    def test_a_gang_that_fills_its_rack_leaves_none(self) -> None:
        assert planned(racks([2], [9]), PlanRequest(gang(2), 2, RACK)).spare == 0


class TestLaterMembers:
    def test_a_late_member_goes_to_the_gangs_rack_although_another_is_tighter(self) -> None:
        ask = PlanRequest(gang(1), 0, RACK, pinned=frozenset({"r1"}))
        assert planned(racks([9], [1]), ask) == Plan("r1", {"p0": "r1-1"}, spare=8)

    def test_as_many_late_members_as_fit_are_taken(self) -> None:
        assert len(planned(racks([2], [9]), PlanRequest(gang(3), 0, RACK, pinned=frozenset({"r1"}))).nodes) == 2

    def test_a_late_member_waits_for_its_own_rack(self) -> None:
        verdict = refused(racks([0], [9]), PlanRequest(gang(2), 0, RACK, pinned=frozenset({"r1"})))
        assert (
            render(verdict) == f"DomainFull: only 0 of 2 waiting members fit into the gang's domain of {RACK} (r1: 0)"
        )

    def test_a_rack_whose_nodes_are_gone_is_full(self) -> None:
        verdict = refused(racks([9]), PlanRequest(gang(2), 2, RACK, pinned=frozenset({"gone"})))
        assert (verdict.reason, verdict.have, verdict.need) == (Reason.DOMAIN_FULL, 0, 2)

    def test_members_in_two_racks_are_a_conflict(self) -> None:
        verdict = refused(racks([9], [9]), PlanRequest(gang(1), 0, RACK, pinned=frozenset({"r2", "r1"})))
        assert verdict == Verdict(Reason.DOMAIN_CONFLICT, key=RACK, detail="r1, r2")

    def test_without_a_key_nothing_is_pinned(self) -> None:
        assert len(planned(racks([1], [1]), PlanRequest(gang(2), 2, pinned=frozenset({"r1", "r2"}))).nodes) == 2

    @pytest.mark.parametrize(("key", "reason"), [(None, Reason.NO_CAPACITY), (RACK, Reason.NO_DOMAIN_FITS)])
    def test_surplus_that_fits_nowhere_is_refused(self, key: str | None, reason: Reason) -> None:
        verdict = refused(racks([0]), PlanRequest(gang(2), 0, key))
        assert (verdict.reason, verdict.have, verdict.need) == (reason, 0, 1)


class TestExclusions:
    def test_an_excluded_pair_is_not_used(self) -> None:
        ask = PlanRequest(gang(2), 2, excluded=frozenset({("p0", "r1-1")}))
        assert planned(racks([1, 1]), ask).nodes == {"p1": "r1-1", "p0": "r1-2"}

    def test_others_make_room_in_a_chain(self) -> None:
        ask = PlanRequest(gang(3), 3, excluded=frozenset({("p1", "r1-3"), ("p2", "r1-2"), ("p2", "r1-3")}))
        assert planned(racks([1, 1, 1]), ask).nodes == {"p0": "r1-3", "p1": "r1-2", "p2": "r1-1"}

    def test_a_member_excluded_everywhere_costs_the_gang_its_rack(self) -> None:
        ask = PlanRequest(gang(2), 2, RACK, excluded=frozenset({("p1", "r1-1")}))
        assert planned(racks([2], [5]), ask).domain == "r2"

    def test_an_exclusion_of_somebody_else_changes_nothing(self) -> None:
        ask = PlanRequest(gang(2), 2, excluded=frozenset({("other", "r1-1"), ("p0", "gone")}))
        assert planned(racks([2]), ask).nodes == {"p0": "r1-1", "p1": "r1-1"}


class TestMixedClasses:
    def test_the_class_with_fewer_nodes_to_go_to_is_placed_first(self) -> None:
        snapshot = cluster(node("a").cpu(2).allocatable("example.com/gpu", 2), node("b").cpu(2))
        members = gang(2) + gang(2, pod("p").cpu(1).request("example.com/gpu", 1), first=2)
        assert planned(snapshot, PlanRequest(members, 4)).nodes == {"p0": "b", "p1": "b", "p2": "a", "p3": "a"}

    def test_a_large_one_and_small_ones_share_a_node(self) -> None:
        members = gang(4) + gang(1, pod("p").cpu(4), first=4)
        assert set(planned(racks([8]), PlanRequest(members, 5)).nodes.values()) == {"r1-1"}

    def test_more_small_members_come_before_fewer_large_ones(self) -> None:
        members = gang(1, pod("p").cpu(3)) + gang(3, first=1)
        assert set(planned(racks([4]), PlanRequest(members, 2)).nodes) == {"p1", "p2", "p3"}

    def test_equal_shapes_of_different_objects_are_one_class(self) -> None:
        members = gang(2)
        members[1] = pod("p1").uid("p1").cpu("1000m").value()
        assert len(planned(racks([2]), PlanRequest(members, 2)).nodes) == 2
