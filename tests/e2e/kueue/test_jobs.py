"""Jobs in queues of Kueue: 12 nodes of 32 CPU hold 12 pods of 20 or 30 CPU."""

import pytest

from tests.e2e.kueue.stage import KueueStage
from tests.support.cluster_stage import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]

MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
ALIKE = "kueue.x-k8s.io/job-completions-equal-parallelism"
MULTI_KUEUE = "kueue.x-k8s.io/multikueue"


def test_a_job_without_quota_has_no_pods_and_starts_whole_once_it_is_admitted(stage: KueueStage) -> None:
    stage.create_queue("team", cpu="120")
    stage.queue_job("team", "first", 12, "10")
    stage.await_bound("first", 12)

    stage.queue_job("team", "second", 6, "20")
    stage.await_group("second")
    eventually("its place in the queue", lambda: stage.entry("second"))
    assert stage.is_suspended("second")
    assert not stage.pods("second")

    stage.delete_job("first")
    stage.await_bound("second", 6)
    assert stage.starts(first=12, second=6) == {"first": [12], "second": [6]}
    assert stage.evictions("second") == {}


def test_a_job_that_is_admitted_where_no_room_is_waits_whole_and_is_left_alone(stage: KueueStage) -> None:
    stage.create_queue("team", cpu="1000")
    stage.fill_a_node()
    stage.queue_job("team", "train", 12, "30")
    stage.await_admitted("train")
    stage.await_reason(stage.group_of_job("train"), "NoCapacity", "11 of 12")
    assert not stage.bound("train")

    stage.delete_pods("filler-0")
    stage.await_bound("train", 12)
    assert stage.starts(train=12) == {"train": [12]}
    assert stage.evictions("train") == {}


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({ALIKE: "true"}, id="completions follow parallelism"),
        pytest.param({}, id="completions stay"),
    ],
)
def test_a_job_that_is_admitted_in_part_is_a_gang_of_that_part(stage: KueueStage, annotations: dict[str, str]) -> None:
    stage.create_queue("team", cpu="180")
    stage.fill_a_node()
    stage.queue_job("team", "train", 12, "30", annotations=annotations | {MIN_PARALLELISM: "4"})
    stage.await_bound("train", 6)
    assert stage.min_count("train") == 6
    assert len(stage.pods("train")) == 6
    assert stage.starts(train=6) == {"train": [6]}
    assert stage.evictions("train") == {}


def test_a_job_that_is_preempted_in_its_queue_goes_whole_and_comes_back_whole(stage: KueueStage) -> None:
    stage.create_queue("team", cpu="360", preemption={"withinClusterQueue": "LowerPriority"})
    high = stage.create_priority("high", 1000)
    stage.queue_job("team", "low", 12, "30")
    stage.await_bound("low", 12)

    stage.queue_job("team", "urgent", 6, "30", priority=high)
    stage.await_bound("urgent", 6)
    stage.await_evicted("low", "Preempted")
    assert stage.is_suspended("low")

    stage.delete_job("urgent")
    stage.await_bound("low", 12)
    assert stage.starts(low=12, urgent=6) == {"low": [12, 12], "urgent": [6]}
    assert stage.evictions("low") == {"Preempted": 1}
    assert stage.evictions("urgent") == {}


def test_a_job_that_another_cluster_runs_is_no_gang_here(stage: KueueStage) -> None:
    stage.create_queue("team")
    stage.queue_job("team", "there", 4, "1", managedBy=MULTI_KUEUE)
    stage.queue_job("team", "here", 4, "1")
    stage.await_bound("here", 4)
    assert stage.groups_of("there") == []
    assert stage.workloads_of("there") == []
    assert stage.pods("there") == []
