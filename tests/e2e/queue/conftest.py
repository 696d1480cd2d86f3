"""Two small clusters, one that keeps room for the head of the queue and one that does not: 4 nodes in 2 racks."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.queue.stage import QueueStage
from tests.support.cluster_stage import staged
from tests.support.clusters import running


def make_cluster(backfill: str, directories: pytest.TempPathFactory) -> Iterator[Cluster]:
    spec = Spec(
        name=f"queue-{backfill}",
        nodes=4,
        racks=2,
        api="fallback",
        hold="filter",
        serried_args=("--backfill", backfill),
    )
    with running(spec, directories) as started:
        yield started


@pytest.fixture(scope="package")
def forecasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from make_cluster("forecast", tmp_path_factory)


@pytest.fixture(scope="package")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from make_cluster("off", tmp_path_factory)


@pytest.fixture
def stage(forecasting: Cluster) -> Iterator[QueueStage]:
    with staged(QueueStage, forecasting) as stage:
        yield stage


@pytest.fixture
def stage_without_backfill(plain: Cluster) -> Iterator[QueueStage]:
    with staged(QueueStage, plain) as stage:
        yield stage
