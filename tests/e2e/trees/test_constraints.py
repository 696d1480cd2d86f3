"""The topology key as a field; the native level keeps it with the gate TopologyAwareWorkloadScheduling."""

import pytest

from bench.cluster.nodes import RACK
from tests.e2e.trees.stage import WHOLE_NODE, TreeStage
from tests.support.cluster_stage import Raw, indexed_spec

pytestmark = pytest.mark.e2e

IN_A_RACK: Raw = {"schedulingConstraints": {"topology": [{"key": RACK}]}}


def gang(count: int) -> Raw:
    return {"schedulingPolicy": {"gang": {"minCount": count}}, **IN_A_RACK}


def test_a_pod_group_says_by_the_field_that_its_members_share_a_rack(stage: TreeStage) -> None:
    stage.create_scheduling("PodGroup", "wide", gang(3))
    stage.create_pods([f"wide-{i}" for i in range(3)], "wide", cpu=WHOLE_NODE)
    stage.await_reason("wide", "NoDomainFits", f"3 members do not fit into any domain of {RACK}")
    assert not stage.bound("wide")

    stage.create_scheduling("PodGroup", "fits", gang(2))
    stage.create_pods(["fits-0", "fits-1"], "fits", cpu=WHOLE_NODE)
    stage.await_bound("fits", 2)
    assert len(stage.domains(RACK, "fits")) == 1


def test_a_template_says_it_for_the_pod_group_of_a_job(stage: TreeStage) -> None:
    reference = {"apiGroup": "batch", "kind": "Job", "name": "train"}
    templates = [{"name": "workers", **gang(3)}]
    stage.create_scheduling("Workload", "mine", {"controllerRef": reference, "podGroupTemplates": templates})
    suspended = indexed_spec("serried", WHOLE_NODE) | {"suspend": True}
    stage.submit_job("train", **suspended | {"parallelism": 3, "completions": 3})

    group = stage.await_group("train", "mine")
    assert group["spec"]["schedulingConstraints"] == IN_A_RACK["schedulingConstraints"]
    stage.change_job("train", suspend=False)
    stage.await_reason(group["metadata"]["name"], "NoDomainFits")
    assert not stage.bound("train")


def test_the_annotation_of_a_job_becomes_the_field_of_its_objects(stage: TreeStage) -> None:
    annotated = {"annotations": {"scheduling.serried.dev/required-topology": RACK}}
    stage.submit_job("train", cpu=WHOLE_NODE, metadata=annotated)
    stage.await_bound("train", 2)

    (group,) = stage.groups_of("train")
    (workload,) = stage.workloads_of("train")
    assert group["spec"]["schedulingConstraints"] == IN_A_RACK["schedulingConstraints"]
    assert workload["spec"]["podGroupTemplates"][0]["schedulingConstraints"] == IN_A_RACK["schedulingConstraints"]
    assert len(stage.domains(RACK, "train")) == 1
