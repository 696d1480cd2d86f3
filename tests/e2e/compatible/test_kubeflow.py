"""Kubeflow's jobs bring a PodGroup of scheduler-plugins: their CRDs are the real ones, their controllers are played.

Each story writes what was seen of the real controller (training-operator 1.8.1 with ``--gang-scheduler-name=serried``,
trainer 2.0.0 with the coscheduling plugin): the same objects, labels and owners in the same order.
"""

from typing import Any

import pytest

from bench.cluster import Cluster
from tests.e2e.compatible.stage import LABEL, CompatibleStage
from tests.support.cluster_stage import RACK, eventually, names, pod_spec
from tests.support.go_modules import locate

pytestmark = pytest.mark.e2e

Raw = dict[str, Any]

OPERATOR = ("github.com/kubeflow/training-operator", "v1.8.1")
TRAINER = ("github.com/kubeflow/trainer/v2", "v2.0.0")
JOB_SET = ("sigs.k8s.io/jobset", "v0.8.2")
CRDS = [
    (*OPERATOR, "manifests/base/crds/kubeflow.org_pytorchjobs.yaml"),
    (*TRAINER, "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml"),
    (*TRAINER, "manifests/base/crds/trainer.kubeflow.org_clustertrainingruntimes.yaml"),
    (*JOB_SET, "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"),
]
TRAINER_API, JOB_SET_API = "trainer.kubeflow.org/v1alpha1", "jobset.x-k8s.io/v1alpha2"
TIMEOUT = {"scheduleTimeoutSeconds": 40}
IN_ONE_RACK = {"scheduling.serried.dev/required-topology": RACK}


@pytest.fixture(scope="module", autouse=True)
def kubeflow(cluster: Cluster) -> None:
    """Create Kubeflow's CRDs and wait until their kinds are served."""
    for module, version, path in CRDS:
        cluster.kubectl("create", "-f", str(locate(module, version) / path))
    cluster.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=30s")


def obj(api: str, kind: str, name: str, spec: Raw, **metadata: Any) -> Raw:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def owner(made: Raw) -> Raw:
    """The owner reference that a controller writes into what it makes for an object."""
    named = {"apiVersion": made["apiVersion"], "kind": made["kind"], "name": made["metadata"]["name"]}
    reference = {**named, "uid": made["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
    return {"ownerReferences": [reference]}


def create_pytorch_job(stage: CompatibleStage, name: str, workers: int) -> Raw:
    """A PyTorchJob in one rack. Its template names no scheduler: training-operator fills in the one of its flag."""
    container = {"name": "pytorch", "image": "none", "resources": {"requests": {"cpu": "16"}}}
    template = {"spec": {"containers": [container]}}
    replicas = {kind: {"replicas": count, "template": template} for kind, count in (("Master", 1), ("Worker", workers))}
    spec = {"runPolicy": {"schedulingPolicy": TIMEOUT}, "pytorchReplicaSpecs": replicas}
    body = obj("kubeflow.org/v1", "PyTorchJob", name, spec, annotations=IN_ONE_RACK)
    return stage.create("kubeflow.org/v1", "pytorchjobs", body)


def create_train_job(stage: CompatibleStage, name: str, nodes: int) -> Raw:
    """A TrainJob, and a runtime with the coscheduling plugin for it."""
    runtime = f"gang-{stage.namespace}"
    spec = {"podGroupPolicy": {"coscheduling": TIMEOUT}, "template": {"spec": job_set_spec(name, nodes)}}
    stage.create_for_all(
        TRAINER_API, "clustertrainingruntimes", obj(TRAINER_API, "ClusterTrainingRuntime", runtime, spec)
    )
    wish = {"runtimeRef": {"name": runtime}, "trainer": {"numNodes": nodes}}
    return stage.create(TRAINER_API, "trainjobs", obj(TRAINER_API, "TrainJob", name, wish))


def job_set_spec(name: str, nodes: int) -> Raw:
    return {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job_spec(name, nodes)}}]}


def job_spec(name: str, nodes: int) -> Raw:
    template = {"metadata": {"labels": {LABEL: name}}, "spec": pod_spec("16") | {"restartPolicy": "Never"}}
    return {"parallelism": nodes, "completions": nodes, "completionMode": "Indexed", "template": template}


def test_a_pytorch_job_runs_whole_in_the_rack_that_its_annotation_asks_for(stage: CompatibleStage) -> None:
    stage.fill_a_node()
    mine = owner(create_pytorch_job(stage, "torch", workers=3))
    # The operator copies the annotations of the job.
    group = {"minMember": 4, "minResources": {"cpu": "64"}, **TIMEOUT}
    stage.create_their_group("torch", group, annotations=IN_ONE_RACK, **mine)
    labels = {"training.kubeflow.org/job-name": "torch", "training.kubeflow.org/operator-name": "pytorchjob-controller"}
    early = ["torch-master-0", *names("torch-worker", 2)]
    stage.create_their_pods(early, "torch", cpu="16", labels=labels, **mine)

    message = "QuorumMissing: 3 of 4 members exist"
    eventually("the event", lambda: ("QuorumMissing", message) in stage.their_events("torch"))
    assert not stage.bound("torch")

    stage.create_their_pods(["torch-worker-2"], "torch", cpu="16", labels=labels, **mine)
    stage.await_bound("torch", 4)
    assert len(stage.racks("torch")) == 1


def test_a_train_job_s_pods_wait_for_the_group_that_follows_them_and_get_no_other(stage: CompatibleStage) -> None:
    trained = owner(create_train_job(stage, "train", nodes=4))
    job_set = stage.create(
        JOB_SET_API, "jobsets", obj(JOB_SET_API, "JobSet", "train", job_set_spec("train", 4), **trained)
    )
    stage.create("batch/v1", "jobs", obj("batch/v1", "Job", "train-node-0", job_spec("train", 4), **owner(job_set)))

    stage.await_reason("compatible:train", "PodGroupMissing")
    assert not stage.bound("train")

    stage.create_their_group("train", {"minMember": 4, "minResources": {}, **TIMEOUT}, **trained)
    stage.await_bound("train", 4)
    eventually("the event", lambda: "Scheduled" in dict(stage.their_events("train")))
    assert not stage.groups()
