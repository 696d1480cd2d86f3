"""Gangs of which kube-scheduler refuses a member whatever room there is: they let go at once. 12 nodes of 32 CPU.

What each of them lacks only the scheduler knows. Ten nodes are full, and a plain pod wants one of the two others.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.promises.test_preemption import HIGH, WHOLE_NODE, create_high_class, run_low
from tests.e2e.promises.test_volumes import Disks, lend_disks, mounting
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names
from tests.support.clusters import at_one_level

pytestmark = [pytest.mark.e2e, at_one_level("native")]

APP = {"app": "ring"}
SELECTED = {"labelSelector": {"matchLabels": APP}}
EVERYWHERE = "kubernetes.io/arch"
"""A label that all nodes share, as a topology key."""

_TERMS = [{"topologyKey": EVERYWHERE, **SELECTED}]
APART: dict[str, Any] = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _TERMS}}}
"""Of pods with this and the label APP, one runs in the cluster."""


@pytest.fixture
def disks(stage: ClusterStage) -> Iterator[Disks]:
    yield from lend_disks(stage)


def lack_a_claim(_: Disks) -> dict[str, Any]:
    return {"volumes": mounting("missing")}


def share_a_volume_of_one_pod(disks: Disks) -> dict[str, Any]:
    nodes = [node["metadata"]["name"] for node in disks.api.get("/api/v1/nodes")["items"]]
    disks.create_volume("data", nodes, "ReadWriteOncePod")
    disks.create_claim("data", "data", "ReadWriteOncePod")
    return {"volumes": mounting("data")}


def keep_each_other_off(_: Disks) -> dict[str, Any]:
    return APART


def spread_over_more_than_there_is(_: Disks) -> dict[str, Any]:
    return {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "minDomains": 2, "topologyKey": EVERYWHERE, "whenUnsatisfiable": "DoNotSchedule", **SELECTED}
        ]
    }


def fill(stage: ClusterStage, count: int) -> None:
    stage.create_pods(names("taken", count), cpu=WHOLE_NODE)
    stage.await_bound("taken", count)


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        pytest.param(lack_a_claim, "volume claim missing does not exist", id="a claim that does not exist"),
        pytest.param(share_a_volume_of_one_pod, "data is ReadWriteOncePod", id="one volume for one pod"),
        pytest.param(keep_each_other_off, "podAntiAffinity app=ring allows one member in each", id="anti-affinity"),
        pytest.param(spread_over_more_than_there_is, "topologySpread app=ring", id="spread"),
    ],
)
def test_of_a_member_that_can_never_pass_it_is_said_why_and_a_plain_pod_gets_the_room(
    stage: ClusterStage, disks: Disks, lacking: Callable[[Disks], dict[str, Any]], words: str
) -> None:
    fields = lacking(disks)
    fill(stage, 10)
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring", cpu=WHOLE_NODE, labels=APP, **fields)
    stage.await_reason("ring", "NoCapacity", words)
    eventually("nothing is held", lambda: not stage.reservations() and not stage.held_in_ledger(), 5)
    stage.create_pods(names("plain", 2), cpu=WHOLE_NODE)
    stage.await_bound("plain", 2, seconds=15)
    assert not stage.bound("ring")


def test_six_gangs_that_can_never_run_do_not_keep_the_seventh_waiting(stage: ClusterStage) -> None:
    fill(stage, 10)
    for gang in names("never", 6):
        mates = {"app": gang}
        term = {"topologyKey": EVERYWHERE, "labelSelector": {"matchLabels": mates}}
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        stage.create_group(gang, 2)
        stage.create_pods(names(gang, 2), gang, cpu=WHOLE_NODE, labels=mates, affinity=apart)
    stage.await_reason("never-0", "NoCapacity", "podAntiAffinity app=never-0 allows one member")
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring", cpu=WHOLE_NODE)
    stage.await_bound("ring", 2, seconds=20)
    assert not stage.bound("never")


def test_nobody_is_evicted_for_a_gang_that_cannot_run(stage: ClusterStage, disks: Disks) -> None:
    fields = share_a_volume_of_one_pod(disks)
    run_low(stage, 12)
    create_high_class(stage)
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "priorityClassName": HIGH}
    stage.create_scheduling("PodGroup", "ring", spec)
    stage.create_pods(names("ring", 2), "ring", cpu=WHOLE_NODE, priorityClassName=HIGH, **fields)
    stage.await_reason("ring", "NoCapacity", "data is ReadWriteOncePod", seconds=30)
    stage.create_group("next", 2)
    stage.create_pods(names("next", 2), "next", cpu=WHOLE_NODE)
    stage.await_reason("next", "NoCapacity")
    assert len(stage.pods("low")) == 12
    assert not stage.messages("ring", "PreemptionBegun")


def test_a_member_beyond_the_quorum_that_can_never_pass_gives_its_slot_back(stage: ClusterStage) -> None:
    fill(stage, 9)
    stage.create_group("ring", 2)
    stage.create_pods(["ring-0"], "ring", cpu=WHOLE_NODE, labels=APP, **APART)
    stage.create_pods(["ring-1"], "ring", cpu=WHOLE_NODE)
    stage.await_bound("ring", 2)
    stage.create_pods(["ring-2"], "ring", cpu=WHOLE_NODE, labels=APP, **APART)
    eventually("its refusal", lambda: stage.messages("ring-2", "FailedScheduling"))
    stage.create_pods(["plain"], cpu=WHOLE_NODE)
    stage.await_bound("plain", 1, seconds=15)
    assert len(stage.bound("ring")) == 2


def test_a_gang_in_a_rack_finds_the_one_rack_that_the_scheduler_takes(stage: ClusterStage) -> None:
    nodes = stage.cluster.api.get("/api/v1/nodes")["items"]
    last = max(node["metadata"]["labels"][RACK] for node in nodes)
    stage.create_pods(["friend"], labels={"app": "friend"}, nodeSelector={RACK: last})
    stage.await_bound("friend", 1)
    term = {"topologyKey": RACK, "labelSelector": {"matchLabels": {"app": "friend"}}}
    beside = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    stage.create_group("ring", 3, RACK)
    stage.create_pods(names("ring", 3), "ring", affinity=beside)
    stage.await_bound("ring", 3, seconds=20)
    assert stage.racks("ring") == {last}
