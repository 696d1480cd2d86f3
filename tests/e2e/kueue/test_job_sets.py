"""JobSets in queues of Kueue: all Jobs of each are one gang."""

import pytest

from tests.e2e.kueue.stage import KueueStage
from tests.support.cluster_stage import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]


def test_a_set_without_quota_has_no_pods_and_starts_whole_once_it_is_admitted(stage: KueueStage) -> None:
    stage.create_queue("team", cpu="120")
    stage.queue_job_set("team", "first", 3, 4, "10")
    stage.await_bound("first", 12)

    stage.queue_job_set("team", "second", 2, 3, "20")
    eventually("its place in the queue", lambda: stage.entry("second"))
    assert not stage.pods("second")

    stage.delete_job_set("first")
    stage.await_bound("second", 6)
    assert stage.starts(first=12, second=6) == {"first": [12], "second": [6]}
    assert stage.evictions("second") == {}


def test_a_set_that_is_preempted_in_its_queue_goes_whole_and_comes_back_whole(stage: KueueStage) -> None:
    stage.create_queue("team", cpu="360", preemption={"withinClusterQueue": "LowerPriority"})
    high = stage.create_priority("high", 1000)
    stage.queue_job_set("team", "low", 3, 4, "30")
    stage.await_bound("low", 12)

    stage.queue_job("team", "urgent", 6, "30", priority=high)
    stage.await_bound("urgent", 6)
    stage.await_evicted("low", "Preempted")

    stage.delete_job("urgent")
    stage.await_bound("low", 12)
    assert stage.starts(low=12, urgent=6) == {"low": [12, 12], "urgent": [6]}
    assert stage.evictions("low") == {"Preempted": 1}
