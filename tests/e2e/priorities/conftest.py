"""Priorities: 12 pods of 30 CPU fill the clusters. Natively they are alpha."""

import pytest

from bench.cluster import Cluster
from tests.e2e.priorities.stage import PriorityStage
from tests.support.clusters import Find, on_next_scheduler

CLUSTERS = ("native alpha", "fallback")


@pytest.fixture(scope="package", params=[*CLUSTERS, *map(on_next_scheduler, CLUSTERS)])
def cluster(request: pytest.FixtureRequest, shared: Find) -> Cluster:
    return shared(request.param)


@pytest.fixture(scope="package")
def stage_class() -> type[PriorityStage]:
    return PriorityStage
