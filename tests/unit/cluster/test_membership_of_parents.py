"""Groups of the pods of a JobSet or LeaderWorkerSet, in whatever order the objects arrive."""

from collections.abc import Sequence
from itertools import permutations

import pytest

from serried.api.kinds import PARENTS
from serried.api.layouts import WORKERS
from serried.api.names import JOB, GroupKey, GroupKind, Key
from serried.api.parent import OwnerKey
from serried.api.pod import COMPLETION_INDEX
from serried.cluster.cache import Store
from serried.cluster.membership import owner_of_provisional, provisional
from serried.rules.all import RULES
from tests.support.builders import (
    Builder,
    PodBuilder,
    PodGroupBuilder,
    WorkloadBuilder,
    job,
    pod,
    pod_group,
    workload,
)
from tests.support.parents import JobSetBuilder, LeaderWorkerSetBuilder, job_set, leader_worker_set
from tests.unit.cluster.test_membership import SCHEDULER, named, tell

SET = OwnerKey("JobSet", Key("default", "s"))
SERVE = OwnerKey("LeaderWorkerSet", Key("default", "s"))
WAITING = provisional(SET)
CHILD = OwnerKey(JOB, Key("default", "s-workers-0"))
"""The Job of the pods below."""


def worker(index: int = 0) -> PodBuilder:
    return pod(f"w-{index}").of_job_set("s", "workers", index).scheduler(SCHEDULER)


def replica_pod(replica: int = 0, index: int = 0) -> PodBuilder:
    return pod(f"s-{replica}-{index}").of_replica("s", replica, index).scheduler(SCHEDULER)


def training() -> JobSetBuilder:
    return job_set("s").gang_policy().replicated("driver").replicated("workers", replicas=2, pods=2)


def serving() -> LeaderWorkerSetBuilder:
    return leader_worker_set("s").gang_policy().size(replicas=2, pods=3)


def set_workload(name: str = "w", kind: str = "JobSet") -> WorkloadBuilder:
    return workload(name).for_parent(kind, "s").gang_template("t", 5)


def group_of(name: str = "g", template: str = "t") -> PodGroupBuilder:
    return pod_group(name).gang(5).from_template("w", template)


def child_job() -> Builder:
    """The pods' Job, which asks to be a gang of its own."""
    return job(CHILD.key.name).size(2).scheduler(SCHEDULER).gang_policy("JobAsGang").controlled_by("JobSet", "s")


def plain_job() -> Builder:
    return job(CHILD.key.name).size(2).scheduler(SCHEDULER).controlled_by("JobSet", "s")


def left_group(uid: str = "") -> PodGroupBuilder:
    """Return the PodGroup that remains of a gang whose Workload was deleted."""
    return group_of().controlled_by("JobSet", "s", uid)


LEFT_REPLICAS = [group_of(f"g{index}").replica(index).controlled_by("LeaderWorkerSet", "s") for index in (0, 1)]
SERVE_WORKLOAD = set_workload(kind="LeaderWorkerSet")

CASES: list[tuple[str, Sequence[Builder], GroupKey | None]] = [
    ("a JobSet that was not seen yet holds its pods", [worker(), child_job()], WAITING),
    ("a JobSet that asks for nothing leaves it to the Job", [worker(), training().gang_policy("NoGang"), child_job()],
     provisional(CHILD)),
    ("a gang without a Workload holds its pods", [worker(), training()], WAITING),
    ("the JobSet counts more than the Job", [worker(), training(), child_job()], WAITING),
    ("a JobSet of the same name but another UID leaves it to the Job",
     [worker(), training().uid("later"), child_job()], provisional(CHILD)),
    ("Workload and PodGroup lead to the group", [worker(), training(), set_workload(), group_of()], named("g")),
    ("a Workload without its PodGroup holds the pods", [worker(), training(), set_workload()], WAITING),
    ("a user's Workload makes a gang of a JobSet that does not ask",
     [worker(), training().gang_policy("NoGang"), set_workload(), group_of()], named("g")),
    ("a Workload of an earlier JobSet of the name is no match",
     [worker(), training(), set_workload().controlled_by("JobSet", "s", "earlier"), group_of()], WAITING),
    ("two Workloads are ambiguous: plain pods", [worker(), training(), set_workload("w"), set_workload("x")], None),
    ("two PodGroups of one template are ambiguous: plain pods",
     [worker(), training(), set_workload(), group_of("g"), group_of("h")], None),
    ("a bound pod ends the eligibility of all its Jobs",
     [worker(), training(), pod("d").of_job_set("s", "driver").on("n1"), plain_job()], None),
    ("a bound pod changes nothing once there is a Workload",
     [worker(), training(), pod("d").of_job_set("s", "driver").on("n1"), set_workload()], WAITING),
    ("a leaving pod of a JobSet is its own, and ends the eligibility",
     [worker(), training(), pod("d").of_job_set("s", "driver").on("n1").deleting(), plain_job()], None),
    ("a leaving pod of a LeaderWorkerSet may be left of an earlier one",
     [replica_pod(1, 2), serving(), replica_pod(0).on("n1").deleting()], provisional(SERVE, replica="1")),
    ("any other bound pod ends the eligibility of a LeaderWorkerSet",
     [replica_pod(1, 2), serving(), replica_pod(0).on("n1")], None),
    ("a template of its name is a stage's own",
     [worker(), training().in_order(), set_workload().gang_template("workers", 4), group_of("g", "workers")],
     named("g")),
    ("a Job of it that names a template is the gang of that, whatever its stage is called",
     [worker(), training(), job(CHILD.key.name).scheduler(SCHEDULER).delegated("x", "JobSet", "s"),
      set_workload().gang_template("x", 2), group_of("h", "x").controlled_by("Job", CHILD.key.name)], named("h")),
    ("stages that wait for others never share a template", [worker(), training().in_order(), set_workload()], None),
    ("before there is a Workload a stage waits by itself", [worker(), training().in_order()],
     provisional(SET, "workers")),
    ("one pod that starts first is a plain pod",
     [pod("d").of_job_set("s", "driver").scheduler(SCHEDULER), training().in_order()], None),
    ("a PodGroup that the JobSet controls counts without its Workload, also when pods run",
     [worker(), training(), pod("d").of_job_set("s", "driver").on("n1"), left_group(), plain_job()], named("g")),
    ("one that an earlier JobSet of the name controls does not",
     [worker(), training(), left_group("earlier"), plain_job()], WAITING),
    ("one that it controls but that was made from no Workload does not",
     [worker(), training(), pod_group("g").gang(5).controlled_by("JobSet", "s"), plain_job()], WAITING),
    ("without its Workload a stage still has its own PodGroup",
     [worker(), training().in_order(), left_group(), group_of("h", "workers").controlled_by("JobSet", "s")],
     named("h")),
    ("and stages that wait for others still share none",
     [pod("d").of_job_set("s", "driver").on("n1"), training().in_order(), left_group()], None),
    ("each replica still has its PodGroup without the Workload",
     [replica_pod(1), replica_pod(0).on("n1"), serving(), *LEFT_REPLICAS], named("g1")),
    ("a replica that never had one goes ahead when others run",
     [replica_pod(2), replica_pod(0).on("n1"), serving(), *LEFT_REPLICAS], None),
    ("each replica waits by itself", [replica_pod(1, 2), serving()], provisional(SERVE, replica="1")),
    ("each replica has its PodGroup",
     [replica_pod(1), serving(), SERVE_WORKLOAD, group_of("g0").replica(0), group_of("g1").replica(1)],
     named("g1")),
    ("a replica whose PodGroup is not there yet waits",
     [replica_pod(1), serving(), SERVE_WORKLOAD, group_of("g0").replica(0)], provisional(SERVE, replica="1")),
    ("workers that wait for their leader wait without it", [replica_pod(0, 1), serving().startup_leader_ready()],
     provisional(SERVE, WORKERS, "0")),
    ("and the leader goes ahead", [replica_pod(0, 0), serving().startup_leader_ready()], None),
    ("a replica of a Workload that contains its groups is a part of it",
     [replica_pod(1), serving(), workload("w").for_parent("LeaderWorkerSet", "s").inline_gang("t", 3)],
     GroupKey("default", "w", GroupKind.WORKLOAD, "t", "1")),
    ("a pod that names its group itself belongs there", [worker().in_group("own"), training()], named("own")),
]  # fmt: skip


def stored(*builders: Builder) -> Store:
    store = Store([SCHEDULER], rules=RULES)
    store.membership.followed |= set(PARENTS)
    for builder in builders:
        if isinstance(builder, JobSetBuilder | LeaderWorkerSetBuilder):
            store.put_parent(builder.value())
        else:
            tell(store, builder)
    return store


@pytest.mark.parametrize(("builders", "group"), [pytest.param(b, g, id=sentence) for sentence, b, g in CASES])
def test_a_pods_group_follows_from_the_objects_in_any_order(
    builders: Sequence[Builder], group: GroupKey | None
) -> None:
    subject = next(builder for builder in builders if isinstance(builder, PodBuilder)).value()
    for order in permutations(builders):
        store = stored(*order)
        assert store.members.group_of(subject.uid) == group, [type(builder).__name__ for builder in order]
        assert store.membership.find_group(subject) == group


def test_where_job_sets_are_not_watched_their_pods_are_their_jobs() -> None:
    store = Store([SCHEDULER], rules=RULES)
    tell(store, child_job())
    tell(store, worker())
    assert store.members.group_of("pod-w-0") == provisional(CHILD)


def test_a_deleted_workload_changes_nothing_for_a_running_gang() -> None:
    store = stored(worker(), pod("d").of_job_set("s", "driver").on("n1"), training(), set_workload(), left_group())
    store.drop_workload(Key("default", "w"))
    assert store.members.group_of("pod-w-0") == named("g")


def test_a_running_gang_is_not_let_go_while_its_objects_cannot_be_seen() -> None:
    running = pod("d").of_job_set("s", "driver").on("n1")
    store = stored(worker(), running, training(), plain_job(), set_workload(), left_group())
    store.set_obstacle("the API server does not serve it")
    store.drop_workload(Key("default", "w"))
    store.drop_group(named("g"))
    assert store.members.group_of("pod-w-0") == WAITING
    store.set_obstacle("")
    assert store.members.group_of("pod-w-0") is None


def test_pods_of_a_job_set_that_goes_wait_for_another_of_its_name() -> None:
    store = stored(worker(), training(), set_workload(), group_of())
    store.drop_parent(SET)
    assert store.members.group_of("pod-w-0") == WAITING
    assert store.owners.is_awaited(WAITING)


def test_the_pod_group_of_one_replica_concerns_no_other_replica() -> None:
    store = stored(serving(), set_workload("w", "LeaderWorkerSet"), replica_pod(0), replica_pod(1))
    store.dirty.take_groups()
    tell(store, group_of("g1").replica(1))
    assert store.dirty.take_groups() == {named("g1"), provisional(SERVE, replica="1")}
    store.drop_group(named("g1"))
    assert store.dirty.take_groups() == {named("g1"), provisional(SERVE, replica="1")}


def test_a_replica_that_is_part_of_its_workload_goes_with_its_last_pod() -> None:
    inline = workload("w").for_parent("LeaderWorkerSet", "s").inline_gang("t", 3)
    store = stored(replica_pod(1), serving(), inline)
    replica = GroupKey("default", "w", GroupKind.WORKLOAD, "t", "1")
    assert store.groups[replica].policy.min_count == 3
    store.drop_pod("pod-s-1-0")
    assert replica not in store.groups


def test_the_provisional_key_names_its_parent_and_no_object_can_have_it() -> None:
    waiting = provisional(SERVE, WORKERS, "3")
    assert owner_of_provisional(waiting) == SERVE
    assert ":" in waiting.encoded
    assert owner_of_provisional(provisional(CHILD)) == CHILD
    assert owner_of_provisional(named("s")) is None


RANKS: list[tuple[str, PodBuilder, Sequence[Builder], int | None]] = [
    ("a plain pod has none", pod("p"), [], None),
    ("a Job's pod has its completion index", pod("p").of_job("j", 3), [], 3),
    ("a worker has its worker index", replica_pod(1, 2), [serving()], 2),
    ("a JobSet's pod comes after the replicated Jobs before its own", worker(1), [training()], 2),
    ("and after the Jobs of its own", pod("p").of_job_set("s", "workers", 1, job=1), [training()], 4),
    ("also when its objects are gone while it runs", worker(1), [training(), worker(0).on("n")], 2),
    (
        "one whose JobSet leaves it to the Job has its completion index",
        worker(1),
        [training().gang_policy("NoGang")],
        1,
    ),
    ("so has one of an earlier JobSet of that name", worker(1), [training().uid("another")], 1),
    (
        "one in a group of its own choice is numbered as well",
        worker(1).in_group("g"),
        [training().gang_policy("NoGang")],
        2,
    ),
    ("but not where its JobSet is not known", worker(1).in_group("g"), [], None),
    ("a pod without an index is not numbered", worker(1).annotation(COMPLETION_INDEX, ""), [training()], None),
    ("an index that the JobSet does not have is none", worker(2), [training()], None),
]


@pytest.mark.parametrize(
    ("asked", "others", "rank"), [pytest.param(a, o, r, id=sentence) for sentence, a, o, r in RANKS]
)
def test_the_rank_of_a_member(asked: PodBuilder, others: Sequence[Builder], rank: int | None) -> None:
    assert stored(*others, asked).members.rank_of(asked.value().uid) == rank


def test_a_pod_that_is_not_known_has_no_rank() -> None:
    assert Store([SCHEDULER], rules=RULES).members.rank_of("nobody") is None


def test_a_pod_whose_label_names_another_replica_by_now_is_in_that_one_only() -> None:
    store = Store([SCHEDULER], rules=RULES)
    for replica in (0, 1):
        store.put_pod(pod("p").of_replica("s", replica, 1).value())
    found = {replica: [each.name for each in store.owners.pods_at(SERVE, replica)] for replica in ("0", "1")}
    assert found == {"0": [], "1": ["p"]}
