"""Whom a fault hits that falls at a write of the extender."""

import json

import pytest

from serried.api.names import GroupKey, GroupKind
from serried.api.reservation import name_record
from tests.chaos.aims import ANYBODY, Aim, read_aim
from tests.chaos.gangs import Gang
from tests.chaos.mishaps import Request

PODS = "/api/v1/namespaces/ns/pods"
RECORDS = "/apis/scheduling.serried.dev/v1beta1/namespaces/ns/reservations"
RECORD = {"metadata": {"name": "g"}, "spec": {"slots": [{"node": "n1"}, {"node": "n2"}, {"node": "n1"}]}}


@pytest.mark.parametrize(
    ("request_", "aim"),
    [
        pytest.param(
            Request("POST", RECORDS, json.dumps(RECORD).encode()), Aim("ns", "g", ("n1", "n2")), id="a record"
        ),
        pytest.param(
            Request("PATCH", f"{PODS}/g-0/status", b'{"status":{"nominatedNodeName":"n1"}}'),
            Aim("ns", "g-0", ("n1",)),
            id="a nomination",
        ),
        pytest.param(
            Request("POST", f"{PODS}/g-0/binding", b'{"target":{"name":"n2"}}'),
            Aim("ns", "g-0", ("n2",)),
            id="a Binding",
        ),
        pytest.param(Request("DELETE", f"{RECORDS}/g"), Aim("ns", "g"), id="a record's end, without a body"),
        pytest.param(Request("PATCH", f"{PODS}/g-0", b"k8s\0"), Aim("ns", "g-0"), id="a body that is no JSON"),
        pytest.param(Request("PATCH", f"{PODS}/g-0", b'[{"op":"add"}]'), Aim("ns", "g-0"), id="a list of steps"),
    ],
)
def test_a_write_says_whom_it_is_about(request_: Request, aim: Aim) -> None:
    assert read_aim(request_) == aim


GANGS = [Gang("tree", "ns", name, 2, 2, 1000, 5) for name in ("tree-1", "tree-12")]


@pytest.mark.parametrize("kind", [GroupKind.COMPOSITE, GroupKind("Job"), GroupKind.POD_GROUP])
def test_by_its_record_the_gang_is_found_whatever_it_is(kind: GroupKind) -> None:
    record = name_record(GroupKey("ns", "tree-1", kind))
    body = json.dumps({"metadata": {"name": record}}).encode()
    for request in (Request("POST", RECORDS, body), Request("DELETE", f"{RECORDS}/{record}")):
        assert [gang.name for gang in read_aim(request).pick(GANGS)] == ["tree-1"]


@pytest.mark.parametrize(
    ("aim", "names"),
    [
        pytest.param(ANYBODY, ["tree-1", "tree-12"], id="nobody in particular"),
        pytest.param(Aim("ns", "tree-1"), ["tree-1"], id="its own name"),
        pytest.param(Aim("ns", "tree-1-left-0"), ["tree-1"], id="a member of one of its groups"),
        pytest.param(Aim("ns", "tree-12-left"), ["tree-12"], id="no other one whose name begins alike"),
        pytest.param(Aim("other", "tree-1"), [], id="of another namespace"),
    ],
)
def test_the_gang_is_found_by_what_its_objects_are_called(aim: Aim, names: list[str]) -> None:
    assert [gang.name for gang in aim.pick(GANGS)] == names
