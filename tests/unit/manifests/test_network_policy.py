"""The component of network policies is about Serried's pods, and lets their ports be reached and nothing else."""

from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from tests.unit.manifests.shipped import MANIFESTS, Document

KUSTOMIZE = MANIFESTS / "kustomize"


def find(documents: Sequence[Document], kind: str, name: str) -> dict[str, Any]:
    (found,) = [each.content for each in documents if (each.kind, each.name) == (kind, name)]
    return found


@pytest.mark.parametrize("name", ["serried", "serried-controller"])
def test_a_policy_selects_the_pods_of_the_deployment_of_its_name(documents: Sequence[Document], name: str) -> None:
    template = find(documents, "Deployment", name)["spec"]["template"]
    policy = find(documents, "NetworkPolicy", name)
    assert template["metadata"]["labels"].items() >= policy["spec"]["podSelector"]["matchLabels"].items()
    assert policy["metadata"]["namespace"] == "serried-system"
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


@pytest.mark.parametrize("name", ["serried", "serried-controller"])
def test_what_may_be_reached_are_ports_that_the_pod_has_and_the_verbs_are_none_of_them(
    documents: Sequence[Document], name: str
) -> None:
    pod = find(documents, "Deployment", name)["spec"]["template"]["spec"]
    containers = (*pod.get("initContainers", ()), *pod["containers"])
    numbers = {port["name"]: port["containerPort"] for container in containers for port in container["ports"]}
    rules = find(documents, "NetworkPolicy", name)["spec"]["ingress"]
    open_to_some = {port["port"] for rule in rules for port in rule["ports"]}
    assert {numbers.get(port, port) for port in open_to_some} == set(numbers.values())
    assert all(rule["from"] for rule in rules)


def test_beside_the_cluster_s_scheduler_the_verbs_are_let_in_wherever_it_calls_from(
    documents: Sequence[Document],
) -> None:
    patches = yaml.safe_load((KUSTOMIZE / "control-plane" / "kustomization.yaml").read_text())["patches"]
    (patch,) = [yaml.safe_load(each["patch"]) for each in patches if each["target"]["kind"] == "Deployment"]
    opened = [step["value"] for step in patch if step["path"].endswith("/ports/-")]
    verbs = find(documents, "NetworkPolicy", "serried-verbs")["spec"]
    assert verbs["podSelector"] == find(documents, "NetworkPolicy", "serried")["spec"]["podSelector"]
    (rule,) = verbs["ingress"]
    assert rule == {"ports": [{"protocol": "TCP", "port": port["name"]} for port in opened]}
    # What Serried may reach is the other policy's to say: this one takes nothing away.
    assert verbs["policyTypes"] == ["Ingress"]


def test_the_policies_beside_the_cluster_s_scheduler_are_the_others_and_one_more() -> None:
    component = yaml.safe_load((KUSTOMIZE / "network-policy-control-plane" / "kustomization.yaml").read_text())
    assert component["components"] == ["../network-policy"]


def test_every_deployment_has_a_policy(documents: Sequence[Document]) -> None:
    named = {kind: {each.name for each in documents if each.kind == kind} for kind in ("Deployment", "NetworkPolicy")}
    assert named["Deployment"] == named["NetworkPolicy"] - {"serried-verbs"}
