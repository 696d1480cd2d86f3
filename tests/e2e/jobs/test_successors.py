"""A gang that changes its size where minCount is immutable (1.35, 1.36) gets new objects before the old ones go."""

import signal

import pytest

from bench.cluster.errors import ClusterError
from tests.e2e.jobs.stage import JobStage
from tests.support.cluster_stage import eventually
from tests.support.clusters import on_older_kubernetes

pytestmark = pytest.mark.e2e

in_1_35 = pytest.mark.parametrize("cluster", [on_older_kubernetes("1.35.4", "native")], indirect=True)
in_1_36 = pytest.mark.parametrize("cluster", [on_older_kubernetes("1.36.4", "native")], indirect=True)


@in_1_35
def test_a_running_gang_grows_and_shrinks_with_its_job(stage: JobStage) -> None:
    stage.submit_job("train", cpu="30", parallelism=4, completions=4)
    stage.await_bound("train", 4)
    first = stage.bound("train")

    stage.resize_job("train", 6)
    stage.await_count("train", 6)
    stage.await_bound("train", 6)
    assert first.items() <= stage.bound("train").items()

    stage.resize_job("train", 3)
    stage.await_count("train", 3)
    stage.await_bound("train", 3)
    assert stage.bound("train").items() <= first.items()

    stage.resize_job("train", 6)
    stage.await_count("train", 6)
    stage.await_bound("train", 6)


@in_1_35
def test_new_pods_of_a_grown_gang_are_held_also_where_they_would_fit_one_by_one(stage: JobStage) -> None:
    stage.submit_job("train", cpu="30", parallelism=4, completions=4)
    stage.submit_job("filler", cpu="30", parallelism=8, completions=8)
    stage.await_bound("", 12)
    first, since = stage.bound("train"), stage.revision()

    stage.resize_job("train", 6)
    stage.await_count("train", 6)
    (successor,) = stage.workloads_of("train")
    stage.await_reason(stage.group_of_job("train"), "NoCapacity")
    stage.delete_pods(*list(stage.bound("filler"))[:1])
    stage.create_pods(["plain"], cpu="30")
    eventually("a node for one of them", lambda: len(stage.bound("")) == 12)
    assert stage.bound("train") == first

    stage.delete_job("filler")
    stage.await_bound("train", 6)
    assert first.items() <= stage.bound("train").items()
    came = int(successor["metadata"]["resourceVersion"])
    assert stage.workloads_since(since) == [came]
    assert min(stage.bindings_since(since, "train")) > came


@in_1_35
def test_killed_before_the_old_workload_goes_the_next_process_deletes_it(stage: JobStage) -> None:
    stage.submit_job("train", cpu="30", parallelism=4, completions=4)
    stage.await_bound("train", 4)
    first, old = stage.bound("train"), stage.uids_of("train")
    with stage.refused("DELETE", "workloads"):
        stage.resize_job("train", 6)
        # The new one counts while the old one is still there.
        stage.await_bound("train", 6)
        eventually("old and new", lambda: len(stage.uids_of("train")) == 2 and old <= stage.uids_of("train"))
        stage.cluster.kill("controller", signal.SIGKILL)
    stage.cluster.start("controller")

    stage.await_count("train", 6)
    assert not old & stage.uids_of("train")
    assert first.items() <= stage.bound("train").items()


@in_1_35
def test_killed_before_the_new_workload_comes_the_old_one_holds_the_pods(stage: JobStage) -> None:
    stage.submit_job("train", cpu="30", parallelism=13, completions=13)
    stage.await_reason(stage.group_of_job("train"), "NoCapacity")
    with stage.refused("CREATE", "workloads"):
        stage.resize_job("train", 12)
        eventually("the refusal's event", lambda: "FailedWorkloadCreate" in dict(stage.events("train")))
        stage.cluster.kill("controller", signal.SIGKILL)
        eventually("12 pods", lambda: len(stage.pods("train")) == 12)
        stage.await_reason(stage.group_of_job("train"), "QuorumMissing")
        assert not stage.bound("train")
    stage.cluster.start("controller")

    stage.await_bound("train", 12)
    stage.await_count("train", 12)


@in_1_36
def test_1_36_itself_refuses_that_a_gang_changes_its_size(stage: JobStage) -> None:
    stage.submit_job("train", parallelism=4, completions=4)
    stage.await_bound("train", 4)
    with pytest.raises(ClusterError, match="cannot change parallelism for a Job referencing gang-scheduled PodGroup"):
        stage.resize_job("train", 6)


@in_1_36
def test_a_job_that_was_resized_before_its_pod_group_came_runs_whole_at_its_new_size(stage: JobStage) -> None:
    since = stage.revision()
    with stage.refused("CREATE", "podgroups"):
        stage.submit_job("train", parallelism=4, completions=4)
        eventually("the refusal's event", lambda: "FailedPodGroupCreate" in dict(stage.events("train")))
        stage.resize_job("train", 6)
        eventually("its pods", lambda: len(stage.pods("train")) == 6)
        stage.cluster.kill("controller", signal.SIGKILL)

        stage.await_reason("job:train", "PodGroupMissing")
        stage.create_pods(["plain"])
        stage.await_bound("plain", 1)
        assert not stage.bound("train")
    stage.cluster.start("controller")

    stage.await_bound("train", 6)
    stage.await_count("train", 6)
    assert min(stage.bindings_since(since, "train")) > stage.groups_since(since)[0]
