"""PodGroups of scheduler-plugins in the shared clusters: by their own CRD at the native level, by ours at ours."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster
from tests.e2e.compatible.stage import CompatibleStage, Shape, install, uninstall
from tests.support.clusters import LEVELS, Find


@pytest.fixture(scope="package", params=LEVELS)
def cluster(request: pytest.FixtureRequest, shared: Find) -> Iterator[Cluster]:
    found = shared(request.param)
    install(found, find_shape(found))
    yield found
    uninstall(found)


def find_shape(cluster: Cluster) -> Shape:
    return Shape.THEIRS if cluster.spec.api == "native" else Shape.OURS


@pytest.fixture
def shape(cluster: Cluster) -> Shape:
    """The owner of the CRD in the cluster: scheduler-plugins or Serried."""
    return find_shape(cluster)


@pytest.fixture(scope="package")
def stage_class() -> type[CompatibleStage]:
    return CompatibleStage
