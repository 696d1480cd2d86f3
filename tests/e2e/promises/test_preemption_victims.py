"""Victims of a gang of higher priority, pods that would be victims, and pods that never are.

12 nodes of 32 CPU in 4 racks.
"""

import pytest

from tests.e2e.promises.test_disruption import said_of
from tests.e2e.promises.test_preemption import (
    POLITE,
    WHOLE_NODE,
    create_class,
    create_high_class,
    list_ending,
    run_low,
    submit,
)
from tests.e2e.promises.test_repair import told
from tests.e2e.promises.test_volumes import await_a_volume
from tests.support.cluster_stage import ClusterStage, Raw, eventually, names
from tests.support.clusters import BESIDE_NATIVE_GANGS, at_one_level

pytestmark = [pytest.mark.e2e, at_one_level("fallback", BESIDE_NATIVE_GANGS)]

LONG = {"barrier_idle": ("60", "8")}
"""So that no deadline of the barrier ends what a story is about."""


@pytest.fixture
def high(stage: ClusterStage) -> str:
    """A PriorityClass above all others of the tests."""
    return create_high_class(stage)


def run_gang(stage: ClusterStage, name: str, need: int, size: int, **fields: object) -> None:
    """A gang of priority 0, each member on a node of its own; ``fields`` are more of the PodGroup's spec."""
    spec: Raw = {"schedulingPolicy": {"gang": {"minCount": need}}, **fields}
    stage.create_scheduling("PodGroup", name, spec)
    stage.create_pods(names(name, size), name, cpu=WHOLE_NODE)
    stage.await_bound(name, size)


def hold_two(stage: ClusterStage) -> None:
    """Two members of a gang of three wait at their bind call for one that waits for its volume."""
    if stage.beside_native:
        pytest.skip("kube-scheduler takes nobody to bind before it has nodes for the quorum: see test_beside.py")
    stage.create_group("held", 3)
    stage.create_pods(names("held", 2), "held", cpu=WHOLE_NODE)
    stage.create_pods(["held-2"], "held", volumes=await_a_volume(stage))
    eventually("two members at bind", lambda: any(view["atBind"] == 2 for view in stage.held_in_ledger()))


def reasons_of(group: Raw) -> set[tuple[str, str]]:
    return {(each["type"], each["reason"]) for each in group.get("status", {}).get("conditions", [])}


def test_all_of_a_gang_of_mode_all_go_though_one_would_do(stage: ClusterStage, high: str) -> None:
    run_gang(stage, "whole", 3, 3, disruptionMode={"all": {}})
    stage.create_pods(names("other", 9), cpu=WHOLE_NODE, priorityClassName=high)
    stage.await_bound("other", 9)
    submit(stage, "ring", 1, high)
    stage.await_bound("ring", 1)
    eventually("nobody of the gang", lambda: not stage.pods("whole"))
    assert len(stage.bound("other")) == 9
    (group,) = [each for each in stage.list_groups() if each["metadata"]["name"] == "whole"]
    assert ("DisruptionTarget", "PreemptionByScheduler") in reasons_of(group)


def test_members_beyond_the_quorum_go_before_a_gang_is_broken(stage: ClusterStage, high: str) -> None:
    run_gang(stage, "rigid", 6, 6)
    run_gang(stage, "elastic", 4, 6)
    submit(stage, "ring", 2, high)
    stage.await_bound("ring", 2)
    assert len(stage.bound("rigid")) == 6
    assert len(stage.bound("elastic")) == 4


@pytest.mark.full
def test_victims_that_do_not_end_in_time_are_waited_for_no_longer(stage: ClusterStage, high: str) -> None:
    with told(stage, preemption_timeout=("3", "600")):
        run_low(stage, 12, end_after="50s", grace_seconds=1)
        submit(stage, "ring", 2, high)
        eventually("pods that end", lambda: len(list_ending(stage)) == 2)
        eventually("the record's end", lambda: not stage.reservations() and not stage.held_in_ledger())
        victims = list_ending(stage)
        assert len(victims) == 2
        assert not stage.bound("ring")
        eventually("an event", lambda: "VictimsRemain" in [reason for reason, _ in stage.events("ring")])
        stage.delete_pods(*victims)
        stage.await_bound("ring", 2)
        assert len(stage.bound("low")) == 10


def test_the_room_that_victims_have_left_is_kept_from_plain_pods_while_others_still_end(
    stage: ClusterStage, high: str
) -> None:
    with told(stage, **LONG):
        stage.create_pods(names("other", 8), cpu=WHOLE_NODE, priorityClassName=high)
        stage.await_bound("other", 8)
        run_low(stage, 4, end_after="600s")
        submit(stage, "ring", 4, high)
        eventually("pods that end", lambda: len(list_ending(stage)) == 4)
        end_at_once(stage, names("low", 3))
        stage.create_pods(["rival-lower"], cpu=WHOLE_NODE)
        stage.create_pods(["rival-equal"], cpu=WHOLE_NODE, priorityClassName=create_class(stage, POLITE, "Never"))
        eventually("the scheduler's word", lambda: said_of(stage, "rival-lower") and said_of(stage, "rival-equal"))
        assert list_ending(stage) == ["low-3"]
        assert not stage.bound("ring")

        end_at_once(stage, ["low-3"])
        stage.await_bound("ring", 4, 60)
        assert not stage.bound("rival")


def end_at_once(stage: ClusterStage, pods: list[str]) -> None:
    """End these pods before their time, and wait until they are gone."""
    stage.cluster.kubectl("delete", "pod", *pods, "-n", stage.namespace, "--force", "--grace-period=0")
    eventually("their end", lambda: {pod["metadata"]["name"] for pod in stage.pods()}.isdisjoint(pods))


@pytest.mark.full
def test_with_advice_it_is_said_who_would_have_to_go_and_nobody_goes(stage: ClusterStage, high: str) -> None:
    with told(stage, preemption=("advice", "on")):
        run_low(stage, 12)
        submit(stage, "ring", 2, high)
        view = stage.await_reason("ring", "NoCapacity", "the gang would fit without 2 pods of lower priority")
        assert len(view["preemption"]["victims"]) == 2
        assert not [each for each in stage.pods("low") if each["metadata"].get("deletionTimestamp")]
        assert len(stage.bound("low")) == 12
        assert not any(reason == "Preempted" for name in names("low", 12) for reason, _ in stage.events(name))


def test_a_held_member_that_is_deleted_frees_the_others_at_once_and_the_next_ones_start_the_gang(
    stage: ClusterStage,
) -> None:
    with told(stage, **LONG):
        hold_two(stage)
        stage.delete_pods("held-0")
        eventually("nobody at bind", lambda: not stage.held_in_ledger(), 5.0)
        stage.await_reason("held", "QuorumMissing", "2 of 3 members exist")
        assert not stage.bound("held")
        stage.delete_pods("held-2")
        stage.create_pods(names("held", 2, start=3), "held", cpu=WHOLE_NODE)
        stage.await_bound("held", 3)


def test_a_plain_pod_does_not_take_the_slot_of_a_held_member_for_nothing(stage: ClusterStage, high: str) -> None:
    with told(stage, **LONG):
        stage.create_pods(names("other", 10), cpu=WHOLE_NODE, priorityClassName=high)
        stage.await_bound("other", 10)
        hold_two(stage)
        stage.create_pods(["plain"], cpu=WHOLE_NODE, priorityClassName=high)
        eventually("the scheduler's word", lambda: "no candidate node" in said_of(stage, "plain"))
        assert len(stage.pods("held")) == 3
        assert any(view["atBind"] == 2 for view in stage.held_in_ledger())

        stage.delete_pods("held-2")
        stage.await_bound("plain", 1)
        assert len(stage.pods("held")) == 2
        assert not stage.bound("held")
