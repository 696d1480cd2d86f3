"""The extender is killed at each write of a preemption, from the plan to the last Binding: it ends whole all the same.

12 nodes of 32 CPU: a gang of two that goes whole or not at all has two of them, pods of a middle priority have ten.
"""

import json
import ssl
from base64 import b64decode
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from _pytest.mark import ParameterSet

from bench.cluster import Cluster
from tests.e2e.promises.test_crashes import revive
from tests.e2e.promises.test_preemption import WHOLE_NODE, create_high_class, find_gone, list_ending, submit
from tests.support.cluster_stage import ClusterStage, eventually, names
from tests.support.killing_proxy import KillingProxy, KillMoment, KillOrder

pytestmark = pytest.mark.e2e

MIDDLE = "preemption-middle"
WRITES = 12
"""The record; a rehearsal; for each of two victims a condition and a deletion; for each of two members a nomination
and a Binding; the commit, and the record's end. Where members are woken, there are more: then these are the first."""

RECORD_WRITES = 3
"""Of these: the record, the commit, and the record's end, which is always the last write of all."""

BUDGET = 3
"""The number of pods that a PodDisruptionBudget lets go, and that a gang needs to go."""

CUT_EVICTION_SECONDS = 120.0
"""An eviction whose caller dies may take from its budget and end nobody; then the budget is right again after so long
(DeletionTimeout in upstream's pkg/controller/disruption/disruption.go)."""

NEVER = 1_000_000
"""The number of a write that never comes: of such an order it is only asked what it has seen."""

SHORT = {(3, KillMoment.BEFORE_ANSWER), (5, KillMoment.BEFORE_SENDING), (10, KillMoment.BEFORE_ANSWER)}
"""The cases that `make test` runs."""


def is_of_preemption(path: str) -> bool:
    """Return whether a write is about the preemption. Reports of how things stand may come at any time."""
    return "/pods/" in path or is_of_record(path)


def is_of_record(path: str) -> bool:
    """Return whether a write goes to the record."""
    return "/reservations" in path


def list_cases() -> Iterator[ParameterSet]:
    for moment in KillMoment:
        for number in range(WRITES):
            marks = () if (number, moment) in SHORT else (pytest.mark.full,)
            said = f"write {number} {moment.name.lower()}"
            yield pytest.param(number, is_of_preemption, moment, id=said, marks=marks)
        said = f"the record's end {moment.name.lower()}"
        yield pytest.param(RECORD_WRITES - 1, is_of_record, moment, id=said, marks=pytest.mark.full)


@pytest.fixture(scope="module")
def knife(cluster: Cluster) -> Iterator[KillingProxy]:
    """The extender talks to the API server through it."""
    config = cluster.kubeconfigs["extender"]
    usual = config.read_text()
    port = urlsplit(cluster.server).port
    assert port is not None
    authority = json.loads(usual)["clusters"][0]["cluster"]["certificate-authority-data"]
    tls = ssl.create_default_context(cadata=b64decode(authority).decode())
    with KillingProxy(port, tls) as made:
        config.write_text(usual.replace(f"https://127.0.0.1:{port}", f"http://127.0.0.1:{made.port}"))
        cluster.restart("extender")
        yield made
        config.write_text(usual)
        cluster.restart("extender")


@pytest.mark.parametrize(("number", "counts", "moment"), list(list_cases()))
def test_a_kill_at_any_write_of_a_preemption_ends_whole(
    stage: ClusterStage, knife: KillingProxy, number: int, counts: Callable[[str], bool], moment: KillMoment
) -> None:
    high = create_high_class(stage)
    fill(stage)
    inside = f"/namespaces/{stage.namespace}/"
    pid = stage.cluster.pids["extender"]
    order = KillOrder(number, moment, pid, lambda path: inside in path and counts(path))
    knife.set_order(order)
    submit(stage, "ring", 2, high)
    assert order.done.wait(20), order.seen
    stage.cluster.kill("extender")
    revive(stage)
    stage.await_bound("ring", 2, 60)
    assert len(stage.bound("middle")) == 10
    assert not [pod for pod in stage.pods() if "deletionTimestamp" in pod["metadata"]]
    assert not stage.pods("low")
    eventually("the record's end", lambda: not stage.reservations() and not stage.held_in_ledger())
    assert not [pod for pod in stage.pods("middle") if "nominatedNodeName" in pod["status"]]


@pytest.mark.full
@pytest.mark.parametrize("cluster", ["native"], indirect=True)
@pytest.mark.parametrize(
    "number", [pytest.param(0, id="the first eviction"), pytest.param(BUDGET - 1, id="the last eviction")]
)
def test_a_kill_among_evictions_costs_a_budget_no_more_than_it_allows_and_nobody_goes_twice_or_in_vain(
    stage: ClusterStage, knife: KillingProxy, number: int
) -> None:
    high = create_high_class(stage)
    kept, ends = {"kept": "yes"}, {"bench.serried.dev/end-after": "5s"}
    low = names("low", 12)
    stage.create_pods(low, cpu=WHOLE_NODE, labels=kept, annotations=ends, terminationGracePeriodSeconds=30)
    stage.await_bound("low", 12)
    stage.create_budget("kept", kept, minAvailable=12 - BUDGET)
    eventually("those that may go", lambda: stage.disruptions_allowed("kept") == BUDGET)
    first = order_after_eviction(stage, number)
    knife.set_order(first)
    submit(stage, "ring", BUDGET, high)
    assert first.done.wait(20), first.seen

    stage.cluster.kill("extender")
    before = find_gone(stage, "low", 12) | set(list_ending(stage))
    assert before
    second = order_after_eviction(stage, NEVER)
    knife.set_order(second)
    revive(stage)
    stage.await_bound("ring", BUDGET, CUT_EVICTION_SECONDS + 60.0)
    after = {write.split("/")[-2] for write in second.seen}
    assert before.isdisjoint(after)
    assert before | after <= find_gone(stage, "low", 12)
    assert len(stage.bound("low")) == 12 - BUDGET
    assert not list_ending(stage)
    eventually("the record's end", lambda: not stage.reservations() and not stage.held_in_ledger())


def order_after_eviction(stage: ClusterStage, number: int) -> KillOrder:
    """The extender is killed before it hears of the eviction of this number; rehearsals do not count."""
    inside = f"/namespaces/{stage.namespace}/pods/"
    pid = stage.cluster.pids["extender"]
    return KillOrder(number, KillMoment.BEFORE_ANSWER, pid, lambda path: inside in path and path.endswith("/eviction"))


def fill(stage: ClusterStage) -> None:
    """No node has room, and the cheapest victims are the two pods of priority 0, which take a second to end."""
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    if all(item["metadata"]["name"] != MIDDLE for item in stage.cluster.api.get(classes)["items"]):
        stage.cluster.api.post(classes, {"metadata": {"name": MIDDLE}, "value": 10})
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": {"all": {}}}
    stage.create_scheduling("PodGroup", "low", spec)
    ends = {"bench.serried.dev/end-after": "1s"}
    stage.create_pods(names("low", 2), "low", cpu=WHOLE_NODE, annotations=ends, terminationGracePeriodSeconds=30)
    stage.create_pods(names("middle", 10), cpu=WHOLE_NODE, priorityClassName=MIDDLE)
    stage.await_bound("low", 2)
    stage.await_bound("middle", 10)
