"""A control plane with no nodes of its own, and beside it a kube-scheduler that is recorded."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from bench.cluster.spec import DEFAULT_VERSION
from tests.e2e.truth.recording import recording
from tests.e2e.truth.stage import TruthStage
from tests.support.clusters import NEXT_SCHEDULER, on_kubernetes, on_next_scheduler, run_cluster

_ADMISSION = "disable-admission-plugins=ServiceAccount,TaintNodesByCondition,StorageObjectInUseProtection"
"""The flag without the admission plugins that write what kube-controller-manager would have to remove again."""


VERSIONS = ["1.37.1", on_kubernetes("1.36.4"), on_kubernetes("1.35.4"), on_next_scheduler()]
"""Of kube-scheduler, and of the API server if there is one of that version."""


@pytest.fixture(scope="package", params=VERSIONS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    version: str = request.param
    name = f"truth-{version.replace('.', '-')}"
    spec = Spec(
        *(name, 1, 1, 1),
        kubernetes=DEFAULT_VERSION if version == NEXT_SCHEDULER else version,
        scheduler=version,
        api="fallback",
        serried=False,
        server_flags=(_ADMISSION,),
    )
    with run_cluster(spec, tmp_path_factory) as started:
        # It binds claims, and deletes pods whose node is gone by their names, which newer pods may have by then.
        started.kill("kube-controller-manager")
        yield started


@pytest.fixture(scope="package")
def truth(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TruthStage]:
    """The stage on which small clusters are put, and kube-scheduler is asked about them."""
    with recording(cluster, tmp_path_factory.mktemp("recording")) as recorder:
        stage = TruthStage(cluster, recorder)
        stage.open()
        yield stage
