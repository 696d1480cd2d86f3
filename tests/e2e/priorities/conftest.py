"""Priorities: 12 pods of 30 CPU fill the clusters. The native one is not shared: it has more gates."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.priorities.stage import PriorityStage
from tests.support.clusters import LEVELS, Find, running

GATES = (
    *("GenericWorkload=true", "TopologyAwareWorkloadScheduling=true", "CompositePodGroup=true"),
    "PodGroupPreemptionPolicy=true",
)
"""What groups may say of preemption is alpha in 1.37, as CompositePodGroups are."""


@pytest.fixture(scope="package", params=LEVELS)
def cluster(
    request: pytest.FixtureRequest, shared: Find, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    if request.param == "fallback":
        yield shared("fallback")
        return
    spec = Spec(name="priorities-native", nodes=12, racks=4, hold="filter", server_gates=GATES)
    with running(spec, tmp_path_factory) as started:
        yield started


@pytest.fixture(scope="package")
def stage_class() -> type[PriorityStage]:
    return PriorityStage
