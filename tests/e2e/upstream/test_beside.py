"""Two reconcilers for the same Jobs: kube-controller-manager with its gate on, and our controller beside it."""

from collections.abc import Sequence

import pytest

from tests.e2e.upstream.stage import UpstreamStage
from tests.support.cluster_stage import Raw, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]

_UPSTREAM, _OURS = "kube-controller-manager", "controller"


def gang(**said: int) -> Raw:
    return {"schedulingPolicy": {"gang": said}}


@pytest.mark.parametrize("slower", [[_UPSTREAM], [_OURS], []], ids=["we are faster", "upstream is faster", "at once"])
def test_a_job_gets_one_workload_and_one_pod_group_and_runs_if_either_is_faster(
    stage: UpstreamStage, slower: Sequence[str]
) -> None:
    jobs = [f"train-{i}" for i in range(5)]
    with stage.stopped(*slower):
        for job in jobs:
            stage.submit_job(job)
        for job in jobs:
            stage.await_group(job)

    stage.await_bound("train", 2 * len(jobs))
    stage.await_calm()
    for job in jobs:
        (group,) = stage.groups_of(job)
        assert len(stage.workloads_of(job)) == 1
        assert stage.named_groups(job) == [group["metadata"]["name"]] * 2


def test_a_gang_that_upstream_has_made_waits_whole_and_runs_whole(stage: UpstreamStage) -> None:
    stage.submit_job("first", cpu="30", parallelism=8, completions=8, scheduling=gang())
    stage.await_bound("first", 8)

    with stage.stopped(_OURS):
        stage.submit_job("second", cpu="30", parallelism=8, completions=8, scheduling=gang())
        group = stage.await_group("second")
    stage.await_reason(group["metadata"]["name"], "NoCapacity")
    assert not stage.bound("second")

    stage.delete_job("first")
    stage.await_bound("second", 8)


@pytest.mark.parametrize("slower", [[_UPSTREAM], [_OURS]], ids=["we are faster", "upstream is faster"])
def test_the_min_count_that_a_job_asks_for_follows_its_change_and_nobody_fights_over_it(
    stage: UpstreamStage, slower: Sequence[str]
) -> None:
    with stage.stopped(*slower):
        stage.submit_job("elastic", parallelism=4, completions=4, scheduling=gang(minCount=2))
        stage.await_group("elastic")
    stage.await_bound("elastic", 4)

    stage.change_job("elastic", scheduling=gang(minCount=3))

    asked = {"gang": {"minCount": 3}}
    eventually("the PodGroup", lambda: stage.groups_of("elastic")[0]["spec"]["schedulingPolicy"] == asked)
    stage.await_calm()
    assert stage.groups_of("elastic")[0]["spec"]["schedulingPolicy"] == asked
    assert stage.workloads_of("elastic")[0]["spec"]["podGroupTemplates"][0]["schedulingPolicy"] == asked


def test_a_pod_group_that_both_would_free_goes_with_its_last_pod(stage: UpstreamStage) -> None:
    stage.submit_job("done")
    stage.await_bound("done", 2)
    group = stage.groups_of("done")[0]["metadata"]["name"]

    stage.delete_group(group)
    assert stage.groups() == {group}
    stage.delete_job("done")

    eventually("the PodGroup's end", lambda: not stage.groups())
    stage.await_calm()
