"""Gangs of which one member is judged for all that are alike (``--alike-members together``)."""

from collections import Counter
from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.support.cluster_stage import RACK, ClusterStage, names
from tests.support.clusters import running

pytestmark = [pytest.mark.e2e, pytest.mark.full]

SIZE = 20

PATIENCE = 60.0
"""Seconds for what takes some on a machine that does other things, too."""


@pytest.fixture(scope="module", params=["asked", "isolated"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Eight nodes of 32 CPUs in two racks; the extender is asked about all pods, or about marked ones only."""
    arguments, isolated = ("--alike-members", "together"), request.param == "isolated"
    name = f"alike-{request.param}"
    spec = Spec(name, nodes=8, racks=2, api="fallback", hold="filter", serried_args=arguments, isolated=isolated)
    with running(spec, tmp_path_factory) as started:
        yield started


def start_gang(stage: ClusterStage, name: str, cpu: str = "1") -> None:
    stage.create_group(name, SIZE, RACK)
    stage.create_pods(names(name, SIZE), name, cpu=cpu)


def tried(stage: ClusterStage, name: str, size: int = SIZE) -> set[str]:
    """The members of a gang that kube-scheduler has bound itself, as it says."""
    items = stage.cluster.api.get(f"/api/v1/namespaces/{stage.namespace}/events")["items"]
    return {event["involvedObject"]["name"] for event in items if event["reason"] == "Scheduled"} & {*names(name, size)}


def test_most_members_of_a_gang_never_come_to_the_scheduler_once_it_knows_their_kind(stage: ClusterStage) -> None:
    for name in ("first", "second", "third"):
        start_gang(stage, name)
        stage.await_bound(name, SIZE, PATIENCE)
        assert len(stage.racks(name)) == 1
    assert len(tried(stage, "second") | tried(stage, "third")) < SIZE


def test_a_gang_of_hundreds_is_bound_while_the_scheduler_comes_to_some_of_its_members(stage: ClusterStage) -> None:
    start_gang(stage, "first")
    stage.await_bound("first", SIZE, PATIENCE)
    stage.create_group("large", 200)
    with stage.asleep("scheduler"):
        stage.create_pods(names("large", 200), "large", cpu="1")
    stage.await_bound("large", 200, PATIENCE)
    assert len(tried(stage, "large", 200)) < 100


def test_no_node_is_overcommitted_by_plain_pods_that_come_beside_gangs(stage: ClusterStage) -> None:
    """In the end 252 of 256 CPUs are taken, so that the room for the last ones is where others are on their way to."""
    start_gang(stage, "first")
    stage.await_bound("first", SIZE, PATIENCE)
    for number in range(8):
        stage.create_group(f"gang-{number}", SIZE)
        stage.create_pods(names(f"gang-{number}", SIZE), f"gang-{number}", cpu="1")
        stage.create_pods(names(f"plain-{number}", 9), None, cpu="1")
    stage.await_bound("gang-", 8 * SIZE, PATIENCE)
    stage.await_bound("plain-", 72, PATIENCE)
    used = Counter(pod["spec"]["nodeName"] for pod in stage.pods())
    assert max(used.values()) <= 32
