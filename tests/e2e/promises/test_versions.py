"""The older minors that Serried supports, by the API that all of them serve: our own CRDs."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec, state
from tests.e2e.promises.stage import RACK, Stage, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(params=["1.36.4", "1.35.4"])
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(state.STATE, str(tmp_path_factory.mktemp("state")))
        name = f"v{request.param.replace('.', '-')}"
        started = Cluster.up(
            Spec(name=name, nodes=12, racks=4, api="fallback", hold="filter", kubernetes=request.param)
        )
        try:
            yield started
        finally:
            started.down()


def test_a_job_waits_whole_and_runs_whole_in_one_rack(older: Cluster) -> None:
    stage = Stage(older, "story")
    stage.take_a_node()
    stage.create_job("train", 9, cpu="10", key=RACK)
    stage.await_bound("train", 9)
    assert len(stage.racks("train")) == 1
    eventually("the condition", lambda: stage.condition(stage.group_of_job("train")) == ("True", "Scheduled", ""))

    stage.create_job("wide", 10, cpu="10", key=RACK)
    stage.await_reason(stage.group_of_job("wide"), "NoDomainFits")
    assert not stage.bound("wide")
    stage.close()
