"""What Karpenter buys beside Serried when no gang asks for nodes."""

import pytest

from bench.karpenter import Batch
from tests.e2e.karpenter.stage import KarpenterStage

pytestmark = [pytest.mark.e2e, pytest.mark.full]


def test_karpenter_buys_a_node_for_a_plain_pod_that_finds_no_room(stage: KarpenterStage) -> None:
    stage.create_pool()

    stage.buy_by_plain_pod("plain")

    (node,) = stage.nodes()
    assert stage.bound("plain") == {"plain": node["metadata"]["name"]}
    assert len(stage.claims()) == 1
    assert stage.batches() == [Batch(pods=1, claims=1)]


def test_a_gang_that_waits_for_members_buys_nothing_while_others_do(stage: KarpenterStage) -> None:
    stage.create_pool()
    stage.submit("ring", 5, members=2)
    stage.await_reason("ring", "QuorumMissing")

    # Each of these pods is seen, and bought for, after both members were there to be bought for.
    for number in range(3):
        stage.buy_by_plain_pod(f"plain-{number}")

    assert stage.batches() == [Batch(pods=1, claims=1)] * 3
    assert len(stage.claims()) == 3
    assert stage.gated("ring") == ["ring-0", "ring-1"]
    assert stage.said_by_karpenter("ring-0") == stage.said_by_karpenter("ring-1") == []
