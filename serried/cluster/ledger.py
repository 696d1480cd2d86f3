"""The reservation ledger: which slots are kept for which members, between plan and bound.

In memory it is the truth that every plan and every filter call reads; the Reservation object follows it and lets a
restart rebuild it. Every slot lays a RESERVED claim in the Occupancy, so room is spoken for the moment a plan is made.
"""

from collections.abc import Collection, Iterator, Mapping

from serried.api.names import GroupKey, IllegalTransition
from serried.api.pod import Pod
from serried.api.reservation import Reservation, Slot
from serried.cluster.usage import ClaimKind, Occupancy, PendingVictims

_NOBODY: Collection[str] = ()


class Ledger:
    r"""Owns the reservations: at most one a group, and one slot a pod. Nothing else changes them.

                          add, move, drop, rename_domain
                          adjust_quorum                        add, move, drop, rename_domain
                                    +---+                                +---+
                                    |   v                                |   v
        nothing --- reserve ---> Planned ----------- commit ----------> Committed
           ^                      |   ^                                  |   |
           |                      |   +------------ withdraw ------------+   |
           +----- unreserve ------+------------------------------------------+

    What a restart finds is reserved in the phase that its record has. ``withdraw`` is for a commit of which no Binding
    was sent. A Committed reservation is unreserved when its Bindings stand, or when another instance drives them on;
    the caller knows (`scheduling.scheduling_cycle`). One that has victims is Planned, and over-commits its nodes, until
    ``forget_victims``; it is not committed before. A verb for a reservation that is not held (any more), and one that
    the drawing does not have, raise IllegalTransition.
    """

    def __init__(self, occupancy: Occupancy, pending_victims: PendingVictims) -> None:
        self._occupancy = occupancy
        self._pending_victims = pending_victims
        self._by_group: dict[GroupKey, Reservation] = {}
        self._by_uid: dict[str, Reservation] = {}
        self._by_node: dict[str, dict[str, None]] = {}

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

    def list_on(self, node: str) -> Collection[str]:
        """The pods that have a slot on a node; UIDs. Changes with the ledger."""
        return self._by_node.get(node, _NOBODY)

    # --- one group ---------------------------------------------------------------------------------------------

    def reserve(self, reservation: Reservation, pods: Mapping[str, Pod]) -> None:
        """Keep the slots of those members that are among ``pods`` (by UID); the others have none.

        The group must hold no reservation: that one is unreserved first.
        """
        if reservation.group in self._by_group:
            raise IllegalTransition(f"{reservation.group} already holds a reservation")
        self._by_group[reservation.group] = reservation
        reservation.keep(pods.keys())
        for uid, slot in reservation.slots.items():
            self._take(uid, reservation)
            self._note(uid, slot.node)
            self._occupancy.claim(uid, ClaimKind.RESERVED, slot.node, pods[uid].shape.requests)
        self._pending_victims.add(reservation.victims, reservation.group)

    def forget_victims(self, reservation: Reservation) -> None:
        """The victims are gone, or are not waited for any more. Nothing happens if there are none."""
        self._require_held(reservation)
        self._pending_victims.remove(reservation.victims)
        reservation.forget_victims()

    def commit(self, reservation: Reservation, uids: Collection[str]) -> None:
        """From now on the Bindings of these members may be sent. The same commit may be repeated."""
        self._require_held(reservation)
        if reservation.victims:
            raise IllegalTransition(f"{reservation.group} cannot commit before its victims are gone")
        reservation.commit(uids)

    def withdraw(self, reservation: Reservation) -> None:
        """The commit does not count: no Binding was sent. Nothing happens if there was none."""
        self._require_held(reservation)
        reservation.withdraw()

    def adjust_quorum(self, reservation: Reservation, parts: Mapping[str, int]) -> None:
        """The quorum takes these numbers of members of each PodGroup; one without number is left out."""
        self._require_held(reservation)
        reservation.adjust_quorum(parts)

    def rename_domain(self, reservation: Reservation, domain: str) -> None:
        """The domain has another name by now: its nodes were given another label."""
        self._require_held(reservation)
        reservation.rename_domain(domain)

    def unreserve(self, group: GroupKey) -> Reservation | None:
        """Give every slot of a group back; returns what it held, None if it held nothing."""
        reservation = self._by_group.pop(group, None)
        if reservation is not None:
            self._pending_victims.remove(reservation.victims)
            for uid, slot in reservation.slots.items():
                del self._by_uid[uid]
                self._forget(uid, slot.node)
                self._occupancy.release(uid, ClaimKind.RESERVED)
        return reservation

    # --- one member --------------------------------------------------------------------------------------------

    def add(self, reservation: Reservation, pod: Pod, node: str, part: str = "") -> None:
        """Keep one more slot."""
        self._require_held(reservation)
        self._take(pod.uid, reservation)
        reservation.put(Slot(pod.uid, pod.name, node, part))
        self._note(pod.uid, node)
        self._occupancy.claim(pod.uid, ClaimKind.RESERVED, node, pod.shape.requests)

    def move(self, pod: Pod, node: str) -> None:
        """Give a member another node within its reservation. Raises KeyError if it has no slot."""
        reservation = self._by_uid[pod.uid]
        self._forget(pod.uid, reservation.slots[pod.uid].node)
        reservation.move(pod.uid, node)
        self._note(pod.uid, node)
        self._occupancy.claim(pod.uid, ClaimKind.RESERVED, node, pod.shape.requests)

    def drop(self, uid: str) -> None:
        """Give one slot back; the rest of the reservation stays. Nothing happens if the pod has none."""
        reservation = self._by_uid.pop(uid, None)
        if reservation is not None:
            self._forget(uid, reservation.slots[uid].node)
            reservation.drop(uid)
            self._occupancy.release(uid, ClaimKind.RESERVED)

    def _take(self, uid: str, reservation: Reservation) -> None:
        # One slot a pod: a member that has come over from another group takes its old slot from there.
        before = self._by_uid.get(uid)
        if before is not None and uid in before.slots:
            self._forget(uid, before.slots[uid].node)
        if before is not None and before is not reservation:
            before.drop(uid)
        self._by_uid[uid] = reservation

    def _note(self, uid: str, node: str) -> None:
        self._by_node.setdefault(node, {})[uid] = None

    def _forget(self, uid: str, node: str) -> None:
        here = self._by_node[node]
        del here[uid]
        if not here:
            del self._by_node[node]

    def _require_held(self, reservation: Reservation) -> None:
        if self._by_group.get(reservation.group) is not reservation:
            raise IllegalTransition(f"{reservation.group} does not hold this reservation (any more)")
