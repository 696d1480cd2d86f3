"""One cluster for each API level, in which the controllers of JobSet and LeaderWorkerSet are at work."""

import json
import os
from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.kinds.operators import at_work
from tests.e2e.kinds.stage import KindStage
from tests.e2e.manifests.server import KUSTOMIZE
from tests.support.clusters import LEVELS


@pytest.fixture(scope="package", params=LEVELS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    spec = Spec(name=f"kinds-{request.param}", nodes=12, racks=4, api=request.param, hold="filter")
    with at_work(spec, tmp_path_factory) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def stage_class() -> type[KindStage]:
    return KindStage


@pytest.fixture(scope="package")
def namespaces(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The component by which namespaces are Serried's; other namespaces do not notice it."""
    place = tmp_path_factory.mktemp("namespaces")
    component = {"components": [os.path.relpath(KUSTOMIZE / "namespaces", place)]}
    (place / "kustomization.yaml").write_text(json.dumps(component))
    cluster.kubectl("apply", "-k", str(place))


@pytest.fixture
def labelled(namespaces: None, stage: KindStage) -> KindStage:
    """A namespace with the label."""
    stage.label()
    return stage
