"""Reservations: the slots that are kept for one gang from its plan to its last Binding, and the object for them.

During a rolling upgrade two releases read each other's records. So a field may only be added if older readers can do
without it. For any other change increase ``FORMAT``, and keep all older formats readable; ``tests/records`` has records
of each.

For larger gangs the lists are packed into one string: every member that is a JSON object costs the API server time at
each write, and an object may have 1.5 MiB at most (docs/decisions/0041-two-writes-a-gang.md).
"""

import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from itertools import islice
from typing import Any

import orjson

from serried.api.names import GroupKey, IllegalTransition, decode_group_key
from serried.api.pod import FOR_A_GANG, Pod


class ReservationPhase(StrEnum):
    """The phase of a Reservation object: planned, or committed (Bindings may have been sent)."""

    PLANNED = "Planned"
    COMMITTED = "Committed"


@dataclass(frozen=True, slots=True)
class Slot:
    """The node that is reserved for one member."""

    uid: str
    name: str
    node: str
    part: str = ""
    """The name of the member's PodGroup within its tree; "" if one PodGroup is the whole tree."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that is evicted for the gang, and has to end before the slots can be used."""

    uid: str
    namespace: str
    name: str

    group: str = ""
    """The group that is evicted as a whole together with it (`GroupKey.encoded`); "" if it is evicted alone."""


_MAX_NAMED_VICTIMS = 3
"""The maximum number of victims that a sentence names."""


def describe_end(group: GroupKey) -> str:
    """Return the message of the DisruptionTarget condition on a victim of this gang.

    After a restart, `extender.core.binding.recovery` recognises victims by it.
    """
    return f"{FOR_A_GANG}{group.kind} {group} of higher priority"


def name_some(victims: Collection[Pod | Victim]) -> str:
    """Return the names of the first few victims, and the number of the others, for a sentence."""
    more = f" and {len(victims) - _MAX_NAMED_VICTIMS} more" if len(victims) > _MAX_NAMED_VICTIMS else ""
    return ", ".join(f"{each.namespace}/{each.name}" for each in islice(victims, _MAX_NAMED_VICTIMS)) + more


class Reservation:
    """The slots of one group. The ledger owns it; others only read.

    Only the ledger (`serried.cluster.ledger.Ledger`, whose docstring draws the states) may call the methods that change
    it, because it has to update the usage of the nodes as well.
    """

    __slots__ = (
        *("_by_part", "_committed", "_domain", "_need", "_nodes", "_parts", "_slots", "_victims"),
        *("group", "group_uid"),
    )

    def __init__(
        self,
        group: GroupKey,
        group_uid: str,
        domain: str,
        need: int,
        slots: Mapping[str, Slot] | None = None,
        committed: Collection[str] = (),
        parts: Mapping[str, int] | None = None,
        victims: Iterable[Victim] = (),
    ) -> None:
        self.group = group
        self.group_uid = group_uid
        self._domain = domain
        self._need = need
        self._slots = dict(slots or {})
        self._nodes: frozenset[str] | None = None
        self._by_part = Counter(slot.part for slot in self._slots.values())
        self._committed = frozenset(committed)
        self._parts = dict(parts or {"": need})
        self._victims = {victim.uid: victim for victim in victims}

    @property
    def domain(self) -> str:
        """The value of the topology key that all nodes have; "" without a topology key."""
        return self._domain

    @property
    def need(self) -> int:
        """The number of members that must be at bind before any is bound; 0: each member binds at once."""
        return self._need

    @property
    def parts(self) -> Mapping[str, int]:
        """The parts of ``need``: the number of members by the name of their PodGroup in the tree."""
        return self._parts

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The slots by member UID."""
        return self._slots

    @property
    def nodes(self) -> frozenset[str]:
        """The names of the nodes with slots. Cached until a slot changes; then O(slots)."""
        if self._nodes is None:
            self._nodes = frozenset(slot.node for slot in self._slots.values())
        return self._nodes

    @property
    def committed(self) -> frozenset[str]:
        """The UIDs of members whose Bindings may have been sent: these are bound in any case, never given up."""
        return self._committed

    @property
    def victims(self) -> Mapping[str, Victim]:
        """The victims by UID; empty when they have ended."""
        return self._victims

    @property
    def phase(self) -> ReservationPhase:
        """The phase in the Reservation object."""
        return ReservationPhase.COMMITTED if self._committed else ReservationPhase.PLANNED

    @property
    def short(self) -> bool:
        """Return whether too few slots are left for the quorum. O(PodGroups of the tree)."""
        parts = self._parts if len(self._parts) > 1 else {}
        return len(self._slots) < self._need or any(self._by_part[part] < need for part, need in parts.items())

    def lacks(self, uids: Collection[str]) -> bool:
        """Return whether these members are too few for the quorum."""
        return len(uids) < self._need or (len(self._parts) > 1 and bool(self.find_short(uids)))

    def find_short(self, uids: Collection[str]) -> frozenset[str]:
        """Return the parts for which these members are too few.

        A member without slot counts for the part "", so it counts if one PodGroup is the whole tree.
        """
        here = Counter(self._slots[uid].part if uid in self._slots else "" for uid in uids)
        return frozenset(part for part, need in self._parts.items() if here[part] < need)

    # --- changes, only for the ledger --------------------------------------------------------------------------

    def put(self, slot: Slot) -> None:
        """Add the slot of a member; replace its slot if it has one."""
        if slot.uid in self._slots:
            self.drop(slot.uid)
        self._slots[slot.uid] = slot
        self._nodes = None
        self._by_part[slot.part] += 1

    def move(self, uid: str, node: str) -> None:
        """Move a member's slot to another node; raise KeyError if the member has none."""
        self._slots[uid] = replace(self._slots[uid], node=node)
        self._nodes = None

    def drop(self, uid: str) -> None:
        """Remove a member's slot; raise KeyError if the member has none."""
        self._by_part[self._slots.pop(uid).part] -= 1
        self._nodes = None

    def keep(self, uids: Collection[str]) -> None:
        """Remove the slots of all members but these."""
        self._slots = {uid: slot for uid, slot in self._slots.items() if uid in uids}
        self._nodes = None
        self._by_part = Counter(slot.part for slot in self._slots.values())

    def rename_domain(self, domain: str) -> None:
        """Change the domain, because the nodes' value of the topology key has changed."""
        self._domain = domain

    def forget_victims(self) -> None:
        """Remove the victims, because they have ended or are not awaited any more."""
        self._victims = {}

    def commit(self, uids: Collection[str]) -> None:
        """Commit these members: Planned becomes Committed. To repeat the same commit is allowed.

        Raises IllegalTransition if other members are committed already, or if a member has no slot.
        """
        chosen = frozenset(uids)
        if self._committed == chosen and chosen:
            return
        self._require_planned("be committed")
        if not chosen or not self._slots.keys() >= chosen:
            raise IllegalTransition(f"{self.group} cannot commit members that have no slot")
        self._committed = chosen

    def withdraw(self) -> None:
        """Undo a commit of which no Binding was sent: Committed becomes Planned. No effect before a commit."""
        self._committed = frozenset()

    def adjust_quorum(self, parts: Mapping[str, int]) -> None:
        """Change the quorum to these numbers of members by PodGroup. Other PodGroups do not take part any more.

        Raises IllegalTransition after the commit, or if a PodGroup was not planned.
        """
        self._require_planned("change its quorum")
        if not parts.keys() <= self._parts.keys():
            raise IllegalTransition(f"{self.group} cannot take in PodGroups that it was not planned with")
        self._parts = dict(parts)
        self._need = sum(parts.values())

    def _require_planned(self, what: str) -> None:
        if self._committed:
            raise IllegalTransition(f"{self.group} is Committed and cannot {what}")


FORMAT = 1
"""The format of records with few members. A record without a format is of format 1."""

PACKED_FORMAT = 2
"""The format of larger records: their lists are in ``packed``. All other fields are as in format 1."""

_MAX_NAME_LENGTH = 200
"""The number of characters of a group's name that are used in the name of its record."""

MAX_RECORD_BYTES = 1_500_000
"""The maximum size of a record. etcd accepts 1.5 MiB (--max-request-bytes), including what the API server adds."""

_MAX_LISTED_BYTES = 1_000
"""The size of the lists as JSON above which they are packed: about ten members.

A release that does not know PACKED_FORMAT reads a packed record as an empty one and deletes it: see docs/operations.md.
"""

_MAX_UNPACKED_BYTES = 1 << 27

_COMPRESSION_LEVEL = 1
"""The level of zlib. The fastest one, because filter cannot answer while the lists of 10,000 members are packed."""


def name_record(group: GroupKey) -> str:
    """Return the name of a group's Reservation: `GroupKey.encoded` if that is a valid name, else a hashed one."""
    encoded = group.encoded
    readable = encoded.replace("/", ".").replace(":", ".")
    if readable == encoded:
        return encoded
    readable = readable[:_MAX_NAME_LENGTH].rstrip(".-")
    return f"{readable}-{sha256(encoded.encode()).hexdigest()[:12]}"


def encode_reservation(reservation: Reservation, term: str) -> dict[str, Any]:
    """Return the spec of the Reservation object; ``term`` identifies the extender process that writes it."""
    parts = [{"podGroup": part, "minCount": need} for part, need in reservation.parts.items() if part]
    victims = [_encode_victim(victim) for victim in reservation.victims.values()]
    lists = {
        "slots": _encode_slots(reservation),
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
    """Return the format of a record if only a later release can read it; else None."""
    spec = item.get("spec")
    said = spec.get("format") if isinstance(spec, Mapping) else None
    return said if isinstance(said, int) and said > PACKED_FORMAT else None


def decode_reservation(item: Mapping[str, Any]) -> Reservation | None:
    """Decode a Reservation object. Return None if it is malformed, or has a later format."""
    try:
        if find_later_format(item) is not None:
            return None
        meta = item["metadata"]
        spec = _unpack(item["spec"])
        slots = {slot.uid: slot for slot in _decode_slots(spec.get("slots") or [])}
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
    return {"format": PACKED_FORMAT, "packed": b64encode(zlib.compress(plain, _COMPRESSION_LEVEL)).decode()}


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


def _encode_slots(reservation: Reservation) -> list[dict[str, Any]]:
    # A committed record names the committed members alone: a restart binds all that it names, and must not bind a pod
    # that the scheduler has not passed.
    kept = reservation.committed or reservation.slots.keys()
    by_node: dict[str, list[dict[str, str]]] = {}
    for slot in reservation.slots.values():
        if slot.uid in kept:
            part = {"podGroup": slot.part} if slot.part else {}
            by_node.setdefault(slot.node, []).append({"uid": slot.uid, "name": slot.name, **part})
    return [{"node": node, "members": members} for node, members in by_node.items()]


def _decode_slots(raw: Iterable[Mapping[str, Any]]) -> Iterator[Slot]:
    for each in raw:
        for one in each["members"]:
            yield Slot(str(one["uid"]), str(one["name"]), str(each["node"]), str(one.get("podGroup", "")))


def _encode_victim(victim: Victim) -> dict[str, str]:
    whole = {"podGroup": victim.group} if victim.group else {}
    return {"uid": victim.uid, "namespace": victim.namespace, "name": victim.name, **whole}


def _decode_victim(raw: Mapping[str, Any]) -> Victim:
    return Victim(str(raw["uid"]), str(raw["namespace"]), str(raw["name"]), str(raw.get("podGroup", "")))
