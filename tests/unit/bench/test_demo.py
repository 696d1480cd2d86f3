"""The demo's score and its table."""

import io
from typing import Any

import pytest
from rich.console import Console

from bench.cluster.nodes import RACK
from bench.demo.board import Row, read_rows, render_changes, render_table
from bench.demo.cast import CPU, GANGS, GIANT, LATE, LEAVES, PATIENT, PLAIN_PODS, STARTERS, make_load, make_spec
from bench.demo.referee import Referee
from bench.load.objects import GANG, Gang
from serried.kube.reflector import Deleted, Listed, Upserted
from tests.support.clock import Clock

TIGHT, WIDE = Gang("tight", 2, RACK), Gang("wide", 200)
DOMAINS = {"a1": "rack-a", "a2": "rack-a", "b1": "rack-b"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def referee(clock: Clock) -> Referee:
    return Referee([TIGHT, WIDE], DOMAINS, clock)


def pod(name: str, gang: str = "", node: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {GANG: gang}}, "spec": {"nodeName": node} if node else {}}


def test_a_gang_is_whole_when_all_members_are_bound(referee: Referee, clock: Clock) -> None:
    referee(Listed(0, "1"))
    referee(Upserted(pod("t-0", "tight")))
    referee(Upserted(pod("t-0", "tight", "a1")))
    assert (referee.bound(TIGHT), referee.whole(TIGHT), referee.burst(TIGHT)) == (1, False, None)

    clock.now += 0.5
    referee(Upserted(pod("t-1", "tight", "a2")))

    assert (referee.whole(TIGHT), referee.burst(TIGHT), referee.find_breaches()) == (True, 0.5, [])


def test_two_domains_are_a_breach_also_when_one_member_has_gone(referee: Referee) -> None:
    referee(Upserted(pod("t-0", "tight", "a1")))
    referee(Deleted(pod("t-0", "tight", "a1")))
    referee(Upserted(pod("t-1", "tight", "b1")))

    assert referee.find_breaches() == ["tight ran in more than one domain: rack-a, rack-b"]


def test_a_gang_without_key_may_run_anywhere(referee: Referee) -> None:
    referee(Upserted(pod("w-0", "wide", "a1")))
    referee(Upserted(pod("w-1", "wide", "b1")))

    assert referee.find_breaches() == []


@pytest.mark.parametrize(
    ("gang", "after", "breach"), [("tight", 9.9, False), ("tight", 10.1, True), ("wide", 10.9, False)]
)
def test_a_half_started_gang_is_a_breach_after_the_time_of_its_size(
    referee: Referee,
    clock: Clock,
    gang: str,
    after: float,
    breach: bool,  # noqa: FBT001
) -> None:
    referee(Upserted(pod("x", gang, "a1")))
    clock.now += after

    assert bool(referee.find_breaches()) is breach


def test_a_gang_that_was_late_stays_a_breach(referee: Referee, clock: Clock) -> None:
    referee(Upserted(pod("t-0", "tight", "a1")))
    clock.now += 15
    referee(Upserted(pod("t-1", "tight", "a1")))

    assert referee.find_breaches() == ["tight was half-started for 15.0 s, allowed are 10.0 s"]


def test_a_gang_that_is_deleted_goes_pod_by_pod(referee: Referee, clock: Clock) -> None:
    for name in ("t-0", "t-1"):
        referee(Upserted(pod(name, "tight", "a1")))
    referee.expect_deletion(TIGHT)
    referee(Deleted(pod("t-0", "tight", "a1")))
    clock.now += 60

    assert (referee.bound(TIGHT), referee.find_breaches()) == (1, [])


def test_plain_pods_are_counted_apart(referee: Referee) -> None:
    referee(Upserted(pod("p", node="b1")))

    assert (referee.plain, referee.bound(WIDE)) == (1, 0)


def test_the_cast_fits_where_it_must_and_only_there() -> None:
    spec = make_spec("demo")
    per_node = int(spec.node_cpu) // int(CPU)
    rack, room = per_node * spec.nodes // spec.racks, per_node * spec.nodes
    free = room - PLAIN_PODS - sum(gang.size for gang in STARTERS)

    assert all(gang.size <= rack for gang in STARTERS if gang.key)
    assert rack < GIANT.size <= free
    assert free < PATIENT.size <= free + LEAVES.size
    assert free + LEAVES.size - PATIENT.size < LATE.size
    assert spec.api == "fallback"
    assert spec.api_server_gates == ""


def group(name: str, **fields: Any) -> dict[str, Any]:
    shown = {"placed": 0, "minCount": 2, "domain": "", "state": "Waiting", "reason": "", "message": ""}
    return {"name": name} | shown | fields


def test_rows_find_their_gang_by_the_name_of_its_job() -> None:
    groups = [
        group(
            "demo-tight-abc-demo-tight-pgt-0-def", placed=2, domain="rack-a", state="Scheduled", message="Scheduled: 2"
        ),
        group("job:demo-wide", minCount=0, reason="PodGroupMissing"),
        group("demo-tighter-abc"),
    ]

    assert read_rows(groups, [TIGHT, WIDE], make_load(), []) == [
        Row("tight", "2 in one rack", "2 of 2", "rack-a", "Scheduled", "Scheduled: 2"),
        Row("wide", "200 anywhere", "0 of 200", "", "Waiting", "PodGroupMissing"),
    ]


def test_a_deleted_gang_keeps_its_row() -> None:
    assert [row.state for row in read_rows([], [TIGHT, WIDE], make_load(), ["wide"])] == ["Deleted"]


def test_names_of_the_cast_are_told_apart() -> None:
    groups = [group(f"demo-{gang.name}-6f8647cfc5-demo-{gang.name}-pgt-0-649bfb59f7") for gang in GANGS]

    assert [row.gang for row in read_rows(groups, GANGS, make_load(), [])] == [gang.name for gang in GANGS]


def test_lines_tell_changes_of_state_or_reason_only() -> None:
    before = [Row("tight", "", "0 of 2", "", "Waiting", "NoCapacity: 1"), Row("wide", "", "", "", "Waiting", "A: 1")]
    now = [Row("tight", "", "0 of 2", "", "Waiting", "NoCapacity: 2"), Row("wide", "", "", "", "Waiting", "B: 1")]

    assert render_changes([], before[:1]) == ["tight       Waiting     NoCapacity: 1"]
    assert render_changes(before, now) == ["wide        Waiting     B: 1"]


def test_the_table_shows_every_row() -> None:
    console = Console(width=120, record=True, file=io.StringIO())

    console.print(render_table([Row("tight", "2 in one rack", "2 of 2", "rack-a", "Scheduled", "fine")], "caption"))

    text = console.export_text()
    assert all(part in text for part in ("tight", "2 in one rack", "2 of 2", "rack-a", "Scheduled", "fine", "caption"))
