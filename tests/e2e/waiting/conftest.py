"""Two clusters for stories of waiting, one for each API level: two profiles, a barrier of three seconds."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.support.clusters import LEVELS, running


@pytest.fixture(scope="package", params=LEVELS)
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
