"""The place and the time at which a gang that does not fit will find room."""

import math
from dataclasses import replace

import pytest

from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.plan.forecast import Ending, Forecast, find_forecast
from serried.plan.request import PlanRequest, Snapshot
from tests.support.builders import RACK, NodeBuilder, PodBuilder, node, pod
from tests.support.rules import PLAN_RULES

FOUR = (("cpu", 4000), ("pods", 1))
ONE = (("cpu", 1000), ("pods", 1))


def full(*nodes: NodeBuilder) -> Snapshot:
    """Nodes of four CPUs, all used."""
    values = {each.cpu(4).value().name: each.cpu(4).value() for each in nodes}
    return Snapshot(values, {name: {"cpu": 4000, "pods": 4} for name in values}, rules=PLAN_RULES)


RACKS = full(node("a1").rack("a"), node("a2").rack("a"), node("b1").rack("b"), node("b2").rack("b"))


def gang(count: int, template: PodBuilder | None = None) -> list[Pod]:
    like = template or pod("p").cpu(4)
    return [like.with_field(f"p{i}", "metadata", "name").uid(f"p{i}").value() for i in range(count)]


def test_the_rack_that_is_empty_first_is_the_forecast() -> None:
    endings = [Ending("a1", FOUR, 10.0), Ending("a2", FOUR, 99.0), Ending("b1", FOUR, 50.0), Ending("b2", FOUR, 60.0)]
    assert find_forecast(RACKS, PlanRequest(gang(2), 2, RACK), endings) == Forecast("b", frozenset({"b1", "b2"}), 60.0)


def test_without_a_key_those_nodes_count_that_are_free_first_anywhere() -> None:
    endings = [Ending("a1", FOUR, 10.0), Ending("a2", FOUR, 99.0), Ending("b1", FOUR, 50.0), Ending("b2", FOUR, 60.0)]
    assert find_forecast(RACKS, PlanRequest(gang(2), 2), endings) == Forecast("", frozenset({"a1", "b1"}), 50.0)


def test_a_node_is_free_when_enough_of_its_pods_have_ended() -> None:
    endings = [Ending("a1", ONE, float(time)) for time in (10, 20, 30)]
    two = gang(2, pod("p").cpu(1))
    assert find_forecast(RACKS, PlanRequest(two, 2, RACK), endings) == Forecast("a", frozenset({"a1"}), 20.0)


def test_only_the_gangs_own_rack_counts_if_it_has_one() -> None:
    endings = [Ending("a1", FOUR, 10.0), Ending("b1", FOUR, 50.0)]
    found = find_forecast(RACKS, PlanRequest(gang(1), 1, RACK, pinned=frozenset({"b"})), endings)
    assert found == Forecast("b", frozenset({"b1"}), 50.0)


def test_a_node_that_the_members_may_not_use_is_no_help() -> None:
    picky = gang(1, pod("p").cpu(4).node_selector("gpu", "yes"))
    assert find_forecast(RACKS, PlanRequest(picky, 1), [Ending("a1", FOUR, 10.0)]) is None


def test_pods_whose_end_nobody_knows_are_taken_to_end_last_and_there_is_no_time_then() -> None:
    endings = [Ending("a1", FOUR, None), Ending("b1", FOUR, 50.0), Ending("b2", FOUR, None)]
    assert find_forecast(RACKS, PlanRequest(gang(2), 2, RACK), endings) == Forecast("b", frozenset({"b1", "b2"}), None)
    assert find_forecast(RACKS, PlanRequest(gang(1), 1, RACK), endings) == Forecast("b", frozenset({"b1"}), 50.0)


def test_of_nodes_that_nobody_can_time_those_with_fewer_pods_come_first() -> None:
    busy = [Ending("a1", ONE, None)] * 4 + [Ending("b1", FOUR, None)]
    assert find_forecast(RACKS, PlanRequest(gang(1), 1), busy) == Forecast("", frozenset({"b1"}), None)


def test_of_racks_that_nobody_can_time_the_one_in_which_the_fewest_pods_have_to_end_comes_first() -> None:
    snapshot = Snapshot(RACKS.nodes, {**RACKS.used, "b2": {}}, rules=PLAN_RULES)
    endings = [Ending(name, FOUR, None) for name in ("a1", "a2", "b1")]
    found = find_forecast(snapshot, PlanRequest(gang(2), 2, RACK), endings)
    assert found == Forecast("b", frozenset({"b1", "b2"}), None)


def test_what_is_doubted_more_is_taken_to_end_later() -> None:
    endings = [Ending("a1", FOUR, None, doubt=1), *[Ending(name, FOUR, None) for name in ("a2", "b1", "b2")]]
    assert find_forecast(RACKS, PlanRequest(gang(2), 2, RACK), endings) == Forecast("b", frozenset({"b1", "b2"}), None)


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        pytest.param(
            30.0, Forecast("a", frozenset({"a1", "a2"}), 30.0), id="counts from when the last of them has left"
        ),
        pytest.param(99.0, Forecast("b", frozenset({"b1", "b2"}), 60.0), id="is no help before that"),
        pytest.param(
            None, Forecast("b", frozenset({"b1", "b2"}), 60.0), id="is no help if nobody knows when they leave"
        ),
        pytest.param(math.inf, Forecast("b", frozenset({"b1", "b2"}), 60.0), id="is never any if one of them stays"),
    ],
)
def test_a_rack_that_others_have_for_themselves(leaves: float | None, expected: Forecast) -> None:
    theirs = [Ending("a1", ONE, 5.0, holds_domain=True), Ending("a1", ONE, leaves, holds_domain=True)]
    rest = [Ending("a1", (("cpu", 2000),), 10.0), Ending("a2", FOUR, 20.0)]
    own = [Ending("b1", FOUR, 50.0), Ending("b2", FOUR, 60.0)]
    ask = PlanRequest(gang(2), 2, RACK, taken=frozenset({"a"}), exclusive=True)
    assert find_forecast(RACKS, ask, [*theirs, *rest, *own]) == expected


def test_a_rack_that_is_closed_though_nobody_is_there_stays_closed() -> None:
    ask = PlanRequest(gang(1), 1, RACK, taken=frozenset({"a", "b"}))
    assert find_forecast(RACKS, ask, [Ending("a1", FOUR, 10.0), Ending("b1", FOUR, 20.0)]) is None


def test_a_tree_is_foreseen_as_soon_as_its_groups_fit_though_slots_for_all_were_free_before() -> None:
    """Twenty racks of five nodes, two of each free: enough for all members, but for no group of four."""
    names = [(f"r{rack:02}", f"r{rack:02}-{place}") for rack in range(20) for place in range(5)]
    nodes = {name: node(name).cpu(4).rack(rack).value() for rack, name in names}
    used = {name: {"cpu": 4000, "pods": 4} for name in nodes if name[-1] not in "34"}
    parts = [PlanRequest(gang(4, pod(group).cpu(4)), 4, RACK, name=group) for group in ("x", "y")]
    members = [replace(each, uid=f"{part.name}-{each.uid}") for part in parts for each in part.members]
    parts = [replace(part, members=tuple(members[i * 4 : i * 4 + 4])) for i, part in enumerate(parts)]
    ask = PlanRequest(tuple(members), 8, parts=tuple(parts), wanted=2)
    endings = [Ending(name, FOUR, float(1 + int(name[1:3]))) for name in used]
    found = find_forecast(Snapshot(nodes, used, rules=PLAN_RULES), ask, endings)
    assert found is not None
    assert (found.at, {name[:3] for name in found.nodes}) == (2.0, {"r00", "r01"})


def test_a_gang_that_would_not_fit_if_all_of_them_ended_has_none() -> None:
    stays = [Ending("a1", FOUR, 10.0), Ending("a2", FOUR, float("inf")), Ending("b1", FOUR, None)]
    assert find_forecast(RACKS, PlanRequest(gang(2), 2, RACK), stays) is None


def test_members_of_several_shapes_are_planned_for_when_each_finds_room() -> None:
    mixed = [*gang(1), pod("s").cpu(1).uid("s").value()]
    endings = [Ending("a1", FOUR, 10.0), Ending("a2", ONE, 20.0)]
    assert find_forecast(RACKS, PlanRequest(mixed, 2, RACK), endings) == Forecast("a", frozenset({"a1", "a2"}), 20.0)


def test_a_closed_node_is_no_help() -> None:
    endings = [Ending("a1", FOUR, 10.0), Ending("b1", FOUR, 20.0)]
    found = find_forecast(RACKS, PlanRequest(gang(1), 1, closed=frozenset({"a1"})), endings)
    assert found == Forecast("", frozenset({"b1"}), 20.0)


def test_a_pod_that_leaves_an_unknown_node_is_no_matter() -> None:
    assert find_forecast(RACKS, PlanRequest(gang(1), 1), [Ending("gone", FOUR, 10.0)]) is None


def test_members_of_several_shapes_that_need_every_node_are_foreseen_when_the_last_one_is_empty() -> None:
    kinds = [pod("p").cpu(4), pod("p").cpu("3900m"), pod("p").cpu("3800m")]
    cluster = full(*(node(f"n{i:02}").rack("r") for i in range(20)))
    mixed = [kinds[i % 3].with_field(f"p{i}", "metadata", "name").uid(f"p{i}").value() for i in range(20)]
    endings = [Ending(f"n{i:02}", FOUR, float(i)) for i in range(20)]
    found = find_forecast(cluster, PlanRequest(mixed, 20, RACK), endings)
    assert found == Forecast("r", frozenset(cluster.nodes), 19.0)


def test_the_last_try_is_made_where_those_before_it_were_in_vain() -> None:
    # Each class alone, and as many of the least of all, would find room in ten nodes; together they take twenty.
    wide, tall = (("cpu", 4000), ("memory", 1), ("pods", 1)), (("cpu", 1), ("memory", 4000), ("pods", 1))
    nodes = {name: Node(name, {"cpu": 4000, "memory": 4000, "pods": 99}, {RACK: "r"}) for name in map(str, range(20))}
    members = [Pod("ns", f"m{i}", f"m{i}", Shape((wide, tall)[i % 2])) for i in range(20)]
    full_up = {"cpu": 4000, "memory": 4000}
    endings = [Ending(name, tuple(full_up.items()), float(place)) for place, name in enumerate(nodes)]
    found = find_forecast(
        Snapshot(nodes, dict.fromkeys(nodes, full_up), rules=PLAN_RULES), PlanRequest(members, 20, RACK), endings
    )
    assert found == Forecast("r", frozenset(nodes), 19.0)
