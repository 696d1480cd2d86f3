"""A Job's annotations about its gang are changed when its objects are there already."""

import pytest

from bench.cluster import ClusterError, installation
from tests.support.cluster_stage import RACK, ClusterStage, eventually

pytestmark = pytest.mark.e2e

TOPOLOGY, PACKING = (f"scheduling.serried.dev/{name}" for name in ("required-topology", "packing"))
BINDING = "validatingadmissionpolicybinding/serried-job-gang-policy"


def annotate(stage: ClusterStage, job: str, name: str, value: str) -> None:
    stage.cluster.kubectl("annotate", "job", job, "-n", stage.namespace, "--overwrite", f"{name}={value}")


def said(stage: ClusterStage, job: str) -> list[str | None]:
    """The topology key that the PodGroup of a Job was made with."""
    return [group["metadata"].get("annotations", {}).get(TOPOLOGY) for group in stage.groups_of(job)]


def try_to_annotate(stage: ClusterStage, job: str, name: str, value: str) -> bool:
    try:
        annotate(stage, job, name, value)
    except ClusterError:
        return False
    return True


def test_a_job_that_runs_may_not_change_it(stage: ClusterStage) -> None:
    stage.submit_job("train")
    stage.await_bound("train", 2)
    with pytest.raises(ClusterError, match="it is immutable unless the Job is suspended"):
        annotate(stage, "train", TOPOLOGY, RACK)


def test_a_suspended_job_may_and_it_counts_when_it_is_resumed(stage: ClusterStage) -> None:
    # 20 CPU each: without a rack they would be spread over nodes of any.
    stage.submit_job("train", cpu="20", suspend=True, parallelism=3, completions=3)
    stage.await_group("train")
    annotate(stage, "train", TOPOLOGY, RACK)
    eventually("a PodGroup that says it", lambda: said(stage, "train") == [RACK])
    stage.change_job("train", suspend=False)
    stage.await_bound("train", 3)
    assert len(stage.racks("train")) == 1
    assert "GangChangeIgnored" not in {reason for reason, _ in stage.events("train")}


@pytest.mark.full
def test_without_the_policy_a_job_that_runs_hears_that_it_changes_nothing(stage: ClusterStage) -> None:
    stage.submit_job("train")
    stage.await_bound("train", 2)
    stage.cluster.kubectl("delete", BINDING)
    try:
        eventually("a change", lambda: try_to_annotate(stage, "train", PACKING, "spread"))
        eventually("the event", lambda: "GangChangeIgnored" in {reason for reason, _ in stage.events("train")})
    finally:
        installation.apply(stage.cluster.kubectl_program, stage.cluster.kubeconfig, ["policies"])
