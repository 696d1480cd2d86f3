"""Two clusters, one for each API level: 12 nodes of 32 CPU in 6 racks of 2 zones."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.trees.stage import TreeStage
from tests.support.clusters import LEVELS, running

GATES = ("GenericWorkload=true", "TopologyAwareWorkloadScheduling=true", "CompositePodGroup=true")
"""CompositePodGroups are alpha in 1.37, and need the other two."""


@pytest.fixture(scope="package", params=LEVELS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    spec = Spec(
        name=f"trees-{request.param}",
        nodes=12,
        racks=6,
        blocks=2,
        zones=2,
        api=request.param,
        hold="filter",
        server_gates=GATES if request.param == "native" else (),
        serried_args=("--barrier-idle", "8"),
    )
    with running(spec, tmp_path_factory) as started:
        yield started


@pytest.fixture(scope="package")
def stage_class() -> type[TreeStage]:
    return TreeStage
