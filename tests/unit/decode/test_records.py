"""The formats of Reservations, of which each release reads those of the one before and after it (``tests/records``).

A change of what is written fails here. If older readers can do without the new field, write the files of this format
anew (``python -m tests.unit.decode.test_records``); if not, let ``FORMAT`` grow first, and keep the old files.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from serried.api.names import GroupKey, GroupKind
from serried.api.reservation import (
    FORMAT,
    PACKED_FORMAT,
    Reservation,
    Slot,
    Victim,
    decode_reservation,
    encode_reservation,
)
from tests.support.older_records import OLDER

RECORDS = Path(__file__).parents[2] / "records"
CRD = Path(__file__).parents[3] / "manifests/kustomize/crds/reservations.yaml"

MEMBERS = {uid: Slot(uid, f"train-{uid}", node) for uid, node in (("u0", "n1"), ("u1", "n1"), ("u2", "n2"))}
IN_TREE = {uid: Slot(uid, uid, "n1", part) for uid, part in (("l0", "leader"), ("w0", "workers"), ("w1", "workers"))}
TREE = GroupKey("default", "serve", GroupKind.COMPOSITE)
PART = GroupKey("default", "batch", GroupKind.WORKLOAD, "ring", "0")
VICTIMS = [Victim("v0", "other", "low-0"), Victim("v1", "other", "low-1", "low")]

WRITTEN = {
    "planned": Reservation(GroupKey("default", "train"), "g", "rack-1", 3, MEMBERS),
    "committed": Reservation(GroupKey("default", "train"), "g", "rack-1", 2, MEMBERS, ["u0", "u1"]),
    "tree": Reservation(TREE, "g", "", 3, IN_TREE, IN_TREE, {"leader": 1, "workers": 2}),
    "with-victims": Reservation(GroupKey("default", "train"), "g", "", 3, MEMBERS, victims=VICTIMS),
    "inline": Reservation(PART, "g", "", 3, MEMBERS),
}
"""A reservation for each kind of record, by the name of its file."""


def write(reservation: Reservation) -> dict[str, Any]:
    """The object as the API server has it."""
    metadata = {"namespace": reservation.group.namespace, "name": "any"}
    return {"metadata": metadata, "spec": encode_reservation(reservation, "host_1/1")}


def describe(reservation: Reservation | None) -> object:
    """Return all fields that a record keeps."""
    assert reservation is not None
    named = reservation.committed or reservation.slots.keys()
    return (
        (reservation.group, reservation.group_uid, reservation.domain, reservation.need, reservation.phase),
        {uid: slot for uid, slot in reservation.slots.items() if uid in named},
        (reservation.committed, reservation.parts, reservation.victims),
    )


def list_files() -> list[Path]:
    return sorted(RECORDS.glob("*/*.json"))


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_what_the_files_of_this_format_say(name: str) -> None:
    assert json.loads((RECORDS / str(FORMAT) / f"{name}.json").read_text()) == write(WRITTEN[name])


@pytest.mark.parametrize("file", list_files(), ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_records_of_every_format_are_read(file: Path) -> None:
    assert describe(decode_reservation(json.loads(file.read_text()))) == describe(WRITTEN[file.stem])


def test_every_format_has_its_files() -> None:
    assert {file.parent.name for file in list_files()} == {*map(str, range(1, FORMAT + 1)), str(PACKED_FORMAT)}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_record_that_does_not_say_its_format_is_of_the_first(name: str) -> None:
    raw = json.loads((RECORDS / "1" / f"{name}.json").read_text())
    del raw["spec"]["format"]
    assert describe(decode_reservation(raw)) == describe(WRITTEN[name])


@pytest.mark.parametrize("name", WRITTEN)
def test_a_release_that_knew_no_formats_reads_what_is_written_and_its_own_records_are_read(name: str) -> None:
    said = describe(WRITTEN[name])
    assert describe(OLDER["decode_reservation"](write(WRITTEN[name]))) == said
    older = write(WRITTEN[name]) | {"spec": OLDER["encode_reservation"](WRITTEN[name], "host_1/1")}
    assert "format" not in older["spec"]
    assert describe(decode_reservation(older)) == said


def test_a_packed_record_is_an_empty_one_to_it() -> None:
    found = OLDER["decode_reservation"](json.loads((RECORDS / str(PACKED_FORMAT) / "planned.json").read_text()))
    assert (found.group, found.need, found.slots, found.committed) == (GroupKey("default", "train"), 3, {}, frozenset())


@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_later_release_adds_is_passed_over(name: str) -> None:
    raw = write(WRITTEN[name])
    raw["spec"]["unheardOf"] = {"a": 1}
    for slot in raw["spec"]["slots"]:
        slot["unheardOf"] = 1
        slot["members"][0]["unheardOf"] = 1
    assert describe(decode_reservation(raw)) == describe(WRITTEN[name])


@pytest.mark.parametrize("name", WRITTEN)
def test_the_crd_keeps_every_field(name: str) -> None:
    versions = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    schema = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert list(list_pruned(write(WRITTEN[name])["spec"], schema, "spec")) == []


def list_pruned(value: object, schema: dict[str, Any], path: str) -> list[str]:
    """The fields that the API server would drop, as the schema does not have them."""
    if isinstance(value, dict):
        known = schema.get("properties", {})
        pruned = [f"{path}.{name}" for name in value if name not in known]
        below = [list_pruned(each, known[name], f"{path}.{name}") for name, each in value.items() if name in known]
        return pruned + [field for fields in below for field in fields]
    if isinstance(value, list):
        return [field for each in value for field in list_pruned(each, schema["items"], path)]
    return []


if __name__ == "__main__":
    directory = RECORDS / str(FORMAT)
    directory.mkdir(parents=True, exist_ok=True)
    for name, reservation in WRITTEN.items():
        (directory / f"{name}.json").write_text(json.dumps(write(reservation), indent=2) + "\n")
