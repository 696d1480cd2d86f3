from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.cluster import Spec
from tests.e2e.manifests.annotations import DISRUPTION, suspended
from tests.e2e.manifests.server import Server, eventually
from tests.support.clusters import run_cluster

# Off by default upstream: the fields and kinds that the fallback API has as well.
UPSTREAM_GATES = tuple(
    f"{gate}=true"
    for gate in ("CompositePodGroup", "DRAWorkloadResourceClaims", "TopologyAwareWorkloadScheduling", "WorkloadWithJob")
)
GATES = {"native": UPSTREAM_GATES, "fallback": ()}


@pytest.fixture(scope="session", params=GATES)
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    spec = Spec(
        f"manifests-{request.param}", nodes=3, racks=3, blocks=1, api=request.param, hold="filter", serried=False
    )
    with run_cluster(replace(spec, server_gates=GATES[request.param]), tmp_path_factory) as cluster:
        yield Server(cluster, tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="session")
def server(bare: Server) -> Server:
    """With the base, the gate and the markers installed, and the policies in force."""
    bare.apply("overlays/isolated")
    bare.run("wait", "crd", "--all", "--for=condition=Established", "--timeout=30s")
    wrong = suspended("wrong", {DISRUPTION: "often"})
    eventually(lambda: bare.refuses("Unsupported value", "create", wrong, options=("--dry-run=server",)))
    return bare
