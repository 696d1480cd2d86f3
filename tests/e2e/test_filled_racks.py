"""Gangs in racks that are nearly full, in a cluster of which kube-scheduler looks at a sample of nodes for each pod."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from bench.cluster.audit import AuditLog, make_flags
from bench.cluster.nodes import node_name
from tests.support.cluster_stage import RACK, ClusterStage, names
from tests.support.clusters import run_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.full]

NODES, RACKS = 200, 20
PER_RACK = NODES // RACKS
STATUS_WRITES = {"level": "Request", "verbs": ["patch"], "resources": [{"group": "", "resources": ["pods/status"]}]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Twenty racks of ten nodes of 32 CPUs; a sample has 100 nodes."""
    flags = make_flags(tmp_path_factory.mktemp("audit"), [STATUS_WRITES, {"level": "None"}])
    spec = Spec(name="filled", nodes=NODES, racks=RACKS, api="fallback", hold="filter", server_flags=flags)
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


def fill_first_rack(stage: ClusterStage, *free: int) -> None:
    """Leave so many CPUs free on each node of the first rack, from the first node on, and none on all others."""
    for index in range(PER_RACK):
        left = free[index] if index < len(free) else 0
        stage.create_pods([f"filler-{index}"], cpu=str(32 - left), nodeName=node_name(index))


def list_nominated(stage: ClusterStage, mark: int) -> set[str]:
    """The pods that were nominated to a node since then."""
    events = AuditLog.of(stage.cluster.spec).read(mark)
    written = [(event["objectRef"]["name"], event["requestObject"].get("status", {})) for event in events]
    return {name for name, status in written if status.get("nominatedNodeName")}


def start_gangs(stage: ClusterStage, size: int, *gangs: str) -> None:
    """All pods of these gangs are there before kube-scheduler tries the first one."""
    with stage.stopped("scheduler"):
        for name in gangs:
            stage.create_group(name, size, RACK)
            stage.create_pods(names(name, size), name)


def test_gangs_that_get_all_the_room_of_a_rack_are_bound_with_few_nominations(stage: ClusterStage) -> None:
    fill_first_rack(stage, *[4] * PER_RACK)
    gangs, mark = [f"gang-{number}" for number in range(10)], AuditLog.of(stage.cluster.spec).mark()
    start_gangs(stage, 4, *gangs)
    stage.await_bound("gang-", 40, seconds=120)
    assert stage.racks("gang-") == {"rack-0"}
    assert len(list_nominated(stage, mark)) < 20


def test_a_gang_in_a_rack_with_few_open_nodes_is_bound_without_nominating_all(stage: ClusterStage) -> None:
    fill_first_rack(stage, 8, 8, 8, 8)
    mark = AuditLog.of(stage.cluster.spec).mark()
    start_gangs(stage, 12, "few")
    stage.await_bound("few", 12, seconds=120)
    assert stage.racks("few") == {"rack-0"}
    assert len(list_nominated(stage, mark)) < 12
