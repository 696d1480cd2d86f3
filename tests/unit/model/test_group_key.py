"""The names by which Reservations, /debug and logs tell groups apart: written by earlier versions, and read by all."""

import pytest

from serried.api.names import GroupKey, GroupKind, decode_group_key
from serried.api.reservation import decode_reservation, name_record

NAMES = [
    ("train", GroupKey("ns", "train")),
    ("compatible:train", GroupKey("ns", "train", GroupKind.COMPATIBLE)),
    ("composite:root", GroupKey("ns", "root", GroupKind.COMPOSITE)),
    ("kueue:train:3", GroupKey("ns", "train", GroupKind.COUNTED, "3")),
    ("job:train", GroupKey("ns", "train", GroupKind("Job"))),
    ("w/workers", GroupKey("ns", "w", GroupKind.WORKLOAD, "workers")),
    ("w/workers/0", GroupKey("ns", "w", GroupKind.WORKLOAD, "workers", "0")),
    ("jobset:s::", GroupKey("ns", "s", GroupKind("JobSet"))),
    ("jobset:s:driver:", GroupKey("ns", "s", GroupKind("JobSet"), "driver")),
    ("leaderworkerset:s::1", GroupKey("ns", "s", GroupKind("LeaderWorkerSet"), "", "1")),
]


@pytest.mark.parametrize(("name", "group"), NAMES)
def test_every_kind_of_group_has_a_name_of_its_own_and_is_found_by_it(name: str, group: GroupKey) -> None:
    assert (group.encoded, str(group)) == (name, f"ns/{name}")
    assert decode_group_key("ns", name) == group


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "a/",
        "/a",
        "a//b",
        ":",
        "job:",
        "kueue:",
        "kueue:a",
        "kueue::1",
        "jobset:s",
        "jobset:s:driver",
        "other:x",
    ],
)
def test_any_other_name_is_that_of_a_podgroup(name: str) -> None:
    assert decode_group_key("ns", name) == GroupKey("ns", name)


RECORDS = [
    ("train", "train", NAMES[0][1]),
    ("compatible.train-ccb4a1f172f3", "compatible:train", NAMES[1][1]),
    ("composite.root-ce3ae387b141", "composite:root", NAMES[2][1]),
    ("w.workers.0-3bc9a36a8e91", "w/workers/0", NAMES[6][1]),
]


@pytest.mark.parametrize(("record", "name", "group"), RECORDS)
def test_the_record_of_an_earlier_version_is_that_of_its_group(record: str, name: str, group: GroupKey) -> None:
    spec = {"podGroup": name, "podGroupUID": "u", "phase": "Planned", "minCount": 2}
    found = decode_reservation({"metadata": {"namespace": "ns", "name": record}, "spec": spec})
    assert found is not None
    assert (found.group, name_record(found.group)) == (group, record)
