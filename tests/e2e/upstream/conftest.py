"""One cluster in which kube-controller-manager makes Workloads and PodGroups for Jobs, as Serried's controller does."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.upstream.stage import UpstreamStage
from tests.support.clusters import run_cluster

_GATES = ("GenericWorkload=true", "WorkloadWithJob=true")


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    spec = Spec(name="upstream", nodes=12, racks=4, hold="filter", server_gates=_GATES, manager_gates=_GATES)
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


@pytest.fixture(scope="package")
def stage_class() -> type[UpstreamStage]:
    return UpstreamStage
