"""Workloads that a user has made for a Job: one is taken as it is, of two nobody can say which."""

import pytest

from tests.e2e.jobs.stage import JobStage
from tests.support.cluster_stage import Raw, eventually

pytestmark = pytest.mark.e2e


def gang(count: int) -> Raw:
    return {"schedulingPolicy": {"gang": {"minCount": count}}}


@pytest.mark.both_levels
def test_a_users_workload_says_how_many_of_a_job_must_start_together(stage: JobStage) -> None:
    stage.create_pods([f"filler-{i}" for i in range(10)], cpu="30")
    stage.await_bound("filler", 10)
    stage.create_workloads("train", mine=gang(3))
    stage.submit_job("train", cpu="30", parallelism=4, completions=4)

    group = stage.await_group("train", "mine")
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert group["spec"]["workloadRef"] == {"workloadName": "mine", "templateName": "workers"}
    stage.await_reason(group["metadata"]["name"], "NoCapacity")
    assert not stage.bound("train")

    # By its shape the Job would be a gang of four, for which there is no room.
    stage.delete_pods("filler-0")
    stage.await_bound("train", 3)
    (workload,) = stage.workloads_of("train")
    assert workload["metadata"]["name"] == "mine"
    assert workload["spec"]["podGroupTemplates"][0]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert "ownerReferences" not in workload["metadata"]


def test_a_users_workload_that_asks_for_no_gang_lets_the_pods_go_one_by_one(stage: JobStage) -> None:
    stage.create_workloads("loose", mine={"schedulingPolicy": {"basic": {}}})
    stage.submit_job("loose", cpu="30", parallelism=13, completions=13)

    stage.await_bound("loose", 12)
    group = stage.await_group("loose", "mine")
    assert group["spec"]["schedulingPolicy"] == {"basic": {}}


@pytest.mark.both_levels
def test_a_users_workload_that_comes_after_its_job_takes_the_place_of_ours(stage: JobStage) -> None:
    stage.create_pods([f"filler-{i}" for i in range(9)], cpu="30")
    stage.await_bound("filler", 9)
    stage.submit_job("train", cpu="30", parallelism=4, completions=4)
    stage.await_reason(stage.group_of_job("train"), "NoCapacity")

    stage.create_workloads("train", mine=gang(3))

    stage.await_bound("train", 3)
    eventually("one Workload", lambda: [each["metadata"]["name"] for each in stage.workloads_of("train")] == ["mine"])
    stage.await_group("train", "mine")
    eventually("its PodGroup alone", lambda: len(stage.groups_of("train")) == 1)
    assert "AmbiguousWorkload" not in dict(stage.events("train"))


def test_a_users_workload_that_comes_for_a_job_that_runs_takes_its_pods_over_and_moves_none(stage: JobStage) -> None:
    stage.submit_job("train", cpu="30", parallelism=3, completions=3)
    stage.await_bound("train", 3)
    before = stage.bound("train")

    stage.create_workloads("train", mine=gang(3))

    eventually("one Workload", lambda: [each["metadata"]["name"] for each in stage.workloads_of("train")] == ["mine"])
    group = stage.await_group("train", "mine")["metadata"]["name"]
    eventually("its PodGroup alone", lambda: len(stage.groups_of("train")) == 1)
    stage.await_reason(group, "Scheduled")
    assert stage.bound("train") == before

    # A replacement alone would be no quorum: it is bound only as one of a gang of which two run.
    lost = stage.fail_index("train", 1)
    stage.await_replacement("train", 1, lost)
    assert len(set(stage.bound("train")) - {lost}) == 3
    assert set(before) - {lost} <= set(stage.bound("train"))


@pytest.mark.both_levels
def test_a_job_of_two_workloads_is_scheduled_pod_by_pod_and_told_why(stage: JobStage) -> None:
    stage.create_workloads("train", one=gang(13), two=gang(13))
    stage.submit_job("train", cpu="30", parallelism=13, completions=13)

    stage.await_bound("train", 12)
    told = eventually("the event", lambda: dict(stage.events("train")).get("AmbiguousWorkload"))
    assert told == (
        "Job train is no gang, so kube-scheduler places its pods one by one: "
        "Workloads one, two all refer to it, but exactly one may"
    )
    assert stage.warnings("train", "AmbiguousWorkload") == [1]
    eventually("no PodGroup", lambda: not stage.groups())


def test_a_job_without_one_of_its_two_workloads_is_a_gang(stage: JobStage) -> None:
    stage.create_workloads("train", one=gang(3), two=gang(3))
    stage.submit_job("train", cpu="30", suspend=True, parallelism=3, completions=3)
    eventually("the event", lambda: dict(stage.events("train")).get("AmbiguousWorkload"))

    stage.delete_workload("two")

    group = stage.await_group("train", "one")
    stage.change_job("train", suspend=False)
    stage.await_bound("train", 3)
    stage.await_reason(group["metadata"]["name"], "Scheduled")
