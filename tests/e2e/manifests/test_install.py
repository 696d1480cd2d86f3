"""The overlay installs, again and again."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.cluster import ClusterError
from serried import __version__
from tests.e2e.manifests.server import EXTENDER, KUSTOMIZE, NAMESPACE, Json, Server, eventually
from tests.support.clusters import at_one_level
from tests.support.written import read_code_block

pytestmark = [pytest.mark.e2e, at_one_level("fallback", fixture="bare")]

POLICIES = {
    "serried-annotations",
    "serried-controller-groups",
    "serried-extender-deletions",
    "serried-extender-nodes",
    "serried-extender-pod-status",
    "serried-extender-pods",
    "serried-group-priority",
    "serried-job-gang-policy",
    "serried-pod-group-label",
    "serried-reservations",
}


def test_a_second_apply_changes_nothing(server: Server) -> None:
    server.apply("overlays/isolated")  # other stories may have left another shape
    lines = server.apply("overlays/isolated").splitlines()
    assert lines
    # kubectl sends the selector of a PodDisruptionBudget each time (its patchStrategy is "replace"): diff tells more.
    changed = [line for line in lines if not line.endswith(" unchanged")]
    assert [line for line in changed if not line.startswith("poddisruptionbudget.policy/")] == []
    # What a controller writes into a status between the two looks of kubectl diff is a difference, too.
    server.run("wait", "-n", NAMESPACE, "deployment", "--all", "--for=condition=Available", "--timeout=60s")
    assert server.run("diff", "-k", str(KUSTOMIZE / "overlays" / "isolated")) == ""


def test_the_pods_of_the_base_are_admitted_under_the_restricted_profile(server: Server) -> None:
    server.run("wait", "-n", NAMESPACE, "deployment", "--all", "--for=condition=Available", "--timeout=60s")


@pytest.mark.parametrize("overlay", ["control-plane", "elastic-refuse", "gate"])
def test_the_pods_of_each_overlay_would_be_admitted_under_the_restricted_profile(server: Server, overlay: str) -> None:
    rendered = yaml.safe_load_all(server.run("kustomize", str(KUSTOMIZE / "overlays" / overlay)))
    deployments = [each for each in rendered if each["kind"] == "Deployment"]
    assert len(deployments) == 2
    for each in deployments:
        metadata = {"name": f"dry-{overlay}", "namespace": NAMESPACE}
        template = each["spec"]["template"]
        pod = {**template, "apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], **metadata}}
        server.write("create", pod, options=("--dry-run=server",))
        assert "seccompProfile" in server.refusal(
            "create", _without(pod, "/securityContext/seccompProfile"), options=("--dry-run=server",)
        )


@pytest.mark.parametrize(
    ("path", "said"),
    [
        pytest.param("/securityContext/runAsNonRoot", "runAsNonRoot != true", id="root"),
        pytest.param("/securityContext/seccompProfile", "seccompProfile", id="no seccomp"),
        pytest.param(
            "/containers/0/securityContext/allowPrivilegeEscalation", "allowPrivilegeEscalation", id="escalating"
        ),
        pytest.param("/containers/0/securityContext/capabilities", "unrestricted capabilities", id="with capabilities"),
    ],
)
@pytest.mark.parametrize("name", ["serried", "serried-controller"])
def test_pods_of_the_base_that_gave_up_one_lock_would_be_refused(
    server: Server, name: str, path: str, said: str
) -> None:
    template = server.get("deployment", name, "-n", NAMESPACE)["spec"]["template"]
    whole = {**template, "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dry", "namespace": NAMESPACE}}
    server.write("create", whole, options=("--dry-run=server",))
    assert said in server.refusal("create", _without(whole, path), options=("--dry-run=server",))


def _without(pod: Json, path: str) -> Json:
    """A pod that lacks a field of its spec."""
    changed = copy.deepcopy(pod)
    *way, last = path.strip("/").split("/")
    place: Any = changed["spec"]
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    del place[last]
    return changed


def test_the_kustomization_of_the_page_is_valid_and_sets_what_it_says(server: Server, tmp_path: Path) -> None:
    written = read_code_block("docs/install.md", "## How do I install it with kustomize?", "yaml")
    own = written.replace("serried/manifests/kustomize", os.path.relpath(KUSTOMIZE, tmp_path)).replace(
        "REGISTRY", "r.io"
    )
    (tmp_path / "kustomization.yaml").write_text(own)
    server.run("apply", "-k", str(tmp_path), "--dry-run=server")
    objects = yaml.safe_load_all(server.run("kustomize", str(tmp_path)))
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"
    }
    (extender,), (scheduler,) = pods["serried"]["initContainers"], pods["serried"]["containers"]
    assert {"--isolated=on", "--broken-gangs=evict", "--preemption=advice"} <= set(extender["args"])
    assert extender["image"] == pods["serried-controller"]["containers"][0]["image"] == f"r.io/serried:{__version__}"
    assert scheduler["image"] == "registry.k8s.io/kube-scheduler:v1.36.4"


BESIDE = {
    "base": "network-policy",
    "overlays/gate": "network-policy",
    "overlays/isolated": "network-policy",
    "overlays/control-plane": "network-policy-control-plane",
}
"""The overlays that are installed, each with the component of network policies that goes with it."""


@pytest.fixture(params=BESIDE)
def fenced(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A kustomization of an installation and its network policies."""
    home = os.path.relpath(KUSTOMIZE, tmp_path)
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{home}/{request.param}"],
        "components": [f"{home}/{BESIDE[request.param]}"],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def test_an_installation_with_its_network_policies_is_valid(server: Server, fenced: Path) -> None:
    said = server.run("apply", "-k", str(fenced), "--dry-run=server")
    assert "networkpolicy.networking.k8s.io/serried created" in said
    assert "networkpolicy.networking.k8s.io/serried-controller created" in said


def test_network_policies_come_and_go_and_shut_no_port_of_the_pods_out(server: Server, fenced: Path) -> None:
    objects = list(yaml.safe_load_all(server.run("kustomize", str(fenced))))
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    stored = server.write("apply", *policies)
    try:
        for pod in (each["spec"]["template"] for each in objects if each["kind"] == "Deployment"):
            let_in = {port for policy in stored if _selects(policy, pod) for port in _let_in(policy)}
            assert [(name, at) for name, at in _ports(pod["spec"]) if not {name, at} & let_in] == []
    finally:
        server.run("delete", "networkpolicies", "-n", NAMESPACE, *(each["metadata"]["name"] for each in policies))
    assert server.get("networkpolicies", "-n", NAMESPACE)["items"] == []


def _ports(pod: Json) -> list[tuple[str, int]]:
    """Names and numbers of a pod's ports."""
    containers = (*pod.get("initContainers", ()), *pod["containers"])
    return [(port["name"], port["containerPort"]) for container in containers for port in container["ports"]]


def _selects(policy: Json, pod: Json) -> bool:
    wanted: Json = policy["spec"]["podSelector"]["matchLabels"]
    return bool(wanted.items() <= pod["metadata"]["labels"].items())


def _let_in(policy: Json) -> set[str | int]:
    return {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}


def test_the_shape_for_the_cluster_s_own_scheduler_is_valid(server: Server) -> None:
    said = server.run("apply", "-k", str(KUSTOMIZE / "overlays" / "control-plane"), "--dry-run=server")
    for created in (
        "service/serried-verbs",
        "deployment.apps/serried",
        "role.rbac.authorization.k8s.io/serried-extender-election",
    ):
        assert any(line.startswith(f"{created} ") for line in said.splitlines())
    bound = [line for line in said.splitlines() if "rolebinding" in line]
    assert bound
    assert not [line for line in bound if "scheduler" in line]


def test_the_quota_for_their_class_counts_them_and_has_room(server: Server) -> None:
    def used() -> object:
        return server.get("resourcequota", "serried-critical-pods", "-n", NAMESPACE).get("status", {}).get("used")

    eventually(lambda: used() == {"pods": "4"})


def test_no_policy_has_a_type_error(server: Server) -> None:
    def checked() -> bool:
        policies = server.get("validatingadmissionpolicies")["items"]
        ours = [policy for policy in policies if policy["metadata"]["name"].startswith("serried-")]
        assert not any(policy.get("status", {}).get("typeChecking") for policy in ours)
        return {policy["metadata"]["name"] for policy in ours} == POLICIES

    eventually(checked)


def test_bindings_of_the_extender_have_a_priority_level_of_their_own(server: Server) -> None:
    flow = server.get("flowschema", "serried-bindings")
    assert {"Dangling": "False"}.items() <= {c["type"]: c["status"] for c in flow["status"]["conditions"]}.items()
    path = "/api/v1/namespaces/default/pods/none/binding"
    # kubectl shows the answer's headers only in its log, which a failed call brings along.
    with pytest.raises(ClusterError) as refused:
        server.run(
            "create", "--raw", path, "-f", str(KUSTOMIZE / "crds" / "kustomization.yaml"), "--as", EXTENDER, "-v=8"
        )
    assert flow["metadata"]["uid"] in str(refused.value)
