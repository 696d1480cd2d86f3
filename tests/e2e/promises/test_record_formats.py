"""Releases of Serried that write records in other ways take over from each other: what is adopted, what is refused.

That two of them go on under load, pair by pair, is told in test_failover.py.
"""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from serried.api import reservation as decoder
from serried.api.names import GroupKey
from serried.api.reservation import Reservation, Slot, encode_reservation, name_record
from tests.e2e.promises.test_repair import ONE_LEVEL
from tests.e2e.waiting.test_records_unreadable import probe
from tests.support.cluster_stage import RACK, ClusterStage, Raw, eventually, names
from tests.support.preload import import_first

pytestmark = [pytest.mark.e2e, pytest.mark.full, ONE_LEVEL]

TAKEN_UP = "took over the Reservation of an earlier leader"
"""The line in an extender's log when it goes on with the record of another one."""


@pytest.fixture
def releases(stage: ClusterStage, tmp_path: Path) -> Iterator[Mapping[str, Mapping[str, str]]]:
    """Environment variables of each release."""
    yield {"older": import_first("tests.support.older_release", tmp_path), "this": {}}
    stage.cluster.restart("extender")


def start(stage: ClusterStage, environment: Mapping[str, str]) -> None:
    """The extender of a release begins its work."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        stage.cluster.start("extender")
    stage.cluster.await_ready("extender")


@contextmanager
def without_extender(stage: ClusterStage) -> Iterator[None]:
    """Kill the extender, and start a new one when the body ends."""
    stage.cluster.kill("extender", signal.SIGKILL)
    try:
        yield
    finally:
        stage.cluster.start("extender")


def count_taken_up(stage: ClusterStage) -> int:
    return Path(stage.cluster.logs["extender"]).read_text(errors="replace").count(TAKEN_UP)


def leave_record(stage: ClusterStage, group: str, nodes: Mapping[str, str], phase: str, **said: Any) -> Raw:
    """An extender that is no more has left this behind: for these pods these nodes, and ``said`` in its spec."""
    (owner,) = [each for each in stage.list_groups() if each["metadata"]["name"] == group]
    uid = owner["metadata"]["uid"]
    found = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stage.pods(group)}
    slots = {found[name]: Slot(found[name], name, node) for name, node in nodes.items()}
    held = Reservation(GroupKey(stage.namespace, group), uid, rack_of(stage, *nodes.values()), len(slots), slots)
    spec = encode_reservation(held, "earlier_1/1") | {"phase": phase}
    if "packed" not in spec:
        del spec["format"]
    version = stage.cluster.spec.api_version
    body = {
        "apiVersion": "scheduling.serried.dev/v1beta1",
        "kind": "Reservation",
        "metadata": {
            "name": name_record(held.group),
            "ownerReferences": [{"apiVersion": version, "kind": "PodGroup", "name": group, "uid": uid}],
        },
        "spec": spec | said,
    }
    path = f"/apis/scheduling.serried.dev/v1beta1/namespaces/{stage.namespace}/reservations"
    written: Raw = stage.cluster.api.post(path, body)
    return written


def rack_of(stage: ClusterStage, *nodes: str) -> str:
    """The rack that has these nodes."""
    items = stage.cluster.api.get("/api/v1/nodes")["items"]
    (rack,) = {item["metadata"]["labels"][RACK] for item in items if item["metadata"]["name"] in nodes}
    return str(rack)


def nodes_of_a_rack(stage: ClusterStage) -> list[str]:
    """All nodes of one rack."""
    items = stage.cluster.api.get("/api/v1/nodes")["items"]
    racks = {item["metadata"]["name"]: item["metadata"]["labels"][RACK] for item in items}
    first = min(racks.values())
    return sorted(name for name, rack in racks.items() if rack == first)


@pytest.mark.parametrize(
    ("said", "successor"),
    [
        pytest.param({}, "this", id="from a release that knew no formats to this one"),
        pytest.param({"format": 1}, "older", id="and back"),
    ],
)
def test_a_plan_is_taken_up(
    stage: ClusterStage, releases: Mapping[str, Mapping[str, str]], said: Mapping[str, int], successor: str
) -> None:
    first, second, third = nodes_of_a_rack(stage)
    nodes = {"ring-0": first, "ring-1": first, "ring-2": second, "ring-3": third}
    stage.cluster.kill("extender", signal.SIGKILL)
    before = count_taken_up(stage)
    with stage.stopped("scheduler"):
        stage.create_group("ring", 4, RACK)
        stage.create_pods(names("ring", 4), "ring")
        leave_record(stage, "ring", nodes, "Planned", **said)
        start(stage, releases[successor])

    stage.await_bound("ring", 4, 60)
    assert stage.bound("ring") == nodes
    assert count_taken_up(stage) > before
    eventually("the record's end", lambda: not stage.reservations())


def test_half_a_burst_of_a_release_that_knew_no_formats_is_finished(stage: ClusterStage) -> None:
    first, second, third = nodes_of_a_rack(stage)
    nodes = {"ring-0": first, "ring-1": first, "ring-2": second, "ring-3": third}
    with without_extender(stage):
        stage.create_group("ring", 4, RACK)
        stage.create_pods(names("ring", 4), "ring")
        stage.bind("ring-0", first)
        left = leave_record(stage, "ring", nodes, "Committed")
    assert "format" not in left["spec"]
    stage.cluster.await_ready("extender")
    stage.await_bound("ring", 4)
    assert stage.bound("ring") == nodes
    eventually("the record's end", lambda: not stage.reservations())


@pytest.mark.parametrize(
    ("successor", "kept"),
    [
        pytest.param("this", True, id="this release goes on with a packed record"),
        pytest.param("older", False, id="one that cannot unpack takes it for an empty one, and plans the rest anew"),
    ],
)
def test_half_a_burst_of_a_packed_record(
    stage: ClusterStage,
    releases: Mapping[str, Mapping[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    successor: str,
    *,
    kept: bool,
) -> None:
    monkeypatch.setattr(decoder, "_MAX_LISTED_BYTES", 0)
    first, second, third = nodes_of_a_rack(stage)
    nodes = {"ring-0": first, "ring-1": first, "ring-2": second, "ring-3": third}
    stage.cluster.kill("extender", signal.SIGKILL)
    stage.create_group("ring", 4, RACK)
    stage.create_pods(names("ring", 4), "ring")
    stage.bind("ring-0", first)
    left = leave_record(stage, "ring", nodes, "Committed")
    assert "slots" not in left["spec"]
    before = count_taken_up(stage)
    start(stage, releases[successor])
    stage.await_bound("ring", 4, 60)
    assert (count_taken_up(stage) > before) == kept
    assert stage.racks("ring") == {rack_of(stage, first)}
    assert not kept or stage.bound("ring") == nodes
    eventually("the record's end", lambda: not stage.reservations())


@pytest.mark.parametrize("phase", ["Planned", "Committed"])
def test_a_record_of_a_later_format_stops_all_plans_until_somebody_acts(stage: ClusterStage, phase: str) -> None:
    first, second, _ = nodes_of_a_rack(stage)
    with without_extender(stage):
        stage.create_group("late", 2)
        stage.create_pods(names("late", 2), "late")
        left = leave_record(stage, "late", {"late-0": first, "late-1": second}, phase, format=3)
    try:
        eventually("a probe that answers", lambda: "[+]synced" in probe(stage))
        stage.create_group("ring", 2)
        stage.create_pods(names("ring", 2), "ring")
        told = "the Reservation has format 3 of a later release of Serried: run that release, or delete the Reservation"
        stage.await_reason("ring", "RecordsUnreadable", told, seconds=60.0)
        assert "[-]records" in probe(stage)
        assert stage.selfcheck()["obstacle"].endswith(told)
        assert not stage.bound()
        assert [each["metadata"]["resourceVersion"] for each in stage.reservations()] == [
            left["metadata"]["resourceVersion"]
        ]
    finally:
        stage.cluster.kubectl("delete", "reservations.scheduling.serried.dev", "late", "-n", stage.namespace)
    stage.await_bound("ring", 2, 60)
    stage.await_bound("late", 2, 60)
    eventually("a ready extender", lambda: "[+]records" in probe(stage))
