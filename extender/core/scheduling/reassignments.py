"""Changes the slots of an open binding cycle when members leave, join late or lose their node. Nothing here awaits.

`CycleUpdates`, the task of the cycle and the bind call of a late member call `Reassignments`. Late members are those
that wait without a slot since the gang was planned.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from extender.core.feature import NO_REPAIR, Feature, Repair
from extender.core.scheduling.binding_cycle import BindingCycle, describe_gang_state
from extender.core.scheduling.cycle_member import MemberStage
from extender.core.scheduling.effects import Context, Nominate, Release
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.permit import Permit, find_parts_to_drop
from extender.core.scheduling.planning import KeptSlotPlanner, Planning
from extender.core.scheduling.request import build_joining_request
from extender.core.scheduling.slot_assigner import SlotAssigner
from serried.api.group import Leaf, PodGroup
from serried.api.pod import Pod
from serried.api.reservation import Slot
from serried.api.verdict import Verdict
from serried.plan.fit import admits
from serried.plan.request import Plan


class Reassignments:
    """Adds, moves and drops slots of open binding cycles, in cycle and ledger together."""

    def __init__(self, context: Context, planning: Planning, slot_assigner: SlotAssigner) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._groups = context.groups
        self._held = context.groups.held
        self._permit = Permit(context)
        self._slot_assigner = slot_assigner
        self._features = context.features
        self._planning = planning
        self._planner = KeptSlotPlanner(context.store, planning.plan_at_once)
        """The planner for late members. It gives replacements of deleted members the slots kept for them."""

        self._outbox = context.outbox
        self._clock = context.clock

    def drop(self, cycle: BindingCycle, uid: str, error: str) -> None:
        """Remove a member from a cycle: fail its bind call with ``error``, and release its slot."""
        cycle.close_call(uid, f"serried: {error}")
        self._ledger.drop(uid)
        cycle.mark_changed(uid)
        self._outbox.put(Release(frozenset({uid})))

    def drop_surplus(self, cycle: BindingCycle, error: str) -> None:
        """Drop all members of a cycle that are not needed any more: neither committed nor bound.

        Members whose Binding is being sent stay, and so do replacements of deleted members in the slots kept
        for them.
        """
        for uid in list(self._iterate_surplus(cycle)):
            self.drop(cycle, uid, error)

    def _iterate_surplus(self, cycle: BindingCycle) -> Iterator[str]:
        for uid in cycle.reservation.slots.keys() - cycle.reservation.committed - cycle.bound:
            sending = cycle.member(uid).stage is MemberStage.SENDING
            if not sending and not self._permit.has_own_slot(cycle, uid):
                yield uid

    def plan_late_members(self, gang: GroupState, cycle: BindingCycle, group: PodGroup) -> None:
        """Plan slots in the cycle's domain for late members, i.e. members without a slot, and add them to the cycle.

        Replacements of deleted members are among them. Nothing is done if neither they nor the free resources have
        changed since the last call.
        """
        repair = self._find_repair(gang, cycle, group)
        freed = self._store.occupancy.freed, self._store.nominations.withdrawn, repair.fitting
        tried = (freed, cycle.checked_state, cycle.late_version)
        if not cycle.late or tried == cycle.refill_tried:
            return
        late = self._list_late(cycle, group)
        if not cycle.reservation.need or cycle.reservation.committed:
            late = self._list_permitted(cycle, group, late, repair)
        if not late:
            return
        cycle.note_refill(tried)
        out = gang.find_exclusions(late, self._clock(), self._store)
        request = build_joining_request(cycle, late, 0, out.pairs, self._store).closing(out.nodes)
        answer = self._planner.plan(request)
        if isinstance(answer, Plan):
            for pod in late:
                if pod.uid in answer.nodes:
                    part = self._store.members.leaf_of(pod.uid)
                    self._ledger.add(cycle.reservation, pod, answer.nodes[pod.uid], part)
                    cycle.drop_late(pod.uid)
                    if self._held.needs_activation(pod):
                        cycle.mark_rejected_before(pod.uid, pod.said)
            self._outbox.put(Nominate(cycle, tuple(answer.nodes)))

    def fill_freed_slots(self, cycle: BindingCycle, group: PodGroup) -> None:
        """Give the slots of deleted members to their replacements, while pods evicted for the gang are still ending.

        Only slots of members that were deleted in that time are given. The planner cannot be used, because the victims
        still use the resources. So a replacement that does not fit in such a slot gets none for now.
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
                cycle.mark_rejected_before(pod.uid, pod.said)
        if filled:
            self._outbox.put(Nominate(cycle, tuple(filled)))

    def _list_late(self, cycle: BindingCycle, group: PodGroup) -> tuple[Pod, ...]:
        # PodGroups may have been left out since the members were noted as late.
        leaf_of, parts = self._store.members.leaf_of, cycle.reservation.parts
        late = [self._store.pods[uid] for uid in cycle.late if leaf_of(uid) in parts]
        return self._store.members.sort_for_placement(group.key, late)

    def _find_repair(self, gang: GroupState, cycle: BindingCycle, group: PodGroup) -> Repair:
        """Return the waiting members that replace deleted members of the gang, and may take the slots kept for those.

        Features find them (hook ``pre_enqueue``). Return `NO_REPAIR` if no slot is kept for the gang, and its members
        have not changed since the last call.
        """
        state = describe_gang_state(cycle.reservation, group, self._store.members)
        if state == cycle.checked_state and not self._store.vacancies.has(group.key):
            return NO_REPAIR
        cycle.note_checked(state)
        repair = NO_REPAIR
        for feature in self._features[Feature.pre_enqueue]:
            repair |= feature.pre_enqueue(gang, group, self._store.members.classify(group.key))
        return repair

    def _list_permitted(
        self, cycle: BindingCycle, group: PodGroup, late: Sequence[Pod], repair: Repair
    ) -> tuple[Pod, ...]:
        """Return those of the ``late`` members that may be bound one by one.

        They are the members of PodGroups whose quorum is complete, and the members that ``repair`` names, which replace
        deleted ones. Others must wait.
        """
        one_of = {self._store.members.leaf_of(pod.uid): pod.uid for pod in late}
        closed = {leaf for leaf, uid in one_of.items() if self._permit.count_missing(cycle, group, [uid])}
        return tuple(
            pod for pod in late if self._store.members.leaf_of(pod.uid) not in closed or pod in repair.replacements
        )

    def accept_bind_node(self, uid: str, node: str) -> None:
        """Move a member's slot to the node of its bind call, if that is another one and the member fits there.

        kube-scheduler may have got that node from filter for an earlier plan. A late member without a slot gets
        one there. Ignored if the cycle must not use the node, if it is outside of the gang's domain, for trees,
        and for gangs whose members are placed one part after another because of rules such as affinity.
        """
        pod, key = self._store.pods.get(uid), self._store.members.group_of(uid)
        cycle = self._groups.states[key].cycle if key in self._groups.states else None
        if pod is None or cycle is None or not cycle.accepts_members or cycle.open_slots.has_waves:
            return
        group = self._permit.find_group(cycle)
        if (
            group is None
            or not isinstance(group.tree, Leaf)
            or self._slot_assigner.find_offered_node(cycle, pod, (node,)) is None
        ):
            return
        if cycle.may_move(uid):
            self._ledger.move(pod, node)
            cycle.mark_moved(uid)
        elif uid in cycle.late:
            alone = not cycle.reservation.need or cycle.reservation.committed
            if not alone or self._list_permitted(cycle, group, [pod], NO_REPAIR):
                self._ledger.add(cycle.reservation, pod, node, self._store.members.leaf_of(uid))
                cycle.drop_late(uid)

    def reassign(self, cycle: BindingCycle, pod: Pod) -> bool:
        """Move a member's slot to another node of the cycle's domain. Return False if no plan is found at once."""
        gang, now = self._groups.states[cycle.reservation.group], self._clock()
        out = gang.find_exclusions([pod], now, self._store)
        request = build_joining_request(cycle, [pod], 1, out.pairs, self._store).closing(out.nodes)
        if pod.uid not in cycle.reservation.committed:  # committed members have to be placed, wherever they fit
            request = request.closing(gang.list_unoffered([pod], now, self._store.nodes))
        answer = self._planning.plan_at_once(request)
        if isinstance(answer, Verdict):
            return False
        self._ledger.move(pod, answer.nodes[pod.uid])
        cycle.mark_moved(pod.uid)
        self._outbox.put(Nominate(cycle, (pod.uid,)))
        return True

    def displace_mate(self, cycle: BindingCycle, pod: Pod) -> None:
        """Drop a member that is not committed, and move the slot of the committed member ``pod`` to its node.

        Nothing is done if no such member requests as much as ``pod``. Without this, the commit would wait for the
        resources of the uncommitted member, and that member for the commit.
        """
        mate = next((uid for uid in self._iterate_surplus(cycle) if self._frees_enough_for(cycle, uid, pod)), None)
        if mate is not None:
            self.drop(cycle, mate, "a member of the quorum has lost its node, and needs the node of this pod")
            self.reassign(cycle, pod)

    def _frees_enough_for(self, cycle: BindingCycle, uid: str, to: Pod) -> bool:
        mate, slot = self._store.pods.get(uid), cycle.reservation.slots[uid]
        node, own = self._store.nodes.get(slot.node), cycle.reservation.slots[to.uid]
        if mate is None or node is None or slot.part != own.part or slot.node in cycle.closed:
            return False
        left = dict(mate.shape.requests)
        return admits(to.shape, node) and all(left.get(name, 0) >= amount for name, amount in to.shape.requests)

    def drop_incomplete_groups(self, cycle: BindingCycle, present: Collection[str]) -> bool:
        """Drop all members of those PodGroups of a tree of which too few members are ``present`` (UIDs).

        Return False, and drop nothing, if the tree needs these PodGroups, or if there are none.
        """
        left = find_parts_to_drop(cycle, cycle.reservation.find_parts_below_quorum(present), self._store)
        if left is None:
            return False
        for uid in [uid for uid, slot in cycle.reservation.slots.items() if slot.part in left]:
            self.drop(cycle, uid, "too few members of the pod's PodGroup reached bind in time")
        kept = {part: need for part, need in cycle.reservation.parts.items() if part not in left}
        self._ledger.adjust_quorum(cycle.reservation, kept)
        self._store.dirty.add(cycle.reservation.group)
        return True


def _match(slots: Iterable[Slot], pods: Iterable[Pod], leaf_of: Callable[[str], str]) -> list[tuple[Slot, Pod]]:
    """Return pairs of a slot and a pod that may replace the slot's member; each slot and pod is in one pair at most.

    Both are of the same PodGroup, and a pod with the name of the slot's member is preferred. ``leaf_of`` returns the
    name of the PodGroup of a pod by the pod's UID.
    """
    left = {pod.uid: pod for pod in pods}
    named = {(leaf_of(pod.uid), pod.name): pod for pod in left.values()}
    pairs: list[tuple[Slot, Pod]] = []
    for slot in sorted(slots, key=lambda slot: (slot.part, slot.name) not in named):
        alike = (pod for pod in left.values() if leaf_of(pod.uid) == slot.part)
        pod = named.get((slot.part, slot.name)) or next(alike, None)
        if pod is not None and left.pop(pod.uid, None) is not None:
            pairs.append((slot, pod))
    return pairs
