"""Nodes, PodGroups, Workloads, Jobs and Leases."""

from typing import Any

import pytest

from serried.api.group import BASIC, FirstQuorum, Policy, Template, decode_composite, decode_pod_group, decode_workload
from serried.api.names import REQUIRED_TOPOLOGY, Disruption, GroupKey, Key, Malformed, OwnerRef
from serried.api.node import Node, decode_node
from serried.api.selectors import Taint
from serried.kube.election import Lease, decode_lease
from tests.support.builders import RACK, JobBuilder, PodGroupBuilder, job, node, pod_group, workload
from tests.support.composites import composite


def test_a_node_has_what_is_allocatable() -> None:
    decoded = node("n").cpu("31500m").memory("1Ki").pods(9).allocatable("example.com/gpu", 4).rack("r").version("3")
    assert decoded.taint("k", "NoExecute", "v").cordoned().value() == Node(
        name="n",
        allocatable={"cpu": 31500, "memory": 1024, "pods": 9, "example.com/gpu": 4},
        labels={RACK: "r"},
        taints=(Taint("k", "v", "NoExecute"),),
        unschedulable=True,
        version="3",
    )


def test_a_node_that_has_not_reported_yet_has_room_for_nothing() -> None:
    assert decode_node({"metadata": {"name": "n"}}) == Node("n", {})


def test_a_node_with_a_bad_quantity_is_malformed() -> None:
    assert decode_node(node("n").cpu("x").raw()) == Malformed("Node", "n", "'x' is not a quantity")


def test_a_gang_has_its_quorum_its_key_and_where_it_comes_from() -> None:
    group = (
        pod_group("g").gang(3).topology().from_template("w", "t").priority(7).finalizer("f").label("a", "b")
        .controlled_by("Job", "j", "u").value()
    )  # fmt: skip
    assert (group.key, group.uid) == (GroupKey("default", "g"), "podgroup-g")
    assert (group.policy, group.topology_key) == (Policy(3), RACK)
    assert (group.workload, group.template, group.priority) == ("w", "t", 7)
    assert (group.finalizers, group.labels) == (("f",), {"a": "b"})
    assert group.owners == (OwnerRef("Job", "j", "u", controller=True),)
    assert (group.scheduled, group.condition) == (False, None)


def test_a_basic_group_has_no_quorum() -> None:
    assert pod_group("g").value().policy == BASIC


def test_the_condition_of_a_group_is_read_back() -> None:
    waiting = pod_group("g").condition("False", "Unschedulable", "why").value()
    assert (waiting.scheduled, waiting.condition) == (False, ("False", "Unschedulable", "why"))
    assert pod_group("g").condition("True", "Scheduled").value().scheduled


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        pytest.param({}, "schedulingPolicy is not exactly one of basic and gang", id="neither"),
        pytest.param(
            {"basic": {}, "gang": {"minCount": 1}}, "schedulingPolicy is not exactly one of basic and gang", id="both"
        ),
        pytest.param({"gang": {}}, "minCount is less than 1", id="no quorum"),
        pytest.param({"gang": {"minCount": "3"}}, "minCount is not an integer", id="a quorum that is a word"),
        pytest.param({"gang": {"minCount": True}}, "minCount is not an integer", id="a quorum that is true"),
    ],
)
def test_a_group_without_one_policy_is_malformed(policy: object, problem: str) -> None:
    raw = pod_group("g").with_field(policy, "spec", "schedulingPolicy").raw()
    assert decode_pod_group(raw) == Malformed("PodGroup", "default/g", problem)


def test_a_workload_names_its_job_and_its_templates() -> None:
    decoded = workload("w").for_job("j").gang_template("t", 4, RACK).basic_template("b").value()
    assert decoded.job == "j"
    assert decoded.templates == (Template("t", Policy(4), RACK), Template("b", BASIC))


@pytest.mark.parametrize(
    "reference",
    [None, {"apiGroup": "batch", "kind": "CronJob", "name": "j"}, {"apiGroup": "other", "kind": "Job", "name": "j"}],
    ids=["without reference", "of another kind", "of another group"],
)
def test_a_workload_of_something_else_has_no_job(reference: object) -> None:
    assert workload("w").with_field(reference, "spec", "controllerRef").value().job is None


def test_a_workload_with_a_nameless_template_is_malformed() -> None:
    raw = workload("w").basic_template("").raw()
    assert decode_workload(raw) == Malformed("Workload", "default/w", "name is missing")


def test_a_workload_of_a_tree_has_a_job_and_no_templates() -> None:
    child = {"name": "t", "schedulingPolicy": {"gang": {"minCount": 2}}}
    branch = {"name": "c", "schedulingPolicy": {"gang": {"minGroupCount": 1}}, "podGroupTemplates": [child]}
    decoded = workload("w").for_job("j").with_field([branch], "spec", "compositePodGroupTemplates").value()
    assert (decoded.job, decoded.templates) == ("j", ())


def test_a_group_of_a_tree_names_the_one_above_it() -> None:
    assert pod_group("g").gang(2).child_of("c").value().parent == "c"
    assert pod_group("g").gang(2).value().parent is None


def test_a_composite_group_has_its_quorum_of_groups_its_key_and_its_parent() -> None:
    decoded = composite("c").gang(2).topology().child_of("root").priority(7).value()
    assert (decoded.key, decoded.uid) == (Key("default", "c"), "compositepodgroup-c")
    assert (decoded.min_group_count, decoded.topology_key, decoded.parent) == (2, RACK, "root")
    assert decoded.priority == 7
    assert composite("c").value().min_group_count is None


def test_the_key_of_a_composite_group_may_be_an_annotation_where_the_field_is_dropped() -> None:
    assert composite("c").annotation(REQUIRED_TOPOLOGY, RACK).value().topology_key == RACK


@pytest.mark.parametrize(
    ("mode", "disruption"),
    [
        pytest.param(None, Disruption.SINGLE, id="it does not say"),
        pytest.param({"single": {}}, Disruption.SINGLE, id="one by one"),
        pytest.param({"all": {}}, Disruption.ALL, id="all together"),
        pytest.param({"all": None, "single": {}}, Disruption.SINGLE, id="the other one is null"),
        pytest.param("Pod", Disruption.SINGLE, id="one by one in v1alpha2"),
        pytest.param("PodGroup", Disruption.ALL, id="all together in v1alpha2"),
        pytest.param("Sometimes", Disruption.SINGLE, id="a word that is not known"),
        pytest.param({"some": {}}, Disruption.SINGLE, id="a mode that is not known"),
    ],
)
def test_the_disruption_mode_of_a_group_is_single_unless_it_says_all(mode: Any, disruption: Disruption) -> None:
    assert pod_group("g").with_field(mode, "spec", "disruptionMode").value().disruption is disruption
    assert composite("c").with_field(mode, "spec", "disruptionMode").value().disruption is disruption


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        pytest.param({}, "schedulingPolicy is not exactly one of basic and gang", id="none"),
        pytest.param(
            {"basic": {}, "gang": {"minGroupCount": 1}},
            "schedulingPolicy is not exactly one of basic and gang",
            id="both",
        ),
        pytest.param({"gang": {"minGroupCount": 0}}, "minGroupCount is less than 1", id="a quorum of nobody"),
    ],
)
def test_a_composite_group_without_a_clear_policy_is_malformed(policy: dict[str, Any], problem: str) -> None:
    raw = composite("c").with_field(policy, "spec", "schedulingPolicy").raw()
    assert decode_composite(raw) == Malformed("CompositePodGroup", "default/c", problem)


def test_a_job_has_what_eligibility_asks() -> None:
    decoded = (
        job("j").size(4).scheduler("serried").topology().controlled_by("CronJob", "c").completed_indexes("0-1").value()
    )
    assert (decoded.parallelism, decoded.completions, decoded.indexed) == (4, 4, True)
    assert (decoded.scheduler, decoded.topology_key, decoded.completed) == ("serried", RACK, 2)
    assert decoded.owner == OwnerRef("CronJob", "c", "cronjob-c", controller=True)
    assert (decoded.suspended, decoded.finished, decoded.deleting) == (False, False, False)


def test_an_empty_job_runs_one_pod_and_has_no_completions() -> None:
    decoded = job("j").with_field({}, "spec").value()
    assert (decoded.parallelism, decoded.completions, decoded.indexed) == (1, None, False)


def test_a_job_without_completions_has_none_but_zero_is_zero() -> None:
    assert job("j").with_field(None, "spec", "completions").value().completions is None
    assert job("j").size(0, 0).value().completions == 0


@pytest.mark.parametrize(
    ("builder", "group"),
    [
        pytest.param(job("j"), None, id="none"),
        pytest.param(job("j").template_group("g"), GroupKey("default", "g"), id="by field"),
        pytest.param(
            job("j").with_field("g", "spec", "template", "metadata", "labels", "scheduling.serried.dev/pod-group"),
            GroupKey("default", "g"),
            id="by label",
        ),
    ],
)
def test_a_job_template_may_name_a_group(builder: JobBuilder, group: GroupKey | None) -> None:
    assert builder.value().group == group


@pytest.mark.parametrize(
    ("condition", "finished"),
    [
        ("Complete", True),
        ("Failed", True),
        ("SuccessCriteriaMet", False),
        ("FailureTarget", False),
        ("Suspended", False),
    ],
)
def test_a_job_is_finished_when_its_last_pod_has_ended(condition: str, finished: bool) -> None:  # noqa: FBT001
    assert job("j").condition(condition).value().finished is finished


def test_a_condition_that_is_not_true_does_not_finish_a_job() -> None:
    raw = job("j").with_item({"type": "Complete", "status": "False"}, "status", "conditions")
    assert not raw.value().finished


def test_a_lease_has_a_holder_or_none() -> None:
    spec = {"holderIdentity": "pod-1_x", "renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15}
    assert decode_lease({"spec": spec}) == Lease("pod-1_x", 1_767_225_600, 15)
    assert decode_lease({}) == Lease("")
    assert isinstance(decode_lease({"spec": []}), Malformed)


@pytest.mark.parametrize(
    ("builder", "place"),
    [
        pytest.param(pod_group("g").gang(2), None, id="none of a gang that has not waited"),
        pytest.param(
            pod_group("g").gang(2).first_quorum("1970-01-01T00:01:40Z"), FirstQuorum(100), id="that of one that waits"
        ),
        pytest.param(
            pod_group("g").gang(2).first_quorum("1970-01-01T00:01:40Z", lost="1970-01-01T00:05:00Z"),
            FirstQuorum(100, lost=300),
            id="that of one whose quorum is lost, and since when",
        ),
        pytest.param(pod_group("g").gang(2).first_quorum("yesterday"), None, id="none where the date is no date"),
        pytest.param(
            pod_group("g").gang(2).first_quorum("1970-01-01T00:01:40Z", lost="today"),
            None,
            id="none where the loss has no date",
        ),
    ],
)
def test_the_place_of_a_gang_is_read_from_its_condition(builder: PodGroupBuilder, place: FirstQuorum | None) -> None:
    assert builder.value().first_quorum == place
