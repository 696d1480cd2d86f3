"""A gang whose Job changes its size while it runs."""

import pytest

from tests.e2e.jobs.stage import JobStage
from tests.support.cluster_stage import eventually

pytestmark = pytest.mark.e2e


@pytest.mark.both_levels
def test_a_running_gang_grows_and_shrinks_with_its_job(stage: JobStage) -> None:
    stage.submit_job("train", cpu="30")
    stage.await_bound("train", 2)
    first, objects = stage.bound("train"), stage.uids_of("train")

    stage.resize_job("train", 4)
    stage.await_count("train", 4)
    stage.await_bound("train", 4)
    assert first.items() <= stage.bound("train").items()
    group = stage.group_of_job("train")
    said = f"Changed minCount of PodGroup {group} to 4, to follow Job train"
    eventually("the event", lambda: ("MinCountChanged", said) in stage.events("train"))

    stage.resize_job("train", 3)
    stage.await_count("train", 3)
    stage.await_bound("train", 3)
    assert first.items() <= stage.bound("train").items()
    assert stage.uids_of("train") == objects


@pytest.mark.full
def test_new_pods_of_a_grown_gang_that_do_not_fit_wait_with_the_reason_and_the_others_stay(stage: JobStage) -> None:
    stage.submit_job("wide", cpu="30", parallelism=12, completions=12)
    stage.await_bound("wide", 12)
    first = stage.bound("wide")

    stage.resize_job("wide", 14)
    stage.await_count("wide", 14)
    group = stage.group_of_job("wide")
    stage.await_reason(group, "NoCapacity")
    message = stage.debug_page(group)["message"]
    eventually("the Job's event", lambda: ("NoCapacity", message) in stage.events("wide"))
    assert stage.bound("wide") == first
    assert len(stage.pods("wide")) == 14

    stage.resize_job("wide", 12)
    stage.await_count("wide", 12)
    eventually("12 pods", lambda: len(stage.pods("wide")) == 12)
    stage.await_reason(group, "Scheduled")
    assert stage.bound("wide") == first


@pytest.mark.full
def test_a_gang_that_waits_runs_once_its_job_has_shrunk_to_what_fits(stage: JobStage) -> None:
    stage.submit_job("huge", cpu="30", parallelism=14, completions=14)
    stage.await_reason(stage.group_of_job("huge"), "NoCapacity")
    assert not stage.bound("huge")

    stage.resize_job("huge", 12)
    stage.await_bound("huge", 12)
    assert stage.counts("huge") == [12, 12]
