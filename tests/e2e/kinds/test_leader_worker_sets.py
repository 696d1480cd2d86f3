"""LeaderWorkerSets under their real controller: each of the 4 racks holds 9 pods of 10 CPU."""

from pathlib import Path

import pytest

from tests.e2e.kinds.stage import SETS, KindStage, unscheduled
from tests.support.cluster_stage import SCHEDULER, eventually, pod_spec

pytestmark = [pytest.mark.e2e, pytest.mark.full]


def test_each_replica_waits_whole_and_runs_whole_in_a_rack(stage: KindStage) -> None:
    stage.create_set("serve", replicas=5, size=8)
    stage.await_gangs("serve", 8, 8, 8, 8, 8)
    stage.await_bound("serve", 32)
    eventually("all pods", lambda: len(stage.pods("serve")) == 40)
    whole = stage.whole_replicas("serve", 8, 5)
    assert len(whole) == 4
    assert "8 members do not fit" in stage.told("serve", "NoDomainFits")

    stage.scale("serve", 2)
    stage.await_gangs("serve", 8, 8)
    stage.scale("serve", 3)
    stage.await_gangs("serve", 8, 8, 8)
    stage.await_bound("serve", 24)


def test_workers_that_start_after_their_leader_are_a_gang_without_it(stage: KindStage) -> None:
    stage.create_set("late", replicas=2, size=5, startupPolicy="LeaderReady")
    stage.await_gangs("late", 4, 4)
    stage.await_bound("late", 10)
    assert "are a gang without their leader" in stage.told("late", "GangPerStage")


def test_a_replica_that_loses_a_pod_comes_back_whole(stage: KindStage) -> None:
    stage.create_set("again", replicas=1, size=6)
    (before,) = stage.await_gangs("again", 6)
    stage.await_bound("again", 6)
    first = {pod["metadata"]["uid"] for pod in stage.pods("again")}

    stage.delete_seen("again-0-3", lambda: stage.is_going("again-0"))
    eventually("new pods", lambda: not first & {pod["metadata"]["uid"] for pod in stage.pods("again")})
    stage.await_bound("again", 6)
    assert stage.racks_of("again") == 1
    assert [stage.ranks("again")[f"again-0{suffix}"] for suffix in ("", "-1", "-5")] == ["0", "1", "5"]
    assert list(stage.gangs("again")) == [before]


def test_a_set_of_another_size_has_gangs_of_that_size(stage: KindStage) -> None:
    stage.create_set("grow", replicas=2, size=3)
    stage.await_gangs("grow", 3, 3)
    stage.await_bound("grow", 6)
    # Pods that are made anew one after the other are replacements, so a gang may keep its rack: both fit into one.
    stage.resize("grow", 4)
    stage.await_gangs("grow", 4, 4)
    stage.await_bound("grow", 8, seconds=60)
    assert stage.whole_replicas("grow", 4, 2) == [0, 1]


def test_replicas_of_a_labelled_namespace_are_gangs_though_they_name_no_scheduler(
    labelled: KindStage, tmp_path: Path
) -> None:
    leader, worker = ({"spec": unscheduled(pod_spec("10"))} for _ in range(2))
    leader["spec"]["schedulerName"] = "default-scheduler"
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "leaderTemplate": leader, "workerTemplate": worker}}
    labelled.apply(tmp_path / "set.json", "LeaderWorkerSet", "ours", spec)
    labelled.await_gangs("ours", 3, 3)
    labelled.await_bound("ours", 6)
    assert labelled.whole_replicas("ours", 3, 2) == [0, 1]
    assert {pod["spec"]["schedulerName"] for pod in labelled.pods("ours")} == {SCHEDULER}

    uids = {pod["metadata"]["uid"] for pod in labelled.pods("ours")}
    labelled.apply(tmp_path / "set.json", "LeaderWorkerSet", "ours", spec)
    assert labelled.read(SETS, "ours", "{.metadata.generation}") == "1"
    labelled.apply(tmp_path / "set.json", "LeaderWorkerSet", "ours", spec | {"replicas": 3})
    labelled.await_gangs("ours", 3, 3, 3)
    labelled.await_bound("ours", 9)
    assert uids <= {pod["metadata"]["uid"] for pod in labelled.pods("ours")}


def test_what_was_there_before_its_namespace_had_the_label_keeps_its_scheduler(
    stage: KindStage, namespaces: None, tmp_path: Path
) -> None:
    spec = {
        "replicas": 1,
        "leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": unscheduled(pod_spec("1"))}},
    }
    stage.apply(tmp_path / "set.json", "LeaderWorkerSet", "before", spec)
    stage.label()
    stage.apply(tmp_path / "set.json", "LeaderWorkerSet", "before", spec | {"replicas": 2})
    assert stage.read(SETS, "before", "{.metadata.generation}") == "2"
    assert not stage.read(SETS, "before", "{.spec.leaderWorkerTemplate.workerTemplate.spec.schedulerName}")
