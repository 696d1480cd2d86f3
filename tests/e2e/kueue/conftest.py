"""One cluster for each API level, in which Kueue and the controller of JobSet are at work."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.kinds import operators
from tests.e2e.kueue.manager import KUEUE, Kueue, at_work
from tests.e2e.kueue.stage import KueueStage
from tests.support.clusters import LEVELS, run_cluster


@pytest.fixture(scope="package", params=LEVELS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    for operator in (operators.JOB_SET, KUEUE):
        operators.build(operator)
    with run_cluster(Spec(name=f"kueue-{request.param}", nodes=12, racks=4, api=request.param), tmp_path_factory) as up:
        yield up


@pytest.fixture(scope="package")
def kueue(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    """Kueue at work in the cluster."""
    with at_work(cluster, tmp_path_factory) as kueue:
        yield kueue


@pytest.fixture(scope="package")
def stage_class(kueue: Kueue) -> type[KueueStage]:
    return KueueStage
