"""One cluster for each API level, in which the controllers of JobSet and LeaderWorkerSet are at work."""

import itertools
from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec, state
from bench.cluster.processes import stop
from tests.e2e.kinds.operators import JOB_SET, LEADER_WORKER_SET, build, install, run
from tests.e2e.kinds.stage import KindStage

_SERIAL = itertools.count()


@pytest.fixture(scope="package", params=["native", "fallback"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    operators = (JOB_SET, LEADER_WORKER_SET)
    for operator in operators:
        build(operator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(state.STATE, str(tmp_path_factory.mktemp("state")))
        started = Cluster.up(Spec(name=f"kinds-{request.param}", nodes=12, racks=4, api=request.param, hold="filter"))
        processes = []
        try:
            for operator in operators:
                install(operator, started)
                processes.append(run(operator, started, tmp_path_factory.mktemp(operator.name)))
            yield started
        finally:
            stop(processes)
            started.down()


@pytest.fixture
def stage(cluster: Cluster) -> Iterator[KindStage]:
    stage = KindStage(cluster, f"story-{next(_SERIAL)}")
    stage.await_watches()
    yield stage
    stage.close()
