"""The API of Workloads and PodGroups goes and comes back while gangs wait for it."""

import json
import time
from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec, installation
from tests.e2e.jobs.stage import JobStage
from tests.support.cluster_stage import eventually
from tests.support.clusters import run_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.full]

CRDS = ("crd/workloads.scheduling.serried.dev", "crd/podgroups.scheduling.serried.dev")
PROMISED = 10.0
"""Seconds from the API's return until everything is made."""

WATCHED = 20.0
"""Seconds in which every watch has found that its kind is served again: some four, and more beside other work."""


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    spec = Spec(name="api-lost", nodes=6, racks=2, api="fallback", hold="filter")
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


def failures(stage: JobStage, job: str) -> list[str]:
    return [message for reason, message in stage.events(job) if reason == "FailedWorkloadCreate"]


def test_deleted_crds_hold_the_gangs_and_nobody_else_until_they_are_back(fragile: Cluster) -> None:
    stage = JobStage(fragile, "crds")
    fragile.kubectl("delete", *CRDS)
    for name in ("first", "second"):
        stage.create_job(name, 3)
    stage.create_pods(["plain"])

    stage.await_bound("plain", 1)
    for name in ("first", "second"):
        eventually("the events", lambda: failures(stage, "first") and failures(stage, "second"))
        stage.await_reason(f"job:{name}", "WorkloadAPIMissing")
    assert stage.bound() == {"plain": stage.bound()["plain"]}

    installation.apply(fragile.kubectl_program, fragile.kubeconfig, ["crds"])
    eventually("the CRDs", lambda: installation.established(fragile.api))
    back = time.monotonic()
    for name in ("first", "second"):
        stage.await_bound(name, 3, PROMISED)
    assert time.monotonic() - back < PROMISED
    assert [len(failures(stage, name)) for name in ("first", "second")] == [1, 1]
    stage.close()


def test_a_right_that_is_taken_away_holds_the_gangs_until_it_is_given_back(fragile: Cluster) -> None:
    stage = JobStage(fragile, "rights")
    binding = fragile.kubectl("get", "clusterrolebinding", "serried-controller", "-o", "json")
    fragile.kubectl("delete", "clusterrolebinding", "serried-controller")
    for number in range(10):
        stage.create_job(f"train-{number}", 2)
    for number in range(10):
        stage.await_reason(f"job:train-{number}", "PodGroupMissing", seconds=WATCHED)
    assert not stage.bound()

    fragile.api.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", _without_identity(binding))
    stage.await_bound("train", 20, PROMISED)
    stage.close()


def _without_identity(text: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(text)
    found["metadata"] = {"name": "serried-controller"}
    return found
