"""Two clusters for the examples, one for each API level: 4 racks of 3 nodes, 16 CPU each."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.examples.stage import ExampleStage
from tests.support.clusters import LEVELS, run_cluster


@pytest.fixture(scope="package", params=LEVELS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    spec = Spec(name=f"examples-{request.param}", nodes=12, racks=4, api=request.param, node_cpu="16")
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


@pytest.fixture(scope="package")
def stage_class() -> type[ExampleStage]:
    return ExampleStage
