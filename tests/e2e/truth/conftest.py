"""A control plane with no nodes of its own, and beside it a kube-scheduler that is recorded."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.truth.recording import recording
from tests.e2e.truth.stage import TruthStage
from tests.support.clusters import on_kubernetes, running

_WITHOUT_COLLECTOR = "--controllers=-pod-garbage-collector-controller"
"""It finds pods whose node is gone, and deletes those that have their names by then."""


@pytest.fixture(scope="package", params=["1.37.1", on_kubernetes("1.36.4"), on_kubernetes("1.35.4")])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    version: str = request.param
    name = f"truth-{version.replace('.', '-')}"
    spec = Spec(name=name, nodes=1, racks=1, blocks=1, kubernetes=version, api="fallback", serried=False)
    with running(spec, tmp_path_factory) as started:
        started.restart("kube-controller-manager", _WITHOUT_COLLECTOR)
        yield started


@pytest.fixture(scope="package")
def truth(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TruthStage]:
    """Where small clusters are put, and kube-scheduler is asked about them."""
    with recording(cluster, tmp_path_factory.mktemp("recording")) as recorder:
        stage = TruthStage(cluster, recorder)
        stage.open()
        yield stage
