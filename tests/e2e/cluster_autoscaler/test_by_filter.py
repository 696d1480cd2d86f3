"""Without the policy that gates members, Cluster Autoscaler sees each of them at once, and the reason says so."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.cluster import Cluster
from tests.e2e.cluster_autoscaler.stage import SPEC, AutoscaledStage, autoscaled
from tests.support.cluster_stage import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with autoscaled(replace(SPEC, name="by-filter", hold="filter"), tmp_path_factory, requests=True) as started:
        yield started


def test_a_gang_that_lacks_members_says_that_nodes_may_be_added_before_it_can_start(stage: AutoscaledStage) -> None:
    stage.create_gang("ring", 5, members=3)
    said = "its members have no scheduling gate, so Cluster Autoscaler may add nodes before the gang can start"
    stage.await_reason("ring", "QuorumMissing", said)
    eventually("candidates", lambda: len(stage.candidates()) == 3)
    stage.autoscaler.loop()
    assert len(stage.autoscaler.added) == 1


def test_a_whole_gang_makes_a_request_and_its_members_are_no_candidates_any_more(stage: AutoscaledStage) -> None:
    stage.create_gang("ring", 4)
    stage.await_request("ring")
    eventually("members that consume it", lambda: len(stage.consumed("ring")) == 4)
    assert stage.candidates() == set()
    stage.autoscaler.loop()
    stage.await_bound("ring", 4)
    assert stage.zones("ring") == {"zone-0"}
