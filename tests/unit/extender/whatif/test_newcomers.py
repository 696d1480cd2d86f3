"""Owners of which somebody asks become the gangs that the controller would make for them."""

from collections.abc import Iterator
from typing import Any

import pytest

from controller.diff.changes import CreatePodGroup, Observed
from controller.diff.objects import desired_templates, pod_group_body, workload_body
from controller.diff.owner import DesiredAction, find_missing_groups, make_workload_create
from extender.look.owners import AskedGang, find_gangs
from serried.api.group import PodGroup, Workload, decode_pod_group, decode_workload
from serried.api.level import NATIVE
from serried.api.parent import Parent
from serried.api.preference import Preference
from serried.cluster.cache import Store
from serried.rules.all import RULES
from tests.support.builders import RACK, Builder, JobBuilder, job, pod, pod_group, require_valid, workload
from tests.support.composites import composite
from tests.support.extender_harness import SCHEDULER
from tests.support.parents import JobSetBuilder, LeaderWorkerSetBuilder, job_set, leader_worker_set

Raw = dict[str, Any]


def gather_all(*manifests: Raw) -> list[AskedGang]:
    """The gangs of some manifests, in an empty cluster. Raises ValueError for one that is refused."""
    found = find_gangs([("document 1", raw) for raw in manifests], Store([SCHEDULER], rules=RULES), "default")
    if found.refused:
        raise ValueError("; ".join(found.refused))
    return found.gangs


def raw(kind: str, builder: Builder) -> Raw:
    return {"kind": kind, **builder.raw()}


def ask(builder: JobBuilder) -> PodGroup:
    wish = raw("Job", builder)
    wish["spec"]["template"]["spec"] |= {"containers": [{"name": "main"}]}
    (found,) = gather_all(wish)
    return found.group


ANNOTATIONS = "scheduling.serried.dev"


@pytest.mark.parametrize(
    "builder",
    [
        pytest.param(job("j").size(4), id="by its shape"),
        pytest.param(job("j").size(4).topology(RACK), id="with a required topology"),
        pytest.param(
            job("j").size(4).annotation(f"{ANNOTATIONS}/preferred-topology", f"{RACK}=30s"), id="with preferred levels"
        ),
        pytest.param(
            job("j").size(4).with_field({"gang": {"minCount": 3}}, "spec", "scheduling", "schedulingPolicy"),
            id="with a minCount of its own",
        ),
        pytest.param(
            job("j")
            .size(4)
            .with_field("batch", "spec", "template", "spec", "priorityClassName")
            .with_field(0, "spec", "template", "spec", "priority"),
            id="with a class",
        ),
        pytest.param(job("j").size(4).with_field(2, "spec", "completions"), id="of which fewer run at a time"),
    ],
)
def test_the_gang_is_the_controllers(builder: JobBuilder) -> None:
    builder = builder.with_field(SCHEDULER, "spec", "template", "spec", "schedulerName")
    builder = builder.annotation(f"{ANNOTATIONS}/gang-policy", "JobAsGang")
    (template,) = desired_templates(builder.value())
    group = ask(builder)
    assert group.policy == template.policy
    assert group.topology_key == template.topology_key
    assert group.priority_class == template.priority_class
    assert group.preference == builder.value().preference


# --- JobSets and LeaderWorkerSets ------------------------------------------------------------------------------------


def ask_parent(builder: JobSetBuilder | LeaderWorkerSetBuilder, *more: Raw) -> list[AskedGang]:
    return gather_all(raw(builder.value().kind, builder), *more)


def list_groups_of_controller(parent: Parent, replicas: tuple[str, ...]) -> Iterator[PodGroup]:
    """The PodGroups that the controller creates when so many replicas have a leader."""
    body = workload_body(make_workload_create(parent, DesiredAction.START), NATIVE)
    body["metadata"]["uid"] = "w"
    made: Workload = require_valid(decode_workload(body))
    for change in find_missing_groups(parent, Observed(workloads=[made], replicas=replicas), {}):
        assert isinstance(change, CreatePodGroup)
        group = pod_group_body(change, NATIVE)
        group["metadata"]["uid"] = change.name
        yield require_valid(decode_pod_group(group))


def describe(group: PodGroup) -> tuple[int, str, str, Preference]:
    return group.policy.min_count or 0, group.topology_key or "", group.priority_class, group.preference


@pytest.mark.parametrize(
    ("builder", "replicas"),
    [
        pytest.param(
            job_set("s").gang_policy().replicated("driver").replicated("workers", 2, 3),
            ("",),
            id="a JobSet as one gang",
        ),
        pytest.param(
            job_set("s").gang_policy().topology().replicated("driver").replicated("workers", 2, 3).in_order(),
            ("",),
            id="a JobSet whose Jobs start in order",
        ),
        pytest.param(
            job_set("s")
            .gang_policy()
            .annotation(f"{ANNOTATIONS}/preferred-topology", RACK)
            .replicated("workers", 1, 4),
            ("",),
            id="a JobSet with preferred levels",
        ),
        pytest.param(
            leader_worker_set("s").gang_policy().topology().size(3, 4), ("0", "1", "2"), id="each replica of a set"
        ),
        pytest.param(
            leader_worker_set("s").gang_policy().size(2, 4).startup_leader_ready(),
            ("0", "1"),
            id="workers that wait for a leader",
        ),
    ],
)
def test_the_gangs_of_a_parent_are_the_controllers(
    builder: JobSetBuilder | LeaderWorkerSetBuilder, replicas: tuple[str, ...]
) -> None:
    made = [each for each in ask_parent(builder) if each.group.policy.is_gang]
    expected = [describe(group) for group in list_groups_of_controller(builder.value(), replicas)]
    assert expected
    assert sorted(describe(each.group) for each in made) == sorted(expected)
    for each in made:
        assert len(each.members) == each.group.policy.min_count


def count(gangs: list[AskedGang]) -> dict[str, tuple[int, int]]:
    """Return the minCount of each group (0 for policy basic), and how many members it would have."""
    return {each.source: (each.group.policy.min_count or 0, len(each.members)) for each in gangs}


WIDE = job_set("s").gang_policy().replicated("driver").replicated("workers", 2, 3)


@pytest.mark.parametrize(
    ("builder", "more", "groups"),
    [
        pytest.param(WIDE, [], {"JobSet default/s": (7, 7)}, id="all pods of a JobSet are one gang"),
        pytest.param(
            WIDE.in_order(),
            [],
            {"Job default/s-driver-0": (0, 1), "JobSet default/s, workers": (6, 6)},
            id="stages that wait are gangs of their own",
        ),
        pytest.param(
            job_set("s").replicated("workers", 2, 3),
            [],
            {"Job default/s-workers-0": (0, 3), "Job default/s-workers-1": (0, 3)},
            id="of a JobSet that does not ask, each Job stands for itself",
        ),
        pytest.param(
            WIDE,
            [raw("Workload", workload("w").for_parent(WIDE.value().kind, "s").gang_template("workers", 5))],
            {"JobSet default/s": (5, 7)},
            id="one template of a Workload is for all",
        ),
        pytest.param(
            WIDE,
            [
                raw(
                    "Workload",
                    workload("w")
                    .for_parent(WIDE.value().kind, "s")
                    .basic_template("driver")
                    .gang_template("workers", 5),
                )
            ],
            {"Job default/s-driver-0": (0, 1), "JobSet default/s, workers": (5, 6)},
            id="of several templates each is for the stage of its name",
        ),
        pytest.param(
            leader_worker_set("s").gang_policy().size(2, 4),
            [],
            {"LeaderWorkerSet default/s, replica 0": (4, 4), "LeaderWorkerSet default/s, replica 1": (4, 4)},
            id="each replica is a gang",
        ),
        pytest.param(
            leader_worker_set("s").size(2, 4),
            [],
            {"LeaderWorkerSet default/s, leader": (0, 2), "LeaderWorkerSet default/s, workers": (0, 6)},
            id="a set that does not ask has none",
        ),
    ],
)
def test_the_pods_of_a_parent_are_in_the_groups_that_they_would_be_in(
    builder: JobSetBuilder | LeaderWorkerSetBuilder, more: list[Raw], groups: dict[str, tuple[int, int]]
) -> None:
    assert count(ask_parent(builder, *more)) == groups


def test_the_pods_of_a_job_set_have_their_ranks() -> None:
    (found,) = ask_parent(WIDE)
    assert [pod.index for pod in found.members] == list(range(7))


def test_a_template_that_names_its_group_is_in_that_one() -> None:
    builder = leader_worker_set("s").gang_policy().size(1, 3)
    wish = raw("LeaderWorkerSet", builder)
    wish["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    assert count(gather_all(wish, raw("PodGroup", pod_group("g").gang(3)))) == {"PodGroup default/g": (3, 3)}


# --- trees, and Workloads without an owner ---------------------------------------------------------------------------


def member(name: str, group: str) -> Raw:
    return raw("Pod", pod(name).scheduler(SCHEDULER).in_group(group))


def test_groups_under_a_composite_are_one_newcomer_with_the_least_that_it_takes() -> None:
    leaves = [raw("PodGroup", pod_group(name).gang(2).child_of("root")) for name in ("one", "two")]
    pods = [member(f"{leaf}-{at}", leaf) for leaf in ("one", "two") for at in range(3)]
    root = raw("CompositePodGroup", composite("root").gang(2))
    assert count(gather_all(root, *leaves, *pods)) == {"CompositePodGroup default/root": (4, 6)}


def test_a_workload_from_which_the_groups_were_made_may_come_with_them() -> None:
    made = raw("PodGroup", pod_group("g").gang(2).from_template("w", "t"))
    manifests = [raw("Workload", workload("w").gang_template("t", 2)), made, member("a", "g"), member("b", "g")]
    assert count(gather_all(*manifests)) == {"PodGroup default/g": (2, 2)}


def test_the_pods_of_an_owner_are_in_the_group_that_is_sent_with_it() -> None:
    made = raw("PodGroup", pod_group("g").gang(5).from_template("w", "workers"))
    sent = raw("Workload", workload("w").for_parent(WIDE.value().kind, "s").gang_template("workers", 5))
    assert count(ask_parent(WIDE, sent, made)) == {"PodGroup default/g": (5, 7)}


def test_the_groups_inside_of_a_workload_are_those_that_pods_name() -> None:
    pods = [raw("Pod", pod(f"p{at}").scheduler(SCHEDULER).in_workload("w", "t")) for at in range(3)]
    made = raw("Workload", workload("w").inline_gang("t", 2).inline_gang("other", 5))
    assert count(gather_all(made, *pods)) == {"Workload default/w/t": (2, 3)}


@pytest.mark.parametrize(
    ("manifests", "said"),
    [
        pytest.param(
            [raw("CompositePodGroup", composite("root").gang(2))],
            "CompositePodGroup default/root has no pods here",
            id="a tree without pods",
        ),
        pytest.param(
            [raw("PodGroup", pod_group("one").gang(1).child_of("root")), member("a", "one")],
            "CompositePodGroup root does not exist; send the whole tree",
            id="a part of a tree",
        ),
        pytest.param(
            [raw("Workload", workload("w").for_parent(WIDE.value().kind, "s").gang_template("a", 2))],
            "Serried cannot tell which pods it has; send its JobSet with it",
            id="a Workload without its JobSet",
        ),
        pytest.param(
            [
                raw("JobSet", WIDE.in_order()),
                raw("Workload", workload("w").for_parent(WIDE.value().kind, "s").gang_template("a", 2)),
            ],
            "Workload w needs one template with the name of each group of pods",
            id="a Workload for other stages",
        ),
        pytest.param(
            [
                raw("JobSet", WIDE),
                *(
                    raw("Workload", workload(name).for_parent(WIDE.value().kind, "s").gang_template("a", 2))
                    for name in "vw"
                ),
            ],
            "default/s has another Workload, too; send one",
            id="two Workloads",
        ),
        pytest.param(
            [raw("JobSet", WIDE.gang_policy("Gang"))], "must be one of JobSetAsGang, NoGang", id="a word that is none"
        ),
        pytest.param(
            [raw("JobSet", job_set("s").gang_policy().replicated("workers", 10**9, 0))],
            "there are more than 10000 pods",
            id="a billion Jobs without a pod",
        ),
        pytest.param(
            [raw("LeaderWorkerSet", leader_worker_set("s").gang_policy().size(10**9, 2))],
            "there are more than 10000 pods",
            id="a billion replicas",
        ),
    ],
)
def test_what_cannot_be_asked_of_them_is_told_with_what_to_do(manifests: list[Raw], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        gather_all(*manifests)
