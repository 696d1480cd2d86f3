"""Clusters of each API level, also with the next minor's kube-scheduler: 12 nodes of 32 CPU in 6 racks of 2 zones."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.trees.stage import TreeStage
from tests.support.clusters import LEVELS, on_next_scheduler, run_cluster

GATES = ("GenericWorkload=true", "TopologyAwareWorkloadScheduling=true", "CompositePodGroup=true")
"""CompositePodGroups are alpha in 1.37, and need the other two."""


@pytest.fixture(scope="package", params=[*LEVELS, *map(on_next_scheduler, LEVELS)])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    *scheduler, level = request.param.split()
    spec = Spec(
        name=f"trees-{request.param.replace('.', '-').replace(' ', '-')}",
        nodes=12,
        racks=6,
        blocks=2,
        zones=2,
        scheduler="".join(scheduler),
        api=level,
        hold="filter",
        server_gates=GATES if level == "native" else (),
        serried_args=("--barrier-idle", "8"),
    )
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


@pytest.fixture(scope="package")
def stage_class() -> type[TreeStage]:
    return TreeStage
