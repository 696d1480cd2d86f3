import pytest

from controller.desired import desired_template, pod_group_body, workload_body
from serried.decode.groups import decode_pod_group, decode_workload
from serried.model.group import Key, OwnerRef, PodGroup, Policy, Workload
from serried.testing.builders import RACK, job, workload

V1BETA1 = "scheduling.k8s.io/v1beta1"
FALLBACK = "scheduling.serried.dev/v1beta1"
UID = "95969761-09b8-4ecc-a7ba-f5065df1590d"


def test_the_workload_has_the_shape_of_upstream() -> None:
    assert workload_body(job("my-job").uid(UID).size(3).value(), V1BETA1) == {
        "apiVersion": V1BETA1,
        "kind": "Workload",
        "metadata": {
            "namespace": "default",
            "name": "my-job-6f8647cfc5",
            "labels": {"app.kubernetes.io/managed-by": "serried", "scheduling.serried.dev/job-uid": UID},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": "my-job",
                    "uid": UID,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "my-job"},
            "podGroupTemplates": [{"name": "my-job-pgt-0", "schedulingPolicy": {"gang": {"minCount": 3}}}],
        },
    }


def test_the_pod_group_has_the_shape_of_upstream() -> None:
    made = workload("my-job-6f8647cfc5").uid("w").gang_template("my-job-pgt-0", 3, RACK).value()
    body = pod_group_body(job("my-job").uid(UID).size(3).value(), made, FALLBACK)
    assert body["apiVersion"] == FALLBACK
    assert body["kind"] == "PodGroup"
    assert body["metadata"]["name"] == "my-job-6f8647cfc5-my-job-pgt-0-649bfb59f7"
    assert body["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "serried"
    assert body["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": "my-job",
            "uid": UID,
            "controller": True,
            "blockOwnerDeletion": True,
        },
        {"apiVersion": FALLBACK, "kind": "Workload", "name": "my-job-6f8647cfc5", "uid": "w"},
    ]
    assert body["spec"] == {
        "workloadRef": {"workloadName": "my-job-6f8647cfc5", "templateName": "my-job-pgt-0"},
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "schedulingConstraints": {"topology": [{"key": RACK}]},
    }


@pytest.mark.parametrize("version", [V1BETA1, FALLBACK])
def test_what_is_written_is_read_back(version: str) -> None:
    gang = job("train").size(4).topology().value()
    body = workload_body(gang, version)
    body["metadata"]["uid"] = "w"
    made = decode_workload(body)
    assert isinstance(made, Workload)
    assert made.job == "train"
    assert made.templates == (desired_template(gang),)
    assert made.owners == (OwnerRef("Job", "train", "job-train", controller=True),)
    group_body = pod_group_body(gang, made, version)
    group_body["metadata"]["uid"] = "g"
    group = decode_pod_group(group_body)
    assert isinstance(group, PodGroup)
    assert (group.policy, group.topology_key) == (Policy(4), RACK)
    assert (group.workload, group.template) == (made.key.name, "train-pgt-0")
    assert group.key.namespace == "default"


@pytest.mark.parametrize(
    ("parallelism", "completions", "count"),
    [
        pytest.param(8, 8, 8, id="a gang of all"),
        pytest.param(8, 5, 5, id="no more than there is to complete"),
        pytest.param(3, 9, 3, id="no more than run at a time"),
    ],
)
def test_the_quorum_is_the_smaller_of_parallelism_and_completions(
    parallelism: int, completions: int, count: int
) -> None:
    assert desired_template(job("a").size(parallelism, completions).value()).policy == Policy(count)


def test_the_pod_group_of_a_foreign_workload_follows_its_template() -> None:
    foreign = workload("theirs").for_job("a").basic_template("workers").value()
    body = pod_group_body(job("a").size(4).topology().value(), foreign, V1BETA1)
    assert body["spec"]["schedulingPolicy"] == {"basic": {}}
    assert "schedulingConstraints" not in body["spec"]
    assert body["spec"]["workloadRef"] == {"workloadName": "theirs", "templateName": "workers"}


def test_objects_live_in_the_namespace_of_the_job() -> None:
    there = job("a").namespace("team").size(2).value()
    body = workload_body(there, V1BETA1)
    assert Key(body["metadata"]["namespace"], there.key.name) == there.key
