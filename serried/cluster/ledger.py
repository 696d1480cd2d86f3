"""The reservation ledger: the nodes that are kept for members (their slots) from the plan until they are bound.

Plans and filter calls read the ledger in memory. The Reservation objects are written after it, for a restart. Every
slot is also recorded in the `Occupancy`, which sums up the used resources of each node. So other plans see the
resources of a slot as used at once.
"""

from collections.abc import Collection, Iterator, Mapping

from serried.api.names import GroupKey, IllegalTransition
from serried.api.pod import Pod
from serried.api.reservation import Reservation, Slot
from serried.cluster.usage import Occupancy, PendingVictims, UsageSource

_NO_PODS: Collection[str] = ()


class Ledger:
    r"""All reservations: at most one for each group, and one slot for each pod. Only the ledger changes them.

                          add, move, drop, rename_domain
                          adjust_quorum                        add, move, drop, rename_domain
                                    +---+                                +---+
                                    |   v                                |   v
        nothing --- reserve ---> Planned ----------- commit ----------> Committed
           ^                      |   ^                                  |   |
           |                      |   +------------ withdraw ------------+   |
           +----- unreserve ------+------------------------------------------+

    After a restart a reservation starts in the phase of its record. ``withdraw`` is for a commit of which no Binding
    was sent. A Committed reservation is unreserved by `scheduling.scheduling_cycle` when its members are bound, or when
    another instance continues its Bindings. While a reservation has victims, their and the members' requests together
    may exceed a node, so it cannot be committed before ``forget_victims``.

    IllegalTransition is raised for a transition that the drawing does not have, and for a reservation that is not in
    the ledger.
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
        """Return the reservation of a group; None if it has none."""
        return self._by_group.get(group)

    def of_pod(self, uid: str) -> Reservation | None:
        """Return the reservation that has a slot for the pod with this UID; None if there is none."""
        return self._by_uid.get(uid)

    def slot_of(self, uid: str) -> Slot | None:
        """Return the slot of the pod with this UID; None if it has none."""
        reservation = self._by_uid.get(uid)
        return reservation.slots.get(uid) if reservation else None

    def list_on(self, node: str) -> Collection[str]:
        """Return the UIDs of the pods with a slot on a node, a live view."""
        return self._by_node.get(node, _NO_PODS)

    # --- one group ---------------------------------------------------------------------------------------------

    def reserve(self, reservation: Reservation, pods: Mapping[str, Pod]) -> None:
        """Add a reservation, and count its slots as used.

        ``pods`` are the existing members by UID. If the reservation has slots for other pods, which were deleted
        meanwhile, these slots are removed first. Raises IllegalTransition if the group has a reservation already.
        """
        if reservation.group in self._by_group:
            raise IllegalTransition(f"{reservation.group} already holds a reservation")
        self._by_group[reservation.group] = reservation
        reservation.keep_only(pods.keys())
        for uid, slot in reservation.slots.items():
            self._own(uid, reservation)
            self._index_slot(uid, slot.node)
            self._occupancy.add_usage(uid, UsageSource.RESERVED, slot.node, pods[uid].shape.requests)
        self._pending_victims.add(reservation.victims, reservation.group)

    def forget_victims(self, reservation: Reservation) -> None:
        """Remove the victims of a reservation, because they have ended or need not end any more.

        No effect if the reservation has no victims.
        """
        self._require_held(reservation)
        self._pending_victims.remove(reservation.victims)
        reservation.forget_victims()

    def commit(self, reservation: Reservation, uids: Collection[str]) -> None:
        """Commit a reservation: from now on the Bindings of the members ``uids`` may be sent.

        No effect if these members are committed already.
        """
        self._require_held(reservation)
        if reservation.victims:
            raise IllegalTransition(f"{reservation.group} cannot commit before its victims are gone")
        reservation.commit(uids)

    def withdraw(self, reservation: Reservation) -> None:
        """Undo a commit of which no Binding was sent. No effect before a commit."""
        self._require_held(reservation)
        reservation.undo_commit()

    def adjust_quorum(self, reservation: Reservation, parts: Mapping[str, int]) -> None:
        """Change the quorum of a reservation: how many members of each PodGroup must be bound together (``parts``).

        ``parts`` is by the name of the PodGroup in the tree, "" for a gang that is no tree. PodGroups that are not in
        it do not take part in the reservation any more. Only before the commit.
        """
        self._require_held(reservation)
        reservation.adjust_quorum(parts)

    def rename_domain(self, reservation: Reservation, domain: str) -> None:
        """Change the domain of a reservation, because its nodes have got another value of the topology key."""
        self._require_held(reservation)
        reservation.rename_domain(domain)

    def unreserve(self, group: GroupKey) -> Reservation | None:
        """Release all slots of a group. Return its reservation; None if it had none."""
        reservation = self._by_group.pop(group, None)
        if reservation is not None:
            self._pending_victims.remove(reservation.victims)
            for uid, slot in reservation.slots.items():
                del self._by_uid[uid]
                self._unindex_slot(uid, slot.node)
                self._occupancy.release(uid, UsageSource.RESERVED)
        return reservation

    # --- one member --------------------------------------------------------------------------------------------

    def add(self, reservation: Reservation, pod: Pod, node: str, part: str = "") -> None:
        """Add a slot for a pod on a node to a reservation. ``part`` is the member's PodGroup in a tree, else ""."""
        self._require_held(reservation)
        self._own(pod.uid, reservation)
        reservation.set_slot(Slot(pod.uid, pod.name, node, part))
        self._index_slot(pod.uid, node)
        self._occupancy.add_usage(pod.uid, UsageSource.RESERVED, node, pod.shape.requests)

    def move(self, pod: Pod, node: str) -> None:
        """Move a member's slot to another node. Raises KeyError if the member has no slot."""
        reservation = self._by_uid[pod.uid]
        self._unindex_slot(pod.uid, reservation.slots[pod.uid].node)
        reservation.move_slot(pod.uid, node)
        self._index_slot(pod.uid, node)
        self._occupancy.add_usage(pod.uid, UsageSource.RESERVED, node, pod.shape.requests)

    def drop(self, uid: str) -> None:
        """Release the slot of the pod with this UID; the other slots of the reservation stay.

        No effect if the pod has no slot.
        """
        reservation = self._by_uid.pop(uid, None)
        if reservation is not None:
            self._unindex_slot(uid, reservation.slots[uid].node)
            reservation.remove_slot(uid)
            self._occupancy.release(uid, UsageSource.RESERVED)

    def _own(self, uid: str, reservation: Reservation) -> None:
        # A pod has one slot: a member that has changed its group loses its slot in the old one.
        before = self._by_uid.get(uid)
        if before is not None and uid in before.slots:
            self._unindex_slot(uid, before.slots[uid].node)
        if before is not None and before is not reservation:
            before.remove_slot(uid)
        self._by_uid[uid] = reservation

    def _index_slot(self, uid: str, node: str) -> None:
        self._by_node.setdefault(node, {})[uid] = None

    def _unindex_slot(self, uid: str, node: str) -> None:
        here = self._by_node[node]
        del here[uid]
        if not here:
            del self._by_node[node]

    def _require_held(self, reservation: Reservation) -> None:
        if self._by_group.get(reservation.group) is not reservation:
            raise IllegalTransition(f"{reservation.group} does not hold this reservation (any more)")
