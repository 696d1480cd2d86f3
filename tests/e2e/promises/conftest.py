"""Two clusters for all stories, one for each API level: 12 nodes of 32 CPU in 4 racks, 384 CPU in all."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.support.clusters import running


@pytest.fixture(scope="package", params=["native", "fallback"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Short deadlines, so that a story about them is short, too.
    arguments = ("--barrier-idle", "8")
    spec = Spec(
        name=f"promises-{request.param}",
        nodes=12,
        racks=4,
        api=request.param,
        hold="filter",
        serried_args=arguments,
    )
    with running(spec, tmp_path_factory) as started:
        yield started
