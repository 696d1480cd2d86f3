"""Decides which node filter answers for a planned member, and moves slots between members for that. No I/O.

`ExtenderService.filter` calls `SlotAssigner.assign`. kube-scheduler tries the members in any order, each with any
sample of nodes, but for the plan it only matters how many members of each class (equal requests and constraints) are
on each node. So a member gets the first of these that is on an offered node:

1. its own slot;
2. if the domain has free capacity beyond the plan: any node of the domain on which the member fits, or the slot of an
   equal member of another gang in a domain with such capacity;
3. the slot of another member of its gang and class for which filter has not answered yet.

A member with a rank in its Job only gets its own slot, unless the domain has free capacity beyond the plan. The other
members of a member's gang are called its mates. Gangs whose members have rules about each other are placed in waves,
i.e. one part after another (`open_slots`).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.cycle_member import Member, MemberStage
from extender.core.scheduling.effects import Context, Nominate
from extender.core.scheduling.permit import find_offered_node
from serried.api.pod import Pod

_FEW_MISSES = 2
"""The number of members without a usable offered node from which on all members of the gang may be nominated."""


class SlotAssigner:
    """Assigns slots to members in filter calls. Nominates members to which no node with a slot for them was offered."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._groups = context.groups
        self._outbox = context.outbox
        self._clock = context.clock

    def assign(self, cycle: BindingCycle, asked: Pod, names: Sequence[str]) -> str | None:
        """Return the node for a member in a filter call, and give the member the slot there; None if there is none.

        ``asked`` is the member as kube-scheduler has sent it: its nominated node is one that kube-scheduler has just
        tried. ``names`` are the offered nodes. Slots are only exchanged or moved, never added: so a call that
        kube-scheduler merely simulates does no harm.
        """
        pod, own = self._store.pods.get(asked.uid), cycle.reservation.slots[asked.uid].node
        offered = own if own in names else None
        if pod is None or not cycle.may_move(pod.uid):
            return offered
        any_order = cycle.open_slots.in_any_order(pod.uid)
        if offered is not None and not (any_order and _keeps_order(pod)):
            return offered
        if any_order:
            return self._take_first_open(cycle, pod, names) or offered
        # No mate gets a node that was tried and refused, unless victims still have to end there.
        refused = asked.nominated == own and not cycle.waits_for_victims
        unplanned = self._take_unplanned_node(cycle, pod, names, refused=refused) if cycle.open_slots.any_node else None
        if unplanned is not None or refused:
            return unplanned
        found = ((name, mate) for name, mate in self._list_slots(names) if self._may_exchange(cycle, pod, mate))
        name, mate = next(found, ("", ""))
        return self._exchange(cycle, pod, mate, name) if mate else None

    def _take_first_open(self, cycle: BindingCycle, pod: Pod, names: Collection[str]) -> str | None:
        """Give a member the first slot, in the plan's order, that is on an offered node and not taken yet.

        The slots are those of its wave, i.e. of the equal members that kube-scheduler may now try in any order.
        If a slot's node is not offered, an offered node with equal labels (`OpenSlots.equivalence_keys`) replaces
        it. Return the node; None if the member gets no slot.
        """
        slots, offered = cycle.reservation.slots, set(names)
        cells: dict[tuple[str | None, ...], list[str]] | None = None
        for mate in cycle.open_slots.open_wave:
            if mate != pod.uid and not self._may_exchange(cycle, pod, mate):
                continue
            node: str | None = slots[mate].node
            if node not in offered:
                cells = self._group_by_labels(cycle, names) if cells is None else cells
                alike = cells.pop(self._read_labels(cycle, slots[mate].node), ())
                node = self.find_offered_node(cycle, pod, alike) if alike else None
            if node is not None:
                return self._exchange(cycle, pod, mate, node)
        return None

    def _group_by_labels(self, cycle: BindingCycle, names: Iterable[str]) -> dict[tuple[str | None, ...], list[str]]:
        """Return the offered nodes by their values of the labels in `OpenSlots.equivalence_keys`.

        Nodes with equal values may replace each other in the plan. Empty if no node may replace a planned one.
        """
        found: dict[tuple[str | None, ...], list[str]] = {}
        for name in names if cycle.open_slots.equivalence_keys is not None else ():
            found.setdefault(self._read_labels(cycle, name), []).append(name)
        return found

    def _read_labels(self, cycle: BindingCycle, name: str) -> tuple[str | None, ...]:
        node = self._store.nodes.get(name)
        return tuple(
            [node.labels.get(key) if node is not None else None for key in cycle.open_slots.equivalence_keys or ()]
        )

    def _list_slots(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Iterate over (node, member UID) for each slot on these nodes, of all gangs."""
        return ((name, uid) for name in names for uid in self._ledger.list_on(name))

    def _may_exchange(self, cycle: BindingCycle, pod: Pod, mate: str) -> bool:
        """Return whether ``pod`` may exchange slots with ``mate`` (UID), an equal member of the same gang.

        Filter must not have answered for the mate, and both must be allowed to be placed now, not only after other
        members. A mate that is nominated may only exchange in two cases: while pods evicted for the gang still run, or
        if kube-scheduler may try the members that may be placed now in any order. A slot that was kept for the
        replacement of a deleted member is never exchanged. Ranks may forbid it, too (`_keeps_rank_order`).
        """
        slots, open_slots, other = cycle.reservation.slots, cycle.open_slots, self._store.pods.get(mate)
        if mate == pod.uid or mate not in slots or slots[mate].part != slots[pod.uid].part or not cycle.may_move(mate):
            return False
        if other is None or other.shape != pod.shape or mate == open_slots.chosen_missed:
            return False
        if open_slots.is_closed(mate) or open_slots.is_closed(pod.uid):
            return False
        if self._replaces_deleted(mate) or self._replaces_deleted(pod.uid):
            return False
        member, any_order = cycle.member(mate), open_slots.in_any_order(mate)
        if member.reached or (_is_nominated(member, other) and not (cycle.waits_for_victims or any_order)):
            return False
        return any_order or not (self._keeps_rank_order(cycle, mate) or self._keeps_rank_order(cycle, pod.uid))

    def _replaces_deleted(self, uid: str) -> bool:
        """Return whether a member replaces a deleted one and has the slot that was kept for it."""
        return self._store.vacancies.of_replacement(uid) is not None

    def _keeps_rank_order(self, cycle: BindingCycle, uid: str) -> bool:
        """Return whether a member must keep its slot, because it has a rank and the plan places near ranks close by.

        False without a rank, and if the gang's members may use any node (`OpenSlots.equivalence_keys`).
        """
        return cycle.open_slots.equivalence_keys is None and self._store.members.rank_of(uid) is not None

    def _exchange(self, cycle: BindingCycle, pod: Pod, mate: str, node: str) -> str:
        """Move a member's slot to ``node``, and the slot of ``mate`` (UID) to the member's old node. Return ``node``.

        If ``mate`` is the member itself, only its slot moves. A mate that this cycle has nominated is nominated anew,
        unless kube-scheduler may try the members of its wave in any order.
        """
        own = cycle.reservation.slots[pod.uid].node
        if node != own:
            self._ledger.move(pod, node)
        if mate == pod.uid:
            return node
        self._ledger.move(self._store.pods[mate], own)
        cycle.open_slots.exchange(pod.uid, mate)
        if not cycle.open_slots.in_any_order(mate):
            cycle.mark_moved(mate)
            if cycle.member(mate).nominated:
                self._outbox.put(Nominate(cycle, (mate,)))
        return node

    # --- free capacity beyond the plan -------------------------------------------------------------------------

    def _take_unplanned_node(self, cycle: BindingCycle, pod: Pod, names: Sequence[str], *, refused: bool) -> str | None:
        """Move a member's slot to an offered node with free capacity, or exchange it with a member of another gang.

        The exchange helps if the slots of that gang fill the domain while kube-scheduler has not tried its members yet.
        It is not done if kube-scheduler has ``refused`` the member on its planned node, or the cycle is committed.
        Return the node to which the slot was moved; None if there is none.
        """
        node = self.find_offered_node(cycle, pod, names)
        if node is not None:
            self._ledger.move(pod, node)
            return node
        if refused or cycle.reservation.committed:
            return None
        own, mates = cycle.reservation.slots[pod.uid].node, cycle.reservation.nodes
        found = self._list_usable(cycle, pod, names)
        # Nodes with many slots come first: members that are tried next may get one there, too, close to this one.
        found.sort(key=lambda name: (name not in mates, -len(self._ledger.list_on(name))))
        for name, uid in self._list_slots(found):
            if self._may_exchange_between_gangs(uid, pod, own):
                self._ledger.move(self._store.pods[uid], own)
                self._ledger.move(pod, name)
                return name
        return None

    def _may_exchange_between_gangs(self, uid: str, pod: Pod, node: str) -> bool:
        """Return whether the member ``uid`` of another gang may move to ``node``, so that ``pod`` gets its slot.

        Both members must have equal requests and constraints. The other gang's members must be free to use any node of
        their domain, and ``uid`` must not be nominated or tried yet. The slot of a member that joins a running gang
        stays, because it may have been kept for that member.
        """
        cycle, other = self._groups.find_cycle(uid), self._store.pods.get(uid)
        if cycle is None or other is None or other is pod or other.shape != pod.shape:
            return False
        if cycle.reservation.committed:
            return False  # its record names the slots
        if not (cycle.open_slots.any_node and cycle.reservation.need and cycle.may_move(uid)):
            return False
        member = cycle.member(uid)
        sent = member.stage is not MemberStage.WAITING or _is_nominated(member, other)
        return not sent and bool(self._list_usable(cycle, other, (node,)))

    def _list_usable(self, cycle: BindingCycle, pod: Pod, names: Iterable[str]) -> list[str]:
        """Return the names of nodes that a pod may use in a cycle: a subset of ``names``, in their order.

        They are in the cycle's domain, are not among the nodes to which no slot of the cycle may move
        (`BindingCycle.closed`), and neither kube-scheduler nor a kubelet has refused them for a pod with equal requests
        and constraints. Free resources are not checked.
        """
        reservation, nodes, key = cycle.reservation, self._store.nodes, cycle.group.topology_key
        inside = (name for name in names if name in nodes and name not in cycle.closed)
        found = [name for name in inside if key is None or nodes[name].labels.get(key) == reservation.domain]
        if not found:
            return []
        out = self._groups.states[reservation.group].find_exclusions([pod], self._clock(), self._store).nodes
        return [name for name in found if name not in out]

    def find_offered_node(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> str | None:
        """Return an offered node (of ``names``) of the domain with free resources for a member; None if there is none.

        Nodes with slots of the gang come first, then the order of ``names`` counts. Nodes to which no slot of the cycle
        may move (`BindingCycle.closed`), and nodes that kube-scheduler or a kubelet has refused for such a member, are
        left out.
        """
        out = self._groups.states[cycle.reservation.group].find_exclusions([pod], self._clock(), self._store)
        return find_offered_node(cycle.reservation, pod, names, self._store, cycle.closed | out.nodes)

    # --- no slot on an offered node ----------------------------------------------------------------------------

    def queue_missed(self, cycle: BindingCycle, uid: str) -> None:
        """Queue a member for its nomination, because kube-scheduler offers it no node with a slot that it may take.

        Called for members that kube-scheduler may try in any order, while later parts of the gang wait for them. Queued
        members are nominated one at a time: their rules (such as anti-affinity) could make each other's nodes
        infeasible.
        """
        cycle.open_slots.add_missed(uid)
        self._nominate_next(cycle)

    def nominate_missed(self, cycle: BindingCycle, uid: str) -> None:
        """Nominate a member to the node of its slot, because kube-scheduler did not offer that node.

        If members may take unplanned nodes, and this happens to many of them (`_misses_often`), also nominate all
        others for which filter has not answered, and give members only the planned nodes from now on.
        """
        cycle.mark_not_offered(uid)
        self._outbox.put(Nominate(cycle, (uid,)))
        if cycle.open_slots.any_node and _misses_often(cycle):
            # The next samples would miss as often.
            cycle.open_slots.require_planned_nodes()
            others = ((mate, cycle.member(mate)) for mate in cycle.reservation.slots if mate != uid)
            left = tuple(mate for mate, member in others if not member.reached and not member.nominated)
            self._outbox.put(Nominate(cycle, left))

    def _nominate_next(self, cycle: BindingCycle) -> None:
        """Nominate the next member that `queue_missed` has queued to the first slot that is not taken yet, if any."""
        uid = cycle.open_slots.choose_missed(cycle.reservation.slots)
        if uid:
            self._nominate_chosen(cycle, uid)

    def nominate_elsewhere(self, cycle: BindingCycle, uid: str) -> bool:
        """Nominate member ``uid`` to the next node with a slot not taken yet, as kube-scheduler rejected the last node.

        Return False if there is none left. kube-scheduler may have tried the members in another order than the
        plan's, so that the first slot that is not taken breaks a rule of this member now.
        """
        cycle.open_slots.refused_nodes += 1
        return self._nominate_chosen(cycle, uid)

    def _nominate_chosen(self, cycle: BindingCycle, uid: str) -> bool:
        slots, pod, tried = cycle.reservation.slots, self._store.pods.get(uid), cycle.open_slots.refused_nodes
        left = [mate for mate in cycle.open_slots.open_wave if mate in slots and not cycle.member(mate).reached]
        node = next(islice(dict.fromkeys(slots[mate].node for mate in left), tried, None), None)
        if node is None:
            return False
        if pod is not None and cycle.may_move(uid):
            self._take_first_open(cycle, pod, (node,))
        cycle.mark_not_offered(uid)
        self._outbox.put(Nominate(cycle, (uid,)))
        return True

    def open_next(self, cycle: BindingCycle) -> None:
        """Nominate the members of the next wave once filter has answered for all members of the present one.

        A wave is a part of a gang that is placed before the next part. Before that, nominate the next member that
        `queue_missed` has queued. If members of the next wave mount a shared PersistentVolumeClaim, they wait until
        the claim has a volume: before, kube-scheduler would find no other node feasible for them.
        """
        self._nominate_next(cycle)
        coming = (self._store.pods.get(uid) for uid in cycle.open_slots.next_wave)
        if any(choice.claim for pod in coming if pod is not None for choice in pod.shape.volumes):
            return
        slots = cycle.reservation.slots
        opened = cycle.open_slots.open_next(lambda uid: uid not in slots or cycle.member(uid).reached)
        left = tuple(uid for uid in opened if uid in slots)
        if left:
            self._outbox.put(Nominate(cycle, left))


def _is_nominated(member: Member, pod: Pod) -> bool:
    """Return whether a member is nominated to a node, is being nominated, or is about to be."""
    return member.nominated or member.nominating or member.not_offered or bool(pod.nominated)


def _keeps_order(pod: Pod) -> bool:
    """Return whether equal members with the constraints of ``pod`` must take their slots in the plan's order.

    That means that the member which kube-scheduler tries first gets the slot that the plan fills first, if its node is
    offered, and not its own. It is not needed for members with exactly one rule about other pods (affinity,
    anti-affinity or spread). With several rules another order may leave the last members no feasible node.
    """
    rules = pod.shape.neighbours
    return rules is None or (rules.beside is not None) + len(rules.apart) + len(rules.spread) != 1


def _misses_often(cycle: BindingCycle) -> bool:
    """Return whether filter calls offer members no usable node so often that nominating all members costs less.

    Such a call costs about three times as much as a nomination, because kube-scheduler writes the pod's condition and
    tries the pod again. So True if it has happened to two members or more, and to over a third of those tried so far.
    """
    members = [cycle.member(uid) for uid in cycle.reservation.slots]
    missed = sum(member.not_offered for member in members)
    return missed >= _FEW_MISSES and missed * 3 > sum(member.not_offered or member.reached for member in members)
