"""Trees that get the room of others, and trees that give theirs. 12 nodes of 32 CPU."""

import pytest

from tests.e2e.priorities.stage import PriorityStage
from tests.e2e.trees.stage import WHOLE_NODE
from tests.support.cluster_stage import eventually, names

pytestmark = pytest.mark.e2e


@pytest.mark.both_levels
def test_a_tree_gets_the_room_of_a_tree_that_goes_whole_though_a_part_would_do(stage: PriorityStage) -> None:
    with stage.priority_class("high", 1000) as high, stage.priority_class("middle", 10) as middle:
        stage.create_root("below", disruptionMode={"all": {}})
        for name in ("left", "right"):
            stage.create_branch(name, 2, parent="below")
            stage.create_pods(names(name, 2), name, cpu=WHOLE_NODE)
        stage.await_bound("left", 2)
        stage.await_bound("right", 2)
        stage.create_pods(names("middle", 8), cpu=WHOLE_NODE, priorityClassName=middle)
        stage.await_bound("middle", 8)

        stage.create_root("above", priorityClassName=high, schedulingPolicy={"gang": {"minGroupCount": 2}})
        for name, size in (("big", 2), ("small", 1)):
            stage.create_branch(name, size, parent="above")
            stage.create_pods(names(name, size), name, cpu=WHOLE_NODE, priorityClassName=high)
        stage.await_bound("big", 2, 60)
        stage.await_bound("small", 1)
        eventually("nobody of the other tree", lambda: not stage.pods("left") and not stage.pods("right"))
        assert len(stage.bound("middle")) == 8
        eventually("the record's end", lambda: not stage.reservations())
        eventually("the event", lambda: any(reason == "PreemptionBegun" for reason, _ in stage.events("above")))
