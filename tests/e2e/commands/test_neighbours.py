"""``serried check`` beside the objects of the real Kueue 0.19.1 and Karpenter 1.11.2; neither of the two is at work."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from bench.cluster import Cluster, Spec
from tests.support import go_modules
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names
from tests.support.clusters import run_cluster
from tests.support.commands import Run

pytestmark = [pytest.mark.e2e, pytest.mark.full]

Raw = dict[str, Any]
Check = Callable[[], list[Raw]]

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_CONFIG = "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config"
_HOST = "kubernetes.io/hostname"
_RECOMMENDED = {
    "timeout": "24h",
    "recoveryTimeout": "1h",
    "requeuingStrategy": {"timestamp": "Creation"},
    "blockAdmission": False,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """12 nodes of 32 CPU in 4 racks, with the kinds and the configuration of Kueue as its kustomization has them."""
    source = go_modules.locate("sigs.k8s.io/kueue", "v0.19.1")
    with run_cluster(Spec(name="neighbours", nodes=12, racks=4, hold="filter"), tmp_path_factory) as started:
        rendered = started.kubectl("kustomize", str(source / "config" / "default"))
        objects = list(yaml.safe_load_all(rendered))
        _define(started, [each for each in objects if each["kind"] == "CustomResourceDefinition"])
        started.api.post("/api/v1/namespaces", {"metadata": {"name": "kueue-system"}})
        (config,) = [each for each in objects if each["kind"] == "ConfigMap"]
        started.api.post(_CONFIG.rpartition("/")[0], config)
        yield started


def _define(cluster: Cluster, definitions: list[Raw]) -> None:
    """Create CRDs; without the webhooks of conversion, behind which nothing runs."""
    for each in definitions:
        each["spec"].pop("conversion", None)
        cluster.api.post(_CRDS, each)
    for each in definitions:
        name = each["metadata"]["name"]
        eventually(f"the kind of {name}", partial(_is_served, cluster, name))


def _is_served(cluster: Cluster, name: str) -> bool:
    conditions = cluster.api.get(f"{_CRDS}/{name}").get("status", {}).get("conditions") or []
    return any((each["type"], each["status"]) == ("Established", "True") for each in conditions)


@pytest.fixture
def check(stage: ClusterStage, serried: Run) -> Check:
    """Runs ``serried check`` for the cluster; the warnings."""

    def run() -> list[Raw]:
        ended = serried("check", "--only", "cluster", "--server", stage.cluster.ops_url, "-o", "json")
        assert ended.code == 0, ended.out + ended.err
        return [each for each in json.loads(ended.out) if each["severity"] == "warning"]

    return run


def configure(cluster: Cluster, wait: Raw | None) -> None:
    """Change ``waitForPodsReady`` in Kueue's configuration; None for its default."""
    found = cluster.api.get(_CONFIG)
    ((key, text),) = found["data"].items()
    document = yaml.safe_load(text) | {"waitForPodsReady": wait}
    cluster.api.patch(_CONFIG, {"data": {key: yaml.safe_dump(document)}})


@pytest.fixture
def patient(cluster: Cluster) -> Iterator[None]:
    """Kueue has the recommended settings."""
    configure(cluster, _RECOMMENDED)
    yield
    configure(cluster, None)


def create_queue(stage: ClusterStage, cpu: str, **flavor: Any) -> Callable[[], None]:
    """A queue of the namespace, with this quota; returns how to remove what no namespace has."""
    made = []

    def create(plural: str, kind: str, spec: Raw) -> None:
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": "check"}, "spec": spec}
        stage.cluster.api.post(f"{_KUEUE}/{plural}", body)
        made.append(f"{_KUEUE}/{plural}/check")

    resources = [{"name": "cpu", "nominalQuota": cpu}]
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "check", "resources": resources}]}
    create("topologies", "Topology", {"levels": [{"nodeLabel": RACK}, {"nodeLabel": _HOST}]})
    create("resourceflavors", "ResourceFlavor", flavor)
    create("clusterqueues", "ClusterQueue", {"namespaceSelector": {}, "resourceGroups": [group]})
    local: Raw = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "queue"}}
    local["spec"] = {"clusterQueue": "check"}
    stage.cluster.api.post(f"{_KUEUE}/namespaces/{stage.namespace}/localqueues", local)

    def remove() -> None:
        for path in made:
            stage.cluster.api.delete(path)

    return remove


def test_the_settings_that_kueue_is_shipped_with_are_named_and_the_recommended_ones_are_not(
    stage: ClusterStage, check: Check
) -> None:
    found = {each["where"].rpartition("waitForPodsReady.")[2] for each in check()}
    assert found == {"timeout", "recoveryTimeout", "requeuingStrategy.timestamp"}
    configure(stage.cluster, _RECOMMENDED)
    try:
        assert check() == []
    finally:
        configure(stage.cluster, None)


@pytest.mark.usefixtures("patient")
def test_a_quota_above_the_nodes_is_named(stage: ClusterStage, check: Check) -> None:
    remove = create_queue(stage, "385", nodeLabels={})
    try:
        (finding,) = check()
    finally:
        remove()
    assert "may use 385 of cpu, but its nodes (12) have 384" in finding["what"]


@pytest.mark.usefixtures("patient")
def test_a_second_owner_of_topology_and_a_pod_on_its_nodes_are_named(stage: ClusterStage, check: Check) -> None:
    remove = create_queue(stage, "384", topologyName="check", nodeLabels={"kubernetes.io/os": "linux"})
    try:
        assert check() == []
        stage.create_group("ring", 1, RACK)
        stage.create_pods(names("ring", 1), "ring", cpu="1")
        stage.await_bound("ring", 1)
        found = check()
    finally:
        remove()
    assert {each["where"] for each in found} == {"ResourceFlavor check"}
    said = " ".join(each["what"] for each in found)
    assert f"1 PodGroup of its namespaces requires a domain of Serried, too ({stage.namespace}/podgroup/ring)" in said
    assert f"does not manage 1 pod on its nodes ({stage.namespace}/ring-0)" in said


@pytest.mark.usefixtures("patient")
def test_a_gang_for_which_karpenter_knows_no_domain_is_named(stage: ClusterStage, check: Check) -> None:
    crds = go_modules.locate("sigs.k8s.io/karpenter", "v1.11.2") / "pkg" / "apis" / "crds"
    definitions = [yaml.safe_load(path.read_text()) for path in sorted(crds.glob("*.yaml"))]
    _define(stage.cluster, definitions)
    try:
        stage.create_group("ring", 5, RACK)
        by_filter, nobody = sorted(check(), key=lambda each: "nobody is asked" in each["what"])
        assert "autoscalers may add nodes for gangs that cannot start" in by_filter["what"]
        assert "the extender runs with --hold=filter" in by_filter["what"]
        assert f"one domain of {RACK} (" in nobody["what"]
        assert f"{stage.namespace}/podgroup/ring" in nobody["what"]
        reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "check"}
        requirement = {"key": RACK, "operator": "Exists"}
        template = {"spec": {"nodeClassRef": reference, "requirements": [requirement]}}
        body = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "racks"}}
        stage.cluster.api.post("/apis/karpenter.sh/v1/nodepools", body | {"spec": {"template": template}})
        assert [each["what"] for each in check()] == [by_filter["what"]]
    finally:
        for each in definitions:
            stage.cluster.kubectl("delete", "crd", each["metadata"]["name"])
        eventually("no Karpenter", lambda: not any("Karpenter" in each["where"] for each in check()))
