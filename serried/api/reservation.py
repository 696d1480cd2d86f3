"""The slots that are kept for one gang between its plan and its last Binding, and their object, the Reservation.

Two releases read each other's records in every rolling upgrade. So a field may be added if a reader may do without it;
for any other change ``FORMAT`` grows, and all older formats stay readable. ``tests/records`` has records of each. The
lists of all but small gangs are packed into one text: each member that is an object of its own costs the API server
time at every write, and it takes 1.5 MiB at most (docs/decisions/0041-two-writes-a-gang.md).
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
    """How far a reservation is, in the words of the Reservation object."""

    PLANNED = "Planned"
    COMMITTED = "Committed"


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one member."""

    uid: str
    name: str
    node: str
    part: str = ""
    """The member's PodGroup within its tree; "" where that is the whole tree."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that has to end before the slots hold."""

    uid: str
    namespace: str
    name: str

    group: str = ""
    """The group that is evicted whole with it, as `GroupKey.encoded`; "" where pods go one by one."""


_MAX_NAMED = 3
"""How many victims are named in a sentence."""


def describe_end(group: GroupKey) -> str:
    """What is said on a pod that ends for this gang. A restart goes by it (`extender.core.binding.recovery`)."""
    return f"{FOR_A_GANG}{group.kind} {group} of higher priority"


def name_some(victims: Collection[Pod | Victim]) -> str:
    """The names of the first of these, and how many more there are."""
    more = f" and {len(victims) - _MAX_NAMED} more" if len(victims) > _MAX_NAMED else ""
    return ", ".join(f"{each.namespace}/{each.name}" for each in islice(victims, _MAX_NAMED)) + more


class Reservation:
    """The slots of one group, open to every reader.

    Its verbs are the ledger's (`serried.cluster.ledger.Ledger`), whose docstring draws the states: nothing else calls
    them, because the claims on the nodes have to follow.
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
        """The value of the topology key that all nodes share; "" without a key."""
        return self._domain

    @property
    def need(self) -> int:
        """How many members must be at bind before any is bound; 0: each binds as it comes."""
        return self._need

    @property
    def parts(self) -> Mapping[str, int]:
        """How many members of each PodGroup ``need`` is made of, by its name in the tree."""
        return self._parts

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The slots by member UID."""
        return self._slots

    @property
    def nodes(self) -> frozenset[str]:
        """The names of the nodes that have slots; the same set until a slot changes. O(slots) after that."""
        if self._nodes is None:
            self._nodes = frozenset(slot.node for slot in self._slots.values())
        return self._nodes

    @property
    def committed(self) -> frozenset[str]:
        """The UIDs whose Bindings may have been sent; from then on they are only ever rolled forward."""
        return self._committed

    @property
    def victims(self) -> Mapping[str, Victim]:
        """Those that have to end before the slots hold, by UID; empty from when they are gone."""
        return self._victims

    @property
    def phase(self) -> ReservationPhase:
        """Planned or Committed, as the Reservation object says it."""
        return ReservationPhase.COMMITTED if self._committed else ReservationPhase.PLANNED

    @property
    def short(self) -> bool:
        """Whether too few slots are left for the quorum. O(PodGroups of the tree)."""
        parts = self._parts if len(self._parts) > 1 else {}
        return len(self._slots) < self._need or any(self._by_part[part] < need for part, need in parts.items())

    def lacks(self, uids: Collection[str]) -> bool:
        """Whether these members are too few for the quorum."""
        return len(uids) < self._need or (len(self._parts) > 1 and bool(self.find_short(uids)))

    def find_short(self, uids: Collection[str]) -> frozenset[str]:
        """The parts of which these members are too few. Who has no slot counts where one PodGroup is the tree."""
        here = Counter(self._slots[uid].part if uid in self._slots else "" for uid in uids)
        return frozenset(part for part, need in self._parts.items() if here[part] < need)

    # --- the verbs of the ledger -------------------------------------------------------------------------------

    def put(self, slot: Slot) -> None:
        """One more member has a slot."""
        if slot.uid in self._slots:
            self.drop(slot.uid)
        self._slots[slot.uid] = slot
        self._nodes = None
        self._by_part[slot.part] += 1

    def move(self, uid: str, node: str) -> None:
        """A member's slot is on another node. Raises KeyError if it has none."""
        self._slots[uid] = replace(self._slots[uid], node=node)
        self._nodes = None

    def drop(self, uid: str) -> None:
        """A member has no slot any more. Raises KeyError if it had none."""
        self._by_part[self._slots.pop(uid).part] -= 1
        self._nodes = None

    def keep(self, uids: Collection[str]) -> None:
        """Only these members have slots."""
        self._slots = {uid: slot for uid, slot in self._slots.items() if uid in uids}
        self._nodes = None
        self._by_part = Counter(slot.part for slot in self._slots.values())

    def rename_domain(self, domain: str) -> None:
        """The nodes carry another value of the topology key by now."""
        self._domain = domain

    def forget_victims(self) -> None:
        """The victims are gone, or are not waited for any more."""
        self._victims = {}

    def commit(self, uids: Collection[str]) -> None:
        """Planned becomes Committed. The same commit again changes nothing; another one is illegal."""
        chosen = frozenset(uids)
        if self._committed == chosen and chosen:
            return
        self._require_planned("be committed")
        if not chosen or not self._slots.keys() >= chosen:
            raise IllegalTransition(f"{self.group} cannot commit members that have no slot")
        self._committed = chosen

    def withdraw(self) -> None:
        """Committed becomes Planned: no Binding was sent. Nothing happens before the commit."""
        self._committed = frozenset()

    def adjust_quorum(self, parts: Mapping[str, int]) -> None:
        """The quorum takes these numbers of each PodGroup; who is not among them takes no part.

        Illegal after the commit, and with a PodGroup that was not planned.
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
"""The format that is written. A record that does not say its format is of format 1."""

PACKED_FORMAT = 2
"""That of a record with more than a few members: its lists are ``packed``. All else is as in format 1."""

_MAX_READABLE_LENGTH = 200
"""How many characters of a group's name stay in the name of its record."""

MAX_RECORD_BYTES = 1_500_000
"""How large a record may be; etcd takes 1.5 MiB (--max-request-bytes) together with what the API server adds."""

_MAX_LISTED_BYTES = 1_000
"""How long the lists are as JSON before they are packed: about ten members.

A release that cannot unpack takes a packed record for an empty one, and deletes it: docs/operations.md says what to do.
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
