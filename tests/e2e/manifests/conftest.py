from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from bench.cluster.cluster import down
from tests.e2e.manifests.server import Server


@pytest.fixture(scope="session", params=["native", "fallback"])
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    name = f"manifests-{request.param}"
    down(name)
    cluster = Cluster.up(Spec(name, nodes=3, racks=3, blocks=1, api=request.param, hold="filter", serried=False))
    try:
        yield Server(cluster, tmp_path_factory.mktemp("objects"))
    finally:
        cluster.down()


@pytest.fixture(scope="session")
def server(bare: Server) -> Server:
    """With the base and the gate installed."""
    bare.apply("overlays/gate")
    bare.run("wait", "crd", "--all", "--for=condition=Established", "--timeout=30s")
    return bare
