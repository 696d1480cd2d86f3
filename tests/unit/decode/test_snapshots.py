"""The file of a capture: what is read from it, and what is said of one that cannot be read."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from extender.look.snapshot import VERSION, Capture, GroupMemory, read_snapshot, write_snapshot
from extender.options import Options
from serried.api.group import PodGroup, Policy
from serried.api.names import GroupKey, GroupKind, Malformed
from serried.api.node import Node
from serried.api.selectors import Taint
from serried.api.verdict import DomainShortage, Reason, Verdict

FILE = Path(__file__).parents[2] / "snapshots" / "three-of-lower-priority-go.json"
WHOLE: dict[str, Any] = json.loads(FILE.read_text())
VERDICT = Verdict(Reason.NO_DOMAIN_FITS, 1, 2, "k", (DomainShortage("r", 1),), 3, "more")
_OPTIONS = TypeAdapter(Options)
KEY = GroupKey("team", "train", GroupKind("Job"))


def read(document: Any) -> Capture | Malformed:
    return read_snapshot(json.dumps(document).encode())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"nodes": (Node("n", {"cpu": 1}, {"a": "b"}, (Taint("t", "", "NoSchedule"),)),)}, id="a node"),
        pytest.param({"groups": (PodGroup(KEY, "u", Policy(2), timeout=30.0),)}, id="a gang"),
        pytest.param({"groups": (PodGroup(KEY, "u", Policy(None)),)}, id="a group that waits without end"),
        pytest.param(
            {"memories": (GroupMemory(KEY, features={"repair": {"stood": {"name": "b"}}}, home="r"),)},
            id="what a feature remembers",
        ),
        pytest.param({"memories": (GroupMemory(KEY, verdict=VERDICT),)}, id="a verdict"),
        pytest.param({"memories": (GroupMemory(KEY, quorum_since=math.inf),)}, id="a time that never comes"),
        pytest.param({"settings": {"ageing_seconds": math.inf}}, id="a setting that is without end"),
    ],
)
def test_what_is_written_is_read_again(changes: dict[str, Any]) -> None:
    whole = read(WHOLE)
    assert isinstance(whole, Capture)
    capture = replace(whole, **changes)
    found = read_snapshot(b"".join(write_snapshot(capture)))
    assert isinstance(found, Capture)
    assert _OPTIONS.validate_python(found.settings) == _OPTIONS.validate_python(capture.settings)
    assert replace(found, settings={}) == replace(capture, settings={})


def test_what_has_its_default_is_not_written() -> None:
    whole = read(WHOLE)
    assert isinstance(whole, Capture)
    said = json.loads(b"".join(write_snapshot(replace(whole, nodes=(Node("n", {}),)))))
    assert said["nodes"] == [{"name": "n", "allocatable": {}}]
    assert said["version"] == VERSION
    assert said.keys() >= {"nodes", "pods", "used"}
    assert "kept" not in said


def test_what_a_later_version_says_beside_the_rest_is_left_alone() -> None:
    later = WHOLE | {"weather": "fair", "nodes": [{**each, "colour": "red"} for each in WHOLE["nodes"]]}
    assert read(later) == read(WHOLE)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"version": VERSION + 1}, f"it has version {VERSION + 1} of the format", id="a later format"),
        pytest.param({"nodes": {}}, "snapshot.nodes: Input should be a valid tuple", id="an object for a list"),
        pytest.param({"nodes": [{"name": "n"}]}, "snapshot.nodes.0.allocatable: Field required", id="a missing field"),
        pytest.param(
            {"nodes": [{"name": "n", "allocatable": {"cpu": "one"}}]},
            "snapshot.nodes.0.allocatable.cpu: Input should be a valid integer",
            id="a text for a number",
        ),
        pytest.param(
            {"groups": [{"key": ["a", "b"], "uid": "u"}]}, "snapshot.groups.0.policy: Field required", id="no policy"
        ),
        pytest.param({"group": ["a"]}, "snapshot.group.1: Field required", id="half a key"),
        pytest.param(
            {"group": ["a", "b", "Zoo", "", ""]}, "snapshot.group.2: Input should be 'PodGroup'", id="no such kind"
        ),
        pytest.param({"clock": "soon"}, "snapshot.clock: Input should be a valid number", id="a text for a time"),
        pytest.param({"shapes": []}, "is no place in its table of shapes", id="a shape that is not in the table"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(changes: dict[str, Any], said: str) -> None:
    found = read(WHOLE | changes)
    assert isinstance(found, Malformed)
    assert said in found.problem


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"", "", id="nothing"),
        pytest.param(b"[1]", "it is no snapshot", id="a list"),
        pytest.param(b"\xff", "", id="no text"),
        pytest.param(gzip.compress(FILE.read_bytes())[:-20], "its end is missing", id="half a compressed file"),
        pytest.param(b"\x1f\x8bnonsense", "the gzip file is damaged or incomplete", id="what only looks compressed"),
    ],
)
def test_what_is_no_snapshot_is_told(data: bytes, said: str) -> None:
    found = read_snapshot(data)
    assert isinstance(found, Malformed)
    assert said in found.problem


@given(
    st.sampled_from(sorted(WHOLE)),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3) | st.floats(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
)
def test_no_file_is_a_crash(field: str, value: Any) -> None:
    assert isinstance(read(WHOLE | {field: value}), Capture | Malformed)


def test_no_depth_is_a_crash() -> None:
    tree: dict[str, Any] = {"type": "Leaf", "name": "l", "need": 1}
    for _ in range(300):
        tree = {"type": "Branch", "name": "b", "need": 1, "topology_key": None, "below": [tree]}
    memory = {"group": ["a", "b", "PodGroup", "", ""], "stood": tree}
    assert isinstance(read(WHOLE | {"memories": [memory]}), Capture | Malformed)


def test_what_features_remember_is_found_where_earlier_versions_had_it() -> None:
    stood = {"name": "b", "need": 2}
    known = {"group": WHOLE["group"], "home": "r", "broken_since": 7.0, "stood": stood}
    found = read(WHOLE | {"memories": [known]})
    assert isinstance(found, Capture)
    (memory,) = found.memories
    assert memory.home == "r"
    assert memory.features == {"repair": {"broken_since": 7.0, "stood": stood}}
