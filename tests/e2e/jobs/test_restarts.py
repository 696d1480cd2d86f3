"""A controller that dies and comes back while Jobs are created: each Job gets its objects once."""

import signal
from functools import partial

import pytest

from tests.e2e.jobs.stage import JobStage
from tests.support.cluster_stage import eventually
from tests.support.clusters import at_one_level

pytestmark = pytest.mark.e2e


@pytest.mark.full
def test_killed_again_and_again_it_makes_one_workload_and_one_pod_group_for_each_job(stage: JobStage) -> None:
    unfinished = 0
    jobs = [f"train-{i}" for i in range(30)]
    for begin in range(0, len(jobs), 5):
        stage.cluster.await_ready("controller")
        some = jobs[begin : begin + 5]
        for job in some:
            stage.submit_job(job)
        if begin % 2:
            eventually("the first Workload", partial(stage.workloads_of, some[0]))
        # Else it dies at once, before it can have made everything: it is faster than a look at what it has made.
        stage.cluster.kill("controller", signal.SIGKILL)
        unfinished += sum(1 for job in some if not stage.groups_of(job))
        stage.cluster.start("controller")

    stage.await_bound("train", 2 * len(jobs), 60)
    assert unfinished > 0
    assert [(len(stage.workloads_of(job)), len(stage.groups_of(job))) for job in jobs] == [(1, 1)] * len(jobs)


@at_one_level("native")
@pytest.mark.parametrize(
    "resource",
    [
        pytest.param("workloads", id="before the Workload", marks=pytest.mark.full),
        pytest.param("podgroups", id="between Workload and PodGroup"),
    ],
)
def test_killed_before_a_write_the_next_process_does_what_is_left(stage: JobStage, resource: str) -> None:
    with stage.refused("CREATE", resource):
        stage.submit_job("train", parallelism=4, completions=4)
        kind = {"workloads": "Workload", "podgroups": "PodGroup"}[resource]
        eventually("the refusal", lambda: f"Failed{kind}Create" in dict(stage.events("train")))
        stage.cluster.kill("controller", signal.SIGKILL)
        stage.await_reason("job:train", "PodGroupMissing")
        stage.create_pods(["plain"])
        stage.await_bound("plain", 1)
        assert not stage.bound("train")
        before = stage.uids_of("train")
    stage.cluster.start("controller")

    stage.await_bound("train", 4)
    assert stage.counts("train") == [4, 4]
    assert before < stage.uids_of("train")
