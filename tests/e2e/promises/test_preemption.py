"""A gang of higher priority gets the room of others, whole, and nobody ends in vain. 12 nodes of 32 CPU in 4 racks."""

import signal
from typing import Any

import pytest

from bench.cluster.api import ApiError
from tests.e2e.promises.test_crashes import revive
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names, pod_spec
from tests.support.clusters import BESIDE_NATIVE_GANGS, at_one_level

pytestmark = pytest.mark.e2e

WHOLE_NODE = "30"
HIGH = "preemption-high"
HIGHER = "preemption-higher"
POLITE = "preemption-polite"


@pytest.fixture
def high(stage: ClusterStage) -> str:
    """A PriorityClass above all others of the tests."""
    return create_high_class(stage)


def create_high_class(stage: ClusterStage) -> str:
    """The same, made where it does not exist."""
    return create_class(stage, HIGH, "PreemptLowerPriority")


def create_class(stage: ClusterStage, name: str, policy: str, value: int = 1000) -> str:
    """A PriorityClass with this preemptionPolicy, made where it does not exist, and known to the API server."""
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    if all(item["metadata"]["name"] != name for item in stage.cluster.api.get(classes)["items"]):
        stage.cluster.api.post(classes, {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy})
        eventually(f"admission with class {name}", lambda: is_admitted(stage, name))
    return name


def is_admitted(stage: ClusterStage, name: str) -> bool:
    """Return whether a pod of this PriorityClass may be made by now: admission watches classes itself."""
    pod = {"metadata": {"name": "probe"}, "spec": pod_spec("1") | {"priorityClassName": name}}
    try:
        stage.cluster.api.post(f"/api/v1/namespaces/{stage.namespace}/pods?dryRun=All", pod)
    except ApiError:
        return False
    return True


def run_low(
    stage: ClusterStage, count: int, cpu: str = WHOLE_NODE, end_after: str = "0s", grace_seconds: int = 60
) -> None:
    """Plain pods of priority 0 that take this long to end, whatever their grace."""
    for name in names("low", count):
        metadata = {"name": name, "annotations": {"bench.serried.dev/end-after": end_after}}
        spec = pod_spec(cpu) | {"terminationGracePeriodSeconds": grace_seconds}
        stage.cluster.api.post(f"/api/v1/namespaces/{stage.namespace}/pods", {"metadata": metadata, "spec": spec})
    stage.await_bound("low", count)


def submit(
    stage: ClusterStage,
    name: str,
    size: int,
    priority_class: str,
    key: str | None = None,
    annotations: dict[str, str] | None = None,
) -> None:
    """A gang of this priority, each member on a node of its own; ``key`` is that of the domain which it must not leave.

    ``annotations`` are more of its PodGroup's.
    """
    spec = {"schedulingPolicy": {"gang": {"minCount": size}}, "priorityClassName": priority_class}
    required = {"scheduling.serried.dev/required-topology": key} if key else {}
    stage.create_scheduling("PodGroup", name, spec, required | (annotations or {}))
    stage.create_pods(names(name, size), name, cpu=WHOLE_NODE, priorityClassName=priority_class)


def submit_exclusive(stage: ClusterStage, name: str, priority_class: str | None = None) -> None:
    """A small gang of two that wants a rack without other gangs that want the same."""
    said: dict[str, Any] = {"priorityClassName": priority_class} if priority_class else {}
    annotations = {"scheduling.serried.dev/required-topology": RACK, "scheduling.serried.dev/exclusive": "true"}
    stage.create_scheduling("PodGroup", name, {"schedulingPolicy": {"gang": {"minCount": 2}}, **said}, annotations)
    stage.create_pods(names(name, 2), name, cpu="1", **said)


def list_ending(stage: ClusterStage) -> list[str]:
    return [pod["metadata"]["name"] for pod in stage.pods("low") if "deletionTimestamp" in pod["metadata"]]


def find_gone(stage: ClusterStage, prefix: str, count: int) -> set[str]:
    """Return the first ``count`` pods of this name that are gone."""
    return set(names(prefix, count)) - {pod["metadata"]["name"] for pod in stage.pods(prefix)}


@pytest.mark.both_levels
def test_a_gang_gets_one_rack_of_lower_pods_and_is_bound_whole(stage: ClusterStage, high: str) -> None:
    run_low(stage, 12)
    submit(stage, "ring", 3, high, RACK)
    stage.await_bound("ring", 3)
    assert len(stage.racks("ring")) == 1
    assert len(stage.pods("low")) == 9
    eventually("the end of the record", lambda: not stage.reservations())
    gone = set(names("low", 12)) - set(stage.bound("low"))
    (said,) = eventually("the event", lambda: stage.messages("ring", "PreemptionBegun"))
    count, _, victims = said.removeprefix("Serried evicts ").partition(" pods of lower priority for the gang: ")
    assert count == "3"
    assert set(victims.split(", ")) == {f"{stage.namespace}/{name}" for name in gone}
    told = f"serried: preempted by PodGroup {stage.namespace}/ring of higher priority"
    eventually("their events", lambda: all(told in stage.messages(name, "Preempted") for name in gone))


@pytest.mark.both_levels
def test_members_wait_and_are_not_bound_alone_while_the_others_end(stage: ClusterStage, high: str) -> None:
    run_low(stage, 12, end_after="6s")
    submit(stage, "ring", 4, high)
    eventually("pods that end", lambda: len(list_ending(stage)) == 4)
    stage.await_reason("ring", "Preempting")
    (record,) = stage.reservations()
    assert len(record["spec"]["victims"]) == 4
    ending = [pod for pod in stage.pods("low") if "deletionTimestamp" in pod["metadata"]]
    said = [c for pod in ending for c in pod["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    eventually("our condition", lambda: {c["reason"] for c in said} == {"PreemptionByScheduler"})
    assert not stage.bound("ring")
    stage.await_bound("ring", 4, 40)
    assert len(stage.pods("low")) == 8


@at_one_level("native", BESIDE_NATIVE_GANGS)
def test_members_beyond_min_count_and_late_ones_get_room_after_their_gang(stage: ClusterStage, high: str) -> None:
    run_low(stage, 12)
    spec = {"schedulingPolicy": {"gang": {"minCount": 3}}, "priorityClassName": high}
    stage.create_scheduling("PodGroup", "ring", spec)
    first, late = names("ring", 5)[:4], names("ring", 5)[4:]
    for count, members in ((4, first), (5, late)):
        stage.create_pods(members, "ring", cpu=WHOLE_NODE, priorityClassName=high)
        stage.await_bound("ring", count)
        assert len(stage.pods("low")) == 12 - count


def test_a_budget_keeps_its_pods_and_others_go(stage: ClusterStage, high: str) -> None:
    run_low(stage, 10)
    stage.create_pods(names("kept", 2), cpu=WHOLE_NODE, labels={"kept": "yes"})
    stage.await_bound("kept", 2)
    stage.create_budget("kept", {"kept": "yes"}, maxUnavailable=0)
    submit(stage, "ring", 10, high)
    stage.await_bound("ring", 10, 60)
    assert len(stage.bound("kept")) == 2


def test_nobody_goes_where_the_gang_would_not_fit_all_the_same(stage: ClusterStage, high: str) -> None:
    run_low(stage, 12)
    submit(stage, "ring", 13, high)
    stage.await_reason("ring", "NoCapacity")
    assert len(stage.bound("low")) == 12


def test_half_of_each_node_is_freed_and_the_other_half_taken_from_a_lower_priority(
    stage: ClusterStage, high: str
) -> None:
    half = "15"
    higher = create_class(stage, HIGHER, "PreemptLowerPriority", 2000)
    stage.create_pods(names("higher", 12), cpu=half, priorityClassName=higher)
    stage.await_bound("higher", 12)
    run_low(stage, 12, half)
    submit(stage, "ring", 12, high)
    stage.await_reason("ring", "NoCapacity")
    stage.delete_pods(*names("higher", 12))
    stage.await_bound("ring", 12)
    assert not stage.pods("low")


def test_a_gang_that_never_preempts_waits_until_others_have_ended_by_themselves(stage: ClusterStage) -> None:
    run_low(stage, 12)
    submit(stage, "ring", 3, create_class(stage, POLITE, "Never"))
    stage.await_reason("ring", "NoCapacity")
    assert "Never" in stage.debug_page("ring?dryRun")["dryRun"]["message"]
    assert len(stage.bound("low")) == 12
    stage.delete_pods(*names("low", 3))
    stage.await_bound("ring", 3)
    assert len(stage.bound("low")) == 9


def test_a_rack_that_another_gang_has_for_itself_is_cleared_of_that_gang_alone(stage: ClusterStage, high: str) -> None:
    run_low(stage, 12, cpu="1")
    for number in range(3):
        submit_exclusive(stage, f"lone-{number}")
        stage.await_bound(f"lone-{number}", 2)
    submit_exclusive(stage, "ring", high)
    stage.await_bound("ring", 2, 60)
    left = [number for number in range(3) if len(stage.bound(f"lone-{number}")) == 2]
    assert len(left) == 2
    assert stage.racks("ring").isdisjoint(rack for number in left for rack in stage.racks(f"lone-{number}"))
    assert len(stage.bound("low")) == 12


@at_one_level("native", BESIDE_NATIVE_GANGS)
def test_a_kill_while_others_end_ends_whole(stage: ClusterStage, high: str) -> None:
    run_low(stage, 12, end_after="8s")
    submit(stage, "ring", 6, high)
    eventually("pods that end", lambda: len(list_ending(stage)) == 6)
    stage.cluster.kill("extender", signal.SIGKILL)
    revive(stage)
    assert not stage.bound("ring")
    stage.await_bound("ring", 6, 60)
    assert len(stage.pods("low")) == 6
    eventually("the record's end", lambda: not stage.reservations())


@at_one_level("native")
@pytest.mark.full
def test_a_kill_between_record_and_evictions_ends_whole(stage: ClusterStage, high: str) -> None:
    run_low(stage, 360, cpu="1")
    submit(stage, "ring", 6, high)
    eventually("the record", stage.reservations)
    stage.cluster.kill("extender", signal.SIGKILL)
    left = len(stage.pods("low"))
    revive(stage)
    stage.await_bound("ring", 6, 90)
    assert 360 - 6 * 30 <= len(stage.pods("low")) <= left
    eventually("the record's end", lambda: not stage.reservations())


@at_one_level("native")
@pytest.mark.full
def test_a_gang_that_is_gone_when_the_extender_returns_takes_nobody_more_with_it(
    stage: ClusterStage, high: str
) -> None:
    run_low(stage, 360, cpu="1")
    submit(stage, "ring", 6, high)
    eventually("the record", stage.reservations)
    stage.cluster.kill("extender", signal.SIGKILL)
    stage.delete_pods(*names("ring", 6))
    stage.delete_group("ring")
    left = len([pod for pod in stage.pods("low") if "deletionTimestamp" not in pod["metadata"]])
    revive(stage)
    eventually("the record's end", lambda: not stage.reservations() and not stage.held_in_ledger())
    assert len(stage.bound("low")) == left
