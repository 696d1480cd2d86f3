"""The rules of preemption: the order of victims, the order of evictions, pods that are spared, and the settings.

12 nodes of 32 CPU in 4 racks of 3.
"""

import time
from typing import Any

import pytest

from serried.api.names import write_time
from tests.e2e.promises.test_preemption import (
    HIGHER,
    WHOLE_NODE,
    create_class,
    create_high_class,
    find_gone,
    list_ending,
    run_low,
    submit,
)
from tests.e2e.promises.test_preemption_kills import MIDDLE
from tests.e2e.promises.test_preemption_victims import LONG, hold_two
from tests.e2e.promises.test_preferences import PREFERRED
from tests.e2e.promises.test_repair import told
from tests.e2e.waiting.test_one_reason import sum_metric
from tests.support.cluster_stage import RACK, ClusterStage, Raw, eventually, names

pytestmark = [pytest.mark.e2e, pytest.mark.full]

SEARCHED_AGAIN_SECONDS = 65.0
"""By then a gang for which no victims were found was searched for once more: that is done every minute."""

LONG_AGO = write_time(1_577_836_800.0)


@pytest.fixture
def high(stage: ClusterStage) -> str:
    """A PriorityClass above all others of the tests."""
    return create_high_class(stage)


def fill(stage: ClusterStage, name: str, count: int, **fields: Any) -> None:
    """Plain pods that take a node each; ``fields`` are more of their spec."""
    stage.create_pods(names(name, count), cpu=WHOLE_NODE, **fields)
    stage.await_bound(name, count)


def count_evicted(stage: ClusterStage) -> float:
    """Count the evictions and deletions of victims that the API server has taken since the extender started."""
    return sum_metric(stage, "serried_victims_total")


def list_victims(stage: ClusterStage) -> list[set[str]]:
    """The names of the victims that each Reservation has."""
    specs = [record["spec"] for record in stage.reservations()]
    return [{each["name"] for each in spec["victims"]} for spec in specs if spec.get("victims")]


def make_old(stage: ClusterStage, *pods: str) -> None:
    """Set the start time of these pods to years ago."""
    eventually("running pods", lambda: all(pod["status"].get("startTime") for pod in stage.pods()))
    for name in pods:
        path = f"/api/v1/namespaces/{stage.namespace}/pods/{name}/status"
        stage.cluster.api.patch(path, {"status": {"startTime": LONG_AGO}})


def show_cost(priority: int, pods: int) -> list[Raw]:
    """Return the cost of so many plain pods of one priority, as ``/debug`` shows it."""
    return [{"priority": priority, "violations": 0, "broken": 0, "pods": pods}]


def test_two_gangs_at_once_share_the_room_and_nobody_goes_twice_or_for_nothing(stage: ClusterStage, high: str) -> None:
    run_low(stage, 12, end_after="8s")
    before = count_evicted(stage)
    with stage.stopped("extender"):  # so that it sees both at once
        submit(stage, "left", 4, high)
        submit(stage, "right", 4, high)
    going = eventually("victims of each", lambda: found if len(found := list_victims(stage)) == 2 else None)
    assert [len(each) for each in going] == [4, 4]
    assert going[0].isdisjoint(going[1])

    stage.await_bound("left", 4, 60)
    stage.await_bound("right", 4, 60)
    assert find_gone(stage, "low", 12) == going[0] | going[1]
    assert not list_ending(stage)
    assert count_evicted(stage) - before == 8
    eventually("the records' end", lambda: not stage.reservations())


@pytest.mark.parametrize("cluster", ["native"], indirect=True)
def test_gangs_that_want_the_same_room_never_evict_each_other_in_turn_however_long_they_want_it(
    stage: ClusterStage, high: str
) -> None:
    higher = create_class(stage, HIGHER, "PreemptLowerPriority", 2000)
    run_low(stage, 12)
    before = count_evicted(stage)

    def make_anew() -> None:
        """Create all evicted pods again at once, as an owner does: they want their room back."""
        stage.create_pods(sorted(find_gone(stage, "low", 12)), cpu=WHOLE_NODE)
        for name in ("left", "right"):
            gone = sorted(find_gone(stage, name, 8))
            stage.create_pods(gone, name, cpu=WHOLE_NODE, priorityClassName=high)

    def stay(evicted: int, top: int) -> None:
        deadline = time.monotonic() + SEARCHED_AGAIN_SECONDS
        while time.monotonic() < deadline:
            make_anew()
            assert count_evicted(stage) - before == evicted
            assert len(stage.bound("top")) == top
            time.sleep(0.5)

    with stage.stopped("extender"):  # so that it sees both at once
        submit(stage, "left", 8, high)
        submit(stage, "right", 8, high)
    first = eventually("one of them", lambda: next((n for n in ("left", "right") if len(stage.bound(n)) == 8), None))
    stay(evicted=8, top=0)
    assert {name: len(stage.bound(name)) for name in ("left", "right")} == {"left": 0, "right": 0} | {first: 8}

    # Of two levels: of those that it evicts, half are members, and may not evict it in turn.
    submit(stage, "top", 8, higher)
    stage.await_bound("top", 8)
    stay(evicted=16, top=8)
    assert len(stage.bound(first)) == 4


def test_a_dry_run_names_who_would_go_and_the_next_best_rack_and_those_go_when_they_may(
    stage: ClusterStage, high: str
) -> None:
    middle = create_class(stage, MIDDLE, "PreemptLowerPriority", 10)
    with told(stage, preemption=("off", "on")):
        fill(stage, "low", 3, nodeSelector={RACK: "rack-0"})
        fill(stage, "middle", 3, nodeSelector={RACK: "rack-1"}, priorityClassName=middle)
        fill(stage, "other", 6, priorityClassName=high)
        submit(stage, "ring", 3, high, RACK)
        stage.await_reason("ring", "NoDomainFits")
        asked = stage.debug_page("ring?dryRun")["dryRun"]
        found = asked["found"]
        assert asked["message"].startswith(
            f"the gang would fit without 3 pods of lower priority ({stage.namespace}/low-"
        )
        assert asked["message"].endswith("), but Serried evicts no pod: preemption is off (--preemption)")
        assert (found["domain"], found["cost"]) == ("rack-0", show_cost(0, 3))
        assert sorted(found["victims"]) == [f"{stage.namespace}/{name}" for name in names("low", 3)]
        assert found["nextBest"] == {"domain": "rack-1", "cost": show_cost(10, 3)}
        assert (found["domainsFitting"], found["domainsExamined"]) == (2, 2)
        assert not find_gone(stage, "low", 3)
        assert not list_ending(stage)

    stage.await_bound("ring", 3, 60)
    assert stage.racks("ring") == {"rack-0"}
    assert find_gone(stage, "low", 3) == set(names("low", 3))
    assert len(stage.bound("middle")) == 3


def test_a_gang_that_is_planned_and_of_which_nobody_runs_gives_its_places_back_and_is_planned_anew(
    stage: ClusterStage, high: str
) -> None:
    with told(stage, **LONG):
        fill(stage, "other", 9, priorityClassName=high)
        hold_two(stage)
        submit(stage, "ring", 3, high)
        stage.await_bound("ring", 3)
        given_back = f"the gang releases its nodes for PodGroup {stage.namespace}/ring of higher priority"
        assert any(each.startswith("PlanOutdated: ") and given_back in each for each in stage.decisions("held"))
        stage.await_reason("held", "NoCapacity")
        assert len(stage.bound("other")) == 9
        assert len(stage.pods("held")) == 3
        assert not stage.bound("held")
        assert not count_evicted(stage)

        stage.delete_pods("held-2")
        stage.create_pods(["held-3"], "held", cpu=WHOLE_NODE)
        stage.delete_pods(*names("other", 3))
        stage.await_bound("held", 3, 60)
        assert len(stage.bound("ring")) == 3


def test_for_a_preferred_rack_nobody_goes_and_a_dry_run_says_so(stage: ClusterStage, high: str) -> None:
    run_low(stage, 12)
    before = count_evicted(stage)
    submit(stage, "patient", 3, high, annotations={PREFERRED: f"{RACK}=1h"})
    stage.await_reason("patient", "NoDomainFits", f"3 members do not fit into any domain of {RACK}")
    asked = stage.debug_page("patient?dryRun")["dryRun"]
    assert asked == {
        "message": "Serried evicts no pod for a preferred level: it tries a wider level first",
        "found": None,
    }
    stage.delete_pods(*names("patient", 3))
    stage.delete_group("patient")
    assert len(stage.bound("low")) == 12
    assert count_evicted(stage) == before

    submit(stage, "hasty", 3, high, annotations={PREFERRED: f"{RACK}=2s"})
    stage.await_bound("hasty", 3, 60)
    assert len(stage.bound("low")) == 9


def test_with_deletion_a_budget_keeps_nobody(stage: ClusterStage, high: str) -> None:
    stage.create_budget("kept", {"kept": "yes"}, maxUnavailable=0)
    stage.create_pods(names("low", 12), cpu=WHOLE_NODE, labels={"kept": "yes"})
    stage.await_bound("low", 12)
    submit(stage, "ring", 2, high)
    kept = ("pods may not be evicted", "their PodDisruptionBudgets do not allow it")
    stage.await_reason("ring", "NoCapacity", *kept, seconds=30.0)
    assert len(stage.bound("low")) == 12
    assert not list_ending(stage)

    with told(stage, preempt_by=("deletion", "eviction")):
        stage.await_bound("ring", 2, 60)
        assert len(find_gone(stage, "low", 12)) == 2
        assert stage.disruptions_allowed("kept") == 0


def test_who_has_just_started_is_spared_unless_nothing_else_is_possible(stage: ClusterStage, high: str) -> None:
    with told(stage, preemption_spare=("600", "0")):
        run_low(stage, 12)
        # Without the setting these two would be the last: of equals, those go that have run for the shortest time.
        make_old(stage, "low-3", "low-8")
        submit(stage, "ring", 2, high)
        stage.await_bound("ring", 2, 60)
        assert find_gone(stage, "low", 12) == {"low-3", "low-8"}

        submit(stage, "wide", 2, high)
        stage.await_bound("wide", 2, 60)
        assert len(stage.bound("low")) == 8
