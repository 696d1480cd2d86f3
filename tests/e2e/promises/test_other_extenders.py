"""Another extender refuses nodes of which Serried knows nothing. 12 nodes of 32 CPU in 4 racks.

Asked before Serried it keeps nodes from filter. Asked after it, it refuses the node that filter has answered, and only
the pod's condition tells of that. Either way a gang gives way within 2 s.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from bench.cluster import Cluster
from tests.e2e.promises.test_preemption import WHOLE_NODE
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names
from tests.support.other_extender import REASON, OtherExtender, call_other_extender

pytestmark = pytest.mark.e2e

WITHIN = 2.0

BEFORE, AFTER = 0, 1


@pytest.fixture(params=[pytest.param(BEFORE, id="before"), pytest.param(AFTER, id="after")])
def other(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OtherExtender]:
    with call_other_extender(cluster, request.param, tmp_path) as other:
        yield other


def fill(stage: ClusterStage, count: int) -> None:
    stage.create_pods(names("taken", count), cpu=WHOLE_NODE)
    stage.await_bound("taken", count)


def given_back(stage: ClusterStage, group: str) -> list[float]:
    """Return the times at which the group's plan was given up or it had no room, in whole seconds since 1970."""
    found = stage.list_decisions(group)
    return sorted(
        datetime.fromisoformat(each["at"]).timestamp()
        for each in found
        if each["reason"] in {"PlanOutdated", "NoCapacity"}
    )


def test_a_gang_finds_the_one_rack_that_it_takes_and_looks_at_no_node_twice(
    stage: ClusterStage, other: OtherExtender
) -> None:
    nodes = stage.cluster.api.get("/api/v1/nodes")["items"]
    racks = {node["metadata"]["name"]: node["metadata"]["labels"][RACK] for node in nodes}
    last = max(racks.values())
    other.refuses = lambda _, node: racks[node] != last
    stage.create_group("ring", 3, RACK)
    stage.create_pods(names("ring", 3), "ring")
    stage.await_bound("ring", 3, seconds=40)
    assert stage.racks("ring") == {last}
    assert max(other.find_reactions()) < WITHIN
    assert not [text for text in stage.decisions("ring") if "DeadlineExceeded" in text]


def test_of_a_member_that_it_never_takes_it_is_said_why_and_the_room_goes_to_others(
    stage: ClusterStage, other: OtherExtender
) -> None:
    other.refuses = lambda pod, _: pod == "ring-1"
    fill(stage, 10)
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring", cpu=WHOLE_NODE)
    refused = eventually("a refusal", lambda: [each.at for each in other.asked if each.refused])[0]
    stage.await_reason("ring", "NoCapacity", REASON)
    assert given_back(stage, "ring")[0] - refused < WITHIN
    eventually("nothing is held", lambda: not stage.reservations() and not stage.held_in_ledger(), 5)
    stage.create_pods(names("plain", 2), cpu=WHOLE_NODE)
    stage.await_bound("plain", 2)
    assert not stage.bound("ring")
