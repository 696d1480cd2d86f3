"""Both kinds on the older minors, by their own API: in 1.35 each replica is a replica of a part of the Workload."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.kinds.operators import at_work
from tests.e2e.kinds.stage import KindStage, replicated
from tests.support.clusters import on_kubernetes

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(params=[on_kubernetes("1.36.4"), on_kubernetes("1.35.4")])
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    name = f"kinds-{request.param.replace('.', '-')}"
    spec = Spec(name=name, nodes=12, racks=4, hold="filter", kubernetes=request.param)
    with at_work(spec, tmp_path_factory) as cluster:
        yield cluster


def test_sets_wait_whole_and_run_whole_in_one_rack(older: Cluster) -> None:
    stage = KindStage(older, "story")
    stage.await_ready()
    stage.create_set("serve", replicas=5, size=8)
    stage.await_bound("serve", 32, seconds=60)
    assert "8 members do not fit" in stage.told("serve", "NoDomainFits")
    assert len(stage.whole_replicas("serve", 8, 5)) == 4
    stage.delete_sets()

    stage.create_job_set("train", replicated("driver", 1, 1), replicated("workers", 2, 4))
    stage.await_bound("train", 9)
    assert stage.racks_of("train") == 1
    stage.close()
