"""Groups of pods, in whatever order the objects arrive (docs/contributing/workload-api.md)."""

from collections.abc import Sequence
from itertools import permutations

import pytest

from serried.api.names import JOB, GroupKey, Key
from serried.api.parent import JOB_UID, MANAGED_BY, MANAGER, OwnerKey
from serried.cluster.cache import Store
from serried.cluster.membership import owner_of_provisional, provisional
from serried.rules.all import RULES
from tests.support.builders import (
    Builder,
    JobBuilder,
    PodBuilder,
    PodGroupBuilder,
    WorkloadBuilder,
    job,
    pod,
    pod_group,
    workload,
)

SCHEDULER = "serried"
TRAIN = OwnerKey(JOB, Key("default", "j"))
WAITING = provisional(TRAIN)
"""The group of the pods of Job j until its PodGroup exists."""


def member(index: int = 0, job_uid: str = "") -> PodBuilder:
    """A pod of Job j."""
    return pod(f"j-{index}").of_job("j", index, job_uid).scheduler(SCHEDULER)


def gang_job(size: int = 2) -> JobBuilder:
    return job("j").size(size).scheduler(SCHEDULER)


def gang_workload(name: str = "w") -> WorkloadBuilder:
    return workload(name).for_job("j").gang_template("t", 2)


TRAIN_JOB = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainJob", "name": "t"}


def train_workload(group: str = "trainer.kubeflow.org") -> WorkloadBuilder:
    """The Workload of TrainJob t."""
    return workload("w").with_field(TRAIN_JOB | {"apiGroup": group}, "spec", "controllerRef").gang_template("t", 2)


def our_workload(name: str) -> WorkloadBuilder:
    return gang_workload(name).label(MANAGED_BY, MANAGER).label(JOB_UID, gang_job().value().uid)


def group_of(name: str = "g", workload_name: str = "w") -> PodGroupBuilder:
    return pod_group(name).gang(2).from_template(workload_name, "t")


def tell(store: Store, builder: Builder) -> None:
    match builder:
        case PodBuilder():
            store.put_pod(builder.value())
        case JobBuilder():
            store.put_job(builder.value())
        case WorkloadBuilder():
            store.put_workload(builder.value())
        case PodGroupBuilder():
            store.put_group(builder.value())


def stored(*builders: Builder) -> Store:
    store = Store([SCHEDULER], rules=RULES)
    for builder in builders:
        tell(store, builder)
    return store


def named(name: str) -> GroupKey:
    return GroupKey("default", name)


CASES: list[tuple[str, Sequence[Builder], GroupKey | None]] = [
    ("a pod that names nothing is a plain pod", [pod("p")], None),
    ("a pod's field names its group, whether or not it exists", [pod("p").in_group("g")], named("g")),
    ("a pod's label names its group", [pod("p").labelled_group("g")], named("g")),
    ("the field counts more than the label", [pod("p").labelled_group("label").in_group("field")], named("field")),
    (
        "the field counts more than the Job",
        [pod("p").of_job("j", 0).in_group("field"), gang_job(), gang_workload(), group_of()],
        named("field"),
    ),
    (
        "the label counts more than the Job",
        [pod("p").of_job("j", 0).labelled_group("label"), gang_job(), gang_workload(), group_of()],
        named("label"),
    ),
    ("a pod of another controller is a plain pod", [pod("p").controlled_by("ReplicaSet", "r")], None),
    ("a Job that was not seen yet holds its pods", [member()], WAITING),
    ("a Job of the same name but another UID is not the pod's Job yet", [member(job_uid="old"), gang_job()], WAITING),
    ("a gang Job without a Workload holds its pods", [member(), gang_job()], WAITING),
    ("a Job of one pod has plain pods", [member(), gang_job(size=1)], None),
    ("a Job that is not Indexed has plain pods", [member(), gang_job().not_indexed()], None),
    ("a Job of another scheduler has plain pods", [member(), gang_job().scheduler("default-scheduler")], None),
    (
        "a Job with more completions than parallelism has plain pods",
        [member(), job("j").size(2, 4).scheduler(SCHEDULER)],
        None,
    ),
    ("a Workload without its PodGroup holds the pods", [member(), gang_job(), gang_workload()], WAITING),
    ("Workload and PodGroup lead to the group", [member(), gang_job(), gang_workload(), group_of()], named("g")),
    (
        "a user's Workload makes a gang of a Job that would not be one",
        [member(), gang_job().not_indexed(), gang_workload(), group_of()],
        named("g"),
    ),
    (
        "a Workload that an earlier Job of the name owns is no match",
        [member(), gang_job(), gang_workload().controlled_by("Job", "j", "earlier"), group_of()],
        WAITING,
    ),
    (
        "a Workload that this Job owns is a match",
        [member(), gang_job(), gang_workload().controlled_by("Job", "j"), group_of()],
        named("g"),
    ),
    ("a Workload that is being deleted is no match", [member(), gang_job(), gang_workload().deleting()], WAITING),
    (
        "two Workloads for one Job are ambiguous: plain pods",
        [member(), gang_job(), gang_workload("w1"), gang_workload("w2"), group_of("g", "w1")],
        None,
    ),
    (
        "a user's Workload counts, not the one that we made",
        [member(), gang_job(), our_workload("w1"), gang_workload("w2"), group_of("g1", "w1"), group_of("g2", "w2")],
        named("g2"),
    ),
    (
        "two Workloads of users beside ours are ambiguous: plain pods",
        [member(), gang_job(), our_workload("w1"), gang_workload("w2"), gang_workload("w3"), group_of("g2", "w2")],
        None,
    ),
    (
        "a left-over Workload beside the Job's own is not ambiguous",
        [member(), gang_job(), gang_workload("w0").controlled_by("Job", "j", "earlier"), gang_workload(), group_of()],
        named("g"),
    ),
    (
        "two PodGroups of one Workload are ambiguous: plain pods",
        [member(), gang_job(), gang_workload(), group_of("g1"), group_of("g2")],
        None,
    ),
    (
        "a PodGroup that is being deleted governs while there is no other",
        [member(), gang_job(), gang_workload(), group_of().deleting()],
        named("g"),
    ),
    (
        "also without its Workload",
        [member(), gang_job(), group_of().deleting().controlled_by("Job", "j")],
        named("g"),
    ),
    (
        "a PodGroup that is being deleted gives way to one that is not",
        [member(), gang_job(), gang_workload(), group_of("g1").deleting(), group_of("g2")],
        named("g2"),
    ),
    (
        "also of those that the Job controls, without their Workload",
        [
            *(member(), gang_job(), group_of("g1").deleting().controlled_by("Job", "j")),
            group_of("g2").controlled_by("Job", "j"),
        ],
        named("g2"),
    ),
    (
        "a PodGroup that an earlier Job of the name controls is no match, even if another Job made its Workload anew",
        [member(), gang_job(), gang_workload(), group_of().controlled_by("Job", "j", "earlier")],
        WAITING,
    ),
    (
        "nor is it while it is being deleted",
        [member(), gang_job(), gang_workload(), group_of().controlled_by("Job", "j", "earlier").deleting()],
        WAITING,
    ),
    (
        "two templates say nothing about one Job: plain pods",
        [member(), gang_job(), gang_workload().gang_template("t2", 2)],
        None,
    ),
    ("no template says nothing either", [member(), gang_job(), workload("w").for_job("j")], None),
    (
        "a basic template holds nobody while its PodGroup does not exist",
        [member(), gang_job(), workload("w").for_job("j").basic_template("t")],
        None,
    ),
    (
        "a basic PodGroup that exists has its members",
        [member(), gang_job(), workload("w").for_job("j").basic_template("t"), pod_group("g").from_template("w", "t")],
        named("g"),
    ),
    (
        "a Job that names a template of its controller's Workload is the gang of that template",
        [member(), gang_job().delegated("t"), train_workload(), group_of().controlled_by("Job", "j")],
        named("g"),
    ),
    (
        "also in a PodGroup that the controller has made itself",
        [member(), gang_job().delegated("t"), train_workload(), group_of().controlled_by("TrainJob", "t")],
        named("g"),
    ),
    ("and waits for its PodGroup", [member(), gang_job().delegated("t"), train_workload()], WAITING),
    ("and for the Workload", [member(), gang_job().delegated("t")], WAITING),
    (
        "the PodGroup of another Job of the controller is none of its own",
        [member(), gang_job().delegated("t"), train_workload(), group_of().controlled_by("Job", "k")],
        WAITING,
    ),
    (
        "nor is that of another template",
        [member(), gang_job().delegated("u"), train_workload().gang_template("u", 2), group_of()],
        WAITING,
    ),
    (
        "an empty name is the first template",
        [member(), gang_job().delegated(), train_workload().gang_template("u", 2), group_of()],
        named("g"),
    ),
    ("a template that is not there is nobody's gang", [member(), gang_job().delegated("u"), train_workload()], None),
    (
        "the Workload of an earlier controller of the name is no match",
        [member(), gang_job().delegated("t"), train_workload().controlled_by("TrainJob", "t", "earlier"), group_of()],
        WAITING,
    ),
    (
        "nor is one of another group's kind of the name",
        [member(), gang_job().delegated("t"), train_workload("other.example.com"), group_of()],
        WAITING,
    ),
    (
        "without a controller the annotation says nothing",
        [member(), gang_job().annotation("scheduling.k8s.io/group-template-name", "t"), train_workload()],
        WAITING,
    ),
    (
        "a basic template holds nobody",
        [
            member(),
            gang_job().delegated("b"),
            workload("w").with_field(TRAIN_JOB, "spec", "controllerRef").basic_template("b"),
        ],
        None,
    ),
    ("objects of another namespace do not match", [member().namespace("elsewhere"), gang_job()], None),
    ("a bound pod of the same Job ends its eligibility", [member(0), member(1).on("n1"), gang_job()], None),
    (
        "a finished pod of the same Job ends its eligibility, also if it never had a node",
        [member(0), member(1).phase("Failed"), gang_job()],
        None,
    ),
    (
        "a bound pod of an earlier Job of the name does not end the eligibility",
        [member(0), member(1, job_uid="earlier").on("n1"), gang_job()],
        WAITING,
    ),
    (
        "a bound member changes nothing once there is a Workload",
        [member(0), member(1).on("n1"), gang_job(), gang_workload(), group_of()],
        named("g"),
    ),
]


@pytest.mark.parametrize(("builders", "group"), [pytest.param(b, g, id=sentence) for sentence, b, g in CASES])
def test_a_pods_group_follows_from_the_objects_in_any_order(
    builders: Sequence[Builder], group: GroupKey | None
) -> None:
    subject = next(builder for builder in builders if isinstance(builder, PodBuilder)).value()
    expected = provisional(OwnerKey(JOB, Key(subject.namespace, "j"))) if subject.namespace == "elsewhere" else group
    for order in permutations(builders):
        store = stored(*order)
        assert store.members.group_of(subject.uid) == expected, [type(builder).__name__ for builder in order]
        assert store.membership.find_group(subject) == expected


def test_the_provisional_key_names_its_job_and_no_object_can_have_it() -> None:
    assert owner_of_provisional(WAITING) == TRAIN
    assert owner_of_provisional(named("j")) is None
    assert ":" in WAITING.encoded
