"""JobSets and LeaderWorkerSets in the shapes of their modules."""

from typing import Any

import pytest

from serried.api.layouts import LEADER, WORKERS, Span, Stage
from serried.api.names import Disruption, Key, Malformed
from serried.api.parent import (
    WHOLE,
    Place,
    decode_parent,
    gangs_of,
    is_gang_parent,
)
from tests.support.builders import RACK, PodBuilder, pod
from tests.support.parents import JobSetBuilder, LeaderWorkerSetBuilder, job_set, leader_worker_set

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"


def training() -> JobSetBuilder:
    return job_set("s").gang_policy().replicated("driver").replicated("workers", replicas=2, pods=4)


def serving() -> LeaderWorkerSetBuilder:
    return leader_worker_set("s").gang_policy().size(replicas=2, pods=4)


def with_template(field: str, value: Any) -> JobSetBuilder:
    """A JobSet whose pod template has a field."""
    raw = training().raw()
    raw["spec"]["replicatedJobs"][1]["template"]["spec"]["template"].setdefault("spec", {})[field] = value
    return JobSetBuilder(raw)


def test_a_job_set_has_a_stage_for_each_replicated_job() -> None:
    decoded = training().topology().annotation("scheduling.serried.dev/disruption-mode", "all").value()
    assert (decoded.kind, decoded.key, decoded.uid) == ("JobSet", Key("default", "s"), "jobset-s")
    assert decoded.stages == (Stage("driver", 1), Stage("workers", 8))
    assert (decoded.topology_key, decoded.disruption) == (RACK, Disruption.ALL)
    assert decoded.replicas is None


def test_a_job_sets_pods_are_numbered_by_replicated_job_then_by_job() -> None:
    waves = {"parallelism": 2, "completions": 5}
    raw = training().replicated("late").raw()
    raw["spec"]["replicatedJobs"][1]["template"]["spec"] |= waves
    assert JobSetBuilder(raw).value().spans == (Span("driver", 0, 1), Span("workers", 1, 5), Span("late", 11, 1))


def test_a_replicated_job_runs_no_more_pods_than_it_has_completions() -> None:
    raw = training().raw()
    raw["spec"]["replicatedJobs"][1]["template"]["spec"] |= {"parallelism": 10, "completions": 3}
    assert JobSetBuilder(raw).value().stages[1] == Stage("workers", 6)


def test_a_job_set_is_suspended_if_it_says_so() -> None:
    assert training().suspended().value().suspended
    assert not training().value().suspended


def test_a_replicated_job_that_says_nothing_is_one_job_of_one_pod() -> None:
    assert job_set("s").with_field([{"name": "a"}], "spec", "replicatedJobs").value().stages == (Stage("a", 1),)


def test_a_leader_worker_set_has_a_leader_and_workers_in_each_replica() -> None:
    decoded = serving().topology().value()
    assert decoded.stages == (Stage(LEADER, 1), Stage(WORKERS, 3))
    assert (decoded.replicas, decoded.topology_key, decoded.staged) == (2, RACK, "")


@pytest.mark.parametrize(
    ("replicas", "surge", "all_in_all"),
    [(2, 0, 2), (4, 1, 5), (4, "30%", 6), (2, 9, 4), (0, "100%", 0)],
    ids=["none", "a number", "percents, rounded up", "never more than there are", "of nothing"],
)
def test_replicas_that_a_rolling_update_may_add_count(replicas: int, surge: int | str, all_in_all: int) -> None:
    assert serving().size(replicas, 4).max_surge(surge).value().replicas == all_in_all


GANGS: list[tuple[str, JobSetBuilder | LeaderWorkerSetBuilder, tuple[Stage, ...]]] = [
    ("all pods of a JobSet are one gang", training(), (Stage(WHOLE, 9),)),
    ("replicated Jobs that start in order are gangs of their own", training().in_order(), (Stage("workers", 8),)),
    (
        "so are those that depend on others",
        training().replicated("late", pods=2, dependsOn=[{"name": "driver", "status": "Ready"}]),
        (Stage("workers", 8), Stage("late", 2)),
    ),
    ("one pod is no gang", job_set("s").gang_policy().replicated("driver"), ()),
    ("each replica is a gang", serving(), (Stage(WHOLE, 4),)),
    (
        "workers that wait for their leader are a gang without their leader",
        serving().startup_leader_ready(),
        (Stage(WORKERS, 3),),
    ),
    (
        "also where they wait for its node",
        serving().annotation("leaderworkerset.sigs.k8s.io/exclusive-topology", "rack"),
        (Stage(WORKERS, 3),),
    ),
    ("one worker that waits for its leader is no gang", serving().size(2, 2).startup_leader_ready(), ()),
]


@pytest.mark.parametrize(("builder", "gangs"), [pytest.param(b, g, id=sentence) for sentence, b, g in GANGS])
def test_pods_that_start_together_are_a_gang(
    builder: JobSetBuilder | LeaderWorkerSetBuilder, gangs: tuple[Stage, ...]
) -> None:
    assert gangs_of(builder.value()) == gangs
    assert is_gang_parent(builder.value(), ["serried"]) is bool(gangs)


NO_GANGS: list[tuple[str, JobSetBuilder | LeaderWorkerSetBuilder]] = [
    ("one that does not ask", job_set("s").replicated("a", pods=2)),
    ("one that asks not to", training().gang_policy("NoGang")),
    ("a JobSet that asks what a LeaderWorkerSet may", training().gang_policy("ReplicaAsGang")),
    ("a LeaderWorkerSet that asks what a JobSet may", serving().gang_policy("JobSetAsGang")),
    ("one with a pod template of another scheduler", training().replicated("b", scheduler="default-scheduler")),
    ("one whose template names its group", with_template("schedulingGroup", {"podGroupName": "g"})),
    ("one that has ended", training().condition("Completed")),
    ("one that has failed", training().condition("Failed")),
    ("one that is being deleted", serving().deleting()),
    ("one whose Jobs wait for the node of their first pod", training().annotation(EXCLUSIVE, "rack")),
]


@pytest.mark.parametrize("builder", [pytest.param(builder, id=sentence) for sentence, builder in NO_GANGS])
def test_no_gang_is(builder: JobSetBuilder | LeaderWorkerSetBuilder) -> None:
    assert not is_gang_parent(builder.value(), ["serried"])


def test_nine_gangs_are_more_than_a_workload_holds() -> None:
    staged = job_set("s").gang_policy().in_order()
    for number in range(8):
        staged = staged.replicated(f"stage-{number}", pods=2)
    assert is_gang_parent(staged.value(), ["serried"])
    assert not is_gang_parent(staged.replicated("one-more", pods=2).value(), ["serried"])


def test_exclusive_placement_by_node_labels_makes_nobody_wait() -> None:
    raw = training().annotation(EXCLUSIVE, "rack").annotation("alpha.jobset.sigs.k8s.io/node-selector", "true")
    assert is_gang_parent(raw.value(), ["serried"])


def test_a_priority_class_counts_if_all_templates_name_it() -> None:
    assert with_template("priorityClassName", "high").value().priority_class == ""
    raw = serving().with_field("high", "spec", "leaderWorkerTemplate", "workerTemplate", "spec", "priorityClassName")
    assert raw.value().priority_class == "high"


PLACES: list[tuple[str, PodBuilder, Place | None]] = [
    ("a plain pod has none", pod("p"), None),
    ("a JobSet's pod", pod("p").of_job_set("s", "a"), Place("JobSet", "s", "a", "", "jobset-s")),
    (
        "one of its second Job",
        pod("p").of_job_set("s", "a", 0, 1),
        Place("JobSet", "s", "a", "", "jobset-s", 1),
    ),
    ("a leader", pod("p").of_replica("s", 2), Place("LeaderWorkerSet", "s", LEADER, "2")),
    ("a worker", pod("p").of_replica("s", 2, 1), Place("LeaderWorkerSet", "s", WORKERS, "2")),
    ("a pod that nobody has labelled to the end", pod("p").label("leaderworkerset.sigs.k8s.io/name", "s"), None),
]


@pytest.mark.parametrize(("builder", "place"), [pytest.param(b, p, id=sentence) for sentence, b, p in PLACES])
def test_a_pods_labels_say_where_it_stands(builder: PodBuilder, place: Place | None) -> None:
    assert builder.value().place == place


def test_a_replicated_job_without_a_name_is_malformed() -> None:
    raw = job_set("s").with_field([{}], "spec", "replicatedJobs").raw()
    assert decode_parent("JobSet", raw) == Malformed("JobSet", "default/s", "name is missing")


def test_a_surge_that_is_no_number_is_malformed() -> None:
    raw = serving().max_surge("many").raw()
    assert decode_parent("LeaderWorkerSet", raw) == Malformed(
        "LeaderWorkerSet", "default/s", "maxSurge is not an integer"
    )
