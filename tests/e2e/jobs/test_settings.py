"""The operator's settings and a Job's own fields decide what becomes of it, and what is written about it."""

import json

import pytest

from tests.e2e.jobs.stage import JobStage, controlled_by
from tests.support.cluster_stage import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]

AS_GANG = {"annotations": {"scheduling.serried.dev/gang-policy": "JobAsGang"}}


def test_every_job_may_be_tracked_and_those_that_are_no_gangs_run_pod_by_pod(stage: JobStage) -> None:
    with stage.told("--track-jobs", "all", "gangs", ["controller"]):
        stage.submit_job("loose", cpu="30", completionMode="NonIndexed", parallelism=13, completions=13)
        group = stage.await_group("loose")
        stage.await_bound("loose", 12)
    assert group["spec"]["schedulingPolicy"] == {"basic": {}}
    (workload,) = stage.workloads_of("loose")
    assert workload["spec"]["podGroupTemplates"][0]["schedulingPolicy"] == {"basic": {}}


def test_only_jobs_that_ask_are_gangs_where_that_is_the_rule(stage: JobStage) -> None:
    with stage.told("--gang-jobs", "asked", "by-shape", ["controller", "extender"]):
        stage.submit_job("silent", cpu="20", parallelism=13, completions=13)
        stage.await_bound("silent", 12)
        stage.submit_job("asks", cpu="30", metadata=AS_GANG)
        stage.await_reason(stage.group_of_job("asks"), "NoCapacity")
        assert not stage.objects_of("silent")


def test_a_gang_of_a_scheduler_that_is_not_served_is_told_so_once(stage: JobStage) -> None:
    stage.submit_job("other", "default-scheduler", metadata=AS_GANG)
    stage.await_bound("other", 2)
    eventually("the warning", lambda: stage.warnings("other", "SchedulerNotGangAware"))
    for index in (0, 1):
        stage.complete_index("other", index)
    eventually("its end", lambda: stage.job("other")["status"].get("succeeded") == 2)
    stage.submit_job("later")
    stage.await_bound("later", 2)

    assert stage.warnings("other", "SchedulerNotGangAware") == [1]
    assert not stage.objects_of("other")


def test_the_reasons_of_a_gang_are_events_of_its_job_whose_status_is_not_ours(stage: JobStage) -> None:
    stage.submit_job("huge", cpu="30", parallelism=13, completions=13)
    view = stage.await_reason(stage.group_of_job("huge"), "NoCapacity")
    eventually("the event", lambda: ("NoCapacity", view["message"]) in stage.events("huge"))
    stage.resize_job("huge", 12)
    stage.await_bound("huge", 12)
    eventually("the event", lambda: "Scheduled" in dict(stage.events("huge")))

    writers = {entry["manager"] for entry in stage.job("huge")["metadata"]["managedFields"] if "subresource" in entry}
    assert writers == {"kube-controller-manager"}
    assert "serried" not in json.dumps(stage.job("huge")["metadata"]["managedFields"])


def test_a_job_of_a_cron_job_is_a_gang(stage: JobStage) -> None:
    of_cron = controlled_by(stage.create_cron_job("nightly"))
    stage.submit_job("nightly-1", cpu="30", metadata=of_cron, parallelism=13, completions=13)
    stage.await_reason(stage.group_of_job("nightly-1"), "NoCapacity")
    assert not stage.bound("nightly-1")

    stage.submit_job("nightly-2", metadata=of_cron)
    stage.await_bound("nightly-2", 2)
    assert stage.counts("nightly-2") == [2, 2]
