"""Gangs of Jobs are switched off and on again while Jobs come and run, and pods are held by scheduling gates."""

import signal
from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from bench.cluster.components import Name
from tests.e2e.jobs.stage import JobStage
from tests.support.cluster_stage import eventually
from tests.support.clusters import run_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.full]

PROCESSES: tuple[Name, ...] = ("controller", "extender")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Without backfill: the gang that waits for the whole cluster would keep the others away.
    arguments = ("--backfill", "off")
    spec = Spec(name="switch", nodes=12, racks=4, api="fallback", hold="gate", serried_args=arguments)
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


def submit_load(stage: JobStage, prefix: str) -> list[str]:
    names = [f"{prefix}-{i}" for i in range(5)]
    for name in names:
        stage.submit_job(name, cpu="100m")
    return names


def gated(stage: JobStage, prefix: str) -> int:
    return sum(1 for pod in stage.pods(prefix) if pod["spec"].get("schedulingGates"))


def test_off_leaves_alone_what_is_there_and_on_begins_with_what_does_not_run_yet(stage: JobStage) -> None:
    eventually("the way of holding", lambda: stage.selfcheck()["hold"]["way"] == "gate")
    stage.submit_job("runs", cpu="30", parallelism=4, completions=4)
    stage.await_bound("runs", 4)
    stage.submit_job("waits", cpu="30", parallelism=12, completions=12)
    stage.await_reason(stage.group_of_job("waits"), "NoCapacity")
    run_cluster, objects = stage.bound("runs"), stage.uids_of("runs") | stage.uids_of("waits")
    stage.cluster.kill("controller", signal.SIGKILL)
    stage.submit_job("early")
    stage.await_reason("job:early", "PodGroupMissing")
    eventually("both pods", lambda: len(stage.pods("early")) == gated(stage, "early") == 2)

    stage.cluster.start("controller", "--gang-jobs", "none")
    load = submit_load(stage, "before")
    stage.cluster.restart("extender", "--gang-jobs", "none")
    load += submit_load(stage, "after")
    stage.submit_job("half", cpu="30", parallelism=9, completions=9)
    stage.submit_job("stuck", cpu="33")

    # Off: what has no objects gets none, and runs pod by pod as far as it fits.
    for name in load:
        stage.await_bound(f"{name}-", 2)
    stage.await_bound("early", 2)
    stage.await_bound("half", 8)
    eventually("no gates", lambda: gated(stage, "half") == gated(stage, "stuck") == 0 and len(stage.pods("stuck")) == 2)
    assert not any(map(stage.objects_of, [*load, "early", "half", "stuck"]))
    assert stage.uids_of("runs") | stage.uids_of("waits") == objects
    assert stage.bound("runs") == run_cluster
    assert not stage.bound("waits")

    # On: what runs already is left alone, what does not gets its objects, what waited goes on.
    for process in PROCESSES:
        stage.cluster.restart(process, "--gang-jobs", "by-shape")
    load += submit_load(stage, "again")
    stage.await_reason(stage.group_of_job("stuck"), "NoCapacity")
    for name in load[-5:]:
        stage.await_bound(f"{name}-", 2)
        assert stage.counts(name) == [2, 2]
    assert not any(map(stage.objects_of, [*load[:-5], "early", "half"]))
    stage.delete_job("runs")
    stage.delete_job("half")
    stage.await_bound("waits", 12)
