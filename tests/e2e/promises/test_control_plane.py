"""The leading extender may fail where the cluster's own scheduler calls a Service, and the other one goes on."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster, Spec
from bench.failover.bindings import make_binding_log_flags
from bench.failover.rolling import roll
from bench.failover.run import await_leader, strike
from bench.failover.ways import WAYS, Way
from bench.failover.witness import Witness
from tests.e2e.promises.elsewhere import Elsewhere
from tests.support.cluster_stage import eventually
from tests.support.clusters import run_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.full]

LONG_SECONDS = 60.0
"""Longer than the Lease, and what the scheduler rests after it was refused."""

SHORT_SECONDS = 15.0
"""Shorter than the Lease: a leader that ends in good order gives it up, and its successor need not wait."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane without Serried."""
    flags = make_binding_log_flags(tmp_path_factory.mktemp("audit"))
    spec = Spec(name="front", nodes=12, racks=4, serried=False, hold="filter", server_flags=flags)
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


@pytest.fixture
def shape(bare: Cluster, tmp_path: Path) -> Iterator[Elsewhere]:
    """A scheduler that calls a Service, behind which nobody is yet."""
    made = Elsewhere(bare, tmp_path)
    try:
        with made.scheduling():
            yield made
    finally:
        made.close()


@pytest.fixture
def extenders(shape: Elsewhere) -> Elsewhere:
    """The same with two extenders, of which one leads."""
    for _ in range(2):
        shape.run_another()
    leader = await_leader(shape)
    eventually("the Service leads to it", lambda: shape.led_to("bind") == [leader.ports[8911]])
    return shape


def test_a_scheduler_elsewhere_calls_whichever_extender_leads(shape: Elsewhere) -> None:
    # Neither Serried's own pods nor any others wait for it: nobody answers yet.
    shape.create_plain("before")
    eventually("a pod of another profile", lambda: shape.is_bound("before"))

    for _ in range(2):
        shape.run_another()
    leader = await_leader(shape)
    eventually("the Service leads to it", lambda: shape.led_to("bind") == [leader.ports[8911]])
    witness = Witness(shape.cluster, "front")
    witness.create("before", 4)
    eventually("a gang", lambda: witness.count_bound("before") == 4)

    leader.break_starts("extender")
    leader.send("extender", signal.SIGKILL)
    witness.create("after", 4)
    eventually("the next gang", lambda: witness.count_bound("after") == 4, 90)
    assert shape.holder() != leader.pod
    assert witness.find_defects() == ()
    witness.clear()


def test_a_leader_that_stands_still_is_not_waited_for_by_the_gangs_that_come_after(extenders: Elsewhere) -> None:
    leader = await_leader(extenders)
    witness = Witness(extenders.cluster, "front-frozen")
    witness.create("before", 4)
    eventually("a gang", lambda: witness.count_bound("before") == 4)
    leader.send("extender", signal.SIGSTOP)
    witness.create("after", 4)
    eventually("the next gang", lambda: witness.count_bound("after") == 4, LONG_SECONDS)
    assert extenders.holder() != leader.pod
    # Its kubelet has not ended it yet, which would end the connections to it.
    assert leader.restarts("extender") == 0
    assert witness.find_defects() == ()
    witness.clear()


LEASE_DELETED = Way(
    "the Lease, deleted by somebody",
    strike=lambda shape, _: shape.delete_lease(),
    heal=lambda shape, _: None,
)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param("update", WAYS["update"], id="a Pod that is deleted, whose extender gives the Lease up"),
        pytest.param("node", WAYS["node"], id="a Pod whose node dies"),
        pytest.param("lease", LEASE_DELETED, id="the Lease"),
    ],
)
def test_gangs_are_bound_whole_though_they_lose(extenders: Elsewhere, name: str, way: Way) -> None:
    seen = strike(extenders, name, way, f"front-{name}")
    assert seen.defects == ()
    assert max(seen.first, seen.half) < LONG_SECONDS
    assert seen.leader_changed or name == "lease"


def test_a_rolling_update_under_load_has_no_gap(extenders: Elsewhere) -> None:
    before = set(extenders.pods)
    rolled = roll(extenders, "front-rolling")
    assert rolled.defects == ()
    assert max(rolled.slowest, rolled.half) < SHORT_SECONDS
    assert not before & set(extenders.pods)
