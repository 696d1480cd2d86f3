"""The admission policies do what they say."""

import json
from collections.abc import Iterator, Sequence

import pytest

from bench.cluster import ClusterError
from extender.features.asking.member_patches import PROVISIONING_CLASS
from extender.features.status.conditions import format_now
from serried.api.names import ASKED, CONSUMES, PREEMPTED
from tests.e2e.manifests.server import EXTENDER, GROUP, NAMESPACE, Json, Server, changed, eventually, pod

pytestmark = pytest.mark.e2e

HELD = f"{GROUP}/held"
LABEL = f"{GROUP}/pod-group"


def gates_of(item: Json) -> list[str]:
    return [gate["name"] for gate in item["spec"].get("schedulingGates", [])]


@pytest.fixture
def held(server: Server) -> Iterator[str]:
    """A gang's pod with our gate and another's, and an annotation and a node selector of its user."""
    server.run("delete", "pod", "held", "--ignore-not-found", "--force", "--grace-period=0")
    item = pod("held", gates=(HELD, "example.com/quota"), labels={LABEL: "g", "app": "a"}, annotations={"note": "mine"})
    server.write("create", changed(item, "nodeSelector", {"disk": "ssd"}))
    yield "pod/held"
    server.run("delete", "pod", "held", "--force", "--grace-period=0")


LIFTS = {"schedulingGates": [{"$patch": "delete", "name": HELD}]}
"""In a strategic patch; below the same in a merge patch."""
LIFTED = {"schedulingGates": [{"name": "example.com/quota"}]}
ASKS = {"annotations": {ASKED: "2026-11-29T09:30:00Z zone=a"}}
ADDS_ONE_KEY = "may add one key to the node selector of a pod, and only in the write that lifts its gate"

MAY_PATCH = [
    {"spec": LIFTS},
    {"metadata": {"annotations": {f"{GROUP}/kick": "1"}}},
    {
        "metadata": {"annotations": {f"{GROUP}/kick": "1"}},
        "spec": LIFTS,
    },
    {"metadata": ASKS, "spec": {**LIFTS, "nodeSelector": {"zone": "a"}}},
    {"metadata": {"annotations": {CONSUMES: "serried-g-1", PROVISIONING_CLASS: "best-effort-atomic"}}},
]
MAY_NOT_PATCH: list[tuple[object, str]] = [
    (
        {"metadata": {"labels": {"app": "b"}}},
        "may not change labels of pods but scheduling.serried.dev/kick, nor finalizers or owners",
    ),
    (
        {"metadata": {"finalizers": ["example.com/x"]}},
        "may not change labels of pods but scheduling.serried.dev/kick, nor finalizers or owners",
    ),
    ({"metadata": {"annotations": {"note": "yours"}}}, "may change no annotations of pods but its own"),
    ({"metadata": {"annotations": {"note": None}}}, "may change no annotations of pods but its own"),
    ({"spec": {"schedulingGates": None}}, "may remove no scheduling gate but"),
    ({"spec": {"nodeSelector": {"zone": "a"}}}, ADDS_ONE_KEY),
    ({"metadata": ASKS, "spec": {"nodeSelector": {"zone": "a"}}}, ADDS_ONE_KEY),
    ({"spec": {**LIFTED, "nodeSelector": {"zone": "a"}}}, ADDS_ONE_KEY),
    ({"metadata": ASKS, "spec": {**LIFTED, "nodeSelector": {"zone": "a", "rack": "b"}}}, ADDS_ONE_KEY),
    # The API server itself, before the policy: it lets a selector grow alone.
    ({"metadata": ASKS, "spec": {**LIFTED, "nodeSelector": {"disk": "hdd"}}}, "only additions"),
    ({"metadata": ASKS, "spec": {**LIFTED, "nodeSelector": {"zone": "a", "disk": None}}}, "only additions"),
    (
        [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}],
        "may not change the spec of pods",
    ),
    ({"spec": {"containers": [{"name": "c", "image": "other"}]}}, "may not change the spec of pods"),
    ({"spec": {"activeDeadlineSeconds": 5}}, "may not change the spec of pods"),
]


@pytest.mark.parametrize("patch", MAY_PATCH, ids=["ungate", "kick", "both", "ask", "consume"])
def test_the_extender_may_lift_its_gate_and_annotate(server: Server, held: str, patch: Json) -> None:
    server.run("patch", held, "--type", "strategic", "-p", json.dumps(patch), "--as", EXTENDER)
    item = server.get(held)
    assert gates_of(item) == ["example.com/quota"] or "schedulingGates" not in patch.get("spec", {})
    assert item["metadata"]["annotations"]["note"] == "mine"


@pytest.mark.parametrize(("patch", "message"), MAY_NOT_PATCH)
def test_the_extender_may_change_nothing_else(server: Server, held: str, patch: object, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        server.patch(held, patch, "--as", EXTENDER)


def test_the_extender_says_once_where_a_node_is_asked_for(server: Server, held: str) -> None:
    asks = {"metadata": ASKS, "spec": {**LIFTS, "nodeSelector": {"zone": "a"}}}
    server.run("patch", held, "--type", "strategic", "-p", json.dumps(asks), "--as", EXTENDER)
    assert server.get(held)["spec"]["nodeSelector"] == {"disk": "ssd", "zone": "a"}
    with pytest.raises(ClusterError, match=ADDS_ONE_KEY):
        server.patch(held, {"metadata": ASKS, "spec": {"nodeSelector": {"rack": "b"}}}, "--as", EXTENDER)


def test_others_are_not_fenced(server: Server, held: str) -> None:
    server.patch(held, {"metadata": {"labels": {"app": "b"}}, "spec": {"nodeSelector": {"a": "b"}}})


def test_the_extender_may_nominate(server: Server, held: str) -> None:
    server.patch_status("/api/v1/namespaces/default/pods/held", {"nominatedNodeName": "n1"})
    assert server.get(held)["status"]["nominatedNodeName"] == "n1"


def test_the_extender_may_say_that_a_pod_is_preempted_and_the_scheduler_beside_it_why_it_is_pending(
    server: Server, held: str
) -> None:
    said = [{"type": "DisruptionTarget", "status": "True", "reason": PREEMPTED, "lastTransitionTime": format_now()}]
    pending = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": format_now()}
    ]
    server.patch_status("/api/v1/namespaces/default/pods/held", {"conditions": [*said, *pending]})
    assert {each["type"] for each in server.get(held)["status"]["conditions"]} == {"DisruptionTarget", "PodScheduled"}


MAY_NOT_SAY: list[tuple[Json, str]] = [
    ({"status": {"phase": "Succeeded"}}, "nothing of the status of pods but conditions and nominatedNodeName"),
    ({"status": {"podIPs": [{"ip": "10.0.0.1"}]}}, "nothing of the status of pods but"),
    ({"status": {"containerStatuses": []}, "metadata": {"labels": {"app": "b"}}}, "not change the metadata of pods"),
    ({"status": {"message": "done"}}, "nothing of the status of pods but"),
    ({"status": {"resize": "Infeasible"}}, "nothing of the status of pods but"),
    ({"status": {"observedGeneration": 7}}, "nothing of the status of pods but"),
    ({"status": {"allocatedResources": {"cpu": "1"}}}, "nothing of the status of pods but"),
    ({"status": {"resources": {"requests": {"cpu": "1"}}}}, "nothing of the status of pods but"),
    ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "no conditions of pods but DisruptionTarget"),
    ({"metadata": {"annotations": {"note": "yours"}}}, "not change the metadata of pods with their status"),
    ({"metadata": {"finalizers": ["example.com/x"]}}, "not change the metadata of pods with their status"),
]


@pytest.mark.parametrize(("patch", "message"), MAY_NOT_SAY)
def test_the_extender_may_say_nothing_else_of_a_pod(server: Server, held: str, patch: Json, message: str) -> None:
    assert message in server.status_refusal("/api/v1/namespaces/default/pods/held", patch)


def test_the_extender_may_not_say_which_claim_a_pod_has(server: Server) -> None:
    claim = {"name": "gpu", "resourceClaimTemplateName": "gpu"}
    server.write("apply", changed(pod("claiming"), "resourceClaims", [claim]))
    said = {"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "of-another"}]}}
    refusal = server.status_refusal("/api/v1/namespaces/default/pods/claiming", said)
    assert "nothing of the status of pods but" in refusal


def test_others_may_write_statuses(server: Server, held: str) -> None:
    server.patch(held, {"status": {"message": "mine"}}, "--subresource", "status")


def test_the_extender_may_delete_only_those_that_say_that_they_are_preempted(server: Server) -> None:
    server.run("delete", "pod", "victim", "--ignore-not-found", "--force", "--grace-period=0")
    server.write("create", pod("victim"))
    delete = ("delete", "pod/victim", "--force", "--grace-period=0", "--as", EXTENDER)
    # kube-controller-manager takes one back that is older than two minutes.
    said = {"type": "DisruptionTarget", "status": "True", "reason": PREEMPTED, "lastTransitionTime": format_now()}
    for other in ([], [{**said, "status": "False"}], [{**said, "reason": "DeletionByTaintManager"}]):
        server.patch_status("/api/v1/namespaces/default/pods/victim", {"conditions": other})
        with pytest.raises(ClusterError, match="may delete no pods but those that say that they are preempted"):
            server.run(*delete)
    server.patch_status("/api/v1/namespaces/default/pods/victim", {"conditions": [said]})
    server.run(*delete)


@pytest.mark.parametrize("subresource", [(), ("--subresource", "status")], ids=["pod", "status"])
@pytest.mark.parametrize("value", ["other", None], ids=["changed", "removed"])
def test_a_pod_keeps_its_group(server: Server, held: str, subresource: tuple[str, ...], value: str | None) -> None:
    with pytest.raises(ClusterError, match="pod-group is immutable"):
        server.patch(held, {"metadata": {"labels": {LABEL: value}}}, *subresource)


def test_a_pod_joins_no_group_later(server: Server) -> None:
    server.write("apply", pod("single"))
    with pytest.raises(ClusterError, match="is immutable"):
        server.patch("pod/single", {"metadata": {"labels": {LABEL: "g"}}})


def test_a_pod_s_label_names_no_group_of_more_than_63_characters(server: Server) -> None:
    assert "must be no more than 63 bytes" in server.refusal("create", pod("long", labels={LABEL: "g" * 64}))


OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
INDEX = {"batch.kubernetes.io/job-completion-index": "0"}
GATE_CASES = [
    (pod("a", "serried", labels={LABEL: "g"}), [HELD]),
    (pod("b", "serried", ("example.com/quota",), labels={LABEL: "g"}), ["example.com/quota", HELD]),
    (pod("c", "serried", (HELD,), labels={LABEL: "g"}), [HELD]),
    (pod("d", "serried", annotations=INDEX, ownerReferences=[OWNER]), [HELD]),
    (changed(pod("e", "serried"), "schedulingGroup", {"podGroupName": "g"}), [HELD]),
    (pod("f", "serried"), []),
    (pod("g", "serried", annotations=INDEX), []),
    (pod("h", "nobody", labels={LABEL: "g"}), []),
    (pod("i", "serried", labels={"scheduling.x-k8s.io/pod-group": "g"}), [HELD]),
    (changed(pod("j", "serried", labels={LABEL: "g"}), "nodeName", "somewhere"), []),
]


def created_gates(server: Server, cases: Sequence[tuple[Json, list[str]]] = GATE_CASES) -> list[list[str]]:
    objects = [item for item, _ in cases]
    return [gates_of(item) for item in server.write("create", *objects, options=("--dry-run=server",))]


def switch_to(server: Server, hold: str) -> None:
    switch = f"/api/v1/namespaces/{NAMESPACE}/configmaps/serried-hold"
    server.patch_bare(switch, {"data": {"hold": hold}}).raise_for_status()


def test_the_switch_gives_gang_pods_our_gate(server: Server) -> None:
    asked = [gates_of(item) for item, _ in GATE_CASES]
    assert created_gates(server) == asked
    switch_to(server, "gate")
    eventually(lambda: created_gates(server) == [gates for _, gates in GATE_CASES])
    switch_to(server, "filter")
    eventually(lambda: created_gates(server) == asked)


def test_without_the_switch_pods_are_created_ungated(server: Server) -> None:
    server.run("delete", "configmap", "serried-hold", "-n", NAMESPACE)
    try:
        eventually(lambda: created_gates(server) == [gates_of(item) for item, _ in GATE_CASES])
    finally:
        server.apply("gate")


NODE = "/api/v1/nodes/kept"
KARPENTER, CLUSTER_AUTOSCALER = "karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/scale-down-disabled"
MARKER = f"{GROUP}/protects"


@pytest.fixture
def kept(server: Server) -> Iterator[str]:
    """A node, with annotations of its user and what the extender has set."""
    server.run("delete", "node", "kept", "--ignore-not-found")
    annotations = {"note": "mine", CLUSTER_AUTOSCALER: "true", MARKER: f"{NAMESPACE}: {CLUSTER_AUTOSCALER}"}
    metadata = {"name": "kept", "labels": {"zone": "a"}, "annotations": annotations}
    spec = {"taints": [{"key": "kept", "effect": "NoSchedule"}]}
    server.write("create", {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
    yield "node/kept"
    server.run("delete", "node", "kept")


def test_the_extender_may_keep_autoscalers_off_a_node_and_stop_that(server: Server, kept: str) -> None:
    ours = {KARPENTER: "true", MARKER: f"{NAMESPACE}: {CLUSTER_AUTOSCALER}, {KARPENTER}"}
    server.patch_bare(NODE, {"metadata": {"annotations": ours}}).raise_for_status()
    found = server.get(kept)["metadata"]["annotations"]
    assert {key: found[key] for key in ours} == ours
    taken = dict.fromkeys([*ours, CLUSTER_AUTOSCALER])
    server.patch_bare(NODE, {"metadata": {"annotations": taken}}).raise_for_status()
    found = server.get(kept)["metadata"]["annotations"]
    assert found["note"] == "mine"
    assert not found.keys() & taken.keys()


_ANNOTATIONS = "may add and remove no annotations of nodes but"
_REST = "may not change labels, finalizers, owners or the spec of nodes"
MAY_NOT_CHANGE: dict[str, tuple[Json, str]] = {
    "another annotation": ({"metadata": {"annotations": {"note": "yours"}}}, _ANNOTATIONS),
    "a new annotation": ({"metadata": {"annotations": {"example.com/new": "true"}}}, _ANNOTATIONS),
    "another annotation of ours": ({"metadata": {"annotations": {f"{GROUP}/kick": "1"}}}, _ANNOTATIONS),
    "the end of another annotation": ({"metadata": {"annotations": {"note": None}}}, _ANNOTATIONS),
    "another value of what is there": ({"metadata": {"annotations": {CLUSTER_AUTOSCALER: "false"}}}, _ANNOTATIONS),
    "another value than true": ({"metadata": {"annotations": {KARPENTER: "false"}}}, _ANNOTATIONS),
    "a label": ({"metadata": {"labels": {"zone": "b"}}}, _REST),
    "a finalizer": ({"metadata": {"finalizers": ["example.com/x"]}}, _REST),
    "a cordon": ({"spec": {"unschedulable": True}}, _REST),
    "the end of a taint": ({"spec": {"taints": None}}, _REST),
    "its provider": ({"spec": {"providerID": "kwok://kept"}}, _REST),
}


@pytest.mark.parametrize(("patch", "message"), MAY_NOT_CHANGE.values(), ids=MAY_NOT_CHANGE)
def test_the_extender_may_change_nothing_else_of_a_node(server: Server, kept: str, patch: Json, message: str) -> None:
    answer = server.patch_bare(NODE, patch)
    assert answer.status_code in {403, 422}, answer.text
    assert message in answer.json()["message"]


def test_the_extender_may_not_end_what_somebody_else_has_set_with_another_value(server: Server, kept: str) -> None:
    server.patch(kept, {"metadata": {"annotations": {CLUSTER_AUTOSCALER: "false"}}})
    answer = server.patch_bare(NODE, {"metadata": {"annotations": {CLUSTER_AUTOSCALER: None}}})
    assert _ANNOTATIONS in answer.json()["message"]


def test_others_may_change_nodes(server: Server, kept: str) -> None:
    server.patch(kept, {"metadata": {"labels": {"zone": "b"}, "annotations": {KARPENTER: "false"}}})
