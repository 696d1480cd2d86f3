"""The file of a capture: what is read from it, and what is said of one that cannot be read."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.simulation.snapshot import VERSION, Capture, Codec, GroupMemory, read_snapshot
from serried.api.group import Branch, Leaf, PodGroup, Policy
from serried.api.names import GroupKey, GroupKind, Malformed
from serried.api.node import Node
from serried.api.selectors import Taint
from serried.api.verdict import DomainShortage, Reason, Verdict

FILE = Path(__file__).parents[2] / "snapshots" / "three-of-lower-priority-go.json"
WHOLE: dict[str, Any] = json.loads(FILE.read_text())
KEY = GroupKey("team", "train", GroupKind.JOB)


def read(document: Any) -> Capture | Malformed:
    return read_snapshot(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param(Node, Node("n", {"cpu": 1}, {"a": "b"}, (Taint("t", "", "NoSchedule"),)), id="a node"),
        pytest.param(PodGroup, PodGroup(KEY, "u", Policy(2), timeout=30.0), id="a gang"),
        pytest.param(PodGroup, PodGroup(KEY, "u", Policy(None)), id="a group that waits without end"),
        pytest.param(
            GroupMemory, GroupMemory(KEY, stood=Branch("b", 1, None, (Leaf("l", 2),)), home="r"), id="a tree in a tree"
        ),
        pytest.param(
            Verdict, Verdict(Reason.NO_DOMAIN_FITS, 1, 2, "k", (DomainShortage("r", 1),), 3, "more"), id="a verdict"
        ),
    ],
)
def test_what_is_written_is_read_again(kind: type, value: object) -> None:
    codec = Codec()
    said = json.loads(json.dumps(codec.writer(kind)(value)))
    assert codec.reader(kind)(said, "here") == value


def test_what_has_its_default_is_not_written() -> None:
    assert Codec().writer(Node)(Node("n", {})) == {"name": "n", "allocatable": {}}


def test_what_a_later_version_says_beside_the_rest_is_left_alone() -> None:
    later = WHOLE | {"weather": "fair", "nodes": [{**each, "colour": "red"} for each in WHOLE["nodes"]]}
    assert read(later) == read(WHOLE)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"version": VERSION + 1}, f"it has version {VERSION + 1} of the format", id="a later format"),
        pytest.param({"nodes": {}}, "snapshot.nodes is no list", id="an object for a list"),
        pytest.param({"nodes": [{"name": "n"}]}, "snapshot.nodes[0].allocatable is missing", id="a missing field"),
        pytest.param(
            {"nodes": [{"name": "n", "allocatable": {"cpu": "1"}}]},
            "snapshot.nodes[0].allocatable.cpu is no int",
            id="a text for a number",
        ),
        pytest.param({"groups": [{"key": ["a"], "uid": "u"}]}, "snapshot.groups[0].policy is missing", id="no policy"),
        pytest.param({"group": ["a", "b"]}, "snapshot.group has 2 items, not 5", id="half a key"),
        pytest.param({"group": ["a", "b", "Zoo", "", ""]}, "snapshot.group[2] is none of PodGroup", id="no such kind"),
        pytest.param({"clock": "soon"}, "snapshot.clock is no number", id="a text for a time"),
        pytest.param({"shapes": []}, "is no place in the table of Shape", id="a shape that is not in the table"),
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
        pytest.param(b"\x1f\x8bnonsense", "it is no whole gzip file", id="what only looks compressed"),
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
