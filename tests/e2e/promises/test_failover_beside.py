"""Two pairs whose schedulers have Kubernetes' own gates for gangs and racks on: here, too, the other pair goes on."""

from collections.abc import Iterator

import pytest

from bench.cluster import Spec
from bench.failover.bindings import make_binding_log_flags
from bench.failover.pairs import Pairs
from bench.failover.run import strike
from bench.failover.ways import WAYS
from tests.e2e.promises.test_failover import LONG_SECONDS, two_pairs
from tests.support.clusters import GANG_GATES, run_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    spec = Spec(
        name="failover-beside",
        nodes=12,
        racks=4,
        serried=False,
        hold="filter",
        server_flags=make_binding_log_flags(tmp_path_factory.mktemp("audit")),
        server_gates=GANG_GATES,
        manager_gates=GANG_GATES,
        scheduler_gates=GANG_GATES,
    )
    with run_cluster(spec, tmp_path_factory) as bare, two_pairs(bare, tmp_path_factory.mktemp("pairs")) as made:
        yield made


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("frozen", id="an extender that stands still costs its scheduler the Lease"),
        pytest.param("node", id="a pair whose node dies is replaced when the Lease runs out"),
        pytest.param("update", id="a Pod that is deleted gives the Lease up"),
    ],
)
def test_gangs_go_on_beside_native_gang_scheduling(pairs: Pairs, name: str) -> None:
    seen = strike(pairs, name, WAYS[name], f"story-beside-{name}")
    assert seen.defects == ()
    assert seen.first < LONG_SECONDS
    assert seen.leader_changed
