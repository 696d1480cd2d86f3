"""Devices on the older minors: 1.36 leaves the resource of a DeviceClass to its scheduler, 1.35 does not by default."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.promises.test_devices import Devices, asking, nodes_of_rack, racks_of
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names
from tests.support.clusters import run_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(params=["1.36.4", "1.35.4"])
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    name = f"devices-{request.param.replace('.', '-')}"
    spec = Spec(name=name, nodes=12, racks=4, api="fallback", hold="filter", kubernetes=request.param)
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


def test_a_gang_runs_where_its_scheduler_finds_devices_and_waits_where_it_does_not(older: Cluster) -> None:
    stage = ClusterStage(older, "story")
    devices, rack = Devices(stage), racks_of(stage)[-1]
    devices.create_class()
    for node in nodes_of_rack(stage, rack):
        devices.publish(node, 2)
    stage.create_group("ring", 5, key=RACK)
    stage.create_pods(names("ring", 5), "ring", **asking(devices.resource))
    if older.spec.kubernetes.startswith("1.35."):
        told = f"asks for {devices.resource}, which no node has and no DeviceClass provides"
        stage.await_reason("ring", "NoCapacity", told)
        assert not stage.bound()
        eventually("nothing held", lambda: not stage.reservations() and not stage.held_in_ledger())
    else:
        stage.await_bound("ring", 5)
        assert stage.racks("ring") == {rack}
        assert len(devices.allocated()) == 5
    stage.close()
