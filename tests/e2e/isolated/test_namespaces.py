"""In a labelled namespace pods are Serried's, though they name no scheduler or one that an operator has written."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from bench.cluster import Cluster
from serried.api.resources import MARKERS
from tests.e2e.manifests.server import KUSTOMIZE
from tests.support.cluster_stage import SCHEDULER, ClusterStage, eventually

pytestmark = pytest.mark.e2e

CONTAINER = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}


@pytest.fixture(scope="module")
def component(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The component is installed once: API servers do not follow the parameters of a policy that comes back."""
    place = tmp_path_factory.mktemp("namespaces")
    marker, namespaces = (os.path.relpath(KUSTOMIZE / name, place) for name in ("marker", "namespaces"))
    said = {"resources": [marker], "components": [namespaces]}
    (place / "kustomization.yaml").write_text(json.dumps(said))
    cluster.kubectl("apply", "-k", str(place))
    yield
    cluster.kubectl("delete", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "serried-namespaces")
    cluster.kubectl("apply", "-k", str(KUSTOMIZE / "marker"))


@pytest.fixture
def labelled(component: None, stage: ClusterStage) -> ClusterStage:
    """A namespace with the label."""
    stage.cluster.kubectl("label", "namespace", stage.namespace, "scheduling.serried.dev/scheduler=enabled")
    eventually("the policy", lambda: rehearsed(stage)["spec"]["schedulerName"] == SCHEDULER)
    return stage


def rehearsed(stage: ClusterStage, scheduler: str = "", **labels: str) -> dict[str, Any]:
    """Return the pod that the API server would create for such a request (a dry run)."""
    spec = {"containers": [CONTAINER]} | ({"schedulerName": scheduler} if scheduler else {})
    metadata = {"name": "specimen", "namespace": stage.namespace, "labels": labels}
    path = f"/api/v1/namespaces/{stage.namespace}/pods?dryRun=All"
    made: dict[str, Any] = stage.cluster.api.post(path, {"metadata": metadata, "spec": spec})
    return made


def test_a_job_that_names_no_scheduler_is_a_gang(labelled: ClusterStage) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}
    spec = {"parallelism": 3, "completions": 3, "completionMode": "Indexed", "template": template}
    path = f"/apis/batch/v1/namespaces/{labelled.namespace}/jobs"
    labelled.cluster.api.post(path, {"metadata": {"name": "train"}, "spec": spec})
    labelled.await_bound("train", 3)
    (group,) = labelled.cluster.api.get(
        f"/apis/{labelled.cluster.spec.api_version}/namespaces/{labelled.namespace}/podgroups"
    )["items"]
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    # As a file would that names one and is applied again: without the policy a refused change of the template.
    again = json.dumps({"spec": {"template": {"spec": {"schedulerName": "default-scheduler"}}}})
    labelled.cluster.kubectl("-n", labelled.namespace, "patch", "job", "train", "--type", "merge", "-p", again)


def test_a_member_of_a_group_gets_its_markers_whichever_policy_runs_first(labelled: ClusterStage) -> None:
    for _ in range(20):
        made = rehearsed(labelled, **{"scheduling.serried.dev/pod-group": "g"})
        assert made["spec"]["schedulerName"] == SCHEDULER
        assert set(made["spec"]["containers"][0]["resources"]["limits"]) == MARKERS


def test_a_name_that_is_not_listed_is_left_until_it_is(labelled: ClusterStage) -> None:
    assert rehearsed(labelled, "volcano")["spec"]["schedulerName"] == "volcano"
    patch = json.dumps({"data": {"replaced": "default-scheduler,volcano"}})
    labelled.cluster.kubectl(
        "-n", "serried-system", "patch", "configmap", "serried-namespaces", "--type", "merge", "-p", patch
    )
    eventually("the name", lambda: rehearsed(labelled, "volcano")["spec"]["schedulerName"] == SCHEDULER)


def test_other_namespaces_are_left_alone(labelled: ClusterStage) -> None:
    labelled.cluster.kubectl("label", "namespace", labelled.namespace, "scheduling.serried.dev/scheduler-")
    eventually("the label", lambda: rehearsed(labelled)["spec"]["schedulerName"] == "default-scheduler")
