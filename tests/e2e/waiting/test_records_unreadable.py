"""The Reservations cannot be read when a term begins: gangs hear why, and nobody else waits for it."""

import signal

import httpx
import pytest

from bench.cluster import installation
from tests.support.cluster_stage import ClusterStage, eventually, names

pytestmark = [pytest.mark.e2e, pytest.mark.full]

CRD = "crd/reservations.scheduling.serried.dev"


def probe(stage: ClusterStage) -> str:
    try:
        return httpx.get(f"{stage.cluster.ops_url}/readyz").text
    except httpx.TransportError:
        return ""


def test_without_their_crd_the_gangs_and_the_probe_say_so_and_plain_jobs_run(stage: ClusterStage) -> None:
    stage.cluster.kill("extender", signal.SIGTERM)
    stage.cluster.kubectl("delete", CRD)
    stage.cluster.start("extender")
    eventually("a probe that answers", lambda: "[+]synced" in probe(stage))
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring")
    stage.submit_job("plain", parallelism=1, completions=1)

    missing = "does not serve reservations.scheduling.serried.dev (v1beta1): install the CRDs"
    view = stage.await_reason("ring", "RecordsUnreadable", missing, seconds=30.0)
    eventually("the condition", lambda: stage.condition("ring") == ("False", "SchedulerError", view["message"]))
    eventually("the event", lambda: ("RecordsUnreadable", view["message"]) in stage.events("ring"))
    assert "[-]records" in probe(stage)
    assert "install the CRDs" in stage.selfcheck()["obstacle"]
    stage.await_bound("plain", 1)
    assert not stage.bound("ring")

    installation.apply(stage.cluster.kubectl_program, stage.cluster.kubeconfig, ["crds"])
    stage.await_bound("ring", 2)
    eventually("a ready extender", lambda: "[+]records" in probe(stage))


def test_their_crd_may_go_while_gangs_wait_and_come_again(stage: ClusterStage) -> None:
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 1), "ring")
    stage.await_reason("ring", "QuorumMissing")
    stage.cluster.kubectl("delete", CRD)
    stage.create_pods(names("ring", 2)[1:], "ring")
    stage.await_reason("ring", "RecordsUnreadable", "install the CRDs", seconds=30.0)
    assert not stage.bound("ring")

    installation.apply(stage.cluster.kubectl_program, stage.cluster.kubeconfig, ["crds"])
    stage.await_bound("ring", 2)
