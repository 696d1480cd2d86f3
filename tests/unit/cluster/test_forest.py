"""Trees of PodGroups, in whatever order their objects come."""

from collections.abc import Callable
from itertools import permutations

import pytest

from serried.api.group import Branch, Leaf, Policy
from serried.api.names import Disruption, GroupKey, GroupKind, Key
from serried.cluster.cache import Store
from serried.rules.all import RULES
from tests.support.builders import RACK, Builder, PodBuilder, PodGroupBuilder, pod, pod_group
from tests.support.composites import CompositeBuilder, composite

TREE = GroupKey("default", "root", GroupKind.COMPOSITE)
ZONE = "example.com/zone"
SCHEDULER = "serried"


def store_of(*builders: Builder) -> Store:
    store = Store([SCHEDULER], rules=RULES)
    for builder in builders:
        add(store, builder)
    return store


def add(store: Store, builder: Builder) -> None:
    match builder:
        case CompositeBuilder():
            store.put_composite(builder.value())
        case PodGroupBuilder():
            store.put_group(builder.value())
        case PodBuilder():
            store.put_pod(builder.value())


ROOT = composite("root").gang(2).topology(ZONE).priority(5)
LEADER = pod_group("leader").gang(1).child_of("root")
WORKERS = pod_group("workers").gang(2).topology().child_of("root")
BOSS = pod("boss").scheduler(SCHEDULER).in_group("leader")
HAND = pod("hand").scheduler(SCHEDULER).in_group("workers")


def test_a_tree_has_one_group_that_stands_for_it() -> None:
    found = store_of(ROOT, LEADER, WORKERS).groups[TREE]
    assert found.tree == Branch("root", 2, ZONE, (Leaf("leader", 1), Leaf("workers", 2, RACK)))
    assert (found.uid, found.topology_key, found.priority) == ("compositepodgroup-root", ZONE, 5)
    assert found.policy == Policy(3)


def test_what_came_in_whatever_order_is_the_same_tree_with_the_same_members() -> None:
    wanted = store_of(ROOT, LEADER, WORKERS, BOSS, HAND)
    for order in permutations((ROOT, LEADER, WORKERS, BOSS, HAND)):
        found = store_of(*order)
        assert found.groups == wanted.groups
        assert {found.members.group_of(pod.value().uid) for pod in (BOSS, HAND)} == {TREE}
        assert (found.members.leaf_of("pod-boss"), found.members.leaf_of("pod-hand")) == ("leader", "workers")


def test_a_tree_knows_who_is_disrupted_together() -> None:
    tree = store_of(ROOT.disruption(Disruption.ALL), LEADER, WORKERS).groups[TREE]
    assert tree.find_disrupted("leader") == {"leader", "workers"}
    tree = store_of(ROOT, LEADER, WORKERS.disruption(Disruption.ALL)).groups[TREE]
    assert not tree.find_disrupted("leader")
    assert tree.find_disrupted("workers") == {"workers"}


def test_branches_lie_inside_each_other() -> None:
    inner = composite("inner").gang(1).child_of("root")
    found = store_of(ROOT, inner, LEADER, pod_group("deep").gang(3).child_of("inner")).groups[TREE].tree
    assert found == Branch("root", 2, ZONE, (Branch("inner", 1, None, (Leaf("deep", 3),)), Leaf("leader", 1)))


def test_policy_basic_takes_one_group_and_one_member() -> None:
    found = store_of(composite("root"), pod_group("any").child_of("root")).groups[TREE]
    assert found.tree == Branch("root", 1, None, (Leaf("any", 1),))


def test_the_priority_is_the_roots_whatever_the_groups_below_say() -> None:
    bare = composite("root").with_field("high", "spec", "priorityClassName")
    assert store_of(bare, LEADER.priority(9)).groups[TREE].priority is None
    assert store_of(bare.priority(5), LEADER.priority(9)).groups[TREE].priority == 5


def leave_group(store: Store) -> None:
    store.drop_group(GroupKey("default", "workers"))


def leave_root(store: Store) -> None:
    store.drop_composite(Key("default", "root"))


@pytest.mark.parametrize(
    ("leave", "group", "gap"),
    [
        pytest.param(
            leave_group, GroupKey("default", "workers"), "", id="a PodGroup that goes leaves its members alone"
        ),
        pytest.param(
            leave_root, TREE, "CompositePodGroup root does not exist", id="members of a root that goes wait for it"
        ),
    ],
)
def test_a_tree_that_loses_something_is_built_anew(leave: Callable[[Store], None], group: GroupKey, gap: str) -> None:
    store = store_of(ROOT, LEADER, WORKERS, BOSS, HAND)
    store.dirty.groups.clear()
    leave(store)
    assert store.members.group_of("pod-hand") == group
    assert TREE in store.dirty.groups
    assert store.forest.find_gap(group) == gap
    assert group not in store.groups


def test_a_root_that_gets_a_parent_takes_its_tree_along() -> None:
    store = store_of(composite("inner").child_of("root"), pod_group("workers").gang(2).child_of("inner"), HAND)
    assert store.members.group_of("pod-hand") == TREE
    assert store.forest.find_gap(TREE) == "CompositePodGroup root does not exist"
    add(store, ROOT)
    assert store.members.group_of("pod-hand") == TREE
    assert isinstance(store.groups[TREE].tree, Branch)


def test_a_circle_is_no_tree() -> None:
    store = store_of(
        composite("a").child_of("b"), composite("b").child_of("a"), pod_group("workers").child_of("b"), HAND
    )
    key = store.members.group_of("pod-hand")
    assert key == GroupKey("default", "a", GroupKind.COMPOSITE)
    assert key not in store.groups
    assert store.forest.find_gap(key) == "CompositePodGroup a is above itself"


def test_a_tree_deeper_than_can_be_is_no_tree() -> None:
    deep = [composite(f"c{level}").child_of(f"c{level - 1}") for level in range(1, 12)]
    store = store_of(composite("c0"), *deep, pod_group("workers").child_of("c11"), HAND)
    key = store.members.group_of("pod-hand")
    assert key is not None
    assert store.forest.find_gap(key) == "the tree of CompositePodGroup c0 is too deep"


def test_a_condition_that_is_written_moves_no_member() -> None:
    store = store_of(ROOT, LEADER, WORKERS, BOSS, HAND)
    store.dirty.groups.clear()
    store.put_group(WORKERS.condition("True", "Scheduled").version("2").value())
    assert store.members.group_of("pod-hand") == TREE
    assert isinstance(store.groups[TREE].tree, Branch)


ALL = Disruption.ALL
INVALID_IN_1_38 = {
    "three levels of composite groups, and PodGroups below: four": (
        [composite("root").gang(1), composite("b").gang(1).child_of("root"), composite("c").gang(1).child_of("b"),
         pod_group("g").gang(1).child_of("c")],
        "",
    ),
    "one level more": (
        [composite("root").gang(1), composite("b").gang(1).child_of("root"), composite("c").gang(1).child_of("b"),
         composite("d").gang(1).child_of("c"), pod_group("g").gang(1).child_of("d")],
        "it has more than 4 levels of groups",
    ),
    "the last of them has nothing below it": (
        [composite("root").gang(1), composite("b").gang(1).child_of("root"), composite("c").gang(1).child_of("b"),
         composite("d").gang(1).child_of("c")],
        "",
    ),
    "a basic PodGroup below a gang": (
        [composite("root").gang(1), LEADER, pod_group("any").child_of("root")],
        "root is a gang, and any below it is basic",
    ),
    "a basic composite group below a gang": (
        [composite("root").gang(1), composite("b").child_of("root"), pod_group("g").gang(1).child_of("b")],
        "root is a gang, and b below it is basic",
    ),
    "gangs below a basic group": ([composite("root"), composite("b").gang(1).child_of("root"), LEADER], ""),
    "a group that says nothing below one of mode all": (
        [composite("root").gang(1).disruption(ALL), LEADER],
        "root has disruption mode all, and leader below it has single",
    ),
    "all groups of mode all": ([composite("root").gang(1).disruption(ALL), LEADER.disruption(ALL)], ""),
    "mode all below single": ([composite("root").gang(1), LEADER.disruption(ALL)], ""),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "why"), INVALID_IN_1_38.values(), ids=INVALID_IN_1_38)
def test_what_is_wrong_with_a_tree_by_the_rules_of_1_38(objects: list[Builder], why: str) -> None:
    store = store_of(*objects)
    assert TREE in store.groups  # Serried takes it
    assert store.forest.find_invalid(TREE) == why


def test_of_a_single_pod_group_or_a_tree_without_its_root_nothing_is_wrong() -> None:
    store = store_of(LEADER, pod_group("alone"))
    assert [store.forest.find_invalid(key) for key in (TREE, GroupKey("default", "alone"))] == ["", ""]
