"""The Reservation object (scheduling.serried.dev/v1beta1), both ways.

Two releases read each other's records in every rolling upgrade. So a field may be added if a reader may do without it;
for any other change ``FORMAT`` grows, and all older formats stay readable. ``tests/records`` has records of each.

Its lists are there to be read by people. Those of a gang of thousands are packed instead, into one text: the API server
takes an object of 1.5 MiB at most, and such lists are mostly the same words again and again.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import orjson

from serried.model.group import GroupKey, decode_group_key
from serried.model.reservation import Reservation, Slot, Victim

FORMAT = 1
"""The format that is written. A record that does not say its format is of format 1."""

PACKED_FORMAT = 2
"""That of a record too large to be read by people: its lists are ``packed``. All else is as in format 1."""

_MAX_READABLE_LENGTH = 200
"""How many characters of a group's name stay in the name of its record."""

MAX_RECORD_BYTES = 1_500_000
"""How large a record may be; etcd takes 1.5 MiB (--max-request-bytes) together with what the API server adds."""

_MAX_LISTED_BYTES = MAX_RECORD_BYTES - 10_000
"""How long the lists are as JSON before they are packed. The rest of a record is for its names.

A release that cannot unpack takes a packed record for an empty one, and deletes it. It reads all that it could have
written, and docs/operations.md says what to do about the rest.
"""

_MAX_UNPACKED_BYTES = 1 << 27

_FAST = 1
"""The level of zlib: the lists of 10,000 members are packed in a moment in which filter has no answer."""


def name_record(group: GroupKey) -> str:
    """The name of a group's Reservation object: the group's own if that is a valid name, else one made from it."""
    encoded = group.encoded
    readable = encoded.replace("/", ".").replace(":", ".")
    if readable == encoded:
        return encoded
    readable = readable[:_MAX_READABLE_LENGTH].rstrip(".-")
    return f"{readable}-{sha256(encoded.encode()).hexdigest()[:12]}"


def encode_reservation(reservation: Reservation, term: str) -> dict[str, Any]:
    """The object's spec; ``term`` names the extender that writes it."""
    # A committed record names the committed members alone: a restart binds all that it names, and must not bind a pod
    # that the scheduler has not passed.
    kept = reservation.committed or reservation.slots.keys()
    by_node: dict[str, list[dict[str, str]]] = {}
    for slot in reservation.slots.values():
        if slot.uid in kept:
            part = {"podGroup": slot.part} if slot.part else {}
            by_node.setdefault(slot.node, []).append({"uid": slot.uid, "name": slot.name, **part})
    parts = [{"podGroup": part, "minCount": need} for part, need in reservation.parts.items() if part]
    victims = [_encode_victim(victim) for victim in reservation.victims.values()]
    lists = {
        "slots": [{"node": node, "members": members} for node, members in by_node.items()],
        **({"parts": parts} if parts else {}),
        **({"victims": victims} if victims else {}),
    }
    return {
        "format": FORMAT,
        "podGroup": reservation.group.encoded,
        "podGroupUID": reservation.group_uid,
        "phase": reservation.phase,
        "domain": reservation.domain,
        "term": term,
        "minCount": reservation.need,
        **_pack(lists),
    }


def find_later_format(item: Mapping[str, Any]) -> int | None:
    """The format of a record that only a later release can read; None for any other."""
    spec = item.get("spec")
    said = spec.get("format") if isinstance(spec, Mapping) else None
    return said if isinstance(said, int) and said > PACKED_FORMAT else None


def decode_reservation(item: Mapping[str, Any]) -> Reservation | None:
    """A Reservation object as the ledger's value; None if it cannot be one of ours, or is of a later format."""
    try:
        if find_later_format(item) is not None:
            return None
        meta = item["metadata"]
        spec = _unpack(item["spec"])
        slots = {
            str(member["uid"]): Slot(
                str(member["uid"]), str(member["name"]), str(slot["node"]), str(member.get("podGroup", ""))
            )
            for slot in spec.get("slots") or []
            for member in slot["members"]
        }
        return Reservation(
            group=decode_group_key(str(meta["namespace"]), str(spec["podGroup"])),
            group_uid=str(spec["podGroupUID"]),
            domain=str(spec.get("domain", "")),
            need=int(spec.get("minCount", 0)),
            slots=slots,
            committed=frozenset(slots) if spec["phase"] == "Committed" else frozenset(),
            parts={str(part["podGroup"]): int(part["minCount"]) for part in spec.get("parts") or []},
            victims=[_decode_victim(victim) for victim in spec.get("victims") or []],
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None


def _pack(lists: Mapping[str, Any]) -> Mapping[str, Any]:
    plain = orjson.dumps(lists)
    if len(plain) <= _MAX_LISTED_BYTES:
        return lists
    return {"format": PACKED_FORMAT, "packed": b64encode(zlib.compress(plain, _FAST)).decode()}


def _unpack(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    packed = spec.get("packed")
    if not packed:
        return spec
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(b64decode(packed, validate=True), _MAX_UNPACKED_BYTES)
    except zlib.error as problem:
        raise ValueError(str(problem)) from None
    return {**spec, **orjson.loads(plain)}


def _encode_victim(victim: Victim) -> dict[str, str]:
    whole = {"podGroup": victim.group} if victim.group else {}
    return {"uid": victim.uid, "namespace": victim.namespace, "name": victim.name, **whole}


def _decode_victim(raw: Mapping[str, Any]) -> Victim:
    return Victim(str(raw["uid"]), str(raw["namespace"]), str(raw["name"]), str(raw.get("podGroup", "")))
