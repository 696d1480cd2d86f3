import pytest

from controller.diff.changes import CreatePodGroup
from controller.diff.objects import job_template, pod_group_body, workload_body
from controller.diff.owner import DesiredAction, make_pod_group_create, make_workload_create
from serried.api.group import PodGroup, Policy, Template, Workload, decode_pod_group, decode_workload
from serried.api.job import Job
from serried.api.level import FALLBACK, NATIVE, NATIVE_LEVELS, V1ALPHA1, V1ALPHA2, V1BETA1, ApiLevel
from serried.api.names import DISRUPTION_MODE, Key, OwnerRef
from serried.api.preference import PACKING, PREFERRED_TOPOLOGY, Level, Preference, Style
from tests.support.builders import RACK, job, workload

NEXT_LEVEL = ApiLevel("native", "scheduling.k8s.io", "v1", like=V1BETA1)
ODD_LEVEL = ApiLevel("native", "scheduling.k8s.io", "v1", like=V1ALPHA2)
V1ALPHA2_LEVEL = ApiLevel("native", "scheduling.k8s.io", V1ALPHA2)
POD_SPEC = ("spec", "template", "spec")
UID = "95969761-09b8-4ecc-a7ba-f5065df1590d"


def from_only_template(owner: Job, made: Workload) -> CreatePodGroup:
    """The create of the PodGroup of a Job's Workload."""
    return make_pod_group_create(owner, made, made.templates[0])


def test_the_workload_has_the_shape_of_upstream() -> None:
    assert workload_body(make_workload_create(job("my-job").uid(UID).size(3).value(), DesiredAction.START), NATIVE) == {
        "apiVersion": "scheduling.k8s.io/v1beta1",
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
    body = pod_group_body(from_only_template(job("my-job").uid(UID).size(3).value(), made), FALLBACK)
    assert body["apiVersion"] == "scheduling.serried.dev/v1beta1"
    assert body["kind"] == "PodGroup"
    assert body["metadata"]["name"] == "my-job-6f8647cfc5-my-job-pgt-0-649bfb59f7"
    assert body["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "serried"
    assert body["metadata"]["annotations"] == {
        "scheduling.serried.dev/owner": "job/my-job",
        "scheduling.serried.dev/required-topology": RACK,
    }
    assert body["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": "my-job",
            "uid": UID,
            "controller": True,
            "blockOwnerDeletion": True,
        },
        {"apiVersion": "scheduling.serried.dev/v1beta1", "kind": "Workload", "name": "my-job-6f8647cfc5", "uid": "w"},
    ]
    assert body["spec"] == {
        "workloadRef": {"workloadName": "my-job-6f8647cfc5", "templateName": "my-job-pgt-0"},
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "schedulingConstraints": {"topology": [{"key": RACK}]},
    }


def test_1_36_names_the_workload_of_a_pod_group_in_its_own_way() -> None:
    made = workload("my-job").gang_template("my-job-pgt-0", 3).value()
    body = pod_group_body(from_only_template(job("my-job").size(3).value(), made), V1ALPHA2_LEVEL)
    assert body["apiVersion"] == "scheduling.k8s.io/v1alpha2"
    assert body["spec"] == {
        "podGroupTemplateRef": {"workload": {"workloadName": "my-job", "podGroupTemplateName": "my-job-pgt-0"}},
        "schedulingPolicy": {"gang": {"minCount": 3}},
    }


def test_1_35_has_the_pod_group_in_the_workload_and_the_topology_key_in_an_annotation() -> None:
    level = ApiLevel("native", "scheduling.k8s.io", V1ALPHA1)
    body = workload_body(make_workload_create(job("train").size(4).topology().value(), DesiredAction.START), level)
    assert body["spec"]["podGroups"] == [{"name": "train-pgt-0", "policy": {"gang": {"minCount": 4}}}]
    assert "podGroupTemplates" not in body["spec"]
    made = decode_workload({**body, "metadata": {**body["metadata"], "uid": "w"}})
    assert isinstance(made, Workload)
    assert (made.inline, made.job) == (True, "train")
    assert made.templates == (Template("train-pgt-0", Policy(4), RACK),)


@pytest.mark.parametrize(
    "level",
    [*(each for each in NATIVE_LEVELS if not each.inline), FALLBACK, NEXT_LEVEL, ODD_LEVEL],
    ids=lambda level: f"{level.api_version} like {level.known_version}",
)
def test_what_is_written_is_read_back(level: ApiLevel) -> None:
    gang = job("train").size(4).topology().value()
    body = workload_body(make_workload_create(gang, DesiredAction.START), level)
    body["metadata"]["uid"] = "w"
    made = decode_workload(body)
    assert isinstance(made, Workload)
    assert made.job == "train"
    assert made.templates == (job_template(gang, Policy(4)),)
    assert made.owners == (OwnerRef("Job", "train", "job-train", controller=True),)
    group_body = pod_group_body(from_only_template(gang, made), level)
    group_body["metadata"]["uid"] = "g"
    group = decode_pod_group(group_body)
    assert isinstance(group, PodGroup)
    assert (group.policy, group.topology_key) == (Policy(4), RACK)
    assert (group.workload, group.template) == (made.key.name, "train-pgt-0")
    second = group_body["metadata"]["ownerReferences"][1]["apiVersion"]
    assert {body["apiVersion"], group_body["apiVersion"], second} == {level.api_version}
    assert group.key.namespace == "default"


def test_the_pod_group_of_a_foreign_workload_follows_its_template() -> None:
    foreign = workload("theirs").for_job("a").basic_template("workers").value()
    body = pod_group_body(from_only_template(job("a").size(4).topology().value(), foreign), NATIVE)
    assert body["spec"]["schedulingPolicy"] == {"basic": {}}
    assert "schedulingConstraints" not in body["spec"]
    assert body["spec"]["workloadRef"] == {"workloadName": "theirs", "templateName": "workers"}


@pytest.mark.parametrize("level", [NATIVE, V1ALPHA2_LEVEL, FALLBACK], ids=lambda level: level.api_version)
def test_everything_that_a_foreign_template_says_reaches_its_pod_group_unchanged(level: ApiLevel) -> None:
    said = {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": RACK}]},
        "disruptionMode": "PodGroup" if level.version == V1ALPHA2 else {"all": {}},
        "priorityClassName": "high",
        "priority": 1000,
        "preemptionPolicy": "Never",
        "resourceClaims": [{"name": "net", "resourceClaimTemplateName": "fabric"}],
    }
    foreign = workload("theirs").for_job("a").with_item({"name": "t", **said}, "spec", "podGroupTemplates").value()
    spec = pod_group_body(from_only_template(job("a").size(4).value(), foreign), level)["spec"]
    assert {name: value for name, value in spec.items() if name in said} == said


def test_what_a_job_says_of_disruption_and_priority_reaches_its_template() -> None:
    gang = (
        job("a").size(2).annotation(DISRUPTION_MODE, "all").with_field("high", *POD_SPEC, "priorityClassName").value()
    )
    (template,) = workload_body(make_workload_create(gang, DesiredAction.START), NATIVE)["spec"]["podGroupTemplates"]
    assert (template["disruptionMode"], template["priorityClassName"]) == ({"all": {}}, "high")


def test_a_job_that_is_only_tracked_has_no_disruption_mode_of_a_gang() -> None:
    tracked = job("a").annotation(DISRUPTION_MODE, "all").value()
    (template,) = workload_body(make_workload_create(tracked, DesiredAction.TRACK), NATIVE)["spec"]["podGroupTemplates"]
    assert template == {"name": "a-pgt-0", "schedulingPolicy": {"basic": {}}}


def test_objects_live_in_the_namespace_of_the_job() -> None:
    there = job("a").namespace("team").size(2).value()
    body = workload_body(make_workload_create(there, DesiredAction.START), NATIVE)
    assert Key(body["metadata"]["namespace"], there.key.name) == there.key


def test_what_a_template_prefers_reaches_the_pod_group_beside_what_the_job_says() -> None:
    levels = (Level(RACK, 30), Level("zone"))
    made = workload("w").gang_template("t", 3, "zone").preferring(*levels).value()
    owner = job("train").size(3).annotation(PREFERRED_TOPOLOGY, "block").annotation(PACKING, "spread").value()
    body = pod_group_body(from_only_template(owner, made), FALLBACK)
    assert body["spec"]["schedulingConstraints"] == {
        "topology": [{"key": "zone"}],
        "preferredTopology": [{"key": RACK, "waitSeconds": 30}, {"key": "zone"}],
    }
    seen = decode_pod_group({**body, "metadata": {**body["metadata"], "uid": "u"}})
    assert isinstance(seen, PodGroup)
    assert seen.preference == Preference(levels, Style.SPREAD)
