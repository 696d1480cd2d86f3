"""The version of the Workload API that is announced after v1beta1: the real API server serves what it has as v1."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.cluster import Cluster
from bench.cluster.components import Name
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names
from tests.support.next_version import NextVersion

# 1.38 is announced to serve v1 and to have the gates of gangs on: the second cluster has them on, too.
CLUSTERS = pytest.mark.parametrize("cluster", ["native", "beside"], indirect=True)
pytestmark = [pytest.mark.e2e, pytest.mark.full, CLUSTERS]

OURS: tuple[Name, ...] = ("extender", "controller")


@contextmanager
def served(cluster: Cluster, front: NextVersion, directory: Path) -> Iterator[NextVersion]:
    """Both processes find their API server behind the front, and the level by themselves, while the body runs."""
    with front:
        for name in OURS:
            kubeconfig = front.write_kubeconfig(cluster.kubeconfigs[name], directory)
            cluster.restart(name, "--kubeconfig", str(kubeconfig), "--api", "auto")
        try:
            yield front
        finally:
            for name in OURS:
                cluster.restart(name, "--kubeconfig", str(cluster.kubeconfigs[name]), "--api", cluster.spec.api)


def find_port(cluster: Cluster) -> int:
    return int(cluster.server.rpartition(":")[2])


def test_a_job_waits_whole_and_runs_whole_through_v1(cluster: Cluster, stage: ClusterStage, tmp_path: Path) -> None:
    with served(cluster, NextVersion(find_port(cluster)), tmp_path) as front:
        api = eventually("an answer", lambda: api if (api := stage.selfcheck()["api"])["podsKeepTheirGroup"] else None)
        assert (api["version"], api["shape"], api["refused"]) == ("v1", "v1beta1", [])

        stage.fill_a_node()
        stage.create_job("train", 9, cpu="10", key=RACK)
        stage.await_bound("train", 9)
        assert len(stage.racks("train")) == 1
        group = stage.group_of_job("train")
        eventually("the condition", lambda: stage.condition(group) == ("True", "Scheduled", ""))
        eventually("no record", lambda: not stage.reservations())

        stage.create_job("wide", 10, cpu="10", key=RACK)
        stage.await_reason(stage.group_of_job("wide"), "NoDomainFits")
        assert not stage.bound("wide")

        asked = {(method, path) for method, path in front.asked if "/podgroups" in path or "/workloads" in path}
        assert {"POST", "PATCH", "GET"} <= {method for method, _ in asked}
        assert {path.split("/")[3] for _, path in asked if path.startswith("/apis/scheduling.k8s.io")} == {"v1"}


def test_a_gang_that_began_at_the_version_before_keeps_its_objects_and_is_repaired_in_its_rack(
    cluster: Cluster, stage: ClusterStage, tmp_path: Path
) -> None:
    stage.create_job("train", 3, cpu="30", key=RACK)
    stage.await_bound("train", 3)
    rack = stage.racks("train")
    before = [group["metadata"]["uid"] for group in stage.list_groups()]
    with served(cluster, NextVersion(find_port(cluster)), tmp_path):
        assert eventually("its API", lambda: stage.selfcheck().get("api"))["version"] == "v1"
        lost, node = min(stage.bound("train").items())
        stage.delete_pods(lost)

        def is_whole() -> bool:
            found = stage.bound("train")
            return len(found) == 3 and lost not in found and node in found.values()

        eventually("it is whole again", is_whole, 60)
        assert stage.racks("train") == rack
        assert [group["metadata"]["uid"] for group in stage.list_groups()] == before


def test_a_shape_that_nobody_knows_is_refused_with_a_sentence_and_its_gangs_wait(
    cluster: Cluster, stage: ClusterStage, tmp_path: Path
) -> None:
    front = NextVersion(find_port(cluster), renamed={"minCount": "minMembers"})
    with served(cluster, front, tmp_path):
        api = stage.selfcheck()["api"]
        assert api["level"] == "fallback"
        (said,) = api["refused"]
        assert said.startswith("scheduling.k8s.io/v1 has a shape that is not known: compared with v1beta1, ")
        assert "schedulingPolicy.gang.minCount is missing" in said

        stage.create_group("ring", 2)
        stage.create_pods(names("ring", 2), "ring")
        stage.await_reason("ring", "WorkloadAPIMissing")
        stage.create_pods(["plain"])
        stage.await_bound("plain", 1)
        assert not stage.bound("ring")
    stage.await_bound("ring", 2)
