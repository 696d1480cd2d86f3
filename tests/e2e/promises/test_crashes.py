"""The promises when a process dies or a connection ends, at the worst moment."""

import signal
from functools import partial
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.promises.proxy import Proxy
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names
from tests.support.clusters import BESIDE_NATIVE_GANGS, at_one_level

pytestmark = [pytest.mark.e2e, at_one_level("fallback", BESIDE_NATIVE_GANGS)]


def revive(stage: ClusterStage) -> None:
    stage.cluster.start("extender")
    stage.cluster.await_ready("extender")


def test_a_kill_between_plan_and_bind_ends_whole(stage: ClusterStage) -> None:
    with stage.stopped("scheduler"):
        stage.create_group("ring", 4, RACK)
        stage.create_pods(names("ring", 4), "ring")
        eventually("the plan", stage.held_in_ledger)
        stage.cluster.kill("extender", signal.SIGKILL)
        assert not stage.reservations()
        assert not stage.bound()
        revive(stage)

    stage.await_bound("ring", 4)
    assert len(stage.racks("ring")) == 1
    eventually("the record's end", lambda: not stage.reservations())


def test_a_kill_in_the_middle_of_the_bindings_ends_whole(stage: ClusterStage) -> None:
    for attempt in range(5):
        gang = f"crowd{attempt}"
        stage.create_group(gang, 200)
        stage.create_pods(names(gang, 200), gang, cpu="100m")
        eventually("the first Binding", partial(stage.bound, gang))
        stage.cluster.kill("extender", signal.SIGKILL)
        seen = len(stage.bound(gang))
        revive(stage)
        stage.await_bound(gang, 200)
        eventually("the record's end", lambda: not stage.reservations())
        if 0 < seen < 200:
            return
        stage.delete_pods(*names(gang, 200))
    pytest.fail("no kill hit the burst: the Bindings were always over")


def test_a_gang_that_no_longer_exists_when_the_extender_returns_leaves_nothing(stage: ClusterStage) -> None:
    with stage.stopped("scheduler"):
        stage.create_job("gone", 4)
        eventually("the plan", stage.held_in_ledger)
        stage.cluster.kill("extender", signal.SIGKILL)
        stage.delete_job("gone")
        revive(stage)

    eventually("the record's end", lambda: not stage.reservations() and not stage.held_in_ledger())
    assert not stage.bound()


def test_watches_that_end_are_resumed(stage: ClusterStage) -> None:
    config = stage.cluster.kubeconfigs["extender"]
    original = config.read_text()
    port = urlsplit(stage.cluster.server).port
    assert port is not None
    with Proxy(port) as proxy:
        config.write_text(original.replace(f":{port}", f":{proxy.port}"))
        stage.cluster.restart("extender")
        stage.create_group("ring", 4)
        stage.create_pods(names("ring", 3), "ring")
        stage.await_reason("ring", "QuorumMissing")

        assert proxy.cut() > 0
        stage.create_pods(names("ring", 1, start=3), "ring")
        stage.await_bound("ring", 4)
        assert "serried_watch_restarts_total{" in httpx.get(stage.cluster.metrics_url).text
        config.write_text(original)
    stage.cluster.restart("extender")


def test_members_that_never_reach_their_bind_call_free_everything_in_time(stage: ClusterStage) -> None:
    # A frozen scheduler never comes; the barrier's deadline (8 s without progress here) gives all of it back.
    with stage.stopped("scheduler"):
        stage.create_group("stuck", 2)
        stage.create_pods(names("stuck", 2), "stuck")
        eventually("the plan", stage.held_in_ledger)
        eventually("the record's end", lambda: not stage.reservations() and not stage.held_in_ledger(), 15)
        assert not stage.bound()
        stage.await_reason("stuck", "DeadlineExceeded", "called bind for only 0 of 2 members")
    # Nothing was wrong with the gang: it does not rest for a minute once the scheduler is back.
    stage.await_bound("stuck", 2)
