"""A whole gang without room makes a ProvisioningRequest where Cluster Autoscaler serves them; nothing else does."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster
from bench.cluster.nodes import ZONE
from tests.e2e.cluster_autoscaler.stage import SPEC, AutoscaledStage, autoscaled
from tests.support.cluster_autoscaler import CONSUMES
from tests.support.cluster_stage import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with autoscaled(SPEC, tmp_path_factory, requests=True) as started:
        yield started


def test_a_whole_gang_makes_one_request_is_bound_in_one_zone_and_the_request_goes(stage: AutoscaledStage) -> None:
    stage.create_gang("ring", 4)
    request = stage.await_request("ring")
    assert request["spec"]["provisioningClassName"] == "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    assert [each["count"] for each in request["spec"]["podSets"]] == [4]
    [template] = stage.pod_templates()
    assert template["template"]["spec"]["nodeSelector"] == {ZONE: "zone-0"}
    eventually("members that consume it", lambda: stage.consumed("ring") == [request["metadata"]["name"]] * 4)
    stage.await_reason("ring", "AskingForNodes", "in zone-0: only 1 of 4 members fit")
    assert stage.candidates() == set()

    stage.autoscaler.loop()
    assert len(stage.autoscaler.added) == 3
    stage.await_bound("ring", 4)
    assert stage.zones("ring") == {"zone-0"}
    eventually("the end of the request", lambda: not stage.requests())
    eventually("the end of its PodTemplates", lambda: not stage.pod_templates(), 60)


def test_a_gang_that_lacks_members_asks_for_nothing_while_one_behind_it_does(stage: AutoscaledStage) -> None:
    stage.create_gang("part", 5, members=2)
    stage.await_reason("part", "QuorumMissing")
    stage.create_gang("ring", 3)
    stage.await_request("ring")
    stage.autoscaler.loop()
    stage.await_bound("ring", 3)
    assert len(stage.autoscaler.added) == 2

    stage.autoscaler.loop()
    assert (stage.candidates(), stage.consumed("part"), len(stage.autoscaler.added)) == (set(), [], 2)

    stage.add_members("part", 3)
    assert [each["count"] for each in stage.await_request("part")["spec"]["podSets"]] == [5]


def test_a_refused_request_is_the_reason_and_the_next_gang_asks(stage: AutoscaledStage) -> None:
    stage.limit(1)
    stage.create_gang("large", 4)
    refused = stage.await_request("large")
    stage.create_gang("small", 2)
    stage.await_reason("small", "NoDomainFits", "Serried asks for nodes for ")

    stage.autoscaler.loop()
    assert stage.autoscaler.added == []
    stage.await_reason("large", "NoNodesCame", "Cluster Autoscaler: CapacityIsNotFound", seconds=30)
    stage.await_request("small")
    stage.autoscaler.loop()
    stage.await_bound("small", 2)
    assert stage.consumed("large") == [refused["metadata"]["name"]] * 4
    assert (stage.bound("large-"), stage.candidates()) == ({}, set())


def test_a_leader_that_is_killed_while_it_asks_leaves_a_request_that_the_next_one_ends(stage: AutoscaledStage) -> None:
    stage.create_gang("ring", 3)
    request = stage.await_request("ring")
    eventually("members that consume it", lambda: len(stage.consumed("ring")) == 3)
    stage.cluster.kill("extender")
    stage.cluster.start("extender")
    stage.cluster.await_ready("extender")
    stage.await_reason("ring", "AskingForNodes", seconds=30)
    assert [each["metadata"]["uid"] for each in stage.requests()] == [request["metadata"]["uid"]]

    stage.autoscaler.loop()
    stage.await_bound("ring", 3)
    eventually("the end of the request", lambda: not stage.requests())


def test_members_that_consume_a_request_of_kueue_make_none(stage: AutoscaledStage) -> None:
    stage.create_gang("queued", 3, annotations={CONSUMES: "job-of-kueue"})
    stage.await_reason("queued", "NoDomainFits")
    stage.create_gang("ring", 2)
    stage.await_request("ring")
    stage.autoscaler.loop()
    stage.await_bound("ring", 2)
    assert (stage.consumed("queued"), stage.candidates()) == (["job-of-kueue"] * 3, set())
    assert len(stage.autoscaler.added) == 1
