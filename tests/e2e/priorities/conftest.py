"""Clusters at each API level: 12 nodes of 32 CPU, so 12 pods of 30 CPU fill them."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.priorities.stage import PriorityStage
from tests.support.clusters import LEVELS, running

GATES = (
    *("GenericWorkload=true", "TopologyAwareWorkloadScheduling=true", "CompositePodGroup=true"),
    "PodGroupPreemptionPolicy=true",
)
"""What groups may say of preemption is alpha in 1.37, as CompositePodGroups are."""


@pytest.fixture(scope="package", params=LEVELS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    gates = GATES if request.param == "native" else ()
    name = f"priorities-{request.param}"
    spec = Spec(name=name, nodes=12, racks=4, api=request.param, hold="filter", server_gates=gates)
    with running(spec, tmp_path_factory) as started:
        yield started


@pytest.fixture(scope="package")
def stage_class() -> type[PriorityStage]:
    return PriorityStage
