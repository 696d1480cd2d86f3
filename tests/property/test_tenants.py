"""Objects of one namespace change nothing in another, however often they name the same things.

The tenant has one gang of each way in which a pod finds its group. The neighbour writes whatever a user may write:
pods, groups, Workloads, Jobs and parents of the same names, with the UIDs of the tenant's in every reference.
"""

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from serried.api.kinds import PARENTS
from serried.cluster.cache import Store
from serried.rules.all import RULES
from tests.support.builders import (
    Builder,
    JobBuilder,
    PodBuilder,
    WorkloadBuilder,
    compatible_group,
    job,
    pod,
    pod_group,
    workload,
)
from tests.support.composites import CompositeBuilder, composite
from tests.support.extender_harness import SCHEDULER, gang, members
from tests.support.parents import JobSetBuilder, LeaderWorkerSetBuilder, job_set, leader_worker_set

NEIGHBOUR = "neighbour"


def own_pod(name: str) -> PodBuilder:
    return pod(name).cpu(1).scheduler(SCHEDULER)


WAYS: dict[str, PodBuilder] = {
    "its field": own_pod("x").in_group("g"),
    "our label": own_pod("x").labelled_group("g"),
    "the label of scheduler-plugins": own_pod("x").in_compatible_group("g"),
    "a part of a Workload": own_pod("x").in_workload("w", "g"),
    "its Job": own_pod("x").of_job("train", 0),
    "its JobSet": own_pod("x").of_job_set("set", "workers"),
    "its LeaderWorkerSet": own_pod("x").of_replica("serve", 0, 1),
}
"""Pods by the way in which they find their group. The references have the UIDs of the tenant's objects."""

TENANT: Sequence[Builder] = (
    gang(2),
    compatible_group("g").gang(2),
    job("train").size(2).scheduler(SCHEDULER),
    workload("w").inline_gang("g", 2),
    workload("made").for_job("train").gang_template("t", 2),
    pod_group("of-train").gang(2).from_template("made", "t").controlled_by("Job", "train"),
    job_set("set").gang_policy().replicated("workers", pods=2),
    leader_worker_set("serve").gang_policy().size(replicas=2, pods=3),
    composite("root"),
    pod_group("leaf").gang(2).child_of("root"),
    *members(1),
    *(each.uid(f"own-{place}") for place, each in enumerate(WAYS.values())),
)

HOSTILE: Sequence[Builder] = (
    *WAYS.values(),
    *TENANT,
    *(each.on("n1") for each in WAYS.values()),
    own_pod("x").in_group("leaf"),
    own_pod("x").in_group("of-train").of_job("train", 1),
    own_pod("x").label(PARENTS["LeaderWorkerSet"].labels.name, "serve"),
    pod_group("g").gang(1).controlled_by("Job", "train"),
    pod_group("g").gang(2147483647).child_of("root"),
    pod_group("of-train").gang(1).from_template("made", "t").controlled_by("Job", "train"),
    pod_group("other").gang(1).from_template("made", "t").controlled_by("JobSet", "set"),
    workload("made").for_job("train").gang_template("t", 1),
    workload("second").for_job("train").gang_template("t", 1),
    workload("set").for_parent("JobSet", "set").gang_template("workers", 1),
    job("train").size(100).scheduler(SCHEDULER).suspended(),
    composite("root").child_of("root"),
)


def elsewhere(builder: Builder, number: int) -> Builder:
    """The same object in the neighbour's namespace; what it refers to it still names by the tenant's UIDs."""
    return builder.with_field(NEIGHBOUR, "metadata", "namespace").uid(f"theirs-{number}")


def tell(store: Store, builder: Builder) -> None:
    match builder:
        case PodBuilder():
            store.put_pod(builder.value())
        case JobBuilder():
            store.put_job(builder.value())
        case WorkloadBuilder():
            store.put_workload(builder.value())
        case JobSetBuilder() | LeaderWorkerSetBuilder():
            store.put_parent(builder.value())
        case CompositeBuilder():
            store.put_composite(builder.value())
        case _:
            store.put_group(builder.value())  # type: ignore[attr-defined]


def show(store: Store) -> dict[str, list[str]]:
    """The groups of the tenant and the members of each."""
    keys = {*store.groups, *store.members.groups()}
    found = {str(key): [each.uid for each in store.members.of_group(key)] for key in keys if key.namespace == "default"}
    return dict(sorted(found.items()))


def make_store(*told: Builder) -> Store:
    store = Store([SCHEDULER], rules=RULES)
    store.membership.followed.update(PARENTS)
    for builder in told:
        tell(store, builder)
    return store


@given(st.lists(st.sampled_from(HOSTILE), max_size=12), st.data())
def test_nobody_joins_or_changes_a_gang_of_another_namespace(hostile: list[Builder], data: st.DataObject) -> None:
    own = list(enumerate(TENANT))
    theirs = [(-1, elsewhere(each, number)) for number, each in enumerate(hostile)]
    mixed = data.draw(st.permutations([*own, *theirs]))
    store = make_store(*(each for _, each in mixed))
    alone = make_store(*(each for place, each in mixed if place >= 0))
    assert show(store) == show(alone)
    groups = {uid: store.members.group_of(uid) for uid in store.pods if uid.startswith("theirs")}
    assert all(key is None or key.namespace == NEIGHBOUR for key in groups.values())


@pytest.mark.parametrize("way", WAYS)
def test_a_pod_of_another_namespace_is_of_no_group_of_this_one_by(way: str) -> None:
    store = make_store(*TENANT, elsewhere(WAYS[way], 0))
    group = store.members.group_of("theirs-0")
    assert group is None or group.namespace == NEIGHBOUR
    own = store.members.group_of(f"own-{list(WAYS).index(way)}")
    assert own is not None
    assert own.namespace == "default"
