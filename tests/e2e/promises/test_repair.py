"""Life after binding: members die and others come in their place. 12 nodes of 32 CPU in 4 racks of 3."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench.cluster.nodes import node_name, node_object
from serried.api.names import write_time
from tests.support.cluster_stage import RACK, SCHEDULER, ClusterStage, eventually, indexed_spec, names
from tests.support.clusters import BESIDE_NATIVE_GANGS

pytestmark = pytest.mark.e2e

HOSTNAME = "kubernetes.io/hostname"
WHOLE_NODE = "30"
ONE_LEVEL = pytest.mark.parametrize("cluster", ["fallback"], indirect=True)
ONE_LEVEL_AND_BESIDE = pytest.mark.parametrize("cluster", ["fallback", BESIDE_NATIVE_GANGS], indirect=True)


def run_gang(
    stage: ClusterStage, name: str, size: int, key: str | None = None, cpu: str = WHOLE_NODE
) -> dict[str, str]:
    """A gang, each member on a node of its own unless ``cpu`` says otherwise; where they run."""
    stage.create_group(name, size, key)
    stage.create_pods(names(name, size), name, cpu=cpu)
    stage.await_bound(name, size)
    return stage.bound(name)


def wait_for_room(stage: ClusterStage, name: str, **fields: Any) -> None:
    """A gang of one that wants whatever room there is, and finds none; ``fields`` are more of its pod's spec."""
    stage.create_group(name, 1)
    stage.create_pods(names(name, 1), name, cpu=WHOLE_NODE, **fields)
    stage.await_reason(name, "NoCapacity")


def await_vacancy(stage: ClusterStage, member: str) -> dict[str, object]:
    """The slot that is kept since this member died."""
    return eventually(
        f"the slot of {member}", lambda: next((v for v in stage.vacancies() if v["member"] == member), None)
    )


def await_bound_to(stage: ClusterStage, pod: str, node: str) -> None:
    stage.await_bound(pod, 1)
    assert stage.bound(pod) == {pod: node}


def fail(stage: ClusterStage, pod: str) -> None:
    """The only container of a pod ends now, with a failure."""
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": write_time(time.time())}
    state = {"name": "main", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Failed", "containerStatuses": [state | {"state": {"terminated": ended}}]}
    subject = ("pod", pod, "-n", stage.namespace, "--subresource", "status", "--type", "merge")
    stage.cluster.kubectl("patch", *subject, "-p", json.dumps({"status": status}))


def others_of_rack(stage: ClusterStage, taken: set[str]) -> list[str]:
    """The nodes of the rack of these that are not among them."""
    found = {
        node["metadata"]["name"]: node["metadata"]["labels"][RACK]
        for node in stage.cluster.api.get("/api/v1/nodes")["items"]
    }
    racks = {found[name] for name in taken}
    return sorted(name for name, rack in found.items() if rack in racks and name not in taken)


@contextmanager
def lost(stage: ClusterStage, name: str) -> Iterator[None]:
    """A node is gone for as long as the body runs."""
    spec, api = stage.cluster.spec, stage.cluster.api
    stage.delete_node(name)
    try:
        yield
    finally:
        (index,) = [index for index in range(spec.nodes) if node_name(index) == name]
        api.post("/api/v1/nodes", node_object(spec, index))
        eventually("all nodes", lambda: stage.selfcheck()["objects"]["nodes"] == spec.nodes)


@contextmanager
def told(stage: ClusterStage, **options: tuple[str, str]) -> Iterator[None]:
    """The extender runs with these options, each (while the body runs, else)."""
    flags = {f"--{name.replace('_', '-')}": values for name, values in options.items()}
    stage.cluster.restart("extender", *[part for flag, (value, _) in flags.items() for part in (flag, value)])
    try:
        yield
    finally:
        stage.cluster.restart("extender", *[part for flag, (_, usual) in flags.items() for part in (flag, usual)])


def test_the_slot_of_a_dead_member_is_kept_for_the_next_though_another_gang_waits_for_the_room(
    stage: ClusterStage,
) -> None:
    ring = run_gang(stage, "ring", 12)
    wait_for_room(stage, "next")

    stage.delete_pods("ring-3")
    kept = await_vacancy(stage, "ring-3")
    assert (kept["node"], kept["claimed"]) == (ring["ring-3"], True)
    # Not by the same name: kwok, which saw that pod end, sometimes deletes what has its name a moment later.
    stage.create_pods(["ring-12"], "ring", cpu=WHOLE_NODE)
    await_bound_to(stage, "ring-12", ring["ring-3"])
    assert len(stage.bound("ring")) == 12
    assert not stage.bound("next")
    eventually("the end of the record", lambda: not stage.reservations())

    # Of a gang that nobody makes anew nothing is kept: its room is everybody's.
    stage.delete_pods(*stage.bound("ring"))
    stage.await_bound("next", 1)


@pytest.mark.full
@ONE_LEVEL_AND_BESIDE
def test_a_kill_does_not_forget_the_slot_of_a_member_that_failed(stage: ClusterStage) -> None:
    ring = run_gang(stage, "ring", 12)
    wait_for_room(stage, "next")
    stage.cluster.kill("extender", signal.SIGKILL)
    fail(stage, "ring-3")
    stage.cluster.start("extender")
    stage.cluster.await_ready("extender")

    assert await_vacancy(stage, "ring-3")["node"] == ring["ring-3"]
    stage.delete_pods("ring-3")
    # Not by the same name: kwok, which saw that pod end, sometimes deletes what has its name a moment later.
    stage.create_pods(["ring-12"], "ring", cpu=WHOLE_NODE)
    await_bound_to(stage, "ring-12", ring["ring-3"])
    assert not stage.bound("next")


@ONE_LEVEL_AND_BESIDE
def test_pods_of_a_job_that_die_together_come_back_to_their_nodes_with_their_ranks(stage: ClusterStage) -> None:
    # Of each index alone the Job controller waits for 10 s; three failures of a whole Job would make it wait for 40.
    spec = indexed_spec(SCHEDULER, WHOLE_NODE) | {"backoffLimitPerIndex": 3}
    stage.submit_job("train", **spec | {"parallelism": 12, "completions": 12})
    stage.await_bound("train", 12)
    before, ranks = stage.bound("train"), stage.ranks("train")
    places = {rank: before[name] for name, rank in ranks.items()}
    wait_for_room(stage, "next")

    stage.delete_pods(*[name for name, rank in ranks.items() if rank in {"1", "5", "9"}])
    eventually("three new pods", lambda: len(stage.bound("train")) == 12 and len(stage.bound("train") | before) == 15)
    after = stage.bound("train")
    assert {rank: after[name] for name, rank in stage.ranks("train").items()} == places
    assert not stage.bound("next")


def test_when_a_node_is_lost_those_that_come_after_stay_in_the_rack_even_if_it_is_full(stage: ClusterStage) -> None:
    ring = run_gang(stage, "ring", 4, RACK, cpu="15")
    (rack,) = stage.racks("ring")
    (free,) = others_of_rack(stage, set(ring.values()))
    stage.create_pods(["plain"], cpu=WHOLE_NODE, nodeSelector={HOSTNAME: free})
    stage.await_bound("plain", 1)

    gone = ring["ring-0"]
    dead = [name for name, node in ring.items() if node == gone]
    with lost(stage, gone):
        stage.delete_pods(*dead)
        eventually("their end", lambda: not any(stage.bound(name) for name in dead))
        stage.create_pods(dead, "ring", cpu="15")
        stage.await_reason(
            "ring", "Broken", "only 2 of 4 members are left of this gang, which was running; DomainFull: "
        )
        assert not any(stage.bound(name) for name in dead)

        stage.delete_pods("plain")
        stage.await_bound("ring", 4)
        assert stage.racks("ring") == {rack}
        assert {stage.bound(name)[name] for name in dead} == {free}


def test_a_member_that_its_kubelet_refuses_is_replaced_on_another_node_of_the_rack(stage: ClusterStage) -> None:
    pair = run_gang(stage, "pair", 2, RACK)
    (free,) = others_of_rack(stage, set(pair.values()))
    refused = min(pair, key=lambda name: pair[name])
    (other,) = pair.keys() - {refused}
    status = {"status": {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: Node didn't have room"}}
    subject = ("pod", refused, "-n", stage.namespace, "--subresource", "status", "--type", "merge")
    stage.cluster.kubectl("patch", *subject, "-p", json.dumps(status))
    assert await_vacancy(stage, refused)["refusal"] == "OutOfcpu"

    stage.create_pods(["pair-2"], "pair", cpu=WHOLE_NODE)
    await_bound_to(stage, "pair-2", free)
    assert stage.bound(other) == {other: pair[other]}


@ONE_LEVEL_AND_BESIDE
def test_a_broken_gang_is_reported_and_gets_room_before_one_that_waits_for_longer(stage: ClusterStage) -> None:
    with told(stage, broken_grace=("2", "300")):
        stage.create_pods(names("plain", 10), cpu=WHOLE_NODE)
        stage.await_bound("plain", 10)
        wanted = stage.bound("plain-4")["plain-4"]
        wait_for_room(stage, "older", nodeSelector={HOSTNAME: wanted})
        pair = run_gang(stage, "pair", 2)
        # Slots are kept from gangs only: another plain pod takes the place of the dead member.
        stage.delete_pods("pair-0")
        stage.create_pods(["thief"], cpu=WHOLE_NODE, nodeSelector={HOSTNAME: pair["pair-0"]})
        stage.await_bound("thief", 1)

        stage.create_pods(["pair-2"], "pair", cpu=WHOLE_NODE)
        stage.await_reason("pair", "Broken", "only 1 of 2 members are left of this gang, which was running; ")
        eventually("the event", lambda: any(reason == "GangBroken" for reason, _ in stage.events("pair")))
        assert not stage.bound("pair-2")
        assert not stage.bound("older")

        stage.delete_pods("plain-4")
        await_bound_to(stage, "pair-2", wanted)
        assert not stage.bound("older")


@ONE_LEVEL_AND_BESIDE
@pytest.mark.full
def test_what_is_left_of_a_broken_gang_is_evicted_if_that_is_asked_for(stage: ClusterStage) -> None:
    with told(stage, broken_grace=("2", "300"), broken_gangs=("evict", "report")):
        run_gang(stage, "ring", 12)
        wait_for_room(stage, "next")
        stage.delete_pods("ring-7")
        eventually("nobody of the gang", lambda: not stage.pods("ring"))
        stage.await_bound("next", 1)
        assert any(reason == "GangBroken" for reason, _ in stage.events("ring"))


def test_a_member_that_another_scheduler_binds_outside_the_rack_is_said_and_not_mended(stage: ClusterStage) -> None:
    pair = run_gang(stage, "pair", 2, RACK)
    (rack,) = stage.racks("pair")
    stage.create_pods(["pair-2"], "pair", schedulerName="another")
    stage.bind("pair-2", others_than(stage, rack)[0])
    stage.await_reason("pair", "DomainConflict", "; " + ", ".join(sorted(stage.racks("pair"))))
    eventually("the event", lambda: any(reason == "DomainConflict" for reason, _ in stage.events("pair")))

    stage.create_pods(["pair-3"], "pair")
    eventually("the new member", lambda: stage.debug_page("pair").get("waiting") == 1)
    assert stage.debug_page("pair")["reason"] == "DomainConflict"
    assert stage.bound("pair").keys() == pair.keys() | {"pair-2"}

    stage.delete_pods("pair-2")
    eventually("the new member's node", lambda: stage.bound("pair-3"))
    assert stage.racks("pair") == {rack}


def others_than(stage: ClusterStage, rack: str) -> list[str]:
    """The nodes of the other racks."""
    found = stage.cluster.api.get("/api/v1/nodes")["items"]
    return sorted(node["metadata"]["name"] for node in found if node["metadata"]["labels"][RACK] != rack)
