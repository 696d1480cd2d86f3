"""JobSets under their real controller: racks of 3 nodes of 32 CPU hold 9 pods of 10 CPU."""

from pathlib import Path

import pytest

from bench.cluster.api import ApiError
from tests.e2e.kinds.stage import JOB_SETS, KindStage, replicated, unscheduled
from tests.support.cluster_stage import SCHEDULER, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]


def test_all_jobs_of_a_set_wait_as_one_gang_and_run_as_one_gang(stage: KindStage) -> None:
    stage.create_job_set("wide", replicated("driver", 1, 1), replicated("workers", 3, 3))
    (waiting,) = stage.await_gangs("wide", 10)
    stage.await_reason(waiting, "NoDomainFits")
    assert "10 members do not fit" in stage.told("wide", "NoDomainFits")
    assert not stage.bound("wide")

    stage.create_job_set("fits", replicated("driver", 1, 1), replicated("workers", 2, 4))
    stage.await_gangs("fits", 9)
    stage.await_bound("fits", 9)
    assert stage.racks_of("fits") == 1
    assert stage.ranks_of("fits-driver") == ["0"]
    assert stage.ranks_of("fits-workers-0") == list("1234")
    assert stage.ranks_of("fits-workers-1") == list("5678")
    assert not stage.bound("wide")


def test_each_job_of_a_set_may_be_a_gang_of_its_own(stage: KindStage) -> None:
    stage.create_job_set("each", replicated("workers", 2, 4, policy="JobAsGang"), policy="")
    for job in ("each-workers-0", "each-workers-1"):
        stage.await_gangs(job, 4)
        stage.await_bound(job, 4)
        assert stage.ranks_of(job) == list("0123")
    assert not stage.gangs("each")


def test_jobs_that_depend_on_others_are_gangs_of_their_own(stage: KindStage) -> None:
    late = replicated("late", 2, 3, dependsOn=[{"name": "first", "status": "Ready"}])
    stage.create_job_set("staged", replicated("first", 1, 1), late)
    stage.await_gangs("staged", 6)
    stage.await_bound("staged-first", 1)
    stage.await_bound("staged-late", 6)
    assert stage.racks_of("staged-late") == 1
    assert "(dependsOn)" in stage.told("staged", "GangPerStage")


def test_a_set_that_restarts_is_the_same_gang_again(stage: KindStage) -> None:
    stage.create_job_set("again", replicated("workers", 2, 4), failurePolicy={"maxRestarts": 2})
    (before,) = stage.await_gangs("again", 8)
    stage.await_bound("again", 8)
    first = {pod["metadata"]["uid"] for pod in stage.pods("again")}

    for job in ("again-workers-0", "again-workers-1"):
        stage.cluster.kubectl("delete", "job", job, "-n", stage.namespace, "--cascade=foreground")
    eventually("new pods", lambda: not first & {pod["metadata"]["uid"] for pod in stage.pods("again")})
    stage.await_bound("again", 8)
    assert stage.racks_of("again") == 1
    assert list(stage.gangs("again")) == [before]


def test_an_unknown_word_is_refused(stage: KindStage) -> None:
    with pytest.raises(ApiError, match='Unsupported value: "Gang": supported values: "JobSetAsGang", "NoGang"'):
        stage.create_job_set("wrong", replicated("workers", 3, 4), policy="Gang")


def test_a_set_of_a_labelled_namespace_is_a_gang_though_it_names_no_scheduler(
    labelled: KindStage, tmp_path: Path
) -> None:
    jobs = [replicated("driver", 1, 1), replicated("workers", 2, 4)]
    pods = [job["template"]["spec"]["template"] for job in jobs]
    pods[0]["spec"] = unscheduled(pods[0]["spec"])
    pods[1]["spec"]["schedulerName"] = "default-scheduler"
    labelled.apply(tmp_path / "set.json", "JobSet", "ours", {"replicatedJobs": jobs})
    labelled.await_gangs("ours", 9)
    labelled.await_bound("ours", 9)
    assert labelled.racks_of("ours") == 1
    assert {pod["spec"]["schedulerName"] for pod in labelled.pods("ours")} == {SCHEDULER}
    labelled.apply(tmp_path / "set.json", "JobSet", "ours", {"replicatedJobs": jobs})
    templates = "{.spec.replicatedJobs[*].template.spec.template.spec.schedulerName}"
    assert labelled.read(JOB_SETS, "ours", templates).split() == [SCHEDULER] * 2
