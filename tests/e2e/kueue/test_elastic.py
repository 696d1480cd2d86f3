"""A Job that grows while it runs, by slices of Kueue's."""

import pytest

from tests.e2e.kueue.stage import KueueStage
from tests.support.cluster_stage import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]

ELASTIC = "kueue.x-k8s.io/elastic-job"


def test_the_pods_by_which_a_job_grows_wait_for_their_quota_and_the_others_run_on(stage: KueueStage) -> None:
    stage.create_queue("team", cpu="80")
    stage.queue_job("team", "train", 4, "20", annotations={ELASTIC: "true"})
    stage.await_bound("train", 4)
    first = stage.bound("train")

    stage.change_job("train", parallelism=6, completions=6)
    group = stage.group_of_job("train")
    stage.await_reason(group, "MemberGated", "2 members", ELASTIC)
    assert len(stage.pods("train")) == 6
    assert stage.bound("train") == first

    stage.set_quota("team", "120")
    stage.await_bound("train", 6)
    assert first.items() <= stage.bound("train").items()
    eventually("the reason", lambda: stage.debug_page(group)["reason"] == "Scheduled")
    assert stage.evictions("train") == {}
