"""Reservations: the slots of one gang from its plan to its last Binding, in memory (`Reservation`) and as a record.

A record is the Reservation object from which a restarted extender restores the slots (`encode_reservation`,
`decode_reservation`). During a rolling upgrade two releases read each other's records. So a field may only be added if
older readers can do without it. For any other change increase ``FORMAT``, and keep all older formats readable;
``tests/records`` has records of each.

For larger gangs the lists are packed into one string. Otherwise each member would be a JSON object, which costs the API
server time at each write; and an object may have at most 1.5 MiB (docs/decisions/0041-two-writes-a-gang.md).
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
from serried.api.pod import PREEMPTION_PREFIX, Pod


class ReservationPhase(StrEnum):
    """The phase in a record: PLANNED, or COMMITTED (from then on Bindings may have been sent)."""

    PLANNED = "Planned"
    COMMITTED = "Committed"


@dataclass(frozen=True, slots=True)
class Slot:
    """The node that is reserved for one member. ``uid`` and ``name`` are those of the member's pod."""

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
    """The group whose pods are all evicted together with this one (`GroupKey.encoded`); "" if it is evicted alone."""


_MAX_NAMED_VICTIMS = 3
"""The maximum number of victims that a sentence names."""


def describe_preemption(group: GroupKey) -> str:
    """Return the message that Serried writes into the DisruptionTarget condition of a victim of gang ``group``.

    After a restart, `extender.core.binding.recovery` finds the gang's victims by this message.
    """
    return f"{PREEMPTION_PREFIX}{group.kind} {group} of higher priority"


def name_victims(victims: Collection[Pod | Victim]) -> str:
    """Return the names of the first three victims and the number of further ones: ``a/x, a/y, a/z and 4 more``."""
    more = f" and {len(victims) - _MAX_NAMED_VICTIMS} more" if len(victims) > _MAX_NAMED_VICTIMS else ""
    return ", ".join(f"{each.namespace}/{each.name}" for each in islice(victims, _MAX_NAMED_VICTIMS)) + more


class Reservation:
    """The slots of one gang: the planned nodes of its members. ``group_uid`` is the UID of the gang's object.

    Only `serried.cluster.ledger.Ledger`, whose docstring draws the states, may call the methods that change a
    reservation, because the usage of the nodes has to change as well. All other code only reads.
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
        """The value of the gang's topology key that all nodes of its slots have; "" if the gang has no topology key."""
        return self._domain

    @property
    def need(self) -> int:
        """The quorum: the number of members for which kube-scheduler must call bind before Serried binds any of them.

        0 if no member has to wait for others.
        """
        return self._need

    @property
    def parts(self) -> Mapping[str, int]:
        """The quorum of each PodGroup in the tree, by its name; ``need`` is the sum.

        For a gang of one PodGroup the only name is "".
        """
        return self._parts

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The slots by member UID."""
        return self._slots

    @property
    def nodes(self) -> frozenset[str]:
        """The names of the nodes that have a slot of this gang. Cached; computing it takes O(slots)."""
        if self._nodes is None:
            self._nodes = frozenset(slot.node for slot in self._slots.values())
        return self._nodes

    @property
    def committed(self) -> frozenset[str]:
        """The UIDs of the committed members, whose Bindings may have been sent; empty before the commit.

        Serried binds all of them in the end, even after a restart.
        """
        return self._committed

    @property
    def victims(self) -> Mapping[str, Victim]:
        """The pods that are being evicted to make the slots free, by UID; empty if none are, or once all have ended."""
        return self._victims

    @property
    def phase(self) -> ReservationPhase:
        """The phase for the record: COMMITTED if any member is committed."""
        return ReservationPhase.COMMITTED if self._committed else ReservationPhase.PLANNED

    @property
    def below_quorum(self) -> bool:
        """Return whether fewer slots are left than the quorum needs, in total or in one PodGroup of the tree."""
        parts = self._parts if len(self._parts) > 1 else {}
        return len(self._slots) < self._need or any(self._by_part[part] < need for part, need in parts.items())

    def misses_quorum(self, uids: Collection[str]) -> bool:
        """Return whether the members with these UIDs are fewer than the quorum needs, in total or in one PodGroup."""
        return len(uids) < self._need or (len(self._parts) > 1 and bool(self.find_parts_below_quorum(uids)))

    def find_parts_below_quorum(self, uids: Collection[str]) -> frozenset[str]:
        """Return the names of the PodGroups of the tree that need more members than those with these UIDs.

        A member is counted for the PodGroup that its slot names. In a gang of one PodGroup, which has the name "",
        members without a slot are counted, too.
        """
        here = Counter(self._slots[uid].part if uid in self._slots else "" for uid in uids)
        return frozenset(part for part, need in self._parts.items() if here[part] < need)

    # --- changes, only for the ledger --------------------------------------------------------------------------

    def set_slot(self, slot: Slot) -> None:
        """Add the slot of a member; replace its slot if it has one."""
        if slot.uid in self._slots:
            self.remove_slot(slot.uid)
        self._slots[slot.uid] = slot
        self._nodes = None
        self._by_part[slot.part] += 1

    def move_slot(self, uid: str, node: str) -> None:
        """Move a member's slot to another node; raise KeyError if the member has none."""
        self._slots[uid] = replace(self._slots[uid], node=node)
        self._nodes = None

    def remove_slot(self, uid: str) -> None:
        """Remove a member's slot; raise KeyError if the member has none."""
        self._by_part[self._slots.pop(uid).part] -= 1
        self._nodes = None

    def keep_only(self, uids: Collection[str]) -> None:
        """Remove the slots of all members whose UID is not in ``uids``."""
        self._slots = {uid: slot for uid, slot in self._slots.items() if uid in uids}
        self._nodes = None
        self._by_part = Counter(slot.part for slot in self._slots.values())

    def rename_domain(self, domain: str) -> None:
        """Set the domain to another name: the slots stay on their nodes.

        To be called if somebody has changed the value of the gang's topology key on all nodes of the slots.
        """
        self._domain = domain

    def forget_victims(self) -> None:
        """Remove the victims, because they have ended or are not awaited any more."""
        self._victims = {}

    def commit(self, uids: Collection[str]) -> None:
        """Commit the members with these UIDs: the phase changes from PLANNED to COMMITTED.

        A repeated commit of the same members has no effect. Raises IllegalTransition if other members are committed
        already, if a member has no slot, or if ``uids`` is empty.
        """
        chosen = frozenset(uids)
        if self._committed == chosen and chosen:
            return
        self._require_planned("be committed")
        if not chosen or not self._slots.keys() >= chosen:
            raise IllegalTransition(f"{self.group} cannot commit members that have no slot")
        self._committed = chosen

    def undo_commit(self) -> None:
        """Undo a commit, so that the phase is PLANNED again. No effect before a commit.

        Only allowed if no Binding has been sent since the commit.
        """
        self._committed = frozenset()

    def adjust_quorum(self, parts: Mapping[str, int]) -> None:
        """Change the quorum: ``parts`` is the number of members for each PodGroup of the tree, by its name.

        The slots of PodGroups that are missing in ``parts`` do not count any more. Raises IllegalTransition after the
        commit, or if ``parts`` has a PodGroup that the old quorum lacks.
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
"""The number in the field ``format`` of records with few members. A record without the field counts as format 1."""

PACKED_FORMAT = 2
"""The number in the field ``format`` of larger records. Their lists are compressed in the field ``packed``.

All other fields are as in format 1.
"""

_MAX_NAME_LENGTH = 200
"""The maximum number of characters of a group's name in the name of its record; the rest is cut off."""

MAX_RECORD_BYTES = 1_500_000
"""The maximum size of a record as JSON. etcd accepts 1.5 MiB (--max-request-bytes), and the API server adds fields."""

_MAX_LISTED_BYTES = 1_000
"""The size of a record's lists as JSON above which Serried packs them: it is reached by about ten members.

A release that does not know PACKED_FORMAT reads a packed record as an empty one and deletes it: see docs/operations.md.
"""

_MAX_UNPACKED_BYTES = 1 << 27

_COMPRESSION_LEVEL = 1
"""The compression level of zlib. The fastest one, because the extender cannot answer filter calls while it packs."""


def name_record(group: GroupKey) -> str:
    """Return the name of the Reservation object of a gang.

    It is `GroupKey.encoded`. If that contains colons or slashes, they become dots, and a hash is appended.
    """
    encoded = group.encoded
    readable = encoded.replace("/", ".").replace(":", ".")
    if readable == encoded:
        return encoded
    readable = readable[:_MAX_NAME_LENGTH].rstrip(".-")
    return f"{readable}-{sha256(encoded.encode()).hexdigest()[:12]}"


def encode_reservation(reservation: Reservation, term: str) -> dict[str, Any]:
    """Return the spec of the Reservation object (the record) for a reservation.

    After the commit it has the slots of the committed members only. ``term`` identifies the term of the extender that
    writes it: the time in which this one holds the Lease.
    """
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
    """Return the ``format`` of a Reservation object if this release is too old to read it; None if it can."""
    spec = item.get("spec")
    said = spec.get("format") if isinstance(spec, Mapping) else None
    return said if isinstance(said, int) and said > PACKED_FORMAT else None


def decode_reservation(item: Mapping[str, Any]) -> Reservation | None:
    """Restore the reservation from a Reservation object. Return None if it is malformed or from a later release."""
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
