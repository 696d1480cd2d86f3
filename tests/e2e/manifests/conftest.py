from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.cluster import Cluster, Spec
from bench.cluster.cluster import down
from tests.e2e.manifests.server import Server

# Off by default upstream: the fields and kinds that the fallback API has as well.
UPSTREAM_GATES = tuple(
    f"{gate}=true"
    for gate in ("CompositePodGroup", "DRAWorkloadResourceClaims", "TopologyAwareWorkloadScheduling", "WorkloadWithJob")
)
GATES = {"native": UPSTREAM_GATES, "fallback": ()}


@pytest.fixture(scope="session", params=GATES)
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    name = f"manifests-{request.param}"
    down(name)
    spec = Spec(name, nodes=3, racks=3, blocks=1, api=request.param, hold="filter", serried=False)
    cluster = Cluster.up(replace(spec, server_gates=GATES[request.param]))
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
