"""``serried queue``: who waits for room, and for whom room is kept."""

import json

import pytest
import yaml

from tests.support.commands import Run
from tests.support.pod_proxy import PodProxy

HEAD = {
    "namespace": "team",
    "name": "big",
    "kind": "PodGroup",
    "domain": "rack-3",
    "nodes": ["n1", "n2"],
    "forecast": "2026-01-01T10:00:00Z",
    "until": "2026-01-01T10:10:00Z",
    "missed": False,
    "passed": {"team/small": "2026-01-01T09:55:00Z"},
}


def waiting(position: int, name: str, namespace: str = "team") -> dict[str, object]:
    return {
        "position": position,
        "namespace": namespace,
        "name": name,
        "kind": "PodGroup",
        "priority": 0,
        "countsAs": 1,
        "since": "2026-01-01T09:00:00Z",
        "message": f"NoCapacity: no room for [{name}]",
    }


@pytest.fixture
def queue(proxy: PodProxy) -> dict[str, object]:
    document: dict[str, object] = {"head": HEAD, "waiting": [waiting(1, "big"), waiting(2, "x", "other")], "leftOff": 3}
    proxy.answer_debug("serried-0:8912", "queue", document)
    return document


def test_people_see_the_order_and_why_each_waits(queue: dict[str, object], run: Run) -> None:
    out = run("queue").out
    assert "Room is kept for team/big in rack-3, on 2 nodes," in out
    assert "team/small" in out
    rows = [line.split() for line in out.splitlines() if "NoCapacity" in line]
    assert [row[:5] for row in rows] == [["1", "team", "big", "0", "1"], ["2", "other", "x", "0", "1"]]
    assert "NoCapacity: no room for [big]" in out
    assert "3 more are not shown" in out


def test_programs_get_the_document_of_debug(queue: dict[str, object], run: Run) -> None:
    assert json.loads(run("queue", "-o", "json").out) == queue
    assert yaml.safe_load(run("queue", "-o", "yaml").out) == queue


def test_one_namespace_is_chosen_from_all_that_wait(queue: dict[str, object], proxy: PodProxy, run: Run) -> None:
    found = json.loads(run("queue", "-n", "other", "-o", "json").out)
    assert [each["name"] for each in found["waiting"]] == ["x"]
    assert found["leftOff"] == 0
    assert "limit=1000000" in proxy.asked[-1]


@pytest.mark.parametrize(
    "unsaid",
    [
        pytest.param(set(), id="as the extender numbers them"),
        pytest.param({"position"}, id="though an older extender does not number them"),
    ],
)
def test_a_turn_is_that_among_all_namespaces(
    queue: dict[str, list[dict[str, object]]], run: Run, proxy: PodProxy, unsaid: set[str]
) -> None:
    stripped = [{name: value for name, value in each.items() if name not in unsaid} for each in queue["waiting"]]
    proxy.answer_debug("serried-0:8912", "queue", queue | {"waiting": stripped})
    rows = [line.split() for line in run("queue", "-n", "other").out.splitlines() if "NoCapacity" in line]
    assert [row[:3] for row in rows] == [["2", "other", "x"]]
    (found,) = json.loads(run("queue", "-n", "other", "-o", "json").out)["waiting"]
    assert found["position"] == 2


def test_an_empty_queue_is_said_to_be_empty(proxy: PodProxy, run: Run) -> None:
    proxy.answer_debug("serried-0:8912", "queue", {"head": None, "waiting": [], "leftOff": 0})
    assert run("queue").out == "Nobody waits for room.\n"
