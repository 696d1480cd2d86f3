"""The reservation ledger: which slots are kept for which members, between plan and bound.

In memory it is the truth that every plan and every filter call reads; the Reservation object follows it and lets a
restart rebuild it. Every slot lays a RESERVED claim in the Occupancy, so room is spoken for the moment a plan is held.
"""

from collections.abc import Iterator, Mapping

from serried.cluster.occupancy import ClaimKind, Occupancy
from serried.model.group import GroupKey
from serried.model.pod import Pod
from serried.model.reservation import Reservation, Slot


class Ledger:
    """Reservations by group; at most one a group, and one slot a pod."""

    def __init__(self, occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        self._by_group: dict[GroupKey, Reservation] = {}
        self._by_uid: dict[str, Reservation] = {}

    def __len__(self) -> int:
        return len(self._by_group)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._by_group.values()))

    def of_group(self, group: GroupKey) -> Reservation | None:
        """The group's reservation."""
        return self._by_group.get(group)

    def of_pod(self, uid: str) -> Reservation | None:
        """The reservation that has a slot for this pod."""
        return self._by_uid.get(uid)

    def slot_of(self, uid: str) -> Slot | None:
        """The slot of this pod."""
        reservation = self._by_uid.get(uid)
        return reservation.slots.get(uid) if reservation else None

    def hold(self, reservation: Reservation, pods: Mapping[str, Pod]) -> None:
        """Keep every slot of a reservation; ``pods`` has each member by UID.

        Raises ValueError if the group holds one already: release it first.
        """
        if reservation.group in self._by_group:
            raise ValueError(f"{reservation.group} already holds a reservation")
        self._by_group[reservation.group] = reservation
        for uid, slot in reservation.slots.items():
            self._take(uid, reservation)
            self._occupancy.claim(uid, ClaimKind.RESERVED, slot.node, pods[uid].shape.requests)

    def add(self, group: GroupKey, pod: Pod, node: str, part: str = "") -> None:
        """Keep one more slot in the group's reservation. Raises KeyError if it has none."""
        reservation = self._by_group[group]
        self._take(pod.uid, reservation)
        reservation.slots[pod.uid] = Slot(pod.uid, pod.name, node, part)
        self._occupancy.claim(pod.uid, ClaimKind.RESERVED, node, pod.shape.requests)

    def move(self, pod: Pod, node: str) -> None:
        """Give a member another node within its reservation. Raises KeyError if it has no slot."""
        self._by_uid[pod.uid].slots[pod.uid].node = node
        self._occupancy.claim(pod.uid, ClaimKind.RESERVED, node, pod.shape.requests)

    def _take(self, uid: str, reservation: Reservation) -> None:
        # One slot a pod: a member that has come over from another group takes its old slot from there.
        before = self._by_uid.get(uid)
        if before is not None and before is not reservation:
            del before.slots[uid]
        self._by_uid[uid] = reservation

    def drop(self, uid: str) -> None:
        """Give one slot back; the rest of the reservation stays."""
        reservation = self._by_uid.pop(uid, None)
        if reservation is not None:
            del reservation.slots[uid]
            self._occupancy.release(uid, ClaimKind.RESERVED)

    def release(self, group: GroupKey) -> Reservation | None:
        """Give every slot of a group back; returns what it held."""
        reservation = self._by_group.pop(group, None)
        if reservation is not None:
            for uid in reservation.slots:
                del self._by_uid[uid]
                self._occupancy.release(uid, ClaimKind.RESERVED)
        return reservation
