"""Priority and preemption policy of a group, whatever its pods have."""

import pytest

from serried.api.level import FALLBACK, NATIVE, ApiLevel
from serried.api.names import GroupKey, GroupKind
from serried.api.priority import HIGHEST_GROUP_PRIORITY, PriorityMismatch
from serried.cluster.cache import Store
from serried.rules.all import RULES
from tests.support.builders import (
    Builder,
    CompatibleGroupBuilder,
    PodBuilder,
    PodGroupBuilder,
    compatible_group,
    pod,
    pod_group,
)
from tests.support.composites import CompositeBuilder, composite
from tests.support.extender_harness import GANG, SCHEDULER, gang, members
from tests.support.priorities import PriorityClassBuilder, priority_class

TREE = GroupKey("default", "root", GroupKind.COMPOSITE)
HIGH = priority_class("high", 1000)
USUAL = priority_class("usual", 50).default()
SYSTEM = priority_class("system-cluster-critical", 2_000_000_000)


def store_at(level: ApiLevel, *builders: Builder) -> Store:
    store = Store([SCHEDULER], level=level, rules=RULES)
    for builder in builders:
        match builder:
            case PriorityClassBuilder():
                store.put_priority_class(builder.value())
            case PodGroupBuilder() | CompatibleGroupBuilder():
                store.put_group(builder.value())
            case CompositeBuilder():
                store.put_composite(builder.value())
            case PodBuilder():
                store.put_pod(builder.value())
    return store


def naming(name: str, group: PodGroupBuilder | None = None) -> PodGroupBuilder:
    return (group or gang(2)).with_field(name, "spec", "priorityClassName")


IMPORTANT = [each.priority(700) for each in members(2)]


@pytest.mark.parametrize(
    ("level", "builders", "expected"),
    [
        pytest.param(NATIVE, [gang(2).priority(5), *IMPORTANT], 5, id="the native API's word counts"),
        pytest.param(NATIVE, [naming("high").priority(5)], 5, id="the native API's word counts before the class"),
        pytest.param(NATIVE, [gang(2), *IMPORTANT], 700, id="the pods' where the native API has none for groups"),
        pytest.param(NATIVE, [gang(2), USUAL, *members(2)], 0, id="no default of today for pods that have theirs"),
        pytest.param(FALLBACK, [gang(2), HIGH, *IMPORTANT], 0, id="0 for one that names no class"),
        pytest.param(FALLBACK, [gang(2), HIGH, USUAL], 50, id="the default for one that names no class"),
        pytest.param(FALLBACK, [gang(2), HIGH.default(), USUAL], 50, id="the lowest where there are several defaults"),
        pytest.param(FALLBACK, [naming("high"), HIGH, USUAL], 1000, id="its class's before anybody has written it"),
        pytest.param(FALLBACK, [naming("high").priority(1000), HIGH], 1000, id="what is written as the class says"),
        pytest.param(FALLBACK, [naming("high").priority(10**9), HIGH], 1000, id="no more than the class says"),
        pytest.param(FALLBACK, [gang(2).priority(10**9), HIGH], 0, id="no more than without a class"),
        pytest.param(FALLBACK, [gang(2).priority(10**9), HIGH, USUAL], 50, id="no more than the default"),
        pytest.param(FALLBACK, [naming("gone").priority(10**9), USUAL], 50, id="a class that is gone gives nothing"),
        pytest.param(FALLBACK, [naming("high").priority(-3), HIGH], -3, id="less than the class says"),
        pytest.param(FALLBACK, [naming(SYSTEM.value().name).priority(10**9), SYSTEM], 0, id="no class of the system"),
    ],
)
def test_the_priority_of_a_group(level: ApiLevel, builders: list[Builder], expected: int) -> None:
    store = store_at(level, *builders)
    assert store.priorities.of_group(GANG) == expected
    assert all(store.priorities.of_pod(pod) == expected for pod in store.members.of_group(GANG))


def test_a_group_of_scheduler_plugins_has_the_least_of_its_members_at_any_level() -> None:
    theirs = [pod(f"t{n}").scheduler(SCHEDULER).in_compatible_group("c").priority(n + 3) for n in range(2)]
    store = store_at(FALLBACK, USUAL, compatible_group("c").gang(2), *theirs)
    assert store.priorities.of_group(GroupKey("default", "c", GroupKind.COMPATIBLE)) == 3
    assert [store.priorities.of_pod(each.value()) for each in theirs] == [3, 4]


def test_a_pod_of_no_group_has_its_own() -> None:
    alone = pod("alone").priority(9)
    assert store_at(FALLBACK, USUAL, alone).priorities.of_pod(alone.value()) == 9


def test_a_tree_has_that_of_its_root() -> None:
    member = pod("m").scheduler(SCHEDULER).in_group("leaf").priority(3)
    root = composite("root").with_field("high", "spec", "priorityClassName")
    leaf = naming("other", pod_group("leaf").gang(1).child_of("root"))
    store = store_at(FALLBACK, HIGH, root, leaf.priority(10**9), member)
    assert store.priorities.of_group(TREE) == 1000
    assert store.priorities.of_pod(member.value()) == 1000


@pytest.mark.parametrize(
    ("builders", "expected"),
    [
        pytest.param([naming("high")], True, id="that does not exist"),
        pytest.param([naming("high"), HIGH], False, id="that exists"),
        pytest.param([naming(SYSTEM.value().name), SYSTEM], True, id="of the system"),
        pytest.param([naming("high").priority(7)], False, id="that has given its priority already"),
        pytest.param([gang(2)], False, id="none"),
    ],
)
@pytest.mark.parametrize("level", [NATIVE, FALLBACK], ids=lambda level: level.name)
def test_a_class(level: ApiLevel, builders: list[Builder], expected: bool) -> None:  # noqa: FBT001 - a column
    store = store_at(level, *builders)
    assert store.priorities.lacks_class(store.groups[GANG]) is expected


def test_the_highest_is_for_users() -> None:
    most = priority_class("most", HIGHEST_GROUP_PRIORITY)
    assert store_at(FALLBACK, most, naming("most")).priorities.of_group(GANG) == HIGHEST_GROUP_PRIORITY


NEVER = priority_class("high", 1000).never()


def no_preemption(builder: PodBuilder) -> PodBuilder:
    return builder.with_field("Never", "spec", "preemptionPolicy")


@pytest.mark.parametrize(
    ("level", "builders", "expected"),
    [
        pytest.param(FALLBACK, [gang(2), *members(2)], True, id="nobody says anything"),
        pytest.param(NATIVE, [naming("high"), HIGH, *members(2)], True, id="the class says nothing"),
        pytest.param(NATIVE, [naming("high"), NEVER, *members(2)], False, id="the class says never"),
        pytest.param(FALLBACK, [naming("high"), NEVER, *members(2)], False, id="the class says never at the fallback"),
        pytest.param(FALLBACK, [gang(2), NEVER.default(), *members(2)], False, id="the default class says never"),
        pytest.param(
            NATIVE, [gang(2), NEVER.default(), *members(2)], True, id="a default that admission has not given"
        ),
        pytest.param(FALLBACK, [gang(2), NEVER, *members(2)], True, id="another class says never"),
        pytest.param(
            NATIVE,
            [gang(2).with_field("Never", "spec", "preemptionPolicy"), *members(2)],
            False,
            id="the group says never",
        ),
        pytest.param(NATIVE, [gang(2), *members(1), no_preemption(members(2)[1])], False, id="one member says never"),
        pytest.param(
            NATIVE,
            [gang(2).with_field("PreemptLowerPriority", "spec", "preemptionPolicy"), *map(no_preemption, members(2))],
            False,
            id="the members say never, and the group does not",
        ),
    ],
)
def test_others_may_be_evicted_for_it_unless(level: ApiLevel, builders: list[Builder], expected: bool) -> None:  # noqa: FBT001
    assert store_at(level, *builders).priorities.may_preempt(GANG) is expected


@pytest.mark.parametrize("never", ["root", "middle", "leaf", "nobody"])
def test_nobody_is_evicted_for_a_tree_if_a_group_of_it_says_never(never: str) -> None:
    tree: dict[str, Builder] = {
        "root": composite("root"),
        "middle": composite("middle").child_of("root"),
        "leaf": pod_group("leaf").gang(1).child_of("middle"),
        "other": pod_group("other").gang(1).child_of("root"),
    }
    if never in tree:
        tree[never] = tree[never].with_field("Never", "spec", "preemptionPolicy")
    assert store_at(NATIVE, *tree.values()).priorities.may_preempt(TREE) is (never == "nobody")


class TestMismatch:
    def test_none_where_group_and_members_say_the_same(self) -> None:
        same = [each.priority(1000) for each in members(2)]
        assert store_at(FALLBACK, HIGH, naming("high"), *same).priorities.find_mismatch(GANG) is None

    def test_members_that_have_another(self) -> None:
        store = store_at(NATIVE, gang(2).priority(5), members(1)[0].priority(5), *members(2, first=1))
        assert store.priorities.find_mismatch(GANG) == PriorityMismatch(5, "", None, 2, 3, "m1", 0)

    def test_a_group_in_which_somebody_has_written_another(self) -> None:
        store = store_at(FALLBACK, HIGH, naming("high").priority(10**9))
        assert store.priorities.find_mismatch(GANG) == PriorityMismatch(1000, "high", 10**9)

    def test_none_while_the_class_is_not_known(self) -> None:
        assert store_at(FALLBACK, naming("high"), *IMPORTANT).priorities.find_mismatch(GANG) is None

    def test_none_where_the_members_alone_have_one(self) -> None:
        assert store_at(NATIVE, gang(2), *members(1), *IMPORTANT[1:]).priorities.find_mismatch(GANG) is None


class TestAClassThatChanges:
    @pytest.mark.parametrize("name", ["high", ""], ids=["named", "the default"])
    def test_its_groups_are_looked_at_again(self, name: str) -> None:
        group = naming(name) if name else gang(2)
        store = store_at(FALLBACK, group, pod_group("other").with_field("x", "spec", "priorityClassName"))
        store.dirty.take_groups()
        store.put_priority_class(HIGH.value() if name else USUAL.value())
        assert store.dirty.groups == {GANG}

    def test_also_when_it_is_a_default_no_more_or_gone(self) -> None:
        store = store_at(FALLBACK, gang(2), USUAL)
        store.dirty.take_groups()
        store.put_priority_class(priority_class("usual", 50).value())
        assert (store.dirty.groups, store.priorities.of_group(GANG)) == ({GANG}, 0)
        store.put_priority_class(USUAL.value())
        store.dirty.take_groups()
        store.drop_priority_class("usual")
        assert (store.dirty.groups, store.priorities.of_group(GANG)) == ({GANG}, 0)
