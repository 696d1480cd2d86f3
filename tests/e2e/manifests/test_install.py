"""The overlay installs, again and again."""

import pytest

from bench.cluster import ClusterError
from tests.e2e.manifests.server import EXTENDER, KUSTOMIZE, NAMESPACE, Server, eventually

pytestmark = pytest.mark.e2e

POLICIES = {
    "serried-extender-deletions",
    "serried-extender-pods",
    "serried-group-priority",
    "serried-job-gang-policy",
    "serried-pod-group-label",
}


def test_a_second_apply_changes_nothing(server: Server) -> None:
    lines = server.apply("overlays/isolated").splitlines()
    assert lines
    assert [line for line in lines if not line.endswith(" unchanged")] == []
    assert server.run("diff", "-k", str(KUSTOMIZE / "overlays" / "isolated")) == ""


def test_the_pods_of_the_base_are_admitted_under_the_restricted_profile(server: Server) -> None:
    server.run("wait", "-n", NAMESPACE, "deployment", "--all", "--for=condition=Available", "--timeout=60s")


def test_the_quota_for_their_class_counts_them_and_has_room(server: Server) -> None:
    def used() -> object:
        return server.get("resourcequota", "serried-critical-pods", "-n", NAMESPACE).get("status", {}).get("used")

    eventually(lambda: used() == {"pods": "2"})


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
