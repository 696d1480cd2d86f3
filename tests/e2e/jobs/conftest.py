"""Two clusters for the life of Jobs, one for each API level: 12 nodes of 32 CPU, so 12 pods of 30 CPU fill them."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.jobs.stage import JobStage
from tests.support.clusters import LEVELS, running


@pytest.fixture(scope="package", params=LEVELS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    spec = Spec(name=f"jobs-{request.param}", nodes=12, racks=4, api=request.param, hold="filter")
    with running(spec, tmp_path_factory) as started:
        yield started


@pytest.fixture(scope="package")
def stage_class() -> type[JobStage]:
    return JobStage
