"""Cycles that go on while the cluster changes: members leave, join, move, are bound or refused. Nothing here awaits.

What kube-scheduler offers to a member, and what it refuses, is how a gang learns what only the scheduler knows: that
decides its next plan, or ends the cycle that is open.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain

from extender.core.protocol import MAX_COMPLETE_LIST
from extender.core.scheduling.binding_cycle import BindingCycle, CycleStage, MemberStage, describe_standing
from extender.core.scheduling.effects import ActivateIdle, Context, Nominate, Release
from extender.core.scheduling.group import NO_REPAIR, GroupState, Repair
from extender.core.scheduling.permit import Permit, adjust_quorum, find_offered, find_parts_to_leave
from extender.core.scheduling.planning import KeptSlotPlanner, Planning
from extender.core.scheduling.queue import Queue
from extender.core.scheduling.request import build_joining_request, describe_refused
from extender.core.scheduling.scheduling_cycle import CycleEndings
from extender.features.preemption.search import describe_wait
from extender.features.repair import Repairs
from serried.api.group import Leaf, PodGroup, find_path
from serried.api.pod import Phase, Pod, is_by_node, is_partly_checked, lacks_neighbours
from serried.api.reservation import Slot
from serried.api.selectors import selects
from serried.api.verdict import Mark, Reason, Verdict
from serried.plan.fit import admits
from serried.plan.quorum import Standing, find_standing
from serried.plan.request import Plan
from serried.rules.extended.cluster import Uncounted

_FEW_MISSES = 2
"""One sample without a node for a member of a gang may be bad luck."""


class Reassignments:
    """Changes the slots of cycles."""

    def __init__(self, context: Context, repairs: Repairs, planning: Planning) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._groups = context.groups
        self._held = context.groups.held
        self._permit = Permit(context)
        self._repairs = repairs
        self._planning = planning
        self._planner = KeptSlotPlanner(context.store, planning.plan_at_once)
        """For late members, of which some may be replacements."""

        self._outbox = context.outbox
        self._clock = context.clock

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
        out = gang.find_exclusions(late, self._clock(), self._store)
        request = build_joining_request(cycle, late, 0, out.pairs, self._store).avoiding(out.nodes)
        answer = self._planner.plan(request)
        if isinstance(answer, Plan):
            for pod in late:
                if pod.uid in answer.nodes:
                    part = self._store.members.leaf_of(pod.uid)
                    self._ledger.add(cycle.reservation, pod, answer.nodes[pod.uid], part)
                    cycle.drop_late(pod.uid)
                    if self._held.needs_activation(pod):
                        cycle.put_aside(pod.uid, pod.said)
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
                cycle.put_aside(pod.uid, pod.said)
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
        """Those that the permit would let pass one by one; the others wait to be bound together."""
        one_of = {self._store.members.leaf_of(pod.uid): pod.uid for pod in late}
        closed = {leaf for leaf, uid in one_of.items() if self._permit.count_missing(cycle, group, [uid])}
        return tuple(
            pod for pod in late if self._store.members.leaf_of(pod.uid) not in closed or pod in repair.replacements
        )

    def relocate(self, cycle: BindingCycle, asked: Pod, names: Sequence[str]) -> str | None:
        """Move a member's slot to one of the offered nodes if any will do; None if it stays where it is.

        ``asked`` is the member as kube-scheduler has sent it: it has tried the node to which that is nominated.
        """
        pod = self._store.pods.get(asked.uid)
        if pod is None or not cycle.any_node or not cycle.may_move(pod.uid):
            return None
        node = self._find_offered(cycle, pod, names)
        if node is not None:
            self._ledger.move(pod, node)
            return node
        refused = asked.nominated == cycle.reservation.slots[pod.uid].node
        return None if refused else self._swap(cycle, pod, names)

    def _swap(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> str | None:
        """Have a member change slots with an alike one on an offered node, of whatever gang; the node, None for nobody.

        All the room of a rack may be planned before the scheduler comes to the first of those who get it.
        """
        own, mates = cycle.reservation.slots[pod.uid].node, cycle.reservation.nodes
        found = () if cycle.reservation.committed else self._list_open(cycle, pod, names)
        # Where many have slots there are some for the next mates, too, so that they stay close together.
        for name in sorted(found, key=lambda name: (name not in mates, -len(self._ledger.list_on(name)))):
            for uid in self._ledger.list_on(name):
                if self._may_swap(uid, pod, own):
                    self._ledger.move(self._store.pods[uid], own)
                    self._ledger.move(pod, name)
                    return name
        return None

    def _may_swap(self, uid: str, pod: Pod, node: str) -> bool:
        """Whether a member may have an alike pod's slot on a node: any would do for it, and it is not sent to its own.

        Members that join a running gang keep theirs: it may be kept for them.
        """
        cycle, mate = self._groups.cycle_of(uid), self._store.pods.get(uid)
        if cycle is None or mate is None or mate is pod or mate.shape != pod.shape:
            return False
        if cycle.reservation.committed:
            return False  # a record names the slots, and a restart holds them
        if not (cycle.any_node and cycle.reservation.need and cycle.may_move(uid)):
            return False
        member = cycle.member(uid)
        sent = member.stage is not MemberStage.WAITING or member.missed or member.nominated
        return not sent and bool(self._list_open(cycle, mate, (node,)))

    def _list_open(self, cycle: BindingCycle, pod: Pod, names: Iterable[str]) -> list[str]:
        """Those of these nodes that are in a cycle's domain, and neither closed to it nor refused for the pod."""
        reservation, nodes, key = cycle.reservation, self._store.nodes, cycle.group.topology_key
        inside = (name for name in names if name in nodes and name not in cycle.closed)
        found = [name for name in inside if key is None or nodes[name].labels.get(key) == reservation.domain]
        if not found:
            return []
        out = self._groups.states[reservation.group].find_exclusions([pod], self._clock(), self._store).nodes
        return [name for name in found if name not in out]

    def _find_offered(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> str | None:
        """As `permit.find_offered`, without the nodes that are closed to the cycle, or were refused."""
        out = self._groups.states[cycle.reservation.group].find_exclusions([pod], self._clock(), self._store)
        return find_offered(cycle.reservation, pod, names, self._store, cycle.closed | out.nodes)

    def admit_late(self, uid: str, node: str) -> None:
        """Move a member's slot to the node to which kube-scheduler binds it by an earlier plan, if that is free.

        A member that has no slot in its gang's cycle any more gets this one. Nothing happens where the cycle could not
        go on with that: in another domain, on a closed node, in a tree, or while members decide about each other.
        """
        pod, key = self._store.pods.get(uid), self._store.members.group_of(uid)
        cycle = self._groups.states[key].cycle if key in self._groups.states else None
        if pod is None or cycle is None or not cycle.steers or cycle.waves:
            return
        group = self._permit.find_group(cycle)
        if group is None or not isinstance(group.tree, Leaf) or self._find_offered(cycle, pod, (node,)) is None:
            return
        if cycle.may_move(uid):
            self._ledger.move(pod, node)
            cycle.mark_moved(uid)
        elif uid in cycle.late:
            alone = not cycle.reservation.need or cycle.reservation.committed
            if not alone or self._list_permitted(cycle, group, [pod], NO_REPAIR):
                self._ledger.add(cycle.reservation, pod, node, self._store.members.leaf_of(uid))
                cycle.drop_late(uid)

    def trade(self, cycle: BindingCycle, uid: str, names: Collection[str]) -> str | None:
        """Find a member a slot on one of these nodes: its own, or that of a mate; the node, None if there is none.

        The mate, to which the scheduler has not come yet, gets the other slot. Only mates of one shape trade, inside of
        their PodGroup, and none that keep to the order of their ranks. Where members decide about each other only those
        of the first wave do: the slots of later ones may be free, but come too early.
        """
        mates: Iterable[str] = cycle.waves[0] if cycle.waves else cycle.reservation.slots
        if not names or uid not in mates or not self._may_trade(cycle, uid):
            return None
        pod, slots, offered = self._store.pods[uid], cycle.reservation.slots, set(names)
        cells: dict[tuple[str | None, ...], list[str]] | None = None
        for mate in mates:
            if mate != uid and not self._may_have_slot_of(cycle, pod, mate):
                continue
            node: str | None = slots[mate].node
            if node not in offered:
                cells = self._sort(cycle, names) if cells is None else cells
                alike = cells.pop(self._read_labels(cycle, slots[mate].node), ())
                node = self._find_offered(cycle, pod, alike) if alike else None
            if node is not None:
                self._exchange(cycle, pod, mate, node)
                return node
        return None

    def _may_trade(self, cycle: BindingCycle, uid: str) -> bool:
        free = uid in cycle.in_turn or self._store.members.rank_of(uid) is None
        return free and uid in self._store.pods and cycle.may_move(uid)

    def _may_have_slot_of(self, cycle: BindingCycle, pod: Pod, mate: str) -> bool:
        if cycle.member(mate).reached or mate == cycle.turn or not self._may_trade(cycle, mate):
            return False
        slots = cycle.reservation.slots
        return slots[mate].part == slots[pod.uid].part and self._store.pods[mate].shape == pod.shape

    def _sort(self, cycle: BindingCycle, names: Iterable[str]) -> dict[tuple[str | None, ...], list[str]]:
        """Nodes that do as well as each other; nothing where none does as well as another."""
        found: dict[tuple[str | None, ...], list[str]] = {}
        for name in names if cycle.alike_by is not None else ():
            found.setdefault(self._read_labels(cycle, name), []).append(name)
        return found

    def _read_labels(self, cycle: BindingCycle, name: str) -> tuple[str | None, ...]:
        node = self._store.nodes.get(name)
        return tuple([node.labels.get(key) if node is not None else None for key in cycle.alike_by or ()])

    def _exchange(self, cycle: BindingCycle, pod: Pod, mate: str, node: str) -> None:
        own = cycle.reservation.slots[pod.uid].node
        if node != own:
            self._ledger.move(pod, node)
        if mate == pod.uid:
            return
        self._ledger.move(self._store.pods[mate], own)
        if cycle.waves:
            cycle.exchange(pod.uid, mate)
        if mate not in cycle.in_turn:
            self._send_to_slot(cycle, mate)

    def _send_to_slot(self, cycle: BindingCycle, uid: str) -> None:
        """A member's slot is on another node by now: if it was nominated, it is nominated there."""
        cycle.mark_moved(uid)
        if cycle.member(uid).nominated:
            self._outbox.put(Nominate(cycle, (uid,)))

    def queue_up(self, cycle: BindingCycle, uid: str) -> None:
        """A member in turn was offered no node with a slot: it is nominated, after others of which that holds."""
        cycle.note_unseated(uid)
        self.nominate_in_turn(cycle)

    def nominate_in_turn(self, cycle: BindingCycle) -> None:
        """Nominate the next member in turn that was offered no slot, to the first slot that is left."""
        uid = cycle.take_turn()
        if uid:
            self.trade(cycle, uid, cycle.reservation.nodes)
            cycle.mark_missed(uid)
            self._outbox.put(Nominate(cycle, (uid,)))

    def renominate(self, cycle: BindingCycle, uid: str) -> None:
        """A sample had no node for a member: it is nominated (again).

        If any node would have done and that happens often, so is everybody else: the next samples will not do better.
        """
        cycle.mark_missed(uid)
        self._outbox.put(Nominate(cycle, (uid,)))
        if cycle.any_node and _misses_often(cycle):
            cycle.keep_to_slots()
            others = ((mate, cycle.member(mate)) for mate in cycle.reservation.slots if mate != uid)
            left = tuple(mate for mate, member in others if not member.reached and not member.nominated)
            self._outbox.put(Nominate(cycle, left))

    def replace(self, cycle: BindingCycle, pod: Pod) -> bool:
        """Find one member another slot in the cycle's domain, of those that it was offered; whether there was one."""
        gang, now = self._groups.states[cycle.reservation.group], self._clock()
        out = gang.find_exclusions([pod], now, self._store)
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
        self._store.dirty.add(cycle.reservation.group)
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


_SETTLED_SECONDS = 0.5
"""After how long without progress it counts that the scheduler has tried a member in vain, whatever it lacked."""

_LAG_SECONDS = 5.0
"""The same where others have ended: the scheduler may see that late."""

_FOLLOW_SECONDS = 12.0
"""The same of one that must be beside a mate: the scheduler tries it up to 10 s after that has its node."""


class Offers:
    """Reads the scheduler's word. ``clock`` gives loop seconds."""

    def __init__(self, context: Context, reassignments: Reassignments) -> None:
        self._store = context.store
        self._pods = context.store.pods
        self._nodes = context.store.nodes
        self._members = context.store.members
        self._uncounted = context.store.rule(Uncounted)
        self._groups = context.groups
        self._reassignments = reassignments
        self._activity = context.groups.activity
        self._clock = context.clock

    def note(self, uid: str, names: Sequence[str]) -> None:
        """The scheduler takes these nodes for a pod, and no others.

        Of pods for which plans can count it matters once some node was refused, or if the last plan had no node at all
        for a member that a rule keeps off nodes: that rule may decide otherwise by now, and nobody has been told. A
        sample teaches nothing.
        """
        pod = self._pods.get(uid)
        key = self._members.group_of(uid)
        state = self._groups.states.get(key) if key is not None else None
        if pod is None or key is None or state is None or not names or not is_complete(names):
            return
        if pod.counted_elsewhere or state.refusals.closed:
            matters = state.learn_offer(pod.shape, names, self._clock())
        elif self._store.is_ruled(pod) and _has_no_node(state.verdict):
            matters = state.entry.doubt(frozenset(names) & self._nodes.keys())
        else:
            return
        if matters:
            state.entry.ask_again()
            self._groups.look_again(key)

    def note_refusal(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> None:
        """The scheduler refuses a member on its node, and has these instead, maybe a sample: they are tried first."""
        state, mates = self._groups.states[cycle.reservation.group], self._list_taken(cycle, pod)
        node = cycle.reservation.slots[pod.uid].node
        state.refusals.refuse(pod.shape, node, self._store, beside_mates=bool(mates))
        if names and (is_complete(names) or not pod.counted_elsewhere):
            state.learn_offer(pod.shape, names, self._clock())

    def close(self, cycle: BindingCycle, pod: Pod) -> None:
        """Keep a cycle from the nodes that the scheduler did not offer to a member, but for those of other members.

        One that is full by now because they are there is as good for them as before.
        """
        if not pod.counted_elsewhere:
            return
        state = self._groups.states[cycle.reservation.group]
        slots = cycle.reservation.slots
        unoffered = state.unoffered([pod], self._clock(), self._nodes)
        if unoffered:
            mates = (slot.node for uid, slot in slots.items() if cycle.member(uid).filtered_at is not None)
            cycle.close_nodes(unoffered.difference(mates))

    def spare_if_evicted(self, cycle: BindingCycle, pod: Pod) -> None:
        """Evict nobody again on a node that kube-scheduler refuses to a member after pods were evicted there."""
        if cycle.eviction_sent:
            node = cycle.reservation.slots[pod.uid].node
            self._groups.states[cycle.reservation.group].refusals.spare(pod.shape, node, self._clock(), self._store)

    def refuse_domain(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> None:
        """A member is offered these nodes, and finds none in its gang's domain: the others there need no try."""
        if not is_complete(names):
            return
        state, mates = self._groups.states[cycle.reservation.group], self._list_taken(cycle, pod)
        for name in self._list_domain(cycle, pod) - mates - set(names):
            state.refusals.refuse(pod.shape, name, self._store, beside_mates=bool(mates))

    def find_refused(self, cycle: BindingCycle, uids: Collection[str]) -> list[str]:
        """Those of these members for whom the scheduler has found no node since the cycle began; UIDs.

        A member that has come to filter, or to its bind call, since then is none: what is said of it is older. Nor is
        one for which others (had to) end, if some nodes had no room when it was tried: that may be the ones that they
        leave. Where some nodes lacked nothing but room the scheduler may not have seen yet what was freed: that counts
        after a while, of members that it has tried since then for certain, for the planned one was no such node.
        """
        slots, pods = cycle.reservation.slots, self._pods
        planned = [pods[uid] for uid in uids if uid in slots and uid in pods and not cycle.waits_for_mates(uid)]
        refused = [pod for pod in planned if pod.refused and pod.pending]
        if cycle.preempted:
            refused = [pod for pod in refused if not is_partly_checked(pod.objection)]
        if cycle.idle_seconds >= _SETTLED_SECONDS:
            tried = self._activity.find_refused(cycle, uids)
            settled = [pod for pod in planned if pod.uid in tried and cycle.idle_seconds >= self._find_lag(cycle, pod)]
            refused += [pod for pod in settled if pod.objection and pod.pending]
        left = [uid for uid in dict.fromkeys(pod.uid for pod in refused) if not self._has_come(cycle, uid)]
        return [uid for uid in left if self._members.group_of(uid) == cycle.reservation.group]

    def find_refused_after(self, cycle: BindingCycle, uids: Iterable[str]) -> list[str]:
        """Those of these members whom the scheduler has given up after filter had answered their node; UIDs.

        Others that it asks have refused it. What is said of an earlier try may come late: a member that is not refused
        is at its bind call by then.
        """
        return sorted(self._activity.find_refused(cycle, self.find_stuck(cycle, uids)))

    def find_stuck(self, cycle: BindingCycle, uids: Iterable[str]) -> list[str]:
        """Those of these members whom filter has sent to their nodes, and who should be at their bind calls; UIDs."""
        since = self._clock() - _SETTLED_SECONDS
        slots, committed = cycle.reservation.slots, cycle.reservation.committed
        sent = ((uid, cycle.member(uid)) for uid in uids if uid in slots and uid not in committed)
        filtered = ((uid, member.filtered_at) for uid, member in sent if member.stage is MemberStage.FILTERED)
        return [uid for uid, at in filtered if at is not None and at <= since]

    def note_refusal_after(self, cycle: BindingCycle, pod: Pod) -> None:
        """The scheduler refuses a member on the node that filter had answered."""
        node = cycle.reservation.slots[pod.uid].node
        refusals, evicted = self._groups.states[cycle.reservation.group].refusals, cycle.eviction_sent
        refusals.refuse_after_filter(pod, node, self._clock(), self._store, evicted=evicted)

    def _has_come(self, cycle: BindingCycle, uid: str) -> bool:
        return uid in cycle.reservation.committed or cycle.member(uid).reached

    def _find_lag(self, cycle: BindingCycle, pod: Pod) -> float:
        """For how many seconds nothing must have happened before what was said of a member counts."""
        if pod.affinity and lacks_neighbours(pod.objection):
            mates = (self._pods[uid] for uid in cycle.reservation.slots if uid != pod.uid and uid in self._pods)
            if any(selects(term, mate.labels) for mate in mates for term in pod.affinity):
                return _FOLLOW_SECONDS
        return _LAG_SECONDS if cycle.eviction_sent else _SETTLED_SECONDS

    def drop_refused(self, cycle: BindingCycle, news: Collection[str]) -> Verdict | None:
        """Take the members out that the scheduler refuses on every node; why the cycle must end, if it must.

        Only those are asked for of whom there is ``news`` (UIDs).
        """
        refused = [self._pods[uid] for uid in self.find_refused(cycle, news)]
        if not refused:
            return None
        state, taken = self._groups.states[cycle.reservation.group], self._list_taken(cycle, refused[0])
        group_members = self._members.classify(cycle.group.key)
        beside = " while others of its gang have theirs" if taken else ""
        need = cycle.group.policy.min_count or 1
        verdict = describe_refused(group_members, need, self._uncounted, refused, beside)
        apart = {pod.uid: self._list_apart(cycle, pod, taken) for pod in refused}
        for pod in refused:
            self._drop_refused(cycle, pod, taken)
        if cycle.reservation.committed or not cycle.out_of_reach():
            return None
        if self._reassignments.leave_out(cycle, cycle.reservation.slots):
            return None
        for pod in refused:
            if taken and is_by_node(pod.objection):
                now, evicted = self._clock(), cycle.eviction_sent
                state.refusals.reject(pod, apart[pod.uid], taken, verdict.detail, now, self._store, evicted=evicted)
        return verdict

    def _drop_refused(self, cycle: BindingCycle, pod: Pod, taken: set[str]) -> None:
        if is_by_node(pod.objection):  # what is said of the pod itself ends with it
            self.spare_if_evicted(cycle, pod)
            state, node = self._groups.states[cycle.reservation.group], cycle.reservation.slots[pod.uid].node
            state.refusals.refuse(pod.shape, node, self._store, beside_mates=bool(taken))
        self._reassignments.drop(cycle, pod.uid, "the scheduler refuses the pod on every node")

    def _list_apart(self, cycle: BindingCycle, pod: Pod, taken: set[str]) -> set[str]:
        """The nodes that are not tried again at once for a member that has none beside its mates, who have these."""
        if pod.counted_elsewhere:
            return set()  # what devices there are may be others the next time; where pods may be is the same
        return self._list_domain(cycle, pod) or taken | {cycle.reservation.slots[pod.uid].node}

    def _list_taken(self, cycle: BindingCycle, pod: Pod) -> set[str]:
        """The nodes of the members, but for one, to which the scheduler has come."""
        slots = cycle.reservation.slots.items()
        return {slot.node for uid, slot in slots if uid != pod.uid and cycle.member(uid).reached}

    def _list_domain(self, cycle: BindingCycle, pod: Pod) -> set[str]:
        """The nodes of the narrowest domain in which a member must be; none without a topology key."""
        path = find_path(cycle.group.tree, self._members.leaf_of(pod.uid))
        key = next((each.topology_key for each in reversed(path) if each.topology_key is not None), None)
        own = self._nodes.get(cycle.reservation.slots[pod.uid].node)
        if key is None or own is None or key not in own.labels:
            return set()
        return {name for name, node in self._nodes.items() if node.labels.get(key) == own.labels[key]}


def _misses_often(cycle: BindingCycle) -> bool:
    """Whether so many samples had no node for a member that nominations of all others cost less.

    A miss costs about three times as much: kube-scheduler tries the pod twice, and writes that it was held.
    """
    members = [cycle.member(uid) for uid in cycle.reservation.slots]
    missed = sum(member.missed for member in members)
    return missed >= _FEW_MISSES and missed * 3 > sum(member.missed or member.reached for member in members)


def _has_no_node(said: Verdict | None) -> bool:
    """Whether a plan had not a single node for a member."""
    return said is not None and Mark.ROOM in said.reason.marks and not said.have


def is_complete(names: Sequence[str]) -> bool:
    """Whether the scheduler would take no other node: a sample ends with its hundredth one."""
    return len(names) < MAX_COMPLETE_LIST


class CycleUpdates:
    """Brings cycles up to date, or ends them. Every method is synchronous. ``clock`` gives loop seconds."""

    def __init__(self, context: Context, queue: Queue, repairs: Repairs, planning: Planning) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._groups = context.groups
        self._term = context.term
        self._permit = Permit(context)
        self.reassignments = Reassignments(context, repairs, planning)
        self.offers = Offers(context, self.reassignments)
        self.endings = CycleEndings(context, queue)
        self._activity = context.groups.activity
        self._outbox = context.outbox
        self._clock = context.clock

    def review(self, cycle: BindingCycle) -> None:
        """See to what has to be seen to from time to time while members are sent to their slots."""
        self.send_next(cycle)
        self._outbox.put(ActivateIdle(cycle))
        self._activity.count_idle(cycle)
        refused = self.offers.find_refused(cycle, cycle.reservation.slots.keys())
        refused += self.offers.find_refused_after(cycle, cycle.reservation.slots)
        refused += self._find_displaced(cycle, cycle.reservation.slots)
        for uid in refused:
            cycle.note_news(uid)
        if refused:
            self._groups.look_again(cycle.reservation.group)

    def send_next(self, cycle: BindingCycle) -> None:
        """Send the members that had to wait for mates, if the scheduler has come to all of those.

        While a claim that they share with one of those gets its volume, the scheduler keeps them off all other nodes.
        """
        self.reassignments.nominate_in_turn(cycle)
        coming = (self._store.pods.get(uid) for uid in cycle.next_wave)
        if any(choice.claim for pod in coming if pod is not None for choice in pod.shape.volumes):
            return
        wave = cycle.take_wave()
        if wave:
            self._outbox.put(Nominate(cycle, tuple(wave)))

    def tend(self, state: GroupState) -> Verdict | None:
        """Bring the cycle of a group up to date; what is to be said of the group then, if anything.

        Only those members are looked at of which there is news: a gang of thousands is tended thousands of times.
        """
        cycle = state.cycle
        if cycle is None:
            return None
        try:
            return self._tend(state, cycle)
        except Exception:
            cycle.forget_looks()  # nobody knows how far it came
            raise

    def _tend(self, state: GroupState, cycle: BindingCycle) -> Verdict | None:
        committed = bool(cycle.reservation.committed)
        group = self._permit.find_group(cycle)
        if not committed and group is None:
            self.endings.abort(cycle, Verdict(Reason.POD_GROUP_MISSING))
            return None
        news = self._take_news(cycle)
        refusal = self.offers.drop_refused(cycle, news)
        if refusal is not None:
            self.endings.abort(cycle, refusal)
            return None
        self._move_refused(cycle, news)
        if cycle.over:
            return None
        self._look_at(cycle, news)
        self.send_next(cycle)
        if group is None:
            # What was committed is all that a group gets that is gone, or that was made anew under its name.
            self._drop_surplus(cycle, "its PodGroup is gone, or was made anew")
        else:
            self._tend_quorum(state, cycle, group)
        cycle.changed.set()
        return self._describe(cycle)

    def _take_news(self, cycle: BindingCycle) -> Collection[str]:
        news = cycle.take_news()
        if news is None:
            mates = (pod.uid for pod in self._store.members.iterate(cycle.reservation.group))
            news = dict.fromkeys(chain(cycle.reservation.slots, mates))
            cycle.settle(())
        elif "" in news:
            cycle.settle(())
        return news

    def _drop_surplus(self, cycle: BindingCycle, error: str) -> None:
        self.reassignments.drop_surplus(cycle, error)
        self._look_at(cycle, self._take_news(cycle))  # who has lost its slot may get another one at once

    def _look_at(self, cycle: BindingCycle, uids: Iterable[str]) -> None:
        for uid in uids:
            if uid in cycle.reservation.slots:
                self._tend_member(cycle, uid)
            self._tend_late(cycle, uid)

    def _tend_late(self, cycle: BindingCycle, uid: str) -> None:
        """Note whether a member waits without a slot.

        The others' PodGroups are not in this cycle: each starts whole, in the next one.
        """
        pod = self._store.pods.get(uid)
        if uid in cycle.reservation.slots:
            cycle.drop_late(uid)
            return
        if uid in cycle.at_bind:
            cycle.close_call(uid, "serried: the pod has no slot any more")
        members, reservation = self._store.members, cycle.reservation
        ours = members.group_of(uid) == reservation.group and members.leaf_of(uid) in reservation.parts
        if (
            pod is not None
            and ours
            and uid not in cycle.bound
            and find_standing(pod, self._store.schedulers) is Standing.WAITING
        ):
            cycle.note_late(uid, pod.shape)
        else:
            cycle.drop_late(uid)

    def _describe(self, cycle: BindingCycle) -> Verdict | None:
        reservation = cycle.reservation
        if reservation.committed:
            need = len(reservation.committed)
            return Verdict(Reason.BINDING, have=len(cycle.bound), need=need, detail=cycle.find_failure())
        if cycle.preempts:
            return describe_wait(reservation, self._store.pending_victims)
        if cycle.preempted and cycle.stage is CycleStage.GATHERING:
            return Verdict(Reason.PLANNED, need=reservation.need or len(reservation.slots))
        return None  # it was said when the plan was made

    def _tend_quorum(self, state: GroupState, cycle: BindingCycle, group: PodGroup) -> None:
        reservation = cycle.reservation
        if reservation.need and not reservation.committed:
            adjust_quorum(cycle, group, self._store, self._ledger)
        elif not reservation.need and self._permit.count_missing(cycle, group):
            # It was planned for a gang that stands. Whoever has no slot of its own waits for the others now.
            self._drop_surplus(cycle, "its gang is below its quorum by now")
        if self._term.obstacle:
            return
        if cycle.steers:
            self.reassignments.refill(state, cycle, group)
        elif cycle.freed_slots and cycle.stage is CycleStage.PREEMPTING:
            self.reassignments.fill_freed(cycle, group)

    def _tend_member(self, cycle: BindingCycle, uid: str) -> None:
        pod = self._store.pods.get(uid)
        slot = cycle.reservation.slots[uid]
        member = cycle.member(uid)
        if pod is None or pod.deleting or pod.phase is not Phase.ACTIVE:
            if cycle.stage is CycleStage.PREEMPTING and cycle.eviction_sent:
                cycle.free_slot(slot, self._clock())
            self.reassignments.drop(cycle, uid, "the pod is being deleted")
        elif uid not in cycle.reservation.committed and self._store.members.group_of(uid) != cycle.reservation.group:
            self.reassignments.drop(cycle, uid, "the pod has left the group")
        elif pod.node == slot.node and not member.bound:
            cycle.mark_bound(uid, self._clock())
        elif pod.node and pod.node != slot.node:
            error = f"the pod is bound to {pod.node}"
            if cycle.taken_up and uid in cycle.reservation.committed:
                # An earlier term may have moved its slot without a word: the rest of the commit has to follow.
                cycle.note_binding_sent()
            cycle.mark_bound_elsewhere(uid, f"serried: {error}")
            self.reassignments.drop(cycle, uid, error)
        elif pod.unschedulable and member.stage is MemberStage.WAITING:
            cycle.mark_unschedulable(uid)
            if cycle.steers and not (member.nominated or pod.objection):
                self._outbox.put(Nominate(cycle, (uid,)))

    def refuse(self, uid: str, node: str, names: Sequence[str] = ()) -> None:
        """The scheduler knows that a member's planned node will not do: move that slot, or plan the gang anew.

        ``names`` are the nodes that it offered instead. A member that the quorum does not need just loses its slot.
        Nothing happens if the plan is another by now.
        """
        cycle = self._groups.cycle_of(uid)
        pod = self._store.pods.get(uid)
        if cycle is None or pod is None or not _is_open(cycle, uid) or cycle.reservation.slots[uid].node != node:
            return
        self.offers.note_refusal(cycle, pod, names)
        self.offers.spare_if_evicted(cycle, pod)
        self.offers.close(cycle, pod)
        cycle.close_call(uid, f"serried: the scheduler refused {node}")
        if self.reassignments.replace(cycle, pod):
            return
        self.offers.refuse_domain(cycle, pod, names)
        self._drop_lost(cycle, pod, f"the scheduler refused node {node} for {pod.name}")

    def _move_refused(self, cycle: BindingCycle, uids: Collection[str]) -> None:
        """Move the members whose nodes the scheduler has tried in vain, or plan the gang anew."""
        for uid in self.offers.find_refused_after(cycle, uids):
            pod = self._store.pods.get(uid)
            if cycle.over or pod is None or not pod.pending or uid not in cycle.reservation.slots:
                continue
            node = cycle.reservation.slots[uid].node
            self.offers.note_refusal_after(cycle, pod)
            if not self.reassignments.replace(cycle, pod):
                self._drop_lost(cycle, pod, f"the scheduler refused node {node} for {pod.name}: {pod.said}")
                # Each try has closed one more node: it is no failure that has to wait, and there is an end to them.
                self._groups.states[cycle.reservation.group].entry.end_backoff()
        for uid in self._find_displaced(cycle, uids):
            pod = self._store.pods.get(uid)
            if cycle.over or pod is None or not pod.pending or uid not in cycle.reservation.slots:
                continue  # one that is gone, or bound by now, is looked at with the others
            misfit = self._permit.find_misfit(cycle, uid)
            if misfit is not None and not self.reassignments.replace(cycle, pod):
                self._drop_lost(cycle, pod, misfit)

    def _find_displaced(self, cycle: BindingCycle, uids: Collection[str]) -> list[str]:
        """Those of these members whom the scheduler has tried in vain because others have got their room; UIDs."""
        if cycle.preempts:
            return []
        settled = cycle.idle_seconds >= _SETTLED_SECONDS
        tried = self._activity.find_refused(cycle, uids) - cycle.reservation.committed if settled else ()
        aside = [uid for uid in tried if cycle.member(uid).stage is MemberStage.UNSCHEDULABLE]
        stuck = self.offers.find_stuck(cycle, uids)
        return [uid for uid in (*aside, *stuck) if self._permit.find_misfit(cycle, uid) is not None]

    def _drop_lost(self, cycle: BindingCycle, pod: Pod, detail: str) -> None:
        """A member has lost its slot, and there is no other one for it: if the quorum needs it, the cycle is over."""
        self.reassignments.drop(cycle, pod.uid, detail)
        if cycle.reservation.committed or not cycle.reservation.need:
            return  # a member beyond the quorum; those that are committed are only ever rolled forward
        if cycle.out_of_reach() and not self.reassignments.leave_out(cycle, cycle.reservation.slots):
            self.endings.abort(cycle, Verdict(Reason.PLAN_OUTDATED, detail=detail))

    def note_room(self, cycle: BindingCycle) -> None:
        """Its victims have ended: the group's reason says that it waits for the scheduler now."""
        self._groups.look_again(cycle.reservation.group)

    def note_failure(self, cycle: BindingCycle, uid: str, error: str) -> None:
        """A committed member's Binding was refused, and is tried again: the group's reason says so meanwhile."""
        slot = cycle.reservation.slots.get(uid)
        if slot is not None:
            cycle.note_failure(uid, f"the Binding of {slot.name} failed and is tried again: {error}")
            self._groups.look_again(cycle.reservation.group)


def _is_open(cycle: BindingCycle, uid: str) -> bool:
    """Whether no Binding of a member is decided, on its way, or done."""
    decided = uid in cycle.reservation.committed
    return not decided and cycle.member(uid).stage not in (MemberStage.SENDING, MemberStage.BOUND)
