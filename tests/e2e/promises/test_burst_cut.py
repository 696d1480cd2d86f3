"""Two extenders, and a strike at the one that leads when some members of a gang are bound and the others are not."""

import itertools
import logging
import signal
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from bench.cluster import Cluster, Spec
from bench.failover.bindings import make_binding_log_flags
from bench.failover.kubelet import Kubelet
from bench.failover.pairs import Pairs
from bench.failover.run import await_leader
from bench.failover.ways import WAYS
from bench.failover.witness import Witness
from tests.e2e.promises.elsewhere import Elsewhere
from tests.e2e.promises.toll import Toll
from tests.support.cluster_stage import eventually
from tests.support.clusters import run_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.full]

SIZE = 40
THROUGH = 13
LONG_SECONDS = 60.0
"""Longer than a failover takes beside other work."""

log = logging.getLogger(__name__)

_SERIAL = itertools.count()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane without Serried."""
    flags = make_binding_log_flags(tmp_path_factory.mktemp("audit"))
    spec = Spec(name="burst", nodes=12, racks=4, serried=False, hold="filter", server_flags=flags)
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


@pytest.fixture(params=[Pairs, Elsewhere], ids=["a scheduler beside it", "a scheduler elsewhere"])
def pairs(request: pytest.FixtureRequest, bare: Cluster, tmp_path: Path) -> Iterator[Pairs]:
    """In both shapes: where nobody runs yet."""
    made: Pairs = request.param(bare, tmp_path)
    try:
        with made.scheduling() if isinstance(made, Elsewhere) else nullcontext():
            yield made
    finally:
        made.close()


@pytest.fixture
def toll(pairs: Pairs) -> Iterator[Toll]:
    """Two run, and their Bindings go this way."""
    made = Toll()
    with ExitStack() as roads:
        for _ in range(2):
            made.run_behind(pairs, roads)
        await_leader(pairs)
        yield made
        pairs.close()


@pytest.fixture
def witness(pairs: Pairs, toll: Toll) -> Iterator[Witness]:
    """Of gang ring so many Bindings went through, and the next ones do not."""
    made = Witness(pairs.cluster, f"burst-{next(_SERIAL)}")
    toll.close_after(THROUGH)
    made.create("ring", SIZE)
    assert toll.refused.wait(LONG_SECONDS)
    yield made
    made.clear()


def await_whole(toll: Toll, witness: Witness) -> None:
    """The others are bound as well."""
    eventually("those that went through", lambda: witness.count_bound("ring") == THROUGH)
    toll.open()
    eventually("all others", lambda: witness.count_bound("ring") == SIZE, LONG_SECONDS)


def stop_leader(pairs: Pairs, toll: Toll) -> Kubelet:
    """Freeze the leader, and drop what it has sent a moment before."""
    leader = await_leader(pairs)
    leader.send("extender", signal.SIGSTOP)
    toll.bar(leader.pod)
    return leader


def count_records(pairs: Pairs) -> int:
    return len(pairs.cluster.api.get("/apis/scheduling.serried.dev/v1beta1/reservations")["items"])


def assert_bound_once(pairs: Pairs, witness: Witness) -> None:
    """Of each member one Binding was accepted. More may have been sent: what was under way is not known to the next."""
    eventually("no record", lambda: not count_records(pairs))
    assert witness.find_defects() == ()
    accepted = witness.count_accepted()
    assert len(accepted) == SIZE
    assert set(accepted.values()) == {1}
    if refused := witness.count_refused():
        log.warning("%d Bindings of bound pods were refused", refused)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("extender", id="the extender dies and comes back"),
        pytest.param("node", id="its node dies"),
        pytest.param("update", id="its Pod is deleted"),
    ],
)
def test_a_gang_of_which_some_are_bound_is_bound_whole_and_nobody_twice_when(
    pairs: Pairs, toll: Toll, witness: Witness, name: str
) -> None:
    leader = await_leader(pairs)
    WAYS[name].strike(pairs, leader)
    await_whole(toll, witness)
    WAYS[name].heal(pairs, leader)
    await_leader(pairs)
    assert_bound_once(pairs, witness)


def test_a_leader_that_stands_still_in_its_burst_is_not_waited_for_and_writes_nothing_when_it_goes_on(
    pairs: Pairs, toll: Toll, witness: Witness
) -> None:
    leader = stop_leader(pairs, toll)
    await_whole(toll, witness)
    assert pairs.holder() != leader.pod

    assert_writes_nothing(pairs, leader, toll)
    assert_bound_once(pairs, witness)


def test_one_that_goes_on_as_soon_as_another_one_leads_writes_nothing_either(
    pairs: Pairs, toll: Toll, witness: Witness
) -> None:
    leader = stop_leader(pairs, toll)
    eventually("another one", lambda: pairs.holder() not in {"", leader.pod}, LONG_SECONDS)

    assert_writes_nothing(pairs, leader, toll)
    await_whole(toll, witness)
    assert_bound_once(pairs, witness)


def assert_writes_nothing(pairs: Pairs, leader: Kubelet, toll: Toll) -> None:
    """Let the former leader go on, and check that it writes nothing: it finds that it does not lead."""
    # Its kubelet has not ended it yet.
    assert leader.restarts("extender") == 0
    written = list(toll.writes[leader.pod])
    assert any("/binding" in each for each in written)
    leader.send("extender", signal.SIGCONT)
    eventually("it knows that it does not lead", lambda: is_standby(pairs, leader))
    await_leader(pairs)
    assert toll.writes[leader.pod] == written
    assert leader.restarts("extender") == 0


def is_standby(pairs: Pairs, pod: Kubelet) -> bool:
    return pairs.selfcheck(pod).get("active") is False
