"""Two pairs, and what makes one of them step back: probes, the order of the containers, the pace of the election."""

from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from tests.unit.manifests.shipped import MANIFESTS, Document

LEASE_AND_FIVE = 20.0
"""The most seconds from a death until the other pair has taken over."""

JITTER = 2.2
"""The longest pause between two looks of a standby, in retry periods (client-go's JitterFactor is 1.2)."""


@pytest.fixture
def deployment(documents: Sequence[Document]) -> dict[str, Any]:
    (found,) = [each.content for each in documents if (each.kind, each.name) == ("Deployment", "serried")]
    return found


@pytest.fixture
def pod(deployment: dict[str, Any]) -> dict[str, Any]:
    return dict(deployment["spec"]["template"]["spec"])


@pytest.mark.parametrize("folder", ["scheduler", "isolated"])
def test_a_standby_takes_over_in_time_from_a_leader_that_can_say_nothing_any_more(folder: str) -> None:
    text = (MANIFESTS / "kustomize" / folder / "scheduler-config.yaml").read_text()
    election = yaml.safe_load(text)["leaderElection"]
    lease, renew, retry = (
        float(election[name].removesuffix("s")) for name in ("leaseDuration", "renewDeadline", "retryPeriod")
    )
    assert retry * JITTER < renew < lease
    # It sees the last renewal one look late, and the end of the Lease another one.
    assert lease + 2 * retry * JITTER < LEASE_AND_FIVE


def test_a_scheduler_without_a_working_extender_is_ended_sooner_than_its_lease(pod: dict[str, Any]) -> None:
    (scheduler,) = pod["containers"]
    probe = scheduler["livenessProbe"]
    assert probe["httpGet"] == {"path": "/livez/pair", "port": 8912}
    latest = probe["periodSeconds"] * (probe["failureThreshold"] + 1)
    assert probe["timeoutSeconds"] <= probe["periodSeconds"]
    # Then it gives the Lease up, and the standby looks.
    assert latest + JITTER < 15


def test_the_scheduler_starts_when_filter_answers_and_ends_before_its_extender(pod: dict[str, Any]) -> None:
    (extender,) = pod["initContainers"]
    assert (extender["name"], extender["restartPolicy"]) == ("extender", "Always")
    assert extender["startupProbe"]["httpGet"] == {"path": "/livez/filter", "port": "ops"}
    assert "--ops-listen=:8912" in extender["args"]
    assert "--scheduler-livez=https://127.0.0.1:10259/livez" in extender["args"]


def test_pairs_are_apart_where_they_can_be_and_a_rolling_update_has_no_gap(deployment: dict[str, Any]) -> None:
    spec = deployment["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    rules = spec["template"]["spec"]["affinity"]["podAntiAffinity"]
    (term,) = rules["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == spec["selector"]["matchLabels"]
    # On two nodes a required rule would leave no room for the surge.
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in rules


def test_each_deployment_of_two_has_a_budget_that_lets_one_go(documents: Sequence[Document]) -> None:
    deployments = [d.content for d in documents if d.kind == "Deployment" and d.content["spec"]["replicas"] > 1]
    budgets = [d.content["spec"] for d in documents if d.kind == "PodDisruptionBudget"]
    assert len(deployments) == len(budgets)
    for deployment in deployments:
        (budget,) = [each for each in budgets if each["selector"] == deployment["spec"]["selector"]]
        assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


@pytest.mark.parametrize("name", ["serried", "serried-controller"])
def test_pods_may_run_beside_the_control_plane_and_leave_a_node_that_is_gone_after_half_a_minute(
    documents: Sequence[Document], name: str
) -> None:
    (found,) = [each.content for each in documents if (each.kind, each.name) == ("Deployment", name)]
    tolerations = found["spec"]["template"]["spec"]["tolerations"]
    assert {(each["key"], each.get("effect", ""), each.get("tolerationSeconds")) for each in tolerations} == {
        ("CriticalAddonsOnly", "", None),
        ("node-role.kubernetes.io/control-plane", "NoSchedule", None),
        ("node.kubernetes.io/not-ready", "NoExecute", 30),
        ("node.kubernetes.io/unreachable", "NoExecute", 30),
    }
    assert {each["operator"] for each in tolerations} == {"Exists"}
    assert len(tolerations) == 4
