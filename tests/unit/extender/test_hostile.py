"""One user's objects cost the others no more than a bounded share of the loop, or are refused with a sentence.

Bounds are counted here, not timed: `python -m bench.loop --only "one namespace"` has the times.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from extender.core.protocol import Hold
from extender.core.scheduling.planning_tasks import PlanningTask, TaskKind, TaskQueue
from extender.core.scheduling.unschedulable import UnschedulableGroups
from serried.api.group import decode_pod_group
from serried.api.job import Job, decode_job
from serried.api.names import GroupKey, Key, Malformed, is_label_key
from serried.api.node import Node
from serried.api.pod import Pod, Shape, decode_pod
from serried.api.preference import EXCLUSIVE, PACKING, PREFERRED_TOPOLOGY
from serried.api.selectors import NodeSelectorTerm, Requirement
from serried.api.verdict import Reason, Verdict, render
from serried.cluster.cache import Store
from serried.plan.capacity import Capacity
from serried.plan.eviction import Preemption
from serried.plan.fit import weigh
from serried.plan.limit import Limit
from serried.plan.request import PlanRequest
from serried.rules.all import RULES
from tests.support.builders import PodBuilder, job, node, pod, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.lines import find_growth
from tests.support.preemption import Occupied, occupied
from tests.unit.cluster.test_membership import tell

MOST = 2**31 - 1
"""The greatest minCount that the API takes."""

HUGE = "x" * 250_000
"""A value as long as an annotation may be. A regular expression that backtracks takes minutes on it."""


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [MOST, MOST - 1])
async def test_a_quorum_that_never_comes_waits_and_holds_nothing(world: Harness, count: int) -> None:
    await world.add(*small_nodes(2), gang(count), *members(3)).run_until_idle()
    assert world.reasons() == [Reason.QUORUM_MISSING]
    (_, told), *_ = world.heard.verdicts
    assert render(told) == f"QuorumMissing: 3 of {count} members exist"
    assert isinstance(world.filter("m0"), Hold)
    assert world.nothing_reserved


async def test_a_tree_of_quorums_that_never_come_waits_and_holds_nothing(world: Harness) -> None:
    leaves = [pod_group(f"g{place}").gang(MOST).child_of("root") for place in range(8)]
    await world.add(*small_nodes(2), composite("root").gang(8), *leaves).run_until_idle()
    assert world.nothing_reserved


def test_a_job_of_as_many_pods_as_the_api_takes_is_read_like_any_other() -> None:
    read = decode_job(job("j").size(MOST).raw())
    assert isinstance(read, Job)
    assert read.parallelism == MOST


# --- trees ------------------------------------------------------------------------------------------------------------


def grow(store: Store, width: int, depth: int, parent: str = "root") -> int:
    """Add ``width`` groups below each, down to PodGroups. Return the number of groups."""
    count = 0
    for place in range(width):
        name = f"{parent}-{place}"
        if depth == 1:
            tell(store, pod_group(name).gang(1).child_of(parent))
        else:
            store.put_composite(composite(name).child_of(parent).value())
            count += grow(store, width, depth - 1, name)
        count += 1
    return count


@pytest.fixture
def store() -> Store:
    made = Store([SCHEDULER], rules=RULES)
    made.put_composite(composite("root").value())
    return made


def test_a_tree_of_8_groups_below_each_of_8_is_one_gang(store: Store) -> None:
    assert grow(store, 8, 2) == 72
    tree = store.forest.find_tree_key(GroupKey("default", "root-0-0"))
    assert store.forest.find_gap(tree) == ""
    assert store.groups[tree].policy.min_count == 1


@pytest.mark.full
def test_a_tree_of_8_groups_at_each_of_4_levels_is_refused_with_a_sentence(store: Store) -> None:
    assert grow(store, 8, 4) == 8 + 64 + 512 + 4096
    tree = store.forest.find_tree_key(GroupKey("default", "root-0-0-0-0"))
    assert tree not in store.groups
    assert store.forest.find_gap(tree) == "the tree of CompositePodGroup root has more than 1024 groups"


def test_a_tree_that_shrinks_to_the_limit_is_a_gang_again(store: Store) -> None:
    for place in range(1024):
        tell(store, pod_group(f"g{place}").gang(1).child_of("root"))
    tree = store.forest.find_tree_key(GroupKey("default", "g0"))
    assert tree not in store.groups
    store.drop_group(GroupKey("default", "g7"))
    assert tree in store.groups


def chain(store: Store, length: int) -> GroupKey:
    """Add a chain of groups, each below the one before. Return the tree of the PodGroup at its end."""
    for place in range(length):
        store.put_composite(composite(f"c{place}").child_of(f"c{place - 1}" if place else "root").value())
    tell(store, pod_group("g").gang(1).child_of(f"c{length - 1}"))
    return store.forest.find_tree_key(GroupKey("default", "g"))


def test_a_chain_of_3000_groups_is_refused_with_a_sentence(store: Store) -> None:
    tree = chain(store, 3_000)
    assert tree not in store.groups
    assert store.forest.find_gap(tree) == f"the tree of CompositePodGroup {tree.name} is too deep"


def test_a_chain_of_groups_costs_a_share_for_each() -> None:
    assert find_growth(lambda length: lambda: chain(Store([SCHEDULER], rules=RULES), length), 300) < 3


# --- pods -------------------------------------------------------------------------------------------------------------


def ask_for(place: int, **fields: object) -> dict[str, object]:
    """A container that asks for a resource of its own."""
    return {"name": f"c{place}", "resources": {"requests": {f"example.com/r{place}": "1"}}, **fields}


def with_sidecars(count: int) -> PodBuilder:
    """Return a pod whose init containers are sidecars, except every tenth."""
    inits = [ask_for(place, **({"restartPolicy": "Always"} if place % 10 else {})) for place in range(count)]
    return pod("p").with_field(inits, "spec", "initContainers")


def with_labels_and_terms(count: int) -> PodBuilder:
    """Each of its terms has to be compared with its labels."""
    made = pod("p").with_field({f"l{place}": "" for place in range(count)}, "metadata", "labels")
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
    terms = "requiredDuringSchedulingIgnoredDuringExecution"
    return made.with_field([term] * count, "spec", "affinity", "podAntiAffinity", terms)


def with_claims(count: int) -> PodBuilder:
    claims = [{"name": f"c{place}", "resourceClaimTemplateName": f"t{place}"} for place in range(count)]
    return pod("p").with_field(claims, "spec", "resourceClaims")


def with_one_name(count: int) -> PodBuilder:
    """Return a pod whose containers share one name and one status, which the API server would not let pass."""
    granted = {f"example.com/r{place}": "1" for place in range(count)}
    made = pod("p").with_field([{"name": "c"}] * count, "spec", "containers")
    return made.with_field([{"name": "c", "allocatedResources": granted}], "status", "containerStatuses")


@pytest.mark.parametrize("make", [with_sidecars, with_labels_and_terms, with_claims, with_one_name])
def test_a_pod_with_many_of_anything_is_read_in_one_go(make: Callable[[int], PodBuilder]) -> None:
    def read(count: int) -> Callable[[], object]:
        raw = make(count).raw()
        return lambda: decode_pod(raw)

    assert isinstance(decode_pod(make(5_000).raw()), Pod)
    assert find_growth(read, 500) < 2.5


def test_victims_under_many_budgets_are_weighed_in_one_go() -> None:
    field = occupied(node("n1").cpu(4)).running(pod("p").cpu(4).on("n1"))
    asked = PlanRequest([pod("m").cpu(4).value()], 1)

    def under(count: int) -> Occupied:
        unit = replace(field.units[0], budgets=tuple(Key("default", f"b{place}") for place in range(count)))
        return replace(field, units=(unit,))

    crowd = under(10_000)
    found = crowd.plan(asked)
    assert isinstance(found, Preemption)
    assert found.victims == crowd.units
    assert find_growth(lambda count: lambda: under(count).plan(asked), 500) < 2.5


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("annotation", [PREFERRED_TOPOLOGY, PACKING, EXCLUSIVE])
@pytest.mark.parametrize("text", [HUGE, f"{HUGE}!", "a," * 100_000, "=" * 250_000, "a." * 120_000, "-" * 250_000])
def test_a_huge_annotation_is_refused_in_a_short_sentence(annotation: str, text: str) -> None:
    refused = decode_pod_group(gang(2).annotation(annotation, text).raw())
    said = decode_job(job("j").annotation(annotation, text).raw())
    assert isinstance(refused, Malformed)
    assert len(refused.problem) < 1000
    assert isinstance(said, Job)
    assert 0 < len(said.problem) < 1000


@pytest.mark.parametrize("text", ["a" * 300_000 + "!", "a." * 150_000, "a-" * 150_000 + "/", "a/" * 150_000])
def test_a_huge_label_key_is_refused_at_a_glance(text: str) -> None:
    assert not is_label_key(text)


# --- shapes -----------------------------------------------------------------------------------------------------------


def choosy(terms: int, values: int) -> Shape:
    """A shape that no node of the tests suits."""
    wanted = tuple(f"v{place}" for place in range(values))
    return Shape(
        (("cpu", 1), ("pods", 1)),
        node_terms=(
            NodeSelectorTerm((Requirement("none", "Exists"),)),
            *(NodeSelectorTerm((Requirement(f"k{place}", "In", wanted),)) for place in range(terms)),
        ),
    )


def count_work(shape: Shape, nodes: int) -> int:
    found: dict[str, Node] = {f"n{place}": node(f"n{place}").value() for place in range(nodes)}
    limit = Limit()
    Capacity(found, {}).table(shape, limit)
    return limit.spent


def test_hundreds_of_selectors_are_charged_for_each_node() -> None:
    plain, heavy = choosy(1, 1), choosy(400, 40)
    assert weigh(plain) == 1
    assert count_work(plain, 1000) < 1500
    assert count_work(heavy, 1000) >= 200_000


def test_a_shape_with_hundreds_of_selectors_is_not_kept_when_its_pods_are_gone() -> None:
    terms = [{"matchExpressions": [{"key": "k", "operator": "In", "values": [f"v{i}" for i in range(500)]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    large = pod("p").with_field(required, "spec", "affinity", "nodeAffinity")
    assert large.value().shape == large.value().shape
    assert large.value().shape is not large.value().shape
    assert pod("p").cpu(1).value().shape is pod("q").cpu(1).value().shape


def request(number: int, count: int = 1) -> PlanRequest:
    shape = Shape((("cpu", 1000 + number), ("pods", 1)))
    made = replace(pod(f"p{number}").value(), shape=shape)
    return PlanRequest((made,) * count, count)


class TestTheUnschedulableGroups:
    """2,000 gangs of 2,000 shapes wait in one namespace."""

    COUNT = 2_000
    FULL = Verdict(Reason.NO_CAPACITY, have=0, need=1)

    def fill(self, count: int) -> UnschedulableGroups:
        nodes = {"n1": node("n1").cpu(64).value()}
        unschedulable = UnschedulableGroups(nodes, {})
        for number in range(count):
            unschedulable.put(GroupKey("greedy", f"g{number}"), request(number), self.FULL)
        unschedulable.put(GroupKey("modest", "g"), request(1), self.FULL)
        unschedulable.put(GroupKey("modest", "h"), request(999_999), self.FULL)
        return unschedulable

    def test_freed_room_is_looked_at_for_few_of_them_at_a_time_and_for_all_in_the_end(self) -> None:
        unschedulable = self.fill(self.COUNT)
        first = unschedulable.wake({"n1": None}, {})
        own = [group for group in first if group.namespace == "greedy"]
        assert len(own) < 100
        woken = set(first)
        passes = 0
        while more := unschedulable.wake({}, {}):
            woken |= more
            passes += 1
        assert len([group for group in woken if group.namespace == "greedy"]) == self.COUNT
        assert passes > self.COUNT / 5

    def test_others_are_woken_as_if_they_were_alone(self) -> None:
        assert GroupKey("modest", "g") in self.fill(self.COUNT).wake({"n1": None}, {})

    def test_those_that_are_gone_are_not_woken(self) -> None:
        unschedulable = self.fill(200)
        unschedulable.wake({"n1": None}, {})
        for number in range(200):
            unschedulable.leave(GroupKey("greedy", f"g{number}"))
        assert all(group.namespace == "modest" for group in unschedulable.wake({"n1": None}, {}))

    def test_a_namespace_whose_gangs_have_left_has_its_demands_again(self) -> None:
        unschedulable = self.fill(200)
        for number in range(200):
            unschedulable.leave(GroupKey("greedy", f"g{number}"))
        for number in range(60):
            unschedulable.put(GroupKey("greedy", f"g{number}"), request(number), self.FULL)
        assert len([group for group in unschedulable.wake({"n1": None}, {}) if group.namespace == "greedy"]) == 60


ANY_POD = {
    "topologyKey": "kubernetes.io/hostname",
    "namespaceSelector": {},
    "labelSelector": {"matchExpressions": [{"key": "never", "operator": "DoesNotExist"}]},
}


@pytest.mark.parametrize("where", ["runs", "waits", "went"])
def test_a_rule_of_a_tenant_that_means_every_pod_costs_only_the_members_that_wait(where: str) -> None:
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [ANY_POD]}}
    hostile = pod("hostile").namespace("tenant").scheduler("default-scheduler").with_field(rule, "spec", "affinity")

    def make(size: int) -> Callable[[], object]:
        store = Store([SCHEDULER], rules=RULES)
        store.put_node(node("n1").value())
        for number in range(size):
            store.put_pod(pod(f"p{number}").label("app", f"a{number}").on("n1").value())
        if where == "went":
            store.put_pod(hostile.on("n1").value())
            return lambda: store.drop_pod(hostile.value().uid)
        return lambda: store.put_pod((hostile.on("n1") if where == "runs" else hostile).value())

    assert find_growth(make, 300) < (2.2 if where == "runs" else 1.1)


# --- many groups ------------------------------------------------------------------------------------------------------


def crowd(count: int, first: int = 0) -> Iterable[PodBuilder]:
    return (pod(f"c{number}").cpu(1).scheduler(SCHEDULER).in_group(f"g{number}") for number in range(first, count))


def test_the_priorities_of_thousands_of_groups_are_counted_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store([SCHEDULER], rules=RULES)
    looked_at: list[GroupKey] = []
    find = store.priorities.of_group
    for number in range(3_000):
        tell(store, pod_group(f"g{number}").gang(1).priority(number % 3))

    def look(key: GroupKey) -> int:
        looked_at.append(key)
        return find(key)

    monkeypatch.setattr(store.priorities, "of_group", look)
    assert set(store.priorities.list_values()) == {0, 1, 2}
    looked_at.clear()
    for _ in range(100):
        store.priorities.list_values()
    assert looked_at == []
    tell(store, pod_group("g0").gang(1).priority(7))
    assert set(store.priorities.list_values()) == {0, 1, 2, 7}
    assert looked_at == [GroupKey("default", "g0")]
    for number in range(3_000):
        store.drop_group(GroupKey("default", f"g{number}"))
    assert set(store.priorities.list_values()) == set()


async def test_forecasts_are_made_for_few_gangs_of_a_namespace_in_vain(world: Harness) -> None:
    world.add(node("n1").cpu(2), pod("web").cpu(2).on("n1").controlled_by("ReplicaSet", "web"))
    for number in range(40):
        world.add(pod_group(f"g{number}").gang(1))
    await world.add(*crowd(40)).run_until_idle()
    asked = [group for group, state in world.groups.states.items() if state.verdict is not None]
    assert len(asked) == 40
    assert world.core.backfill.count_paused("default") == 16


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.full)])
async def test_gangs_of_as_many_shapes_that_fit_nowhere_wait_with_a_reason_and_keep_nothing_from_others(
    world: Harness, count: int
) -> None:
    for number, each in enumerate(crowd(count)):
        group = pod_group(f"g{number}").gang(1).namespace("greedy")
        world.add(group, each.cpu(f"{10_000 + number}m").namespace("greedy"))
    await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
    said = {group: verdict.reason for group, verdict in world.heard.verdicts if group.namespace == "greedy"}
    assert len(said) == count
    assert set(said.values()) == {Reason.NO_CAPACITY}
    assert [each.group for each in world.ledger] == [GANG]
    assert world.core.backfill.count_paused("greedy") == 16


async def test_a_gang_is_placed_beside_any_number_that_never_comes_about(world: Harness) -> None:
    for number in range(300):
        world.add(pod_group(f"g{number}").gang(2))
    await world.add(*small_nodes(2), *crowd(300), gang(2), *members(2)).run_until_idle()
    assert world.reasons(GANG) == [Reason.PLANNED]


# --- tasks ----------------------------------------------------------------------------------------------------------


def make_task(namespace: str, number: int) -> PlanningTask:
    key = GroupKey(namespace, f"g{number}")
    asked = PlanRequest((), 0)
    return PlanningTask(
        key, TaskKind.PLAN, asked, (), compute=lambda *_: None, limit=1.0, number=number, tried_inline=True
    )


def choose(turns: TaskQueue) -> PlanningTask:
    chosen = turns.choose()
    assert chosen is not None
    return chosen


class TestPlanningTasks:
    """A thousand plans of one namespace take long, and one of another."""

    def fill(self) -> TaskQueue:
        self.planning_tasks = {task.group: [task] for task in [make_task("greedy", number) for number in range(1_000)]}
        turns = TaskQueue(self.planning_tasks)
        for (task,) in self.planning_tasks.values():
            turns.add(task)
        return turns

    def test_no_more_than_two_of_them_have_a_child(self) -> None:
        turns = self.fill()
        begun = set()
        for _ in range(100):
            task = choose(turns)
            task.spent += 0.06
            begun.add(task.group)
        assert len(begun) == 2

    def test_that_of_the_other_namespace_is_the_next_but_one(self) -> None:
        turns = self.fill()
        choose(turns)
        other = make_task("modest", 5_000)
        self.planning_tasks[other.group] = [other]
        turns.add(other)
        assert other in [choose(turns) for _ in range(2)]

    def test_all_of_them_have_their_turn_in_the_end(self) -> None:
        turns = self.fill()
        done = 0
        while (task := turns.choose()) is not None:
            task.done = True
            done += 1
        assert done == 1_000

    def test_those_that_nobody_waits_for_have_none(self) -> None:
        turns = self.fill()
        self.planning_tasks.clear()
        assert turns.choose() is None
