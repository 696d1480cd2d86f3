"""Assigns seats to members when kube-scheduler calls filter for them. Nothing here awaits.

`ExtenderService.filter` calls `Seating.assign_seat`. kube-scheduler tries the members in any order, each with any
sample of nodes, while the plan says how many seats each class has on each node. So a member takes any seat of its
class: its own, the seat of a mate that kube-scheduler has not reached, free room of the domain if the plan has left
some, or the seat of a member of the same class in another gang. Only a member with a rank keeps its own seat.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.cycle_member import Member, MemberStage
from extender.core.scheduling.effects import Context, Nominate
from extender.core.scheduling.permit import find_offered
from serried.api.pod import Pod

_FEW_MISSES = 2
"""The number of members without an offered seat from which this is no bad luck any more."""


class Seating:
    """Assigns seats to members, and nominates members to which no seat is offered."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._groups = context.groups
        self._outbox = context.outbox
        self._clock = context.clock

    def assign_seat(self, cycle: BindingCycle, asked: Pod, names: Sequence[str]) -> str | None:
        """Assign a member a seat of its class on one of the offered nodes.

        Return the node; None if there is no such seat. ``asked`` is the member as kube-scheduler has sent it:
        kube-scheduler has tried the node that it names as nominated. Only room that the ledger holds already is used,
        so a simulated call does no harm.
        """
        pod, own = self._store.pods.get(asked.uid), cycle.reservation.slots[asked.uid].node
        offered = own if own in names else None
        if pod is None or not cycle.may_move(pod.uid):
            return offered
        in_turn = cycle.seats.is_in_turn(pod.uid)
        if offered is not None and not (in_turn and _keeps_order(pod)):
            return offered
        if in_turn:
            return self._take_in_turn(cycle, pod, names) or offered
        # No mate gets a node that was tried and refused, unless victims still have to end there.
        refused = asked.nominated == own and not cycle.preempts
        spare = self._take_spare(cycle, pod, names, refused=refused) if cycle.seats.any_node else None
        if spare is not None or refused:
            return spare
        found = ((name, mate) for name, mate in self._list_seats(names) if self._may_exchange(cycle, pod, mate))
        name, mate = next(found, ("", ""))
        return self._exchange(cycle, pod, mate, name) if mate else None

    def _take_in_turn(self, cycle: BindingCycle, pod: Pod, names: Collection[str]) -> str | None:
        """Assign a member the first open seat of its wave on one of these nodes, or on an equivalent node."""
        slots, offered = cycle.reservation.slots, set(names)
        cells: dict[tuple[str | None, ...], list[str]] | None = None
        for mate in cycle.seats.open_wave:
            if mate != pod.uid and not self._may_exchange(cycle, pod, mate):
                continue
            node: str | None = slots[mate].node
            if node not in offered:
                cells = self._group_by_labels(cycle, names) if cells is None else cells
                alike = cells.pop(self._read_labels(cycle, slots[mate].node), ())
                node = self.find_offered(cycle, pod, alike) if alike else None
            if node is not None:
                return self._exchange(cycle, pod, mate, node)
        return None

    def _group_by_labels(self, cycle: BindingCycle, names: Iterable[str]) -> dict[tuple[str | None, ...], list[str]]:
        """Return the offered nodes by the labels that make nodes equivalent; nothing if room is scarce."""
        found: dict[tuple[str | None, ...], list[str]] = {}
        for name in names if cycle.seats.spare_keys is not None else ():
            found.setdefault(self._read_labels(cycle, name), []).append(name)
        return found

    def _read_labels(self, cycle: BindingCycle, name: str) -> tuple[str | None, ...]:
        node = self._store.nodes.get(name)
        return tuple([node.labels.get(key) if node is not None else None for key in cycle.seats.spare_keys or ()])

    def _list_seats(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Iterate over (node, member UID) for each slot on these nodes, of all gangs."""
        return ((name, uid) for name in names for uid in self._ledger.list_on(name))

    def _may_exchange(self, cycle: BindingCycle, pod: Pod, mate: str) -> bool:
        """Return whether a member may exchange seats with ``mate``, one of its class and PodGroup not yet reached.

        Both seats must be open, and the mate must not be nominated, unless victims have to end there first. A slot that
        is kept for the replacement of a deleted member is never exchanged.
        """
        slots, seats, other = cycle.reservation.slots, cycle.seats, self._store.pods.get(mate)
        if mate == pod.uid or mate not in slots or slots[mate].part != slots[pod.uid].part or not cycle.may_move(mate):
            return False
        if other is None or other.shape != pod.shape or mate == seats.called:
            return False
        if seats.is_closed(mate) or seats.is_closed(pod.uid) or self._is_kept(mate) or self._is_kept(pod.uid):
            return False
        member, in_turn = cycle.member(mate), seats.is_in_turn(mate)
        if member.reached or (_is_nominated(member, other) and not (cycle.preempts or in_turn)):
            return False
        return in_turn or not (self._keeps_own(cycle, mate) or self._keeps_own(cycle, pod.uid))

    def _is_kept(self, uid: str) -> bool:
        """Return whether a member has a slot that was kept for it, as the replacement of a deleted one."""
        return self._store.vacancies.of_replacement(uid) is not None

    def _keeps_own(self, cycle: BindingCycle, uid: str) -> bool:
        """Return whether a member keeps its seat for its rank.

        With room left over, or without levels, no member does.
        """
        return cycle.seats.spare_keys is None and self._store.members.rank_of(uid) is not None

    def _exchange(self, cycle: BindingCycle, pod: Pod, mate: str, node: str) -> str:
        """Move a member's slot to ``node``, and the slot of the mate there to the member's old node.

        Return ``node``.
        """
        own = cycle.reservation.slots[pod.uid].node
        if node != own:
            self._ledger.move(pod, node)
        if mate == pod.uid:
            return node
        self._ledger.move(self._store.pods[mate], own)
        cycle.seats.exchange(pod.uid, mate)
        if not cycle.seats.is_in_turn(mate):
            cycle.mark_moved(mate)
            if cycle.member(mate).nominated:
                self._outbox.put(Nominate(cycle, (mate,)))
        return node

    # --- room to spare -----------------------------------------------------------------------------------------

    def _take_spare(self, cycle: BindingCycle, pod: Pod, names: Sequence[str], *, refused: bool) -> str | None:
        """Assign a member free room of its domain, or the seat of a member of the same class in another gang.

        The plans of several gangs may fill a rack before kube-scheduler reaches the first of their members.
        """
        node = self.find_offered(cycle, pod, names)
        if node is not None:
            self._ledger.move(pod, node)
            return node
        if refused or cycle.reservation.committed:
            return None
        own, mates = cycle.reservation.slots[pod.uid].node, cycle.reservation.nodes
        found = self._list_usable(cycle, pod, names)
        # Nodes with many slots come first: they have some for the next mates, too, so the gang stays close together.
        found.sort(key=lambda name: (name not in mates, -len(self._ledger.list_on(name))))
        for name, uid in self._list_seats(found):
            if self._may_exchange_between_gangs(uid, pod, own):
                self._ledger.move(self._store.pods[uid], own)
                self._ledger.move(pod, name)
                return name
        return None

    def _may_exchange_between_gangs(self, uid: str, pod: Pod, node: str) -> bool:
        """Return whether a member (UID) of another gang may move to ``node``, so that ``pod`` takes its seat.

        That gang must have room to spare, and the member must not be nominated. Members that join a running gang keep
        their seats, which may be kept for them.
        """
        cycle, other = self._groups.cycle_of(uid), self._store.pods.get(uid)
        if cycle is None or other is None or other is pod or other.shape != pod.shape:
            return False
        if cycle.reservation.committed:
            return False  # its record names the slots
        if not (cycle.seats.any_node and cycle.reservation.need and cycle.may_move(uid)):
            return False
        member = cycle.member(uid)
        sent = member.stage is not MemberStage.WAITING or _is_nominated(member, other)
        return not sent and bool(self._list_usable(cycle, other, (node,)))

    def _list_usable(self, cycle: BindingCycle, pod: Pod, names: Iterable[str]) -> list[str]:
        """Return those of these nodes that are in the cycle's domain, not closed to it and not refused for the pod."""
        reservation, nodes, key = cycle.reservation, self._store.nodes, cycle.group.topology_key
        inside = (name for name in names if name in nodes and name not in cycle.closed)
        found = [name for name in inside if key is None or nodes[name].labels.get(key) == reservation.domain]
        if not found:
            return []
        out = self._groups.states[reservation.group].find_exclusions([pod], self._clock(), self._store).nodes
        return [name for name in found if name not in out]

    def find_offered(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> str | None:
        """Return as `permit.find_offered` does, without nodes that are closed to the cycle or were refused."""
        out = self._groups.states[cycle.reservation.group].find_exclusions([pod], self._clock(), self._store)
        return find_offered(cycle.reservation, pod, names, self._store, cycle.closed | out.nodes)

    # --- no seat -----------------------------------------------------------------------------------------------

    def wait_for_turn(self, cycle: BindingCycle, uid: str) -> None:
        """Queue a member of the open wave, to which no seat was offered, for its nomination."""
        cycle.seats.miss(uid)
        self._nominate_next_missed(cycle)

    def nominate_missed(self, cycle: BindingCycle, uid: str) -> None:
        """Nominate a member to which no seat was offered; after too many misses all others of the gang, too."""
        cycle.mark_missed(uid)
        self._outbox.put(Nominate(cycle, (uid,)))
        if cycle.seats.any_node and _misses_often(cycle):
            # The next samples would miss as often.
            cycle.seats.keep_to_slots()
            others = ((mate, cycle.member(mate)) for mate in cycle.reservation.slots if mate != uid)
            left = tuple(mate for mate, member in others if not member.reached and not member.nominated)
            self._outbox.put(Nominate(cycle, left))

    def _nominate_next_missed(self, cycle: BindingCycle) -> None:
        """Nominate the next missed member of the open wave to the first open seat."""
        uid = cycle.seats.call(cycle.reservation.slots)
        if uid:
            self._nominate_called(cycle, uid)

    def call_elsewhere(self, cycle: BindingCycle, uid: str) -> bool:
        """Nominate the called member to an open seat on another node. Return whether there is one.

        Members may have come in another order than the plan's, so that the first seat breaks a rule by now.
        """
        cycle.seats.refused_calls += 1
        return self._nominate_called(cycle, uid)

    def _nominate_called(self, cycle: BindingCycle, uid: str) -> bool:
        slots, pod, tried = cycle.reservation.slots, self._store.pods.get(uid), cycle.seats.refused_calls
        left = [mate for mate in cycle.seats.open_wave if mate in slots and not cycle.member(mate).reached]
        node = next(islice(dict.fromkeys(slots[mate].node for mate in left), tried, None), None)
        if node is None:
            return False
        if pod is not None and cycle.may_move(uid):
            self._take_in_turn(cycle, pod, (node,))
        cycle.mark_missed(uid)
        self._outbox.put(Nominate(cycle, (uid,)))
        return True

    def open_next(self, cycle: BindingCycle) -> None:
        """Open the next wave once kube-scheduler has reached the members before it, and nominate its members.

        While a claim that is shared with the next wave has no volume yet, kube-scheduler would keep that wave off all
        other nodes. So it is not opened.
        """
        self._nominate_next_missed(cycle)
        coming = (self._store.pods.get(uid) for uid in cycle.seats.next_wave)
        if any(choice.claim for pod in coming if pod is not None for choice in pod.shape.volumes):
            return
        slots = cycle.reservation.slots
        opened = cycle.seats.open_next(lambda uid: uid not in slots or cycle.member(uid).reached)
        left = tuple(uid for uid in opened if uid in slots)
        if left:
            self._outbox.put(Nominate(cycle, left))


def _is_nominated(member: Member, pod: Pod) -> bool:
    """Return whether a member is nominated to its seat, is being nominated, or is about to be."""
    return member.nominated or member.nominating or member.missed or bool(pod.nominated)


def _keeps_order(pod: Pod) -> bool:
    """Return whether a member of a wave takes the first offered seat even if its own is offered, too.

    With one rule about other pods, members of one class may come in any order: the emptiest domain with a seat takes
    one more. With several rules, seats taken in another order than the plan's may leave later members no feasible node.
    """
    rules = pod.shape.neighbours
    return rules is None or (rules.beside is not None) + len(rules.apart) + len(rules.spread) != 1


def _misses_often(cycle: BindingCycle) -> bool:
    """Return whether so many samples had no node for a member that nominating all others costs less.

    A miss costs about three times as much as a nomination: kube-scheduler tries the pod twice, and writes that it was
    held.
    """
    members = [cycle.member(uid) for uid in cycle.reservation.slots]
    missed = sum(member.missed for member in members)
    return missed >= _FEW_MISSES and missed * 3 > sum(member.missed or member.reached for member in members)
