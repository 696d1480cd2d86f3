"""Gangs for which Kueue chooses the hosts (topology-aware scheduling): 4 racks of 3 nodes of 32 CPU."""

import pytest

from serried.api.names import REQUIRED_TOPOLOGY
from tests.e2e.kueue.stage import HOSTNAME, KueueStage
from tests.support.cluster_stage import RACK, Raw, eventually, pod_spec

pytestmark = [pytest.mark.e2e, pytest.mark.full]

GATE = "example.com/data-is-loaded"


@pytest.fixture
def queue(stage: KueueStage) -> str:
    """A queue of which Kueue chooses the hosts."""
    topology = stage.create_topology("racks", RACK, HOSTNAME)
    stage.create_queue("team", flavor={"nodeLabels": {"type": "kwok"}, "topologyName": topology})
    return "team"


def in_one_rack(cpu: str = "30", **spec: object) -> Raw:
    """A pod template for which Kueue finds a rack."""
    annotations = {"kueue.x-k8s.io/podset-required-topology": RACK}
    return {"metadata": {"annotations": annotations}, "spec": pod_spec(cpu) | {"restartPolicy": "Never", **spec}}


def test_a_gang_starts_whole_on_the_hosts_that_kueue_has_chosen(stage: KueueStage, queue: str) -> None:
    stage.queue_job(queue, "train", 3, "30", template=in_one_rack())
    stage.await_bound("train", 3)
    assert len(stage.racks("train")) == 1
    assert stage.bound("train") == stage.chosen_hosts("train")
    assert stage.starts(train=3) == {"train": [3]}


def test_a_gang_starts_on_those_hosts_though_they_are_in_more_racks_than_its_own_key_allows(
    stage: KueueStage, queue: str
) -> None:
    template = {"metadata": {"annotations": {"kueue.x-k8s.io/podset-preferred-topology": RACK}}}
    template["spec"] = in_one_rack()["spec"]
    stage.queue_job(queue, "train", 4, "30", annotations={REQUIRED_TOPOLOGY: RACK}, template=template)
    stage.await_bound("train", 4)
    assert len(stage.racks("train")) == 2
    assert stage.bound("train") == stage.chosen_hosts("train")
    assert stage.starts(train=4) == {"train": [4]}
    eventually("the event", lambda: "TopologyIgnored" in dict(stage.events(stage.group_of_job("train"))))


def test_a_gang_waits_until_the_last_gate_is_lifted_however_they_go(stage: KueueStage, queue: str) -> None:
    stage.queue_job(queue, "train", 3, "30", template=in_one_rack(schedulingGates=[{"name": GATE}]))
    group = stage.group_of_job("train")
    eventually("hosts for all", lambda: len(stage.chosen_hosts("train")) == 3)
    *first, last = sorted(stage.chosen_hosts("train"))
    stage.await_reason(group, "MemberGated", "3 members", GATE)
    for lifted, name in enumerate(first, 1):
        stage.lift_gate(name, GATE)
        stage.await_reason(group, "MemberGated", f"{3 - lifted} member", GATE)
        assert not stage.bound("train")

    stage.lift_gate(last, GATE)
    stage.await_bound("train", 3)
    assert stage.bound("train") == stage.chosen_hosts("train")
    assert stage.starts(train=3) == {"train": [3]}


def test_a_held_member_whose_host_gets_a_taint_gets_another_one_and_the_gang_starts_whole(
    stage: KueueStage, queue: str
) -> None:
    stage.create_group("ours", 3)
    template = stage.member_template("ours", in_one_rack())
    stage.queue_job(queue, "train", 2, "30", template=template)
    eventually("hosts for all", lambda: len(stage.chosen_hosts("train")) == 2)
    stage.await_reason("ours", "QuorumMissing", "2 of 3")
    host, stays = stage.chosen_hosts("train").values()
    with stage.tainted(host):
        eventually(
            "another host", lambda: host not in (found := stage.chosen_hosts("train")).values() and len(found) == 2
        )
        stage.await_reason("ours", "QuorumMissing", "2 of 3")
        assert not stage.bound("train")

        stage.create_pods(["late-0"], "ours")
        stage.await_bound("late", 1)
        stage.await_bound("train", 2)
        assert stays in stage.bound("train").values()
        assert stage.bound("train") == stage.chosen_hosts("train")
    assert stage.starts(train=2, late=1) == {"train": [2], "late": [1]}


def _has_two_without(host: str, stage: KueueStage) -> bool:
    found = stage.chosen_hosts("train").values()
    return len(found) == 2 and host not in found
