"""One cluster of 6 nodes in 2 zones, in which Karpenter is at work. Its nodes are full as long as a story is told."""

import shutil
from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from bench.karpenter import Karpenter, at_work, build
from tests.e2e.karpenter.stage import ZONES, KarpenterStage
from tests.support.clusters import run_cluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which("go") is None:
        pytest.skip("needs Go to build Karpenter")
    build()
    spec = Spec(
        name="karpenter", nodes=6, racks=2, zones=2, api="fallback", hold="auto", serried_args=("--ask-for", "30")
    )
    with run_cluster(spec, tmp_path_factory) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def karpenter(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Karpenter]:
    with at_work(cluster, ZONES, tmp_path_factory.mktemp("karpenter")) as karpenter:
        yield karpenter


@pytest.fixture(scope="package")
def stage_class(karpenter: Karpenter) -> type[KarpenterStage]:
    class Stage(KarpenterStage):
        pass

    Stage.karpenter = karpenter
    return Stage
