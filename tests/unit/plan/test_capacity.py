"""Room for a class is counted on all nodes, or only on the nodes that it names."""

from unittest.mock import Mock

import pytest

from serried.api.interpod import HOSTNAME
from serried.api.node import Node
from serried.api.pod import Shape
from serried.plan.capacity import Capacity, CapacityFork
from serried.plan.fit import list_required_values
from serried.plan.limit import Limit
from tests.support.builders import node, pod
from tests.support.containers import count_items

ZONE = "example.com/zone"


def cluster(size: int = 12) -> dict[str, Node]:
    built = (node(f"n{i}").cpu(4).label(HOSTNAME, f"n{i}").label(ZONE, f"z{i // 3}") for i in range(size))
    return {each.value().name: each.value() for each in built}


def on_label(key: str, *values: str) -> Shape:
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}
    return pod("p").cpu(1).node_affinity(term).value().shape


def on_name(name: str) -> Shape:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
    return pod("p").cpu(1).node_affinity(term).value().shape


def count_nodes(capacity: Capacity, shape: Shape) -> int:
    """Count the nodes that are looked at for a shape that weighs little."""
    limit = Limit()
    capacity.table(shape, limit)
    return limit.spent


def test_a_class_that_names_its_nodes_is_counted_on_these() -> None:
    capacity = Capacity(cluster(), {})
    assert capacity.table(on_name("n3")).by_node == {"n3": 4}
    assert capacity.table(on_label(ZONE, "z1")).by_node == {"n3": 4, "n4": 4, "n5": 4}
    assert capacity.table(pod("p").cpu(1).node_selector(HOSTNAME, "n7").value().shape).by_node == {"n7": 4}


def test_classes_that_name_their_nodes_do_not_count_as_missing() -> None:
    capacity = Capacity(cluster(), {})
    assert capacity.count_missing([on_name("n1"), on_label(ZONE, "z0")]) == 0
    assert capacity.count_missing([pod("p").cpu(1).value().shape]) == 1


def test_what_names_nodes_in_one_term_of_two_names_none() -> None:
    either = pod("p").node_affinity(
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
        {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]},
    )
    assert list_required_values(either.value().shape) is None


def test_a_node_that_comes_later_is_counted_for_who_names_it() -> None:
    nodes = cluster(3)
    capacity = Capacity(nodes, {})
    shape = on_name("new")
    assert capacity.table(shape).by_node == {}
    nodes["new"] = node("new").cpu(2).value()
    capacity.note_node(None, nodes["new"])
    assert capacity.table(shape).by_node == {"new": 2}


def test_many_classes_stay_counted_while_there_is_room_for_their_tables() -> None:
    capacity = Capacity(cluster(), {})
    shapes = [pod("p").cpu(f"{100 + i}m").value().shape for i in range(200)]
    tables = [capacity.table(shape) for shape in shapes]
    assert all(capacity.table(shape) is table for shape, table in zip(shapes, tables, strict=True))


def many_shapes(count: int) -> list[Shape]:
    return [pod("p").cpu(f"{100_000 + number}m").value().shape for number in range(count)]


def test_a_new_class_is_not_weighed_against_all_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    capacity = Capacity(cluster(1), {})
    for shape in many_shapes(300):
        capacity.table(shape)
    measured = Mock(side_effect=len)
    monkeypatch.setattr("serried.plan.capacity.len", measured, raising=False)
    capacity.table(pod("p").cpu(1).value().shape)
    assert measured.call_count < 10


def test_classes_that_fit_nowhere_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serried.plan.capacity._MAX_ENTRIES_KEPT", 1_600)
    capacity = Capacity(cluster(1), {})
    shapes = many_shapes(300)
    for shape in shapes:
        capacity.table(shape)
    assert capacity.count_missing(shapes) == 200


def test_tables_that_have_grown_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serried.plan.capacity._MAX_ENTRIES_KEPT", 1_000)
    nodes = cluster(1)
    capacity = Capacity(nodes, {})
    shapes = [pod("p").cpu(f"{100 + number}m").value().shape for number in range(20)]
    for shape in shapes:
        capacity.table(shape)
    for name, added in cluster(101).items():
        nodes[name] = added
        capacity.note_node(None, added)
    for shape in shapes:
        capacity.table(shape)
    capacity.table(pod("p").cpu(1).value().shape)
    assert capacity.count_missing(shapes) == 5


def test_a_fork_goes_its_own_way_and_leaves_the_original_as_it_is() -> None:
    nodes = cluster(3)
    capacity = Capacity(nodes, {})
    shape = pod("p").cpu(1).value().shape
    used = {"n0": {"cpu": 3000}}
    fork = CapacityFork(capacity, nodes, used, ["n0"])
    assert fork.table(shape).by_node == {"n0": 1, "n1": 4, "n2": 4}
    used["n1"] = {"cpu": 2000}
    fork.note_used("n1")
    assert fork.table(shape).by_node == {"n0": 1, "n1": 2, "n2": 4}
    assert capacity.table(shape).by_node == {"n0": 4, "n1": 4, "n2": 4}


def test_what_a_copy_has_counted_the_original_need_not_count_again() -> None:
    nodes = cluster(3)
    capacity, copied = Capacity(nodes, {}), Capacity(dict(nodes), {})
    shape = pod("p").cpu(1).value().shape
    assert count_nodes(copied, shape) == 3
    capacity.import_tables(copied.export_tables(0, nodes), tuple(nodes), capacity.version)
    nodes["n1"] = node("n1").cpu(1).value()
    capacity.note_node(None, nodes["n1"])
    assert not capacity.count_missing([shape])
    assert count_nodes(capacity, shape) == 1
    assert capacity.table(shape).by_node == {"n0": 4, "n1": 1, "n2": 4}


def test_a_copy_hands_over_no_more_than_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serried.plan.capacity._MAX_COUNTS_PACKED", 7)
    nodes, shapes = cluster(3), many_shapes(5)
    copied = Capacity(nodes, {})
    for shape in shapes:
        copied.table(shape)
    assert len(copied.export_tables(0, nodes)) == 2
    assert len(copied.export_tables(4, nodes)) == 1


def test_what_is_known_of_a_time_that_is_forgotten_is_not_taken_over() -> None:
    nodes = cluster(3)
    capacity, copied = Capacity(nodes, {}), Capacity(dict(nodes), {})
    shape = pod("p").cpu(1).value().shape
    copied.table(shape)
    version = capacity.version
    for index in range(10_000):
        capacity.note_used(f"gone-{index}")
    capacity.import_tables(copied.export_tables(0, nodes), tuple(nodes), version)
    assert capacity.count_missing([shape])


def test_the_class_that_was_asked_for_last_is_measured_in_all_and_by_key() -> None:
    nodes = cluster(6)
    used: dict[str, dict[str, int]] = {}
    capacity = Capacity(nodes, used)
    assert capacity.measure_latest_shape() == (0, {})
    shape = pod("p").cpu(1).value().shape
    capacity.table(shape)
    capacity.domains_by_node((ZONE,))
    assert capacity.measure_latest_shape() == (24, {ZONE: 12})

    used["n0"] = {"cpu": 4000}
    capacity.note_used("n0")
    used["n4"] = {"cpu": 2000}
    capacity.note_used("n4")
    assert capacity.measure_latest_shape() == (18, {ZONE: 10})


def test_what_nodes_hold_empty_follows_nodes_and_not_what_runs_on_them() -> None:
    nodes, used = cluster(2), dict[str, dict[str, int]]()
    ground = Capacity(nodes, {})
    capacity = Capacity(nodes, used, ground)
    shape = pod("p").cpu(1).value().shape
    assert ground.table(shape).total == 8
    used["n0"] = {"cpu": 4000}
    capacity.note_used("n0")
    assert (capacity.table(shape).total, ground.table(shape).total) == (4, 8)

    old = nodes["n1"]
    nodes["n1"] = node("n1").cpu(1).value()
    capacity.note_node(old, nodes["n1"])
    assert ground.table(shape).total == 5


def test_names_of_nodes_that_are_gone_are_forgotten_though_nobody_asks_for_a_class() -> None:
    nodes: dict[str, Node] = {}
    capacity = Capacity(nodes, {})
    held = []
    for index in range(10_000):
        found = nodes[f"n{index}"] = Node(f"n{index}", {"cpu": 1000})
        capacity.note_node(None, found)
        capacity.note_node(nodes.pop(f"n{index}"), None)
        if index % 20 == 0:
            held.append(sum(count_items(capacity).values()))
    assert max(held[250:]) <= max(held[:250])


def test_a_table_is_right_after_more_changes_than_are_remembered() -> None:
    nodes, used = cluster(3), dict[str, dict[str, int]]()
    capacity = Capacity(nodes, used)
    shape = pod("p").cpu(1).value().shape
    assert capacity.table(shape).by_node == {"n0": 4, "n1": 4, "n2": 4}
    used["n1"] = {"cpu": 3000}
    capacity.note_used("n1")
    for index in range(10_000):
        capacity.note_used(f"gone-{index}")
    assert capacity.table(shape).by_node == {"n0": 4, "n1": 1, "n2": 4}
