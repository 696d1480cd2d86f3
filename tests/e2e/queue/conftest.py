"""Small clusters of 4 nodes in 2 racks: one keeps room for the head of the queue, one keeps plain pods off it, too, and
one keeps none.
"""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.queue.stage import QueueStage
from tests.support.cluster_stage import staged
from tests.support.clusters import running


def make_cluster(name: str, directories: pytest.TempPathFactory, *arguments: str) -> Iterator[Cluster]:
    spec = Spec(
        name=f"queue-{name}",
        nodes=4,
        racks=2,
        api="fallback",
        hold="filter",
        serried_args=arguments,
    )
    with running(spec, directories) as started:
        yield started


@pytest.fixture(scope="package")
def forecasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from make_cluster("forecast", tmp_path_factory, "--backfill", "forecast")


@pytest.fixture(scope="package")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from make_cluster("off", tmp_path_factory, "--backfill", "off")


@pytest.fixture(scope="package")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from make_cluster("strict", tmp_path_factory, "--backfill-plain", "wait")


@pytest.fixture
def stage(forecasting: Cluster) -> Iterator[QueueStage]:
    with staged(QueueStage, forecasting) as stage:
        yield stage


@pytest.fixture
def stage_without_backfill(plain: Cluster) -> Iterator[QueueStage]:
    with staged(QueueStage, plain) as stage:
        yield stage


@pytest.fixture
def strict_stage(strict: Cluster) -> Iterator[QueueStage]:
    with staged(QueueStage, strict) as stage:
        yield stage
