"""The share of room that a namespace may keep from others while its first gang waits: 80 % of 4 nodes are 3."""

import pytest

from tests.e2e.queue.stage import WHOLE_NODE, QueueStage
from tests.support.cluster_stage import names, staged

pytestmark = pytest.mark.e2e


def test_nothing_is_kept_from_other_namespaces_for_a_gang_that_wants_more_than_the_share_of_its_own(
    stage: QueueStage,
) -> None:
    stage.occupy_rack()
    stage.run_gang("large", 4)
    large = stage.group_of_job("large")
    stage.await_reason(large, "NoCapacity", "Serried keeps 4 nodes for ")
    with staged(QueueStage, stage.cluster) as other:
        for small in ("first", "second"):
            other.create_group(small, 1)
            other.create_pods(names(small, 1), small, cpu=WHOLE_NODE)
            other.await_bound(small, 1)
        other.run_gang("wide", 3)
        other.await_reason(other.group_of_job("wide"), "NoCapacity", "Serried keeps 3 nodes for ")
        said = "Serried keeps no nodes for the gang, because it would need 4 of 4 nodes, and one namespace may have 3"
        stage.await_reason(large, "NoCapacity", said)
        assert other.queue()["head"]["namespace"] == other.namespace

        # One node stays taken: with all four free the older gang fits, too, and comes first.
        stage.delete_job("early")
        other.delete_group("first")
        other.delete_pods(*names("first", 1))
        other.await_bound("wide", 3)
    stage.await_bound("large", 4)
