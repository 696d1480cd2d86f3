"""Small clusters of 4 nodes in 2 racks: one keeps room for the head of the queue, one keeps plain pods off it, too, and
one keeps none. The first one is there a second time, with Kubernetes' own gates for gangs and racks on (``beside``).
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.queue.stage import QueueStage
from tests.support.cluster_stage import staged
from tests.support.clusters import GANG_GATES, run_cluster

SPEC = Spec(name="queue", nodes=4, racks=2, api="fallback", hold="filter")
SPEC_BESIDE = replace(SPEC, api="native", server_gates=GANG_GATES, manager_gates=GANG_GATES, scheduler_gates=GANG_GATES)


def make_cluster(
    name: str, directories: pytest.TempPathFactory, *arguments: str, spec: Spec = SPEC
) -> Iterator[Cluster]:
    with run_cluster(replace(spec, name=f"queue-{name}", serried_args=arguments), directories) as started:
        yield started


@pytest.fixture(scope="package", params=["fallback"])
def forecasting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    name: str = request.param
    spec = SPEC_BESIDE if name == "beside" else SPEC
    yield from make_cluster(f"forecast-{name}", tmp_path_factory, "--backfill", "forecast", spec=spec)


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
