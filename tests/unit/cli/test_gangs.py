"""``serried gangs``: all gangs, the ones that need action first."""

import json
from typing import Any

import pytest

from tests.support.commands import Run
from tests.support.pod_proxy import PodProxy
from tests.unit.cli.conftest import Step


def group(
    name: str, state: str = "Waiting", reason: str = "NoCapacity", namespace: str = "team", **more: Any
) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "name": name,
        "kind": "PodGroup",
        "owner": "",
        "policy": "Gang",
        "minCount": 4,
        "members": 5,
        "placed": 0,
        "priority": 7,
        "domain": "",
        "state": state,
        "since": "2026-01-01T09:00:00Z",
        "reason": reason,
        "message": f"{reason}: [{name}]" if reason else "",
        **more,
    }


GROUPS = [
    group("runs", "Scheduled", "Scheduled", placed=4, domain="rack-1"),
    group("w-10", owner="job/w-10"),
    group("w-9", owner="job/w-9"),
    group("victims", "Preempting", "Preempting"),
    group("gathers", "Gathering", "Planned"),
    group("half", reason="Broken", placed=3),
    group("new", "Unknown", ""),
    group("loose", policy="Basic"),
    group("bare", reason="PodGroupMissing", policy="", minCount=0),
]


@pytest.fixture
def groups(proxy: PodProxy) -> None:
    proxy.answer_debug("serried-0:8912", "groups", GROUPS)


def list_rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.startswith("team ")]


@pytest.mark.usefixtures("groups")
def test_what_needs_somebody_stands_first_and_numbers_count_up(run: Run) -> None:
    ended = run("gangs")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("8 gangs in namespace team: 1 broken, 4 waiting, 2 planned, 1 running.\n")
    assert [row[1:3] for row in list_rows(ended.out)] == [
        ["half", "Broken"],
        ["bare", "Waiting"],
        ["job/w-9", "Waiting"],
        ["job/w-10", "Waiting"],
        ["new", "Waiting"],
        ["gathers", "Planned"],
        ["victims", "Planned"],
        ["runs", "Running"],
    ]


@pytest.mark.usefixtures("groups")
def test_a_row_says_how_many_are_ready_since_when_and_why(run: Run) -> None:
    half, bare, *_ = list_rows(run("gangs").out)
    assert half == ["team", "half", "Broken", "3/4", "5", "30", "min", "Broken:", "[half]"]
    assert bare[3] == "0/5", "without a PodGroup nobody knows how many must be placed"
    (runs,) = list_rows(run("gangs", "--state", "running", "-o", "wide").out)
    assert runs[3:8] == ["4/4", "5", "7", "rack-1", "runs"]


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    ("state", "names"),
    [
        ("waiting", ["bare", "job/w-9", "job/w-10", "new"]),
        ("broken", ["half"]),
        ("planned", ["gathers", "victims"]),
        ("running", ["runs"]),
    ],
)
def test_those_in_one_state_are_chosen(run: Run, state: str, names: list[str]) -> None:
    assert run("gangs", "--state", state, "-o", "name").out.split() == names


@pytest.mark.usefixtures("groups")
def test_programs_get_the_groups_of_debug_and_names_lead_to_them(proxy: PodProxy, run: Run) -> None:
    assert json.loads(run("gangs", "-A", "--state", "broken", "-o", "json").out) == [GROUPS[5]]
    assert any(each.endswith("groups?limit=1000000&namespace=") for each in proxy.asked)
    assert run("gangs", "-A", "--limit", "1", "-o", "name").out == "team/half\n"


@pytest.mark.usefixtures("groups")
def test_what_a_limit_leaves_off_is_counted(run: Run) -> None:
    out = run("gangs", "--limit", "3").out
    assert len(list_rows(out)) == 3
    assert out.endswith("5 more are not shown: see --limit.\n")


def test_where_there_is_none_it_is_said(proxy: PodProxy, run: Run) -> None:
    proxy.answer_debug("serried-0:8912", "groups", [])
    assert run("gangs").out == "No gangs in namespace team.\n"
    assert run("gangs", "-A").out == "No gangs.\n"


def test_an_older_extender_does_not_say_since_when(proxy: PodProxy, run: Run) -> None:
    old = group("old")
    del old["since"]
    proxy.answer_debug("serried-0:8912", "groups", [old])
    assert list_rows(run("gangs").out) == [["team", "old", "Waiting", "0/4", "5", "NoCapacity:", "[old]"]]


def test_gangs_of_namespaces_that_the_reader_may_not_list_are_counted_and_not_named(proxy: PodProxy, run: Run) -> None:
    proxy.answer_debug("serried-0:8912", "groups", [group("mine"), group("theirs", namespace="other")])
    proxy.listable = frozenset({"team"})
    out = run("gangs", "-A").out
    assert "other" not in out
    assert out.splitlines()[0] == "1 gang: 1 waiting."
    assert out.endswith("1 more is in namespaces whose pods you may not list.\n")
    assert [each["name"] for each in json.loads(run("gangs", "-A", "-o", "json").out)] == ["mine"]


def test_a_gang_that_changes_is_printed_again(proxy: PodProxy, run: Run, steps: list[Step]) -> None:
    proxy.answer_debug("serried-0:8912", "groups", [group("a"), group("b")])
    bound = group("a", "Scheduled", "Scheduled", placed=4)
    steps.append(lambda: proxy.answer_debug("serried-0:8912", "groups", [bound, group("b")]))
    rows = list_rows(run("gangs", "-w").out)
    assert [row[1:4] for row in rows] == [["a", "Waiting", "0/4"], ["b", "Waiting", "0/4"], ["a", "Running", "4/4"]]
