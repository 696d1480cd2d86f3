"""The control-plane shape: a scheduler that is elsewhere calls a Service, which goes by readiness.

Readiness goes by the extenders' own Lease. The Service is played by a TCP front.
"""

import signal
from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from bench.cluster.installation import MANIFESTS
from bench.failover.pairs import Pairs
from bench.failover.witness import Witness
from tests.support.cluster_stage import eventually
from tests.support.clusters import running
from tests.support.front import Front

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane without Serried."""
    with running(Spec(name="front", nodes=12, racks=4, serried=False, hold="filter"), tmp_path_factory) as started:
        yield started


def test_a_scheduler_elsewhere_calls_whichever_extender_leads(
    bare: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = Pairs(bare, tmp_path_factory.mktemp("front"))
    bare.kubectl("apply", "-f", str(MANIFESTS / "kustomize" / "control-plane" / "rbac.yaml"))
    flags = ("--lease-mode=hold", "--lease=serried-system/serried-extender", "--scheduler-livez=")

    def ready(port: int) -> list[int]:
        return [pod.ports[port] for pod in made.pods.values() if pod.is_ready()]

    with Front(lambda: ready(8910)) as filters, Front(lambda: ready(8911)) as binds:
        try:
            for name in ("extender-a", "extender-b"):
                made.run_extender(name, *flags)
            made.run_scheduler("elsewhere", filters.port, binds.port)
            eventually("one extender is ready, and no other", lambda: len(ready(8910)) == 1)
            witness = Witness(bare, "front")
            witness.create("before", 4)
            eventually("a gang", lambda: witness.count_bound("before") == 4)
            leader = made.pods[made.holder("serried-extender")]
            leader.spoil("extender")
            leader.send("extender", signal.SIGKILL)
            witness.create("after", 4)
            eventually("the next gang", lambda: witness.count_bound("after") == 4, 60)
            assert witness.defects == []
            witness.clear()
        finally:
            made.close()
