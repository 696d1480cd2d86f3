"""Write and read records as the release before Reservations had a format field and were packed.

The code is that release's own (the parent of "A Reservation says its format"), so that tests show what it really
does with a record of today.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from serried.api.names import decode_group_key
from serried.api.reservation import Reservation, Slot, Victim


def encode_reservation(reservation: Reservation, term: str) -> dict[str, Any]:
    """Return the spec of the Reservation object. ``term`` names the extender that writes it."""
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
    return {
        "podGroup": reservation.group.encoded,
        "podGroupUID": reservation.group_uid,
        "phase": reservation.phase,
        "domain": reservation.domain,
        "term": term,
        "minCount": reservation.need,
        "slots": [{"node": node, "members": members} for node, members in by_node.items()],
        **({"parts": parts} if parts else {}),
        **({"victims": victims} if victims else {}),
    }


def decode_reservation(item: Mapping[str, Any]) -> Reservation | None:
    """Decode a Reservation object; None if Serried cannot have written it."""
    try:
        meta = item["metadata"]
        spec = item["spec"]
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
    except (KeyError, TypeError, ValueError):
        return None


def _encode_victim(victim: Victim) -> dict[str, str]:
    whole = {"podGroup": victim.group} if victim.group else {}
    return {"uid": victim.uid, "namespace": victim.namespace, "name": victim.name, **whole}


def _decode_victim(raw: Mapping[str, Any]) -> Victim:
    return Victim(str(raw["uid"]), str(raw["namespace"]), str(raw["name"]), str(raw.get("podGroup", "")))


def find_no_later_format(_item: Mapping[str, Any]) -> None:
    """Return None (no later format) for every record: that release did not check formats."""


OLDER: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "encode_reservation": encode_reservation,
        "decode_reservation": decode_reservation,
        "find_later_format": find_no_later_format,
    }
)
"""The replacements in `extender.core.binding.records`, by the name of the function."""
