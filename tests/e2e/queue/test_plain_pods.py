"""Pods of no gang keep coming while a gang waits for the whole cluster. With the setting they wait behind it."""

import pytest

from tests.e2e.queue.stage import WHOLE_NODE, QueueStage
from tests.support.cluster_stage import RACK, eventually, names

pytestmark = pytest.mark.e2e

KEPT = "Serried keeps these nodes for the first gang in its queue"


def submit_plain(stage: QueueStage, count: int) -> None:
    """Plain pods that fill a node each, turned away by now."""
    stage.create_pods(names("plain", count), cpu=WHOLE_NODE)
    eventually("the scheduler's word", lambda: count_turned_away(stage) == count)


def count_turned_away(stage: QueueStage) -> int:
    said = [each.get("message", "") for pod in stage.pods("plain") for each in pod["status"].get("conditions", ())]
    return sum(KEPT in message for message in said)


def wait_for_all_nodes(stage: QueueStage) -> None:
    """One rack is free, and kept for a gang that wants both."""
    stage.occupy_rack()
    stage.run_gang("large", 4)
    stage.await_reason(stage.group_of_job("large"), "NoCapacity", "Serried keeps 4 nodes for ")


def test_plain_pods_wait_behind_the_head_and_come_after_it(strict_stage: QueueStage) -> None:
    stage = strict_stage
    wait_for_all_nodes(stage)
    submit_plain(stage, 3)
    stage.delete_job("early")
    stage.await_bound("large", 4)
    assert not stage.bound("plain")
    stage.delete_job("large")
    stage.await_bound("plain", 3)


def test_plain_pods_are_tried_again_when_the_head_is_gone_though_nothing_ran_or_ended(strict_stage: QueueStage) -> None:
    stage = strict_stage
    wait_for_all_nodes(stage)
    submit_plain(stage, 2)
    stage.delete_job("large")
    stage.await_bound("plain", 2, seconds=60)


def test_without_the_setting_plain_pods_take_the_room(stage: QueueStage) -> None:
    wait_for_all_nodes(stage)
    stage.create_pods(names("plain", 2), cpu=WHOLE_NODE)
    stage.await_bound("plain", 2)


def test_pods_that_may_go_anywhere_fill_the_rack_that_is_broken_up_and_a_gang_finds_the_other_whole(
    stage: QueueStage,
) -> None:
    stage.create_group("whole", 2, RACK)
    stage.create_pods(["whole-0"], "whole", cpu=WHOLE_NODE)
    stage.await_reason("whole", "QuorumMissing")
    stage.create_group("basic", None)
    stage.create_pods(["first"])
    stage.await_bound("first", 1)
    stage.create_pods(names("plain", 6))
    stage.create_pods(names("basic", 4), "basic")
    stage.await_bound("plain", 6)
    stage.await_bound("basic", 4)
    broken = stage.racks("first")
    assert stage.racks("plain") == stage.racks("basic") == broken
    stage.create_pods(["whole-1"], "whole", cpu=WHOLE_NODE)
    stage.await_bound("whole", 2)
    assert stage.racks("whole").isdisjoint(broken)
