"""Two clusters for stories of waiting, one for each API level: two profiles, a barrier of three seconds."""

import itertools
from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.support.cluster_stage import Stage
from tests.support.clusters import running

_SERIAL = itertools.count()


@pytest.fixture(scope="package", params=["native", "fallback"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    spec = Spec(
        name=f"waiting-{request.param}",
        nodes=12,
        racks=4,
        node_pods=400,
        api=request.param,
        hold="filter",
        profiles=("second",),
        serried_args=("--barrier-idle", "3"),
    )
    with running(spec, tmp_path_factory) as started:
        yield started


@pytest.fixture
def stage(cluster: Cluster) -> Iterator[Stage]:
    stage = Stage(cluster, f"waiting-{next(_SERIAL)}")
    yield stage
    stage.close()
