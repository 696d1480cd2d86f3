"""A gang asks Karpenter for nodes once: when it is whole, first in line, and lacks room."""

import signal

import pytest

from bench.cluster.nodes import ZONE
from bench.karpenter import NODE_CPU, Batch
from tests.e2e.karpenter.stage import MEMBER_CPU, NEVER, TEAM, KarpenterStage
from tests.support.cluster_stage import RACK, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]


def test_a_gang_over_two_zones_buys_its_nodes_in_one_batch_in_one_zone_and_runs(stage: KarpenterStage) -> None:
    stage.create_pool()

    stage.submit("ring", 16, key=ZONE)

    stage.await_bound("ring", 16, 90)
    assert len(stage.zones("ring")) == 1
    assert stage.batches() == [Batch(pods=16, claims=16)]
    assert len(stage.claims()) == len(stage.nodes()) == 16


def test_a_gang_buys_nothing_until_its_last_member_is_there(stage: KarpenterStage) -> None:
    stage.create_pool()
    stage.submit("ring", 4, members=3)
    stage.await_reason("ring", "QuorumMissing")
    stage.buy_by_plain_pod("plain")
    assert stage.batches() == [Batch(pods=1, claims=1)]

    stage.add_members("ring", 1, start=3)

    stage.await_bound("ring", 4, 60)
    assert stage.batches() == [Batch(pods=1, claims=1), Batch(pods=4, claims=4)]


def test_a_gang_counts_the_nodes_that_are_there_already(stage: KarpenterStage) -> None:
    stage.create_pool()
    for number in range(2):
        stage.buy_by_plain_pod(f"plain-{number}")
    stage.delete_pods("plain-0", "plain-1")

    stage.submit("ring", 4)

    stage.await_bound("ring", 4, 60)
    assert len(stage.claims()) == 4


def test_members_beyond_the_quorum_ask_once_the_gang_runs(stage: KarpenterStage) -> None:
    stage.create_pool()
    with stage.karpenter.frozen():
        stage.submit("ring", 3, members=5)
        stage.await_reason("ring", "AskingForNodes", seconds=20)
        eventually("three members without gate", lambda: len(stage.gated("ring")) == 2)

    stage.await_bound("ring", 5, 90)
    assert stage.batches() == [Batch(pods=3, claims=3), Batch(pods=2, claims=2)]


def test_plain_pods_that_come_beside_an_asking_gang_buy_their_own_nodes(stage: KarpenterStage) -> None:
    stage.create_pool()
    with stage.karpenter.frozen():
        stage.submit("ring", 4)
        stage.await_reason("ring", "AskingForNodes", seconds=20)
        stage.create_pods(["plain-0", "plain-1"], cpu=MEMBER_CPU)

    stage.await_bound("ring", 4, 60)
    stage.await_bound("plain", 2, 60)
    assert len(stage.claims()) == 6


def test_two_gangs_never_buy_for_each_other(stage: KarpenterStage) -> None:
    stage.create_pool()
    with stage.karpenter.frozen():
        stage.submit("first", 4, key=ZONE)
        stage.await_reason("first", "AskingForNodes", seconds=20)
        stage.submit("second", 3, key=ZONE)
        stage.await_waiting("second")
        assert stage.gated("first") == []
        assert stage.gated("second") == ["second-0", "second-1", "second-2"]

    stage.await_bound("first", 4, 60)
    stage.await_bound("second", 3, 60)
    assert stage.batches() == [Batch(pods=4, claims=4), Batch(pods=3, claims=3)]
    assert len(stage.claims()) == 7


def test_gangs_that_need_nodes_of_different_node_pools_ask_side_by_side(stage: KarpenterStage) -> None:
    stage.create_pool(team="red", delay=NEVER)
    stage.create_pool(team="blue")
    stage.submit("red", 2, selector={TEAM: "red"})
    stage.await_reason("red", "AskingForNodes", seconds=20)

    stage.submit("blue", 3, selector={TEAM: "blue"})

    stage.await_bound("blue", 3, 60)
    assert sorted(stage.batches(), key=str) == [Batch(pods=2, claims=2), Batch(pods=3, claims=3)]


def test_a_gang_that_shrinks_while_it_asks_buys_no_more_than_it_needs(stage: KarpenterStage) -> None:
    stage.create_pool()
    with stage.karpenter.frozen():
        stage.submit("ring", 3, members=4)
        stage.await_reason("ring", "AskingForNodes", seconds=20)
        eventually("three members without gate", lambda: len(stage.gated("ring")) == 1)
        stage.delete_pods(next(name for name in stage.asking("ring")))
        eventually("the fourth asks in its place", lambda: stage.gated("ring") == [])

    stage.await_bound("ring", 3, 60)
    assert stage.batches() == [Batch(pods=3, claims=3)]


def test_a_gang_that_lacks_a_member_while_it_asks_buys_no_more_nodes_than_it_runs_on_later(
    stage: KarpenterStage,
) -> None:
    stage.create_pool()
    with stage.karpenter.frozen():
        stage.submit("ring", 4)
        stage.await_reason("ring", "AskingForNodes", seconds=20)
        stage.delete_pods("ring-3")
        stage.await_reason("ring", "QuorumMissing")

    stage.buy_by_plain_pod("plain")
    stage.add_members("ring", 1, start=3)
    stage.await_bound("ring", 4, 90)
    assert len(stage.claims()) == 5


def test_nothing_is_bought_for_a_gang_that_the_limits_of_the_node_pool_keep_from_being_whole(
    stage: KarpenterStage,
) -> None:
    stage.create_pool(cpu_limit=10 * NODE_CPU)
    stage.submit("large", 16, key=ZONE)
    stage.await_reason("large", "NoDomainFits", "limits", seconds=20)

    stage.buy_by_plain_pod("plain")

    assert stage.batches() == [Batch(pods=1, claims=1)]
    assert len(stage.gated("large")) == 16


def test_a_gang_that_the_limits_keep_waiting_lets_a_smaller_one_ask(stage: KarpenterStage) -> None:
    stage.create_pool(cpu_limit=10 * NODE_CPU)
    stage.submit("large", 16, key=ZONE)
    stage.await_reason("large", "NoDomainFits", "limits", seconds=20)

    stage.submit("small", 4, key=ZONE)

    stage.await_bound("small", 4, 60)
    assert stage.batches() == [Batch(pods=4, claims=4)]
    assert len(stage.gated("large")) == 16


def test_what_one_gang_has_bought_counts_against_the_limits_before_the_next_one_asks(stage: KarpenterStage) -> None:
    stage.create_pool(cpu_limit=8 * NODE_CPU)
    stage.submit("first", 6)
    stage.submit("second", 4)

    stage.await_bound("first", 6, 60)
    stage.await_waiting("second")
    stage.buy_by_plain_pod("plain")

    assert stage.batches() == [Batch(pods=6, claims=6), Batch(pods=1, claims=1)]
    assert len(stage.gated("second")) == 4


@pytest.mark.parametrize(
    ("pool", "selector"),
    [
        pytest.param(["zone-1"], {}, id="that the NodePool can buy in"),
        pytest.param(["zone-0", "zone-1"], {ZONE: "zone-1"}, id="that its members name"),
    ],
)
def test_a_gang_asks_in_the_zone(stage: KarpenterStage, pool: list[str], selector: dict[str, str]) -> None:
    stage.create_pool(zones=pool)

    stage.submit("ring", 4, key=ZONE, selector=selector)

    stage.await_bound("ring", 4, 60)
    assert stage.zones("ring") == {"zone-1"}
    assert stage.batches() == [Batch(pods=4, claims=4)]


def test_a_gang_that_no_instance_type_can_hold_says_what_karpenter_said_and_lets_the_next_one_ask(
    stage: KarpenterStage,
) -> None:
    stage.create_pool()
    stage.create_group("wide", 2, ZONE)
    stage.create_pods(["wide-0", "wide-1"], "wide", cpu=str(2 * NODE_CPU))
    stage.await_reason("wide", "AskingForNodes", seconds=20)
    stage.submit("ring", 3, key=ZONE)

    stage.await_reason("wide", "NoNodesCame", "no instance type", seconds=60)

    stage.await_bound("ring", 3, 60)
    assert stage.batches() == [Batch(pods=3, claims=3)]
    assert stage.bound("wide") == {}


def test_a_gang_whose_nodes_do_not_come_in_time_says_so_and_buys_no_more(stage: KarpenterStage) -> None:
    stage.create_pool(delay=NEVER)
    stage.submit("ring", 2)

    stage.await_reason("ring", "NoNodesCame", "asked at", seconds=60)

    assert stage.bound("ring") == {}
    assert len(stage.claims()) == 2


def test_a_gang_asks_for_nodes_of_a_kind_that_no_node_is_of_yet(stage: KarpenterStage) -> None:
    stage.create_pool(team="blue")

    stage.submit("ring", 3, key=ZONE, selector={TEAM: "blue"})

    stage.await_bound("ring", 3, 60)
    assert stage.batches() == [Batch(pods=3, claims=3)]


def test_a_gang_that_needs_a_rack_asks_where_a_node_pool_names_one(stage: KarpenterStage) -> None:
    stage.create_pool(labels={RACK: "rack-bought"})

    stage.submit("ring", 3, key=RACK)

    stage.await_bound("ring", 3, 60)
    assert stage.racks("ring") == {"rack-bought"}
    assert stage.batches() == [Batch(pods=3, claims=3)]


def test_a_gang_that_needs_a_rack_buys_nothing_where_new_nodes_have_none(stage: KarpenterStage) -> None:
    stage.create_pool()
    stage.submit("ring", 3, key=RACK)
    stage.await_reason("ring", "NoDomainFits", RACK, seconds=20)

    stage.buy_by_plain_pod("plain")

    assert stage.batches() == [Batch(pods=1, claims=1)]
    assert len(stage.gated("ring")) == 3


def test_consolidation_leaves_the_empty_nodes_on_which_a_gang_waits_for_more(stage: KarpenterStage) -> None:
    stage.create_pool(team="blue", cpu_limit=4 * NODE_CPU, consolidate_after="0s")
    stage.create_pool(team="red", consolidate_after="0s")
    plain = [f"plain-{number}" for number in range(4)]
    stage.create_pods(plain, cpu=MEMBER_CPU, nodeSelector={TEAM: "blue"})
    stage.create_pods(["other"], cpu=MEMBER_CPU, nodeSelector={TEAM: "red"})
    stage.await_bound("plain", 4, 60)
    stage.await_bound("other", 1, 60)
    stage.submit("ring", 4, selector={TEAM: "blue"})
    eventually("four protected nodes", lambda: len(stage.protected_nodes()) == 4)
    (others,) = stage.bound("other").values()
    kept = set(stage.bound("plain").values())

    # Karpenter looks at all empty nodes at the same time: when it takes the last one of them, it has left the others.
    stage.delete_pods(*plain[:2])
    stage.delete_pods("other")
    eventually("Karpenter takes the unprotected node", lambda: others not in stage.list_names(), 90)

    assert stage.list_names() == kept == stage.protected_nodes()
    assert len(stage.gated("ring")) == 4
    stage.delete_pods(*plain[2:])
    stage.await_bound("ring", 4)
    assert set(stage.bound("ring").values()) == kept
    eventually("nodes that may go again", lambda: not stage.protected_nodes())


def test_a_leader_that_is_killed_while_it_asks_is_followed_by_one_that_asks_for_no_more(stage: KarpenterStage) -> None:
    stage.create_pool()
    with stage.karpenter.frozen():
        stage.submit("ring", 12, key=ZONE)
        eventually("a member that asks", lambda: stage.asking("ring"), 20)
        stage.cluster.kill("extender", signal.SIGKILL)
        stage.cluster.start("extender")
        stage.cluster.await_ready("extender")
        stage.await_reason("ring", "AskingForNodes", seconds=30)
        eventually("all members ask", lambda: len(stage.asking("ring")) == 12, 30)

    stage.await_bound("ring", 12, 90)
    assert len(stage.zones("ring")) == 1
    assert stage.batches() == [Batch(pods=12, claims=12)]
