"""A gang whose Job is suspended and resumed."""

import pytest

from tests.e2e.jobs.stage import JobStage
from tests.support.cluster_stage import eventually
from tests.support.clusters import at_one_level

pytestmark = pytest.mark.e2e


@at_one_level("native")
def test_a_suspended_job_keeps_its_objects_and_runs_whole_each_time_it_is_resumed(stage: JobStage) -> None:
    stage.submit_job("train", parallelism=4, completions=4, suspend=True)
    stage.await_group("train")
    objects = stage.uids_of("train")
    assert len(objects) == 2
    assert not stage.pods()

    for _ in range(2):
        stage.change_job("train", suspend=False)
        stage.await_bound("train", 4)
        assert stage.uids_of("train") == objects

        stage.change_job("train", suspend=True)
        eventually("no pods", lambda: not stage.pods())
        assert stage.uids_of("train") == objects


@pytest.mark.full
def test_or_it_loses_them_once_its_pods_are_gone_and_gets_new_ones(stage: JobStage) -> None:
    with stage.told("--suspended-jobs", "delete", "keep", ["controller"]):
        stage.submit_job("train", parallelism=4, completions=4)
        stage.await_bound("train", 4)
        before = stage.uids_of("train")

        stage.change_job("train", suspend=True)
        eventually("no objects", lambda: not stage.objects_of("train"))
        assert not stage.pods()
        eventually("the event", lambda: "PodGroupDeleted" in dict(stage.events("train")))

        stage.change_job("train", suspend=False)
        stage.await_bound("train", 4)
        assert len(stage.uids_of("train") - before) == 2
