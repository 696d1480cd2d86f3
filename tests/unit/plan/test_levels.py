import math
from dataclasses import replace

import pytest

from serried.api.pod import Pod
from serried.api.preference import Level, Style
from serried.api.verdict import Reason, Verdict
from serried.plan.gang import plan_gang
from serried.plan.request import AllowedLevels, Plan, PlanRequest, Snapshot, find_allowed_levels
from tests.support.builders import RACK, NodeBuilder, node, pod
from tests.support.rules import PLAN_RULES

BLOCK = "example.com/block"
ONE_CPU = pod("p").cpu(1).value().shape


def gang(size: int) -> list[Pod]:
    return [Pod("ns", f"p{index:02d}", f"p{index:02d}", ONE_CPU, index=index) for index in range(size)]


def cluster(**blocks: list[list[int]]) -> Snapshot:
    """Blocks of racks of nodes with so many CPUs: node ``a-0-1`` is the second of the first rack of block a."""
    built: list[NodeBuilder] = [
        node(f"{block}-{rack}-{place}").cpu(cpus).rack(f"{block}-{rack}").label(BLOCK, block)
        for block, racks in blocks.items()
        for rack, sizes in enumerate(racks)
        for place, cpus in enumerate(sizes)
    ]
    values = [builder.value() for builder in built]
    return Snapshot({value.name: value for value in values}, {}, rules=PLAN_RULES)


def solve(snapshot: Snapshot, size: int, need: int | None = None, **said: object) -> Plan | Verdict:
    fields = {"levels": (RACK, BLOCK), **said}
    return plan_gang(snapshot, PlanRequest(gang(size), size if need is None else need, **fields))  # type: ignore[arg-type]


def racks_of(plan: Plan | Verdict) -> list[str]:
    """The rack of each member, in rank order."""
    assert isinstance(plan, Plan), plan
    return [name.rpartition("-")[0] for _, name in sorted(plan.nodes.items())]


class TestPreferredLevels:
    def test_the_narrowest_level_with_room_is_taken(self) -> None:
        assert set(racks_of(solve(cluster(a=[[2], [3, 1]], b=[[9]]), 4))) == {"a-1"}

    def test_without_a_rack_that_fits_it_is_a_block_and_as_few_racks_of_it_as_possible(self) -> None:
        racks = set(racks_of(solve(cluster(a=[[2], [2], [4], [1]], b=[[3], [3], [3], [3]]), 5)))
        assert len({rack[0] for rack in racks}) == 1
        assert len(racks) == 2

    def test_without_a_block_that_fits_it_is_as_few_blocks_as_possible(self) -> None:
        plan = solve(cluster(a=[[2]], b=[[3]], c=[[2], [2]]), 7)
        assert {rack[0] for rack in racks_of(plan)} == {"b", "c"}

    def test_of_as_few_blocks_those_with_the_fewest_racks_are_taken(self) -> None:
        plan = solve(cluster(a=[[3], [3], [3]], b=[[4], [4]], c=[[2], [2], [2], [2]]), 14)
        assert sorted(set(racks_of(plan))) == ["a-0", "a-1", "b-0", "b-1"]

    def test_of_as_few_racks_the_largest_are_left_whole(self) -> None:
        assert set(racks_of(solve(cluster(a=[[9], [5], [5]]), 10, levels=(RACK,)))) == {"a-1", "a-2"}

    def test_a_required_key_is_never_left_for_a_preferred_one(self) -> None:
        plan = solve(cluster(a=[[2], [2]], b=[[3]]), 4, topology_key=BLOCK, levels=(RACK,))
        assert isinstance(plan, Plan)
        assert plan.domain == "a"

    def test_racks_of_one_name_in_two_blocks_are_two(self) -> None:
        nodes = [node("n1").cpu(2).rack("r").label(BLOCK, "a"), node("n2").cpu(2).rack("r").label(BLOCK, "b")]
        snapshot = Snapshot({each.value().name: each.value() for each in nodes}, {}, rules=PLAN_RULES)
        verdict = solve(snapshot, 3, topology_key=BLOCK, levels=(RACK,))
        assert isinstance(verdict, Verdict)
        assert verdict.reason is Reason.NO_DOMAIN_FITS

    def test_a_node_without_the_label_is_taken_when_the_gang_spills(self) -> None:
        snapshot = Snapshot({"n1": node("n1").cpu(3).value()}, {}, rules=PLAN_RULES)
        assert isinstance(solve(snapshot, 3), Plan)

    def test_while_it_may_not_spill_it_waits_and_names_the_level(self) -> None:
        verdict = solve(cluster(a=[[2], [2]]), 3, levels=(RACK,), spills=False)
        assert isinstance(verdict, Verdict)
        assert (verdict.reason, verdict.key, verdict.have) == (Reason.NO_DOMAIN_FITS, RACK, 2)

    def test_ranks_follow_the_topology(self) -> None:
        ranks = racks_of(solve(cluster(a=[[1, 1], [1, 1]], b=[[1, 1], [1]]), 7))
        assert ranks == sorted(ranks)

    def test_others_join_at_the_narrowest_level_that_has_room(self) -> None:
        snapshot = cluster(a=[[1], [4]], b=[[9]])
        plan = solve(snapshot, 2, 0, assigned_nodes=frozenset({"a-0-0"}))
        assert racks_of(plan) == ["a-0"]
        plan = solve(
            Snapshot(snapshot.nodes, {"a-0-0": {"cpu": 1000, "pods": 1}}, rules=PLAN_RULES),
            2,
            0,
            assigned_nodes=frozenset({"a-0-0"}),
        )
        assert racks_of(plan) == ["a-1", "a-1"]

    def test_of_equal_racks_the_one_whose_block_has_least_room_is_taken(self) -> None:
        assert set(racks_of(solve(cluster(a=[[3], [9]], b=[[3], [4]]), 3))) == {"b-0"}

    def test_closed_nodes_are_not_used(self) -> None:
        plan = solve(cluster(a=[[3], [4]]), 3, closed=frozenset({"a-0-0"}))
        assert set(racks_of(plan)) == {"a-1"}
        assert isinstance(solve(cluster(a=[[3]]), 3, closed=frozenset({"a-0-0"})), Verdict)


class TestSpreading:
    def test_members_go_onto_as_many_nodes_as_there_are(self) -> None:
        plan = solve(cluster(a=[[4, 4, 4]]), 5, style=Style.SPREAD, levels=())
        assert isinstance(plan, Plan)
        assert list(plan.nodes.values()) == ["a-0-0", "a-0-0", "a-0-1", "a-0-1", "a-0-2"]

    def test_the_roomiest_domain_is_taken(self) -> None:
        plan = solve(cluster(a=[[4], [3, 3]]), 3, style=Style.SPREAD, topology_key=RACK, levels=())
        assert isinstance(plan, Plan)
        assert plan.domain == "a-1"

    def test_a_full_node_leaves_the_rest_to_the_others(self) -> None:
        plan = solve(cluster(a=[[1, 4]]), 5, style=Style.SPREAD, levels=())
        assert isinstance(plan, Plan)
        assert sorted(plan.nodes.values()) == ["a-0-0"] + 4 * ["a-0-1"]


LEVELS = (Level(RACK, 30.0), Level(BLOCK, 60.0))


@pytest.mark.parametrize(
    ("levels", "waited", "opening"),
    [
        pytest.param((), 0.0, AllowedLevels((), math.inf), id="without levels everything is open"),
        pytest.param(LEVELS, 0.0, AllowedLevels((RACK,), 30.0), id="the first level is open at once"),
        pytest.param(LEVELS, 30.0, AllowedLevels((RACK, BLOCK), 60.0), id="the next after its wait"),
        pytest.param(LEVELS, 89.0, AllowedLevels((RACK, BLOCK), 1.0), id="and the last wait comes before spilling"),
        pytest.param(LEVELS, 90.0, AllowedLevels((RACK, BLOCK), math.inf), id="after all waits it spills"),
        pytest.param((Level(RACK), Level(BLOCK)), 0.0, AllowedLevels((RACK, BLOCK), math.inf), id="no waits, all open"),
    ],
)
def test_levels_open_one_after_the_other(levels: tuple[Level, ...], waited: float, opening: AllowedLevels) -> None:
    assert find_allowed_levels(levels, waited) == replace(opening, waited=waited)
