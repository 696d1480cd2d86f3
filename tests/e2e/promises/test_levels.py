"""One Job names a level, and runs in one domain of it wherever a label of some cloud stands for the level."""

from collections.abc import Iterator, Mapping

import pytest

from bench.cluster import Cluster, Spec
from tests.support.cluster_stage import RACK, ClusterStage, eventually, staged
from tests.support.clusters import run_cluster

pytestmark = pytest.mark.e2e

EKS_RACK = "topology.k8s.aws/network-node-layer-3"
GKE_RACK = "cloud.google.com/gce-topology-subblock"
PREFERRED = "scheduling.serried.dev/preferred-topology"
TABLES = "/apis/scheduling.serried.dev/v1beta1/topologylevels"


@pytest.fixture(params=["native", pytest.param("fallback", marks=pytest.mark.full)])
def clouds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One whose nodes get labels of clouds."""
    spec = Spec(name=f"levels-{request.param}", nodes=8, racks=4, api=request.param, hold="filter")
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


def relabel(cluster: Cluster, old: str, new: str) -> dict[str, str]:
    """The racks of the nodes, under another label from now on."""
    racks: dict[str, str] = {}
    for node in cluster.api.get("/api/v1/nodes")["items"]:
        name, labels = node["metadata"]["name"], node["metadata"]["labels"]
        racks[name] = labels[old]
        cluster.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {old: None, new: labels[old]}}})
    return racks


def standing(cluster: Cluster) -> dict[str, str]:
    """The label of each level on all nodes."""
    pools = [pool for table in cluster.api.get(TABLES)["items"] for pool in table.get("status", {}).get("pools", ())]
    return {each["level"]: each["label"] for pool in pools[:1] for each in pool["labels"]}


def submit(stage: ClusterStage, name: str, level: str) -> None:
    """The same Job each time but for its name, and as large as a rack has room for."""
    metadata = {"annotations": {"scheduling.serried.dev/required-topology": level, PREFERRED: "nvlink=1h"}}
    stage.submit_job(name, cpu="30", metadata=metadata, parallelism=2, completions=2)


def assert_in_one_rack(stage: ClusterStage, name: str, racks: Mapping[str, str], label: str) -> None:
    stage.await_bound(name, 2)
    assert len({racks[node] for node in stage.bound(name).values()}) == 1
    assert stage.debug_page(stage.group_of_job(name))["topologyKey"] == label
    assert stage.debug_page(stage.group_of_job(name))["topologyLevel"] == "rack"


def test_the_same_job_runs_in_one_rack_of_eks_and_of_gke_and_waits_where_there_is_none(clouds: Cluster) -> None:
    with staged(ClusterStage, clouds) as stage:
        racks = relabel(clouds, RACK, EKS_RACK)
        eventually("the label of EKS", lambda: standing(clouds).get("rack") == EKS_RACK)
        submit(stage, "eks", "rack")
        assert_in_one_rack(stage, "eks", racks, EKS_RACK)
        assert any("level nvlink" in said for said in stage.messages("eks", "LevelLeftOut"))

        relabel(clouds, EKS_RACK, GKE_RACK)
        eventually("the label of GKE", lambda: standing(clouds).get("rack") == GKE_RACK)
        submit(stage, "gke", "rack")
        stage.await_bound("gke", 2)
        assert stage.debug_page(stage.group_of_job("gke"))["topologyKey"] == GKE_RACK
        assert len({racks[node] for node in stage.bound("gke").values()}) == 1

        submit(stage, "nowhere", "spine")
        (said,) = eventually("a reason", lambda: stage.messages("nowhere", "LevelUnknown"))
        assert "this cluster has no node label for level spine; fewer than half of the nodes have any one of" in said
        assert not stage.groups_of("nowhere")
        assert not stage.bound("nowhere")

        clouds.api.patch(f"{TABLES}/default", {"spec": {"levels": [{"name": "spine", "labels": [GKE_RACK]}]}})
        stage.await_bound("nowhere", 2)
        assert len({racks[node] for node in stage.bound("nowhere").values()}) == 1
        assert not stage.messages("eks", "GangChangeIgnored")
