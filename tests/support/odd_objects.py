"""Hypothesis strategies: odd JSON, and objects of every kind that the feed follows with something odd in them."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from serried.api.preference import Level
from serried.feed import Kind
from tests.support.budgets import budget
from tests.support.builders import RACK, compatible_group, job, node, pod, pod_group, workload
from tests.support.composites import composite
from tests.support.devices import claim, counters, device_class, devices, taint_rule
from tests.support.parents import job_set, leader_worker_set
from tests.support.priorities import priority_class
from tests.support.volumes import csi_driver, csi_node, storage_capacity, storage_class, volume, volume_claim

Raw = dict[str, Any]

NUMBERS: list[Any] = [0, -1, 1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**64, 0.5, -0.0, 1e300, 1.0, True]

TEXTS = [
    *("", " ", "0", "-0", "+1", "007", "1_000", "1e400", "-1e400", "1e-400", "9" * 500, "0x10", "NaN", "inf", "null"),
    *("1Ki", "1.5Gi", ".5", "1.", "1e3Mi", "100m", "1n", "1E", "1e", "Ki", "1KiB", "\u0661\u0662", "\u00bd", "\u0967k"),
    *("2026-11-22T10:00:00Z", "2026-13-45T99:99:99Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:60.999999999+23:59"),
    *("+10000-01-01T00:00:00Z", "-1", "50%", "-1%", "1e3%", "%", "a/b", "a/b/c", "/", "..", "a:b", "composite:g"),
    *("\x00", "a\nb", "\u202e", "\U0001f4a9", "\ufeff", "e\u0301", "{", "[1,2]", '{"a": 1}', "a=1,b=2", "x" * 10_000),
]  # fmt: skip

Scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)

Json = st.recursive(
    Scalars | st.sampled_from(NUMBERS) | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
"""Any JSON value."""

_LABEL_SELECTOR = {
    "matchLabels": {"a": "b"},
    "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["d"]}, {"key": "e", "operator": "Exists"}],
}
_NAMED = {"name": "default", "uid": "u", "resourceVersion": "1"}
_POLICY = {
    "default": "1Gi",
    "validValues": ["1Gi", "2Gi"],
    "validRange": {"min": "1Gi", "max": "2Gi", "step": "1Gi"},
}
_TERMS = [
    {
        "matchExpressions": [{"key": "a", "operator": "Gt", "values": ["5"]}],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
    }
]

_AT_THE_LEVEL: Mapping[Kind, tuple[Raw, ...]] = {
    Kind.PODS: (
        pod("p").cpu("100m").memory("1Gi").in_group("g").of_job("j", 1).tolerating().gate().node_selector("a", "b")
        .node_affinity({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}], "matchFields": []})
        .with_field([{"name": "side", "restartPolicy": "Always"}], "spec", "initContainers")
        .with_field([{"name": "main", "allocatedResources": {"cpu": "1"}, "resources": {}}], "status",
                    "containerStatuses")
        .with_field([{"type": "PodResizePending", "reason": "Infeasible"}], "status", "conditions")
        .with_field(3600, "spec", "activeDeadlineSeconds").with_field("2026-11-22T10:00:00Z", "status", "startTime")
        .with_field("2026-11-22T10:00:00Z", "metadata", "deletionTimestamp")
        .raw(),
        pod("p").label("a", "b").host_port(80, "10.0.0.1").anti_affinity({"a": "b"}, namespaces=["default"])
        .anti_affinity({}, namespaceSelector={},
                       labelSelector={"matchExpressions": [{"key": "a", "operator": "Exists"}]})
        .with_field([{"name": "c", "resourceClaimTemplateName": "t"}], "spec", "resourceClaims").raw(),
        pod("p").mounting("c").of_job_set("s", "a").raw(),
        pod("p").of_replica("s", 1, 2).raw(),
    ),
    Kind("pods.leaderworkersets"): (pod("p").of_replica("s", 1, 0).raw(),),
    Kind.NODES: (node("n").rack("r").taint("t").cordoned().raw(),),
    Kind.POD_GROUPS: (
        pod_group("g").gang(2).topology().from_template("w", "t").condition("False",
                                                                            "Unschedulable").finalizer("f").raw(),
        pod_group("g").gang(2).topology().preferring(Level("a", 1), Level("b")).raw(),
    ),
    Kind.COMPOSITES: (composite("c").gang(2).topology().priority(1).child_of("d").raw(),),
    Kind.COMPATIBLE_POD_GROUPS: (
        compatible_group("g").gang(2).timeout(30).topology().phase("Running").controlled_by("PyTorchJob", "t").raw(),
    ),
    Kind.WORKLOADS: (workload("w").for_job("j").gang_template("t", 2, RACK).preferring(Level("a", 1)).raw(),),
    Kind.JOBS: (job("j").size(2).topology().condition("Complete").controlled_by("CronJob", "c").raw(),),
    Kind("jobsets"): (
        job_set("s").gang_policy().replicated("a", 2, 3,
                                              dependsOn=[{"name": "b"}]).in_order().condition("Failed").raw(),
    ),
    Kind("leaderworkersets"): (
        leader_worker_set("s").gang_policy().size(2, 3).startup_leader_ready().topology().max_surge("30%").raw(),
    ),
    Kind.PRIORITY_CLASSES: (priority_class("c", 7).default().never().raw(),),
    Kind.VOLUMES: (
        volume("v").local_to("n").available("s").claim_ref("c").label("topology.kubernetes.io/zone", "a__b").raw(),
        volume("v").with_field({"nodeSelectorTerms": _TERMS}, "spec", "nodeAffinity", "required").raw(),
    ),
    Kind.VOLUME_CLAIMS: (
        volume_claim("c").bound_to("v").raw(),
        volume_claim("c").requesting("s").selected_node("n").with_field(_LABEL_SELECTOR, "spec", "selector").raw(),
    ),
    Kind.STORAGE_CLASSES: (storage_class("s").allowed_topology("a", "b").raw(),),
    Kind.STORAGE_CAPACITIES: (storage_capacity("s", "c", "1Gi", a="b").with_field("1Gi", "maximumVolumeSize").raw(),),
    Kind.CSI_DRIVERS: (csi_driver("d").raw(),),
    Kind.CSI_NODES: (csi_node("n", d=2).raw(),),
    Kind.NAMESPACES: ({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {"team": "red"}}},),
    Kind.DEVICE_CLASSES: (device_class("d").extended_resource("example.com/gpu").cel_selectors("true").raw(),),
    Kind.RESOURCE_SLICES: (
        devices("n", 2)
        .attribute("a", {"int": 1}, {"version": "1.0.0"})
        .each_device(capacity={"memory": {"value": "1Gi"}}, taints=[{"key": "k", "effect": "NoSchedule"}])
        .raw(),
        devices("n", 1)
        .nodes_field(nodeSelector={"nodeSelectorTerms": _TERMS})
        .consumed_counters({"s": {"memory": 1}})
        .each_device(capacity={"memory": {"value": "4Gi", "requestPolicy": _POLICY}}, bindingConditions=["ready"])
        .raw(),
        counters("n", {"s": {"memory": 4}}).raw(),
    ),
    Kind.RESOURCE_CLAIMS: (
        claim("c", 2).constraint(matchAttribute="d/a").allocated("n", "gpu-0", consumers=("p",)).raw(),
        claim("c").request("r", capacity={"requests": {"memory": "1Gi"}}).allocated_share("n", "gpu-0",
                                                                                          memory="1Gi").raw(),
        claim("c")
        .first_available("r", {"selectors": [{"cel": {"expression": "true"}}]}, {"tolerations": [{"key": "k"}]})
        .raw(),
    ),
    Kind.DEVICE_TAINT_RULES: (taint_rule("t", driver="d", device="gpu-0").raw(),),
    Kind.TOPOLOGY_LEVELS: (
        {
            "metadata": _NAMED,
            "spec": {"levels": [{"name": "rack", "labels": ["r"]}]},
            "status": {
                "levels": [{"name": "rack", "labels": ["r"]}],
                "pools": [{"resource": "", "nodes": 1, "labels": [{"level": "rack", "label": "r", "nodes": 1}]}],
            },
        },
    ),
    Kind.KUEUE_TOPOLOGIES: (
        {"metadata": _NAMED, "spec": {"levels": [{"nodeLabel": "r", "alias": "rack"}]}},
    ),
    Kind.GROVE_BINDINGS: ({"metadata": _NAMED, "spec": {"levels": [{"domain": "rack", "key": "r"}]}},),
    Kind.BUDGETS: (
        budget("b").disruptions_allowed(2).with_field(_LABEL_SELECTOR, "spec", "selector")
        .with_field({"p": "t"}, "status", "disruptedPods").always_allow_unready()
        .with_field(1, "status", "currentHealthy").with_field(1, "status", "desiredHealthy")
        .with_field(1, "status", "observedGeneration").with_field(1, "metadata", "generation").raw(),
    ),
}  # fmt: skip
SPECIMENS: Mapping[Kind, tuple[Raw, ...]] = {
    **_AT_THE_LEVEL,
    Kind.SECOND_POD_GROUPS: _AT_THE_LEVEL[Kind.POD_GROUPS],
    Kind.SECOND_COMPOSITES: _AT_THE_LEVEL[Kind.COMPOSITES],
    Kind.SECOND_WORKLOADS: _AT_THE_LEVEL[Kind.WORKLOADS],
}
"""For each kind: objects that have every field that Serried reads. A test checks that no kind is missing."""

LEASE: Raw = {
    "metadata": {"name": "l", "namespace": "default", "resourceVersion": "1"},
    "spec": {"holderIdentity": "h", "renewTime": "2026-11-22T10:00:00.000000Z", "leaseDurationSeconds": 15},
}

CLAIM_TEMPLATE: Raw = {
    "metadata": {"name": "t", "namespace": "default"},
    "spec": {"spec": claim("c", 2).constraint(matchAttribute="d/a").raw()["spec"]},
}

NODE_POOL: Raw = {
    "metadata": {"name": "p"},
    "spec": {
        "limits": {"cpu": "10"},
        "template": {
            "metadata": {"labels": {"a": "b"}},
            "spec": {
                "requirements": [{"key": "k", "operator": "In", "values": ["v"]}],
                "taints": [{"key": "t", "value": "v", "effect": "NoSchedule"}],
            },
        },
    },
    "status": {"resources": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
}

RECORD: Raw = {
    "metadata": {"name": "g", "namespace": "default", "uid": "u", "resourceVersion": "1"},
    "spec": {
        "podGroup": "g",
        "podGroupUID": "u",
        "phase": "Planned",
        "domain": "r",
        "term": "t/1",
        "minCount": 2,
        "packed": "",
        "slots": [{"node": "n", "members": [{"uid": "a", "name": "a", "podGroup": "p"}]}],
        "parts": [{"podGroup": "p", "minCount": 1}],
        "victims": [{"uid": "v", "namespace": "default", "name": "v", "podGroup": "w"}],
    },
}


@st.composite
def odd_objects(draw: st.DrawFn, *specimens: Raw) -> Any:
    """Draw one of ``specimens`` (default: all SPECIMENS) with odd values in one or two places, at any depth."""
    spoiled: Any = draw(st.sampled_from(specimens or [raw for kind in SPECIMENS.values() for raw in kind]))
    for _ in range(draw(st.integers(1, 2))):
        spoiled = _spoil(draw, spoiled)
    return spoiled


def _spoil(draw: st.DrawFn, value: Any) -> Any:
    if not value or not isinstance(value, dict | list) or draw(st.integers(0, 7)) == 0:
        return _replace(draw, value)
    if isinstance(value, list):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], _spoil(draw, value[place]), *value[place + 1 :]]
    key = draw(st.sampled_from(sorted(value)))
    if draw(st.integers(0, 7)) == 0:
        return {name: each for name, each in value.items() if name != key}
    return {**value, key: _spoil(draw, value[key])}


def _replace(draw: st.DrawFn, value: Any) -> Any:
    match draw(st.integers(0, 9)):
        case 0:
            return [value] * draw(st.sampled_from([0, 2, 2_000]))
        case 1:
            return {f"key-{at}": value for at in range(draw(st.sampled_from([0, 2, 2_000])))}
        case 2:
            return _nest(draw, value)
        case 3 | 4 | 5:
            return draw(st.sampled_from(TEXTS))
        case 6:
            return draw(st.sampled_from(NUMBERS))
    return draw(Json)


def _nest(draw: st.DrawFn, value: Any) -> Any:
    """Return a value nested many times in itself, under a field name that decoders read at every depth."""
    key = draw(st.sampled_from(sorted(value))) if isinstance(value, dict) and value else "a"
    for _ in range(draw(st.sampled_from([2, 200]))):
        value = {**value, key: value} if isinstance(value, dict) else [value]
    return value
