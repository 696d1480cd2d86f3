"""Scores of nodes for pods that may run anywhere: best are those of racks that are broken up already."""

from collections.abc import Iterator

import pytest

from serried.api.node import Node
from serried.api.preference import Level
from serried.cluster.cache import Store
from serried.cluster.domain_use import MAX_KEYS, DomainUse
from serried.rules.all import RULES
from tests.support.builders import RACK, NodeBuilder, PodBuilder, PodGroupBuilder, node, pod, pod_group

BLOCK = "example.com/block"

Thing = NodeBuilder | PodBuilder | PodGroupBuilder
IN_RACKS = pod_group("g").gang(2).topology()


def rack(name: str, block: str = "", *nodes: str) -> list[NodeBuilder]:
    """Nodes of 10 CPUs in one rack, named after it."""
    made = [node(f"{name}{number}").cpu(10).rack(name) for number in nodes or ("1", "2")]
    return [each.label(BLOCK, block) for each in made] if block else made


def world(*objects: Thing) -> Store:
    store = Store(["serried"], rules=RULES)
    for each in objects:
        put(store, each)
    return store


def put(store: Store, each: Thing) -> None:
    if isinstance(each, NodeBuilder):
        store.put_node(each.value())
    elif isinstance(each, PodBuilder):
        store.put_pod(each.value())
    else:
        store.put_group(each.value())


def score(store: Store, *names: str) -> list[int]:
    return store.domain_use.score(names)


ABC = [*rack("a"), *rack("b"), *rack("c")]
B_IS_BROKEN: list[Thing] = [*ABC, pod("p").cpu(1).on("b1")]


@pytest.mark.parametrize(
    ("objects", "names", "scores"),
    [
        pytest.param([*B_IS_BROKEN, IN_RACKS], "a1 b1 b2 c2", [0, 10, 10, 0], id="a broken rack is better than whole"),
        pytest.param(
            [*B_IS_BROKEN, IN_RACKS, pod("q").cpu(5).on("c2")],
            "a1 b1 b2 c2",
            [0, 5, 5, 10],
            id="the fuller rack is better",
        ),
        pytest.param([*ABC, IN_RACKS], "a1 b1 c1", [0, 0, 0], id="whole racks are all alike"),
        pytest.param(B_IS_BROKEN, "a1 b1 c1", [0, 0, 0], id="while no group asks for racks there is no opinion"),
        pytest.param(
            [*B_IS_BROKEN, pod_group("g").gang(2)],
            "a1 b1 c1",
            [0, 0, 0],
            id="a gang that may go anywhere needs no whole rack",
        ),
        pytest.param(
            [node("x").cpu(10), node("y").cpu(10), pod("p").cpu(9).on("y"), IN_RACKS],
            "x y",
            [0, 0],
            id="a cluster without racks has no opinion",
        ),
        pytest.param(
            [*B_IS_BROKEN, node("x").cpu(10), IN_RACKS],
            "a1 b1 x",
            [0, 5, 10],
            id="a node in no rack is in nobody's way",
        ),
        pytest.param([*B_IS_BROKEN, IN_RACKS], "b1 b2", [0, 0], id="in one rack all nodes are alike"),
        pytest.param([*B_IS_BROKEN, IN_RACKS], "b1", [0], id="one node"),
        pytest.param([*B_IS_BROKEN, IN_RACKS], "", [], id="no node"),
        pytest.param(
            [*B_IS_BROKEN, pod_group("g").gang(2).preferring(Level(RACK))],
            "a1 b1",
            [0, 10],
            id="a preferred level counts as well",
        ),
        pytest.param(
            [*B_IS_BROKEN, pod("q").request("memory", "1Gi").on("a1"), IN_RACKS],
            "a1 b1 c1",
            [5, 10, 0],
            id="of what no node has nothing counts but that the pod is there",
        ),
        pytest.param(
            [
                *[each.memory("10Gi") for each in ABC],
                pod("p").cpu(2).on("b1"),
                pod("q").cpu(1).memory("9Gi").on("c1"),
                IN_RACKS,
            ],
            "a1 b1 c1",
            [0, 5, 10],
            id="the resource of which most is used says how full a rack is",
        ),
        pytest.param(
            [
                *[*rack("a", "x"), *rack("b", "x"), *rack("c", "y"), *rack("d", "y")],
                *[pod("p").cpu(5).on("a1"), pod("q").cpu(4).on("c1"), pod("r").cpu(4).on("d1")],
                pod_group("g").gang(2).topology(BLOCK).preferring(Level(RACK)),
            ],
            "a1 b1 c1 d1",
            [5, 0, 8, 8],
            id="of nested keys the mean counts",
        ),
        pytest.param(
            [
                *[*rack("a", "x"), *rack("b", "x"), pod("p").cpu(5).on("a1")],
                pod_group("g").gang(2).topology(BLOCK).preferring(Level(RACK)),
            ],
            "a1 b1",
            [10, 0],
            id="a key for which all offered nodes are equal does not count",
        ),
    ],
)
def test_scores(objects: list[Thing], names: str, scores: list[int]) -> None:
    assert score(world(*objects), *names.split()) == scores


def test_a_single_small_pod_in_a_large_rack_makes_a_difference() -> None:
    store = world(*rack("a", "", *map(str, range(500))), *rack("b"), pod("p").cpu("1m").on("a7"), IN_RACKS)
    assert score(store, "a1", "b1") == [10, 0]


def test_what_changes_counts_at_once() -> None:
    store = world(*ABC, IN_RACKS, pod("p").cpu(1).on("a1"))
    assert score(store, "a2", "b2") == [10, 0]
    store.drop_pod("pod-p")
    assert score(store, "a2", "b2") == [0, 0]
    put(store, pod("q").cpu(1).on("b1"))
    assert score(store, "a2", "b2") == [0, 10]


def test_a_node_that_moves_takes_its_pods_along() -> None:
    store = world(*ABC, IN_RACKS, pod("p").cpu(1).on("a1"))
    put(store, node("a1").cpu(10).rack("b"))
    assert score(store, "a1", "a2", "b2") == [10, 0, 10]


def test_a_node_that_goes_leaves_its_rack_whole_and_comes_back_with_its_pods() -> None:
    store = world(*ABC, IN_RACKS, pod("p").cpu(1).on("a1"))
    store.drop_node("a1")
    assert score(store, "a2", "b2") == [0, 0]
    put(store, node("a1").cpu(10).rack("a"))
    assert score(store, "a2", "b2") == [10, 0]


def test_a_rack_that_grows_is_less_full() -> None:
    store = world(*ABC, IN_RACKS, pod("p").cpu(2).on("a1"), pod("q").cpu(1).on("b1"))
    assert score(store, "a2", "b2") == [10, 0]
    for number in range(3, 9):
        put(store, node(f"a{number}").cpu(10).rack("a"))
    assert score(store, "a2", "b2") == [0, 10]


def test_the_next_gang_finds_whole_racks_though_the_last_one_has_gone() -> None:
    store = world(*B_IS_BROKEN, IN_RACKS)
    store.drop_group(IN_RACKS.value().key)
    assert score(store, "a1", "b1") == [0, 10]


def test_a_key_that_nobody_asks_for_any_more_makes_way_for_one_that_somebody_does() -> None:
    store = world(*B_IS_BROKEN, IN_RACKS)
    store.drop_group(IN_RACKS.value().key)
    for number in range(MAX_KEYS):
        put(store, pod_group(f"g{number}").gang(2).topology(f"example.com/{number}"))
    assert score(store, "a1", "b1") == [0, 0]


def test_of_many_keys_those_count_that_most_groups_ask_for() -> None:
    store = world(*B_IS_BROKEN, IN_RACKS)
    for number in range(2 * MAX_KEYS):
        put(store, pod_group(f"g{number}").gang(2).topology(f"example.com/{number}"))
    assert score(store, "a1", "b1") == [0, 10]
    put(store, pod_group("late").gang(2).topology("example.com/late"))
    assert score(store, "a1", "b1") == [0, 10]


def test_a_group_that_turns_to_another_key_no_longer_counts_for_the_first() -> None:
    store = world(*B_IS_BROKEN, IN_RACKS)
    put(store, pod_group("g").gang(2).topology("example.com/0"))
    for number in range(1, MAX_KEYS):
        put(store, pod_group(f"g{number}").gang(2).topology(f"example.com/{number}"))
    assert score(store, "a1", "b1") == [0, 0]


class Cluster(dict[str, Node]):
    """Nodes by name. Counts the iterations over all of them."""

    passes = 0

    def __iter__(self) -> Iterator[str]:
        self.passes += 1
        return super().__iter__()

    def items(self) -> Iterator[tuple[str, Node]]:  # type: ignore[override]
        self.passes += 1
        return iter(super().items())


def test_no_answer_and_no_change_looks_at_the_whole_cluster() -> None:
    nodes = Cluster({each.value().name: each.value() for each in ABC})
    used = {"b1": {"cpu": 1000}}
    table = DomainUse(nodes, used)
    table.note_group(None, IN_RACKS.value())
    assert nodes.passes == 1  # a new key
    used["c1"] = {"cpu": 2000}
    table.changed.update(("c1", "a1"))
    table.note_group(None, pod_group("h").gang(2).topology().value())
    assert table.score(["a1", "b1", "c1"]) == [0, 5, 10]
    assert nodes.passes == 1


def test_nodes_that_have_none_of_a_resource_come_and_go() -> None:
    none = [each.allocatable("example.com/gpu", 0) for each in ABC]
    store = world(*none, IN_RACKS, pod("p").cpu(1).request("example.com/gpu", 1).on("b1"))
    assert score(store, "a1", "b2") == [0, 10]
    for each in none:
        store.drop_node(each.value().name)
    assert score(store, "a1", "b2") == [0, 0]
