"""The scheduler's config and the extender's flags are two halves of one agreement."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from serried.api.resources import MARKERS
from serried.cluster.domain_use import MAX_SCORE
from tests.unit.manifests.shipped import MANIFESTS, Document

NODE_AFFINITY_WEIGHT = 2
"""The weight of NodeAffinity's scores of 0 to 100 in kube-scheduler (apis/config/v1/default_plugins.go)."""


@pytest.fixture
def config() -> dict[str, Any]:
    return dict(yaml.safe_load((MANIFESTS / "scheduler-config.yaml").read_text()))


@pytest.fixture
def flags(documents: Sequence[Document]) -> dict[str, str]:
    """The extender's flags in the Deployment."""
    (deployment,) = [d.content for d in documents if d.kind == "Deployment" and d.name == "serried"]
    (extender,) = [c for c in deployment["spec"]["template"]["spec"]["initContainers"] if c["name"] == "extender"]
    return dict(argument.removeprefix("--").split("=", 1) for argument in extender["args"])


def entry(config: dict[str, Any], verb: str) -> dict[str, Any]:
    (found,) = [extender for extender in config["extenders"] if verb in extender]
    return dict(found)


def test_the_shipped_file_is_the_one_in_the_base() -> None:
    inside: Path = MANIFESTS / "kustomize" / "scheduler" / "scheduler-config.yaml"
    assert (MANIFESTS / "scheduler-config.yaml").resolve() == inside


@pytest.mark.parametrize(("verb", "flag"), [("filterVerb", "filter-listen"), ("bindVerb", "bind-listen")])
def test_an_entry_calls_where_the_extender_listens(
    config: dict[str, Any], flags: dict[str, str], verb: str, flag: str
) -> None:
    assert entry(config, verb)["urlPrefix"] == f"http://{flags[flag]}"


def test_verbs_listen_on_loopback_only(flags: dict[str, str]) -> None:
    assert {flags[name].split(":")[0] for name in ("filter-listen", "bind-listen")} == {"127.0.0.1"}


def test_the_extender_follows_the_scheduler_s_lease(config: dict[str, Any], flags: dict[str, str]) -> None:
    election = config["leaderElection"]
    assert election["leaderElect"]
    assert flags["lease"] == f"{election['resourceNamespace']}/{election['resourceName']}"


def test_only_one_entry_binds_and_its_timeout_holds_a_gang(config: dict[str, Any]) -> None:
    assert entry(config, "bindVerb")["httpTimeout"] == "15m"
    assert not {"prioritizeVerb", "weight"} & entry(config, "bindVerb").keys()
    assert entry(config, "filterVerb")["httpTimeout"] == "5s"


def test_no_entry_fails_open_or_asks_for_whole_nodes(config: dict[str, Any]) -> None:
    for extender in config["extenders"]:
        assert extender["nodeCacheCapable"] is True
        assert extender["ignorable"] is False


def test_serried_is_asked_to_rank_nodes_with_no_more_weight_than_what_a_pod_itself_prefers(
    config: dict[str, Any],
) -> None:
    found = entry(config, "prioritizeVerb")
    assert (found["prioritizeVerb"], "filterVerb" in found) == ("prioritize", True)
    assert 10 * MAX_SCORE * found["weight"] <= 100 * NODE_AFFINITY_WEIGHT


def test_the_isolated_config_is_the_shipped_one_for_marked_pods_only(config: dict[str, Any]) -> None:
    isolated = yaml.safe_load((MANIFESTS / "kustomize" / "isolated" / "scheduler-config.yaml").read_text())
    managed = [extender.pop("managedResources") for extender in isolated["extenders"]]
    for extender in config["extenders"]:  # pods of no gang are not asked about, so nobody is to rank their nodes
        extender.pop("prioritizeVerb", None)
        extender.pop("weight", None)
    assert isolated == config
    assert all(resource["ignoredByScheduler"] is True for resources in managed for resource in resources)
    names = [resource["name"] for resources in managed for resource in resources]
    assert sorted(names) == sorted(MARKERS)


def test_the_policy_marks_what_the_isolated_config_asks_about(documents: Sequence[Document]) -> None:
    (policy,) = [d.content for d in documents if (d.kind, d.name) == ("MutatingAdmissionPolicy", "serried-marker")]
    changes = [mutation["jsonPatch"]["expression"] for mutation in policy["spec"]["mutations"]]
    (condition,) = [c["expression"] for c in policy["spec"]["matchConditions"] if c["name"] == "not-marked-yet"]
    for expression in (*changes, condition):
        assert set(re.findall(r"'(scheduling\.serried\.dev/[^']+)'", expression)) == MARKERS
    assert policy["spec"]["failurePolicy"] == "Fail"


def test_sampling_stays_adaptive(config: dict[str, Any]) -> None:
    assert "percentageOfNodesToScore" not in config


def test_ops_ports_of_flags_and_services_agree(documents: Sequence[Document]) -> None:
    flags = {
        document.name: argument.rsplit(":", 1)[1]
        for document in documents
        if document.kind == "Deployment"
        for part in ("initContainers", "containers")
        for container in document.content["spec"]["template"]["spec"].get(part, ())
        for argument in container.get("args", [])
        if argument.startswith("--ops-listen=")
    }
    services = {
        document.name: str(port["port"])
        for document in documents
        if document.kind == "Service"
        for port in document.content["spec"]["ports"]
        if port["name"] == "ops"
    }
    assert services == flags == {"serried": "8912", "serried-controller": "8913"}
