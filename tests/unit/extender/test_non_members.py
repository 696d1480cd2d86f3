"""Only the pods of a Job are members of its gang, whatever other pods of the namespace say of themselves."""

from collections.abc import Sequence
from itertools import permutations

import pytest

from extender.core.protocol import Hold, Pass
from serried.api.names import Disruption, GroupKey, decode_group_key
from serried.api.verdict import Reason, render
from serried.cluster.cache import Store
from serried.rules.all import RULES
from tests.support.builders import Builder, PodBuilder, PodGroupBuilder, job, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.unit.cluster.test_membership import tell

NON_MEMBERS = GANG.non_members


def job_gang(count: int = 2) -> PodGroupBuilder:
    """PodGroup g, which belongs to Job train."""
    return gang(count).controlled_by("Job", "train")


def workers(count: int, first: int = 0) -> list[PodBuilder]:
    """Pods of Job train that name PodGroup g."""
    return [each.of_job("train", first + place) for place, each in enumerate(members(count, first))]


def non_member(name: str = "x") -> PodBuilder:
    """A pod of nobody that names PodGroup g."""
    return pod(name).cpu(1).scheduler(SCHEDULER).in_group("g")


PRETENDERS = [
    pytest.param(non_member(), id="a pod that names it in its field"),
    pytest.param(pod("x").cpu(1).scheduler(SCHEDULER).labelled_group("g"), id="a pod that names it in a label"),
    pytest.param(non_member().of_job("other", 0), id="a pod of another Job"),
    pytest.param(non_member().of_job("train", 0, "uid-of-before"), id="a pod of an earlier Job of the name"),
    pytest.param(non_member().controlled_by("ReplicaSet", "train"), id="a pod of another kind of owner"),
    pytest.param(
        non_member()
        .label("batch.kubernetes.io/job-name", "train")
        .label("batch.kubernetes.io/controller-uid", "job-train"),
        id="a pod with the labels of the Job's pods",
    ),
]


@pytest.mark.parametrize("pretender", PRETENDERS)
async def test_the_quorum_is_not_made_up_by(world: Harness, pretender: PodBuilder) -> None:
    await world.add(*small_nodes(2), job("train").size(2), job_gang(), *workers(1), pretender).run_until_idle()
    assert world.reasons() == [Reason.QUORUM_MISSING]
    assert not len(world.ledger)
    assert isinstance(world.filter("x"), Hold)


@pytest.mark.parametrize("pretender", PRETENDERS)
async def test_the_quorum_is_not_made_up_by_a_bound_one_either(world: Harness, pretender: PodBuilder) -> None:
    await world.add(*small_nodes(2), job("train").size(2), job_gang(), *workers(1), pretender.on("n1")).run_until_idle()
    assert world.reasons() == [Reason.QUORUM_MISSING]
    await world.add(*workers(1, first=1)).run_until_idle()
    assert sorted(slot.node for slot in world.binding_cycle().reservation.slots.values())
    assert world.binding_cycle().reservation.slots.keys() == {"pod-m0", "pod-m1"}


async def test_a_non_member_is_told_why_it_waits(world: Harness) -> None:
    await world.add(*small_nodes(2), job("train").size(2), job_gang(), non_member()).run_until_idle()
    (told,) = [verdict for key, verdict in world.heard.verdicts if key == NON_MEMBERS]
    assert render(told) == "NotItsPodGroup: the pod names the PodGroup of Job train, but is not a pod of this Job"


async def test_a_non_member_that_runs_in_another_rack_is_no_conflict(world: Harness) -> None:
    racks = [each.rack(f"r{place}") for place, each in enumerate(small_nodes(2))]
    await world.add(
        *racks, job("train").size(2), job_gang().topology(), non_member().on("n1"), *workers(2)
    ).run_until_idle()
    assert world.reasons() == [Reason.PLANNED]


async def test_a_non_member_that_is_preempted_takes_nobody_along(world: Harness) -> None:
    group = job_gang().disruption(Disruption.ALL)
    bound = [each.on("n1") for each in workers(2)]
    await world.add(*small_nodes(2), job("train").size(2), group, *bound, non_member().on("n2")).run_until_idle()
    await world.add(non_member().on("n2").disrupted().deleting()).run_until_idle()
    assert world.heard.disruptions == []


async def test_a_pod_that_the_watch_has_not_shown_is_held_as_a_non_member_too(world: Harness) -> None:
    await world.add(*small_nodes(2), job("train").size(2), job_gang(), *workers(2)).run_until_idle()
    assert isinstance(world.filter_unknown(non_member()), Hold)
    world.store.drop_group(GANG)
    assert isinstance(world.filter_unknown(non_member()), Hold)


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(gang(2), id="one of nobody"),
        pytest.param(gang(2).controlled_by("MPIJob", "train"), id="one of a kind that Serried does not know"),
        pytest.param(gang(2).controlled_by("JobSet", "train"), id="one of a JobSet, whose Jobs' pods it has"),
    ],
)
async def test_pods_that_name_it_are_members_of(world: Harness, group: PodGroupBuilder) -> None:
    await world.add(*small_nodes(2), group, *members(1), non_member()).run_until_idle()
    assert world.reasons() == [Reason.PLANNED]


async def test_a_group_that_is_no_gang_keeps_nobody_out(world: Harness) -> None:
    await world.add(*small_nodes(2), pod_group("g").controlled_by("Job", "train"), non_member()).run_until_idle()
    assert isinstance(world.filter("x"), Pass)


ORDERS: list[Sequence[Builder]] = [[job("train").size(2), job_gang(), *workers(1), non_member()]]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_in_whatever_order_they_are_seen(order: tuple[int, ...]) -> None:
    (everything,) = ORDERS
    store = Store([SCHEDULER], rules=RULES)
    for place in order:
        tell(store, everything[place])
    assert [each.name for each in store.members.of_group(GANG)] == ["m0"]
    assert [each.name for each in store.members.of_group(NON_MEMBERS)] == ["x"]
    store.drop_group(GANG)
    assert {each.name for each in store.members.of_group(GANG)} == {"m0", "x"}


def test_a_member_below_a_tree_is_a_non_member_like_any_other() -> None:
    store = Store([SCHEDULER], rules=RULES)
    for each in (job_gang().child_of("root"), non_member(), *workers(1)):
        tell(store, each)
    tree = store.forest.find_tree_key(GANG)
    assert [each.name for each in store.members.of_group(tree)] == ["m0"]
    tell(store, gang(2).child_of("root"))
    assert {each.name for each in store.members.of_group(tree)} == {"m0", "x"}
    assert store.members.of_group(NON_MEMBERS) == []


def test_the_name_of_non_members_is_read_as_it_is_written() -> None:
    assert decode_group_key("default", NON_MEMBERS.encoded) == NON_MEMBERS
    assert GroupKey("default", "g") != NON_MEMBERS


def elsewhere(builder: Builder, number: int) -> Builder:
    """The same object in another namespace."""
    return builder.with_field("neighbour", "metadata", "namespace").uid(f"theirs-{number}")


async def test_a_gang_lacks_a_member_that_exists_in_another_namespace_only(world: Harness) -> None:
    await world.add(*small_nodes(2), gang(2), *members(1), elsewhere(members(1, first=1)[0], 0)).run_until_idle()
    assert world.reasons() == [Reason.QUORUM_MISSING]
    assert isinstance(world.filter("m0"), Hold)


async def test_a_gang_of_another_namespace_that_never_comes_about_keeps_nobody_waiting(world: Harness) -> None:
    hostile = [elsewhere(each, number) for number, each in enumerate([*members(3), gang(2147483647).topology()])]
    await world.add(*small_nodes(2), *hostile).run_until_idle()
    await world.add(gang(2), *members(2)).run_until_idle()
    assert world.reasons() == [Reason.PLANNED]


async def test_a_pod_of_another_job_whose_template_names_the_gang_is_a_non_member_without_the_field_too(
    world: Harness,
) -> None:
    other = job("other").size(2).template_group("g")
    lost = pod("x").cpu(1).scheduler(SCHEDULER).of_job("other", 0)
    await world.add(*small_nodes(2), job("train").size(2), other, lost, job_gang(), *workers(1)).run_until_idle()
    assert world.store.members.group_of("pod-x") == NON_MEMBERS
    assert world.reasons() == [Reason.QUORUM_MISSING]
    assert world.store.membership.name_controller([lost.value()]) == "train"
