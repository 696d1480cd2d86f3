"""Slots that change within a cycle: members that leave it, join it, or move in it. Nothing here awaits."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from extender.scheduling.cycle import BindingCycle
from extender.scheduling.effects import Nominate, Outbox, Release
from extender.scheduling.group_state import NO_REPAIR, GroupState, Repair
from extender.scheduling.groups import Groups
from extender.scheduling.held import HeldPods
from extender.scheduling.kept_slots import KeptSlotPlanner
from extender.scheduling.member import MemberStage
from extender.scheduling.permit import Permit
from extender.scheduling.planning import Planning
from extender.scheduling.repairs import Repairs
from extender.scheduling.requests import build_joining_request
from extender.scheduling.slots import describe_standing, find_offered, find_parts_to_leave
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.model.group import PodGroup
from serried.model.plan import Plan
from serried.model.pod import Pod
from serried.model.reservation import Slot
from serried.model.verdict import Verdict
from serried.plan.fit import admits


class Moves:
    """Changes the slots of cycles. ``planner`` finds nodes for late members, of which some may be replacements."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        groups: Groups,
        held: HeldPods,
        *,
        permit: Permit,
        repairs: Repairs,
        planning: Planning,
        planner: KeptSlotPlanner,
        outbox: Outbox,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._groups = groups
        self._held = held
        self._permit = permit
        self._repairs = repairs
        self._planning = planning
        self._planner = planner
        self._outbox = outbox
        self._clock = clock

    def drop(self, cycle: BindingCycle, uid: str, error: str) -> None:
        """Take a member out of a cycle: its call fails, its slot is free."""
        cycle.close_call(uid, f"serried: {error}")
        self._ledger.drop(uid)
        cycle.note_news(uid)
        self._outbox.put(Release(frozenset({uid})))

    def drop_surplus(self, cycle: BindingCycle, error: str) -> None:
        """Take out whoever is not committed, not on its way, and has no slot that is kept for it."""
        for uid in list(self._iterate_surplus(cycle)):
            self.drop(cycle, uid, error)

    def _iterate_surplus(self, cycle: BindingCycle) -> Iterator[str]:
        for uid in cycle.reservation.slots.keys() - cycle.reservation.committed - cycle.bound:
            sending = cycle.member(uid).stage is MemberStage.SENDING
            if not sending and not self._permit.has_own_slot(cycle, uid):
                yield uid

    def refill(self, gang: GroupState, cycle: BindingCycle, group: PodGroup) -> None:
        """Give members a slot that came after the plan, or in the place of one that died: in the same domain."""
        repair = self._settle(gang, cycle, group)
        room = self._store.occupancy.freed, self._store.nominations.withdrawn, repair.fitting
        tried = (room, cycle.standing, cycle.late_version)
        if not cycle.late or tried == cycle.refill_tried:
            return
        late = self._list_late(cycle, group)
        if not cycle.reservation.need or cycle.reservation.committed:
            late = self._list_permitted(cycle, group, late, repair)
        if not late:
            return
        cycle.note_refill(tried)
        out = gang.find_exclusions(late, self._clock(), self._store.nodes)
        request = build_joining_request(cycle, late, 0, out.pairs, self._store).avoiding(out.nodes)
        answer = self._planner.plan(request)
        if isinstance(answer, Plan):
            for pod in late:
                if pod.uid in answer.nodes:
                    part = self._store.members.leaf_of(pod.uid)
                    self._ledger.add(cycle.reservation, pod, answer.nodes[pod.uid], part)
                    cycle.drop_late(pod.uid)
                    if self._held.needs_activation(pod):
                        cycle.put_aside(pod.uid, pod.objection)
            self._outbox.put(Nominate(cycle, tuple(answer.nodes)))

    def fill_freed(self, cycle: BindingCycle, group: PodGroup) -> None:
        """Give the slots of members that were deleted while victims end to those that have come in their place.

        Nothing is planned for them: the victims still use the room. One that does not fit there gets no slot.
        """
        filled: list[str] = []
        for slot, pod in _match(cycle.freed_slots, self._list_late(cycle, group), self._store.members.leaf_of):
            self._ledger.add(cycle.reservation, pod, slot.node, slot.part)
            if self._permit.find_misfit(cycle, pod.uid) is not None:
                self._ledger.drop(pod.uid)
                continue
            cycle.fill_freed(slot, cycle.reservation.slots[pod.uid])
            cycle.drop_late(pod.uid)
            filled.append(pod.uid)
            if self._held.needs_activation(pod):
                cycle.put_aside(pod.uid, pod.objection)
        if filled:
            self._outbox.put(Nominate(cycle, tuple(filled)))

    def _list_late(self, cycle: BindingCycle, group: PodGroup) -> tuple[Pod, ...]:
        # Some PodGroups may have been left out since.
        leaf_of, parts = self._store.members.leaf_of, cycle.reservation.parts
        late = [self._store.pods[uid] for uid in cycle.late if leaf_of(uid) in parts]
        return self._store.members.in_order(group.key, late)

    def _settle(self, gang: GroupState, cycle: BindingCycle, group: PodGroup) -> Repair:
        """What of the gang is being repaired. As long as it stands as before and lacks nobody, that is nothing."""
        standing = describe_standing(cycle.reservation, group, self._store.members)
        if standing == cycle.standing and not self._store.vacancies.has(group.key):
            return NO_REPAIR
        cycle.settle(standing)
        return self._repairs.settle(gang, group, self._store.members.classify(group.key))

    def _list_permitted(
        self, cycle: BindingCycle, group: PodGroup, late: Sequence[Pod], repair: Repair
    ) -> tuple[Pod, ...]:
        """Those that the door would let pass one by one; the others wait to be bound together."""
        one_of = {self._store.members.leaf_of(pod.uid): pod.uid for pod in late}
        closed = {leaf for leaf, uid in one_of.items() if self._permit.count_missing(cycle, group, [uid])}
        return tuple(
            pod for pod in late if self._store.members.leaf_of(pod.uid) not in closed or pod in repair.replacements
        )

    def relocate(self, cycle: BindingCycle, uid: str, names: Sequence[str]) -> str | None:
        """Move a member's slot to one of the offered nodes if any will do; None if it stays where it is."""
        pod = self._store.pods.get(uid)
        if pod is None or not cycle.any_node or not cycle.may_move(uid):
            return None
        node = find_offered(cycle.reservation, pod, names, self._store, cycle.closed)
        if node is not None:
            self._ledger.move(pod, node)
        return node

    def trade(self, cycle: BindingCycle, uid: str, names: Collection[str]) -> str | None:
        """Give a member whose node is not free yet the slot of a mate on one of these, which are; None if none is.

        The mate, to which the scheduler has not come yet, gets the other slot. Only mates of one shape trade, inside of
        their PodGroup, and none that have ranks: those are side by side on purpose.
        """
        slots = cycle.reservation.slots
        if not names or not self._may_trade(cycle, uid):
            return None
        free, pod, own = set(names), self._store.pods[uid], slots[uid]
        for mate, slot in slots.items():
            if slot.node not in free or slot.part != own.part or not self._may_trade(cycle, mate):
                continue
            other = self._store.pods[mate]
            if other.shape == pod.shape:
                self._ledger.move(pod, slot.node)
                self._ledger.move(other, own.node)
                self._send_to_slot(cycle, mate)
                return slot.node
        return None

    def _may_trade(self, cycle: BindingCycle, uid: str) -> bool:
        reached = cycle.member(uid).stage is MemberStage.FILTERED
        known = uid in self._store.pods and cycle.may_move(uid)
        return known and not reached and self._store.members.rank_of(uid) is None

    def _send_to_slot(self, cycle: BindingCycle, uid: str) -> None:
        """A member's slot is on another node by now: if it was nominated, it is nominated there."""
        cycle.mark_moved(uid)
        if cycle.member(uid).nominated:
            self._outbox.put(Nominate(cycle, (uid,)))

    def renominate(self, cycle: BindingCycle, uid: str) -> None:
        """A sample had no node for a member: it is nominated (again).

        If any node would have done, so is everybody else: the next samples will not do better.
        """
        cycle.mark_missed(uid)
        self._outbox.put(Nominate(cycle, (uid,)))
        if cycle.any_node:
            cycle.keep_to_slots()
            others = ((mate, cycle.member(mate)) for mate in cycle.reservation.slots if mate != uid)
            left = tuple(mate for mate, member in others if not member.reached and not member.nominated)
            self._outbox.put(Nominate(cycle, left))

    def replace(self, cycle: BindingCycle, pod: Pod) -> bool:
        """Find one member another slot in the cycle's domain, of those that it was offered; whether there was one."""
        gang, now = self._groups.states[cycle.reservation.group], self._clock()
        out = gang.find_exclusions([pod], now, self._store.nodes)
        request = build_joining_request(cycle, [pod], 1, out.pairs, self._store).avoiding(out.nodes)
        if pod.uid not in cycle.reservation.committed:  # what was offered may be a sample, and those have to go on
            request = request.avoiding(gang.unoffered([pod], now, self._store.nodes))
        answer = self._planning.plan_at_once(request)
        if isinstance(answer, Verdict):
            return False
        self._ledger.move(pod, answer.nodes[pod.uid])
        cycle.mark_moved(pod.uid)
        self._outbox.put(Nominate(cycle, (pod.uid,)))
        return True

    def displace(self, cycle: BindingCycle, pod: Pod) -> None:
        """Find one member of the commit another slot, at the cost of a mate beyond it, if there is one.

        The mate is one whose room would do: the commit would wait for it, and it for the commit.
        """
        mate = next((uid for uid in self._iterate_surplus(cycle) if self._may_give_way(cycle, uid, pod)), None)
        if mate is not None:
            self.drop(cycle, mate, "a member of the quorum has lost its node, and needs this one")
            self.replace(cycle, pod)

    def _may_give_way(self, cycle: BindingCycle, uid: str, to: Pod) -> bool:
        mate, slot = self._store.pods.get(uid), cycle.reservation.slots[uid]
        node, own = self._store.nodes.get(slot.node), cycle.reservation.slots[to.uid]
        if mate is None or node is None or slot.part != own.part or slot.node in cycle.closed:
            return False
        left = dict(mate.shape.requests)
        return admits(to.shape, node) and all(left.get(name, 0) >= amount for name, amount in to.shape.requests)

    def leave_out(self, cycle: BindingCycle, present: Collection[str]) -> bool:
        """Go on without the PodGroups of which too few members are ``present`` (UIDs); whether the tree stands so."""
        left = find_parts_to_leave(cycle, cycle.reservation.find_short(present), self._store)
        if left is None:
            return False
        for uid in [uid for uid, slot in cycle.reservation.slots.items() if slot.part in left]:
            self.drop(cycle, uid, "the others of its PodGroup did not come")
        kept = {part: need for part, need in cycle.reservation.parts.items() if part not in left}
        self._ledger.adjust_quorum(cycle.reservation, kept)
        self._store.touched.add(cycle.reservation.group)
        return True


def _match(slots: Iterable[Slot], pods: Iterable[Pod], leaf_of: Callable[[str], str]) -> list[tuple[Slot, Pod]]:
    """Which pod gets which slot, each at most once: of its PodGroup, the one of its name, else the next one."""
    left = {pod.uid: pod for pod in pods}
    named = {(leaf_of(pod.uid), pod.name): pod for pod in left.values()}
    pairs: list[tuple[Slot, Pod]] = []
    for slot in sorted(slots, key=lambda slot: (slot.part, slot.name) not in named):
        alike = (pod for pod in left.values() if leaf_of(pod.uid) == slot.part)
        pod = named.get((slot.part, slot.name)) or next(alike, None)
        if pod is not None and left.pop(pod.uid, None) is not None:
            pairs.append((slot, pod))
    return pairs
