"""A Job may ask to be no gang, though it looks like one, or to be one, though it does not; its priority."""

import pytest

from tests.e2e.jobs.stage import JobStage
from tests.support.cluster_stage import Raw, eventually, pod_spec
from tests.support.clusters import at_one_level

pytestmark = pytest.mark.e2e


def policy(word: str) -> Raw:
    return {"annotations": {"scheduling.serried.dev/gang-policy": word}}


def test_a_job_that_wants_no_gang_runs_pod_by_pod_and_nothing_is_made_for_it(stage: JobStage) -> None:
    stage.submit_job("loose", cpu="30", metadata=policy("NoGang"), parallelism=13, completions=13)
    stage.await_bound("loose", 12)

    # Jobs are looked at in turn: this one was made later, and has its objects.
    stage.submit_job("later")
    stage.await_group("later")
    assert not stage.objects_of("loose")


@at_one_level("native")
def test_a_job_whose_template_names_a_pod_group_is_what_that_says_and_nothing_is_made_for_it(stage: JobStage) -> None:
    stage.create_group("mine", 3)
    # By its shape it would be a gang of 13, for which there is no room.
    stage.submit_job("train", parallelism=13, completions=13, template=stage.template_in("mine", "30"))
    stage.await_bound("train", 12)

    stage.submit_job("later")
    stage.await_group("later")
    assert not stage.objects_of("train")


def test_a_job_without_indexes_is_a_gang_if_it_asks(stage: JobStage) -> None:
    shape: Raw = {"completionMode": "NonIndexed", "metadata": policy("JobAsGang")}
    stage.submit_job("wide", cpu="30", parallelism=13, completions=26, **shape)
    stage.await_reason(stage.group_of_job("wide"), "NoCapacity")
    assert not stage.bound("wide")
    assert stage.counts("wide") == [13, 13]

    stage.submit_job("fits", cpu="30", parallelism=12, completions=24, **shape)
    stage.await_bound("fits", 12)
    assert stage.counts("fits") == [12, 12]


def test_the_priority_of_a_jobs_pods_is_that_of_its_pod_group_and_decides_its_turn(stage: JobStage) -> None:
    urgent = f"urgent-{stage.namespace}"
    with stage.priority_class(urgent, 1000, preemptionPolicy="Never"):  # its turn, not the room of others
        stage.submit_job("first", cpu="30", parallelism=12, completions=12)
        stage.await_bound("first", 12)
        stage.submit_job("usual", cpu="30", parallelism=8, completions=8)
        stage.await_reason(stage.group_of_job("usual"), "NoCapacity")

        template = {"spec": pod_spec("30") | {"restartPolicy": "Never", "priorityClassName": urgent}}
        stage.submit_job("soon", parallelism=8, completions=8, template=template)
        stage.await_reason(stage.group_of_job("soon"), "NoCapacity")
        eventually("its priority", lambda: stage.groups_of("soon")[0]["spec"].get("priority") == 1000)
        assert [item["spec"].get("priorityClassName") for item in stage.groups_of("soon")] == [urgent]

        stage.delete_job("first")
        stage.await_bound("soon", 8)
        assert not stage.bound("usual")


def test_a_job_of_a_class_that_evicts_nobody_has_its_group_where_groups_cannot_say_so(stage: JobStage) -> None:
    calm = f"calm-{stage.namespace}"
    with stage.priority_class(calm, 5, preemptionPolicy="Never"):
        template = {"spec": pod_spec("1") | {"restartPolicy": "Never", "priorityClassName": calm}}
        stage.submit_job("train", template=template)
        stage.await_bound("train", 2)
        (group,) = stage.groups_of("train")
        assert "preemptionPolicy" not in group["spec"]
        assert stage.debug_page(group["metadata"]["name"])["preempts"] is False
