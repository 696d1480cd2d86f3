"""Slots that one Store has kept, and which group they are kept for in the Store of another API level."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from serried.api.group import PodGroup, Workload
from serried.api.level import FALLBACK, NATIVE, NATIVE_LEVELS, ApiLevel
from serried.api.names import JOB, GroupKey, GroupKind, Key
from serried.api.parent import OwnerKey
from serried.api.pod import Pod
from serried.cluster.cache import EndedMembers, Store
from serried.cluster.membership import provisional
from serried.cluster.usage import Vacancy
from serried.rules.all import RULES
from tests.support.builders import PodBuilder, PodGroupBuilder, job, node, pod, pod_group, workload
from tests.support.composites import composite

SCHEDULER = "serried"
BESIDE = FALLBACK.api_version
OLDEST = NATIVE_LEVELS[-1]
GROUP = GroupKey("default", "g")
TREE = GroupKey("default", "root", GroupKind.COMPOSITE)
INLINE = GroupKey("default", "w", GroupKind.WORKLOAD, "workers")
AWAITED = provisional(OwnerKey(JOB, Key("default", "j")))


def member(index: int) -> PodBuilder:
    """A pod of Job j on a node of its own, one CPU, which names no group."""
    return pod(f"j-{index}").of_job("j", index).cpu(1).scheduler(SCHEDULER).on(f"n{index}")


def named(index: int) -> PodBuilder:
    """Return a member that refers to PodGroup g."""
    return member(index).in_group("g")


def inline(index: int) -> PodBuilder:
    """Return a member that refers to a group inside of Workload w (1.35)."""
    return member(index).in_workload("w", "workers")


def gang() -> PodGroupBuilder:
    return pod_group("g").gang(2)


def jobs_gang() -> PodGroupBuilder:
    """Return the PodGroup that the controller creates for Job j."""
    return gang().from_template("w", "t").controlled_by("Job", "j", "job-j")


def beside(builder: PodGroupBuilder) -> PodGroup:
    return replace(builder.value(), api=BESIDE)


Item = PodGroup | Workload | Pod


def make_store(level: ApiLevel, *items: Item) -> Store:
    """Return a Store with Job j and these objects."""
    store = make_jobless(level)
    store.put_job(job("j").size(2).scheduler(SCHEDULER).value())
    for item in items:
        put(store, item)
    return store


def make_jobless(level: ApiLevel, *items: Item) -> Store:
    store = Store([SCHEDULER], ended=EndedMembers.KEEP_SLOTS, level=level, rules=RULES)
    for index in range(2):
        store.put_node(node(f"n{index}").cpu(1).value())
    for item in items:
        put(store, item)
    return store


def put(store: Store, item: Item) -> None:
    match item:
        case PodGroup():
            store.put_group(item)
        case Workload():
            store.put_workload(item)
        case Pod():
            store.put_pod(item)


def bury(store: Store) -> list[Vacancy]:
    """Delete member 0. Return the only vacancy, in a list."""
    store.drop_pod("pod-j-0")
    kept = list(store.vacancies)
    assert [each.pod.name for each in kept] == ["j-0"]
    kept[0].since = 1234.5
    return kept


def describe(store: Store) -> list[tuple[GroupKey, str, float | None]]:
    """Each slot: for which group it is kept, on which node there is room for it, and since when."""
    return [(each.group, store.occupancy.node_of(each.holder) or "", each.since) for each in store.vacancies]


Make = Callable[..., PodBuilder]


@pytest.mark.parametrize(
    ("before", "old", "make", "after", "new"),
    [
        pytest.param(FALLBACK, gang().value(), named, NATIVE, beside(gang()), id="the native API is turned on"),
        pytest.param(NATIVE, beside(gang()), named, FALLBACK, gang().value(), id="the native API is turned off again"),
        pytest.param(
            NATIVE,
            gang().value(),
            named,
            ApiLevel("native", NATIVE.group, "v1", like=NATIVE.version),
            gang().value(),
            id="the same objects are served as another version",
        ),
        pytest.param(
            NATIVE,
            jobs_gang().value(),
            member,
            FALLBACK,
            jobs_gang().uid("another").value(),
            id="the controller has made a Job's objects anew",
        ),
        pytest.param(
            OLDEST,
            workload("w").for_job("j").inline_gang("workers", 2).value(),
            inline,
            FALLBACK,
            jobs_gang().value(),
            id="the group was part of a Workload of 1.35, and is an object now",
        ),
    ],
)
def test_a_slot_is_kept_on_for_the_gang_of_its_member(
    before: ApiLevel, old: Item, make: Make, after: ApiLevel, new: Item
) -> None:
    kept = bury(make_store(before, old, make(0).value(), make(1).value()))
    store = make_store(after, new, make(1).value())
    store.earlier_slots.restore_vacancies(kept)
    assert describe(store) == [(GROUP, "n0", 1234.5)]
    assert store.earlier_slots.awaiting == set()


def test_that_of_a_group_that_is_being_deleted_is_kept_until_it_is_gone() -> None:
    kept = bury(make_jobless(NATIVE, gang().value(), named(0).value(), named(1).value()))
    store = make_jobless(FALLBACK, named(1).value(), gang().deleting().value())
    store.earlier_slots.restore_vacancies(kept)
    assert describe(store) == [(GROUP, "n0", 1234.5)]
    store.drop_group(GROUP)
    assert describe(store) == []


def test_that_of_a_group_inside_of_a_workload_is_kept_for_the_same_group() -> None:
    load = workload("w").for_job("j").inline_gang("workers", 2).value()
    kept = bury(make_store(OLDEST, load, inline(0).value(), inline(1).value()))
    store = make_store(OLDEST, load, inline(1).value())
    store.earlier_slots.restore_vacancies(kept)
    assert describe(store) == [(INLINE, "n0", 1234.5)]


def test_that_of_a_member_of_a_tree_is_kept_for_its_pod_group_in_the_tree() -> None:
    def plant(level: ApiLevel, *pods: Pod) -> Store:
        store = make_jobless(level)
        store.put_composite(composite("root").gang(1).value())
        store.put_group(gang().child_of("root").value())
        for each in pods:
            store.put_pod(each)
        return store

    kept = bury(plant(NATIVE, named(0).value(), named(1).value()))
    store = plant(FALLBACK, named(1).value())
    store.earlier_slots.restore_vacancies(kept)
    assert [(each.group, each.leaf) for each in store.vacancies] == [(TREE, "g")]


def test_until_a_jobs_objects_are_made_anew_its_slot_waits_for_them_and_its_room_is_kept() -> None:
    kept = bury(make_store(NATIVE, jobs_gang().value(), member(0).value(), member(1).value()))
    stranded = replace(member(1).value(), stranded=True)
    store = make_store(FALLBACK, stranded)
    store.earlier_slots.restore_vacancies(kept)
    assert describe(store) == [(AWAITED, "n0", 1234.5)]
    assert store.earlier_slots.awaiting == {AWAITED}
    store.put_group(jobs_gang().uid("another").value())
    assert describe(store) == [(GROUP, "n0", 1234.5)]
    assert store.earlier_slots.awaiting == set()


def test_a_workload_of_1_35_that_comes_later_is_what_its_slot_has_waited_for() -> None:
    kept = bury(make_store(NATIVE, jobs_gang().value(), member(0).value(), member(1).value()))
    store = make_store(OLDEST, replace(member(1).value(), stranded=True))
    store.earlier_slots.restore_vacancies(kept)
    store.put_workload(workload("w").for_job("j").inline_gang("workers", 2).value())
    assert describe(store) == [(INLINE, "n0", 1234.5)]


@pytest.mark.parametrize(
    "items",
    [
        pytest.param([], id="its PodGroup cannot be read, and nobody makes it anew"),
        pytest.param([pod_group("g").value()], id="its PodGroup is no gang"),
        pytest.param([gang().value(), named(0).uid("anew").value()], id="its replacement was bound meanwhile"),
    ],
)
def test_a_slot_that_nobody_would_take_is_kept_no_longer(items: list[Item]) -> None:
    kept = bury(make_jobless(NATIVE, gang().value(), named(0).value(), named(1).value()))
    kept[0].replacement = "anew"
    store = make_jobless(FALLBACK, named(1).value(), *items)
    store.earlier_slots.restore_vacancies(kept)
    assert describe(store) == []
    assert store.occupancy.node_of("vacancy:pod-j-0") is None


def test_a_slot_whose_node_the_kubelet_refused_keeps_no_room_there() -> None:
    store = make_store(NATIVE, gang().value(), named(0).value(), named(1).value())
    store.put_pod(named(0).kubelet_rejected("OutOfcpu").value())
    kept = list(store.vacancies)
    after = make_store(FALLBACK, gang().value(), named(1).value())
    after.earlier_slots.restore_vacancies(kept)
    assert describe(after) == [(GROUP, "", None)]
    assert not after.occupancy.used.get("n0")
