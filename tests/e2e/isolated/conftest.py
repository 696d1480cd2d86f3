"""A cluster whose second scheduler asks about marked pods only: 12 nodes of 32 CPU in 4 racks."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.support.clusters import run_cluster


@pytest.fixture(scope="package", params=["1.37.1", pytest.param("1.36.4", marks=pytest.mark.full)])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    version: str = request.param
    spec = Spec(
        name=f"isolated-{version.replace('.', '-')}",
        nodes=12,
        racks=4,
        kubernetes=version,
        hold="filter",
        serried_args=("--barrier-idle", "8"),
        isolated=True,
    )
    with run_cluster(spec, tmp_path_factory) as started:
        yield started
