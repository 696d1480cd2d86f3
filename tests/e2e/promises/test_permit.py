"""Every Binding asks for its permit: where a cluster changes after the plan, nothing is bound in part.

12 nodes of 32 CPU in 4 racks of 3; every member takes a node of its own.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from tests.e2e.promises.test_repair import ONE_LEVEL, WHOLE_NODE, others_of_rack, run_gang
from tests.e2e.waiting.test_cache_diff import compare
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names

pytestmark = pytest.mark.e2e


@contextmanager
def cordoned(stage: ClusterStage, *nodes: str) -> Iterator[None]:
    """Cordon these nodes while the body runs."""
    stage.cluster.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        stage.cluster.kubectl("uncordon", *nodes)


@contextmanager
def labelled(stage: ClusterStage, node: str, rack: str) -> Iterator[None]:
    """A node is said to be in another rack for as long as the body runs."""
    (found,) = [n for n in stage.cluster.api.get("/api/v1/nodes")["items"] if n["metadata"]["name"] == node]
    before = found["metadata"]["labels"][RACK]
    stage.cluster.kubectl("label", "node", node, f"{RACK}={rack}", "--overwrite")
    try:
        yield
    finally:
        stage.cluster.kubectl("label", "node", node, f"{RACK}={before}", "--overwrite")


def end_slowly(stage: ClusterStage, *pods: str) -> None:
    """Delete pods as a drain does: they have their time to end."""
    stage.cluster.kubectl("delete", "pod", *pods, "-n", stage.namespace, "--grace-period=60", "--wait=false")


def fill(stage: ClusterStage, count: int) -> None:
    """Plain pods that each take a node."""
    stage.create_pods(names("plain", count), cpu=WHOLE_NODE)
    stage.await_bound("plain", count)


def test_of_two_gangs_that_are_drained_at_once_one_is_whole_again_and_the_other_holds_nothing(
    stage: ClusterStage,
) -> None:
    homes = [*run_gang(stage, "left", 2).values(), *run_gang(stage, "right", 2).values()]
    fill(stage, 6)
    # Nobody confirms that the old members have ended, so they are being deleted for as long as kwok sleeps.
    with cordoned(stage, *homes), stage.stopped("kwok-controller"):
        end_slowly(stage, "left-0", "left-1", "right-0", "right-1")
        for number in (2, 3):
            for gang in ("left", "right"):
                stage.create_pods([f"{gang}-{number}"], gang, cpu=WHOLE_NODE)

        def replaced(gang: str) -> int:
            return len(stage.bound(f"{gang}-2") | stage.bound(f"{gang}-3"))

        eventually("two replacements", lambda: replaced("left") + replaced("right") == 2)
        assert {replaced("left"), replaced("right")} == {0, 2}
        waiting = "left" if replaced("right") else "right"
        view = eventually(
            "its reason", lambda: stage.debug_page(waiting) if stage.debug_page(waiting).get("reason") else None
        )
        assert view["reason"] in {"NoCapacity", "Broken"}
    stage.await_bound(f"{waiting}-", 2)


def test_a_gang_that_dies_while_a_late_member_is_on_its_way_starts_whole_or_not_at_all(stage: ClusterStage) -> None:
    homes = run_gang(stage, "ring", 3).values()
    fill(stage, 8)
    with cordoned(stage, *homes), stage.stopped("scheduler"):
        stage.create_pods(["ring-3"], "ring", cpu=WHOLE_NODE)
        eventually("the late member's slot", stage.held_in_ledger)
        stage.delete_pods("ring-0", "ring-1", "ring-2")
        stage.create_pods(["ring-4", "ring-5"], "ring", cpu=WHOLE_NODE)
        eventually("their end", lambda: len(stage.pods("ring")) == 3)
        eventually("the end of its slot", lambda: not stage.held_in_ledger())
    stage.delete_pods("plain-0", "plain-1")
    eventually("room for all three", lambda: len(stage.bound("plain")) == 6)
    with cordoned(stage, *homes):
        stage.await_bound("ring", 3)


def test_a_late_member_is_not_bound_to_a_node_that_has_left_the_rack(stage: ClusterStage) -> None:
    pair = run_gang(stage, "pair", 2, RACK)
    (rack,) = stage.racks("pair")
    (free,) = others_of_rack(stage, set(pair.values()))
    other = "rack-0" if rack != "rack-0" else "rack-1"
    with stage.stopped("scheduler"):
        stage.create_pods(["pair-2"], "pair", cpu=WHOLE_NODE)
        eventually("the late member's slot", stage.held_in_ledger)
        stage.cluster.kubectl("label", "node", free, f"{RACK}={other}", "--overwrite")
        eventually("a cache that has seen it", lambda: compare(stage)["equal"])
    try:
        stage.await_reason("pair", "DomainFull", seconds=40.0)
        assert not stage.bound("pair-2")
    finally:
        stage.cluster.kubectl("label", "node", free, f"{RACK}={rack}", "--overwrite")
    eventually("the late member", lambda: stage.bound("pair-2") == {"pair-2": free}, 60.0)


@ONE_LEVEL
@pytest.mark.full
def test_a_lease_that_nobody_renews_ends_the_round_without_a_write_and_the_next_term_plans_anew(
    stage: ClusterStage,
) -> None:
    stage.cluster.kill("scheduler", signal.SIGSTOP)
    try:
        eventually("an old Lease", lambda: _age_of_lease(stage) > 7, 20.0)
        stage.create_group("ring", 4)
        stage.create_pods(names("ring", 4), "ring")
        eventually("the plan", stage.held_in_ledger)
        eventually("the end of the term", lambda: not stage.selfcheck()["active"], 20.0)
        eventually("nothing in the ledger", lambda: not stage.held_in_ledger())
        assert not stage.reservations()
    finally:
        # It finds its Lease lost when it wakes, and ends itself.
        stage.cluster.kill("scheduler", signal.SIGKILL)
        stage.cluster.start("scheduler")
        stage.cluster.await_ready("scheduler")
    stage.await_bound("ring", 4, 60.0)
    eventually("the record's end", lambda: not stage.reservations())


def _age_of_lease(stage: ClusterStage) -> float:
    return (datetime.now(UTC) - stage.lease_renewed()).total_seconds()
