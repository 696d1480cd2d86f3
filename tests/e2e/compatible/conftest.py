"""Two clusters with PodGroups of scheduler-plugins: by their own CRD beside the native level, by ours beside ours."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.compatible.stage import CompatibleStage, Shape, install
from tests.support.clusters import running


@pytest.fixture(scope="package", params=[("native", Shape.THEIRS), ("fallback", Shape.OURS)], ids=" ".join)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    api, shape = request.param
    spec = Spec(name=f"compatible-{api}", nodes=12, racks=4, api=api, hold="filter")
    with running(spec, tmp_path_factory) as started:
        install(started, shape)
        yield started


@pytest.fixture
def shape(cluster: Cluster) -> Shape:
    """Whose CRD the cluster has."""
    return Shape.THEIRS if cluster.spec.api == "native" else Shape.OURS


@pytest.fixture(scope="package")
def stage_class() -> type[CompatibleStage]:
    return CompatibleStage
