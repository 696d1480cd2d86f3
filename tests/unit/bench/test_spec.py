"""Validation of a cluster's spec, and the labels of its nodes."""

from collections import Counter

import pytest

from bench.cluster import Spec, nodes
from bench.cluster.errors import ClusterError


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "../up", "a" * 41])
def test_names_that_are_no_names(name: str) -> None:
    with pytest.raises(ClusterError, match="name"):
        Spec(name=name)


@pytest.mark.parametrize("version", ["1.37", "v1.37.1", "1.34.0", "2.0.0", "../1.37.1", "1.37.0-rc.0", "1.38.0-beta.0"])
def test_versions_that_are_not_supported(version: str) -> None:
    with pytest.raises(ClusterError, match="Kubernetes"):
        Spec(name="a", kubernetes=version)


@pytest.mark.parametrize("version", ["1.38", "v1.38.0", "1.34.0", "1.39.0-alpha.1", "1.38.0-beta", "../1.38.0"])
def test_schedulers_that_are_not_supported(version: str) -> None:
    with pytest.raises(ClusterError, match="kube-scheduler"):
        Spec(name="a", scheduler=version)


@pytest.mark.parametrize(
    ("scheduler", "version", "minor"),
    [
        pytest.param("", "1.37.1", 37, id="that of the rest of the control plane"),
        pytest.param("1.36.4", "1.36.4", 36, id="an older one"),
        pytest.param("1.38.0-beta.0", "1.38.0-beta.0", 38, id="a pre-release"),
    ],
)
def test_the_scheduler_may_be_of_another_version(scheduler: str, version: str, minor: int) -> None:
    spec = Spec(name="a", scheduler=scheduler)
    assert (spec.scheduler_version, spec.scheduler_minor, spec.minor) == (version, minor, 37)
    assert spec.api_version == "scheduling.k8s.io/v1beta1"


@pytest.mark.parametrize("counts", [{"nodes": 5, "racks": 6}, {"racks": 1, "blocks": 2}, {"zones": 3}, {"zones": 0}])
def test_levels_that_do_not_nest(counts: dict[str, int]) -> None:
    with pytest.raises(ClusterError, match="every level"):
        Spec("a", **counts)  # type: ignore[arg-type]


def test_impossible_combinations() -> None:
    with pytest.raises(ClusterError, match="fallback"):
        Spec(name="a", api="fallback", gates="on")
    with pytest.raises(ClusterError, match="--hold gate"):
        Spec(name="a", kubernetes="1.35.4", hold="gate")


@pytest.mark.parametrize(("version", "served"), [("1.35.4", "v1alpha1"), ("1.36.4", "v1alpha2"), ("1.37.1", "v1beta1")])
def test_native_serves_the_version_of_its_minor_with_the_gate_in_the_api_server_only(version: str, served: str) -> None:
    spec = Spec(name="a", kubernetes=version)

    assert spec.runtime_config == f"scheduling.k8s.io/{served}=true"
    assert spec.api_server_gates == "GenericWorkload=true"
    assert spec.stock_gates == ""


def test_fallback_is_a_stock_api_server() -> None:
    spec = Spec(name="a", api="fallback")

    assert (spec.runtime_config, spec.api_server_gates, spec.stock_gates) == ("", "", "")


def test_gates_on_is_for_native_gang_scheduling() -> None:
    spec = Spec(name="a", gates="on", server_gates=("GenericWorkload=true", "CompositePodGroup=true"))
    gates = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true,WorkloadWithJob=true"

    assert spec.stock_gates == gates
    assert spec.api_server_gates == f"{gates},CompositePodGroup=true"
    assert spec.runtime_config == "scheduling.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha3=true"


def test_the_gates_of_kube_controller_manager_are_not_those_of_the_scheduler() -> None:
    alone = Spec(name="a", manager_gates=("GenericWorkload=true", "WorkloadWithJob=true"))
    beside = Spec(name="a", kubernetes="1.35.4", gates="on", manager_gates=("WatchList=true",))

    assert (alone.controller_manager_gates, alone.stock_gates) == ("GenericWorkload=true,WorkloadWithJob=true", "")
    assert beside.controller_manager_gates == f"{beside.stock_gates},WatchList=true"


def test_each_component_gets_the_gates_of_its_own_version() -> None:
    spec = Spec(name="a", kubernetes="1.36.4", scheduler="1.38.0-beta.0", gates="on")

    assert spec.stock_gates == "GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
    assert "GangScheduling=true" in spec.api_server_gates.split(",")
    assert spec.controller_manager_gates == spec.api_server_gates


def test_the_gate_policy_needs_its_api() -> None:
    assert Spec(name="a", hold="auto").gate_policy
    assert not Spec(name="a", hold="auto", kubernetes="1.35.4").gate_policy
    assert not Spec(name="a", hold="filter").gate_policy


def test_racks_are_even_and_lie_in_one_block_of_one_zone() -> None:
    spec = Spec(name="a", nodes=100, racks=10, blocks=4, zones=2)
    labels = [nodes.node_labels(spec, index) for index in range(spec.nodes)]

    assert set(Counter(label[nodes.RACK] for label in labels).values()) == {10}
    assert Counter(label[nodes.ZONE] for label in labels) == {"zone-0": 50, "zone-1": 50}
    assert len({(label[nodes.RACK], label[nodes.BLOCK]) for label in labels}) == 10
    assert len({(label[nodes.BLOCK], label[nodes.ZONE]) for label in labels}) == 4


def test_a_node_is_ready_and_has_the_room_that_was_asked_for() -> None:
    node = nodes.node_object(Spec(name="a", node_cpu="8", node_memory="1Gi", node_pods=7), 3)

    assert node["metadata"]["name"] == node["metadata"]["labels"]["kubernetes.io/hostname"] == "node-00003"
    assert node["metadata"]["labels"]["type"] == "kwok"
    assert node["metadata"]["annotations"] == {"kwok.x-k8s.io/node": "fake"}
    assert node["status"]["allocatable"] == {"cpu": "8", "memory": "1Gi", "pods": "7"}
    assert node["status"]["conditions"][0]["status"] == "True"
