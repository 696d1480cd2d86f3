"""Learns from the nodes that kube-scheduler offers to members, and from the nodes that it refuses.

`ExtenderService` and `CycleUpdates` call `Offers`. What it learns (`Refusals`) limits the gang's next plan, or ends the
open cycle. Nothing here awaits.
"""

from collections.abc import Collection, Iterable, Sequence

from extender.core.protocol import MAX_COMPLETE_LIST
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.cycle_member import MemberStage
from extender.core.scheduling.effects import Context
from extender.core.scheduling.reassignments import Reassignments
from extender.core.scheduling.request import describe_refused
from serried.api.group import find_path
from serried.api.pod import Pod, is_by_node, is_partly_checked, lacks_matching_pods
from serried.api.selectors import selects
from serried.api.verdict import Mark, Verdict

REJECTION_COUNTS_SECONDS = 0.5
"""The seconds without progress after which kube-scheduler's refusal of a member counts, whatever it says is missing."""

_REJECTION_COUNTS_AFTER_EVICTION_SECONDS = 5.0
"""The seconds after which a refusal counts if pods were evicted: kube-scheduler may see their end late."""

_REJECTION_COUNTS_WITH_AFFINITY_SECONDS = 12.0
"""The seconds after which the refusal of a member with affinity to a mate counts.

kube-scheduler tries it again up to 10 s after the mate has its node.
"""


class Offers:
    """Reads kube-scheduler's offers and conditions. ``clock`` gives loop seconds."""

    def __init__(self, context: Context, reassignments: Reassignments) -> None:
        self._store = context.store
        self._pods = context.store.pods
        self._nodes = context.store.nodes
        self._members = context.store.members
        self._groups = context.groups
        self._reassignments = reassignments
        self._activity = context.groups.activity
        self._clock = context.clock

    def note_offer(self, uid: str, names: Sequence[str]) -> None:
        """Note the nodes that kube-scheduler offers to a waiting member.

        A sample is ignored; only a complete list proves anything. The list matters for members that only kube-scheduler
        can count, and once a node was refused. It also matters if the last plan had no node for a member because of a
        rule: the rule may allow a node by now. The group is requeued then.
        """
        pod = self._pods.get(uid)
        key = self._members.group_of(uid)
        state = self._groups.states.get(key) if key is not None else None
        if pod is None or key is None or state is None or not names or not is_complete(names):
            return
        if pod.counted_elsewhere or state.refusals.closed:
            matters = state.learn_offer(pod.shape, names, self._clock())
        elif self._store.is_ruled(pod) and _has_no_node(state.verdict):
            matters = state.entry.add_unplanned_offers(frozenset(names) & self._nodes.keys())
        else:
            return
        if matters:
            state.entry.force_retry()
            self._groups.mark_dirty(key)

    def note_rejected_node(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> None:
        """Note that kube-scheduler refuses the node of a member.

        ``names`` are the nodes that it offers instead, maybe a sample.
        """
        state, mates = self._groups.states[cycle.reservation.group], self._list_nodes_of_mates(cycle, pod)
        node = cycle.reservation.slots[pod.uid].node
        state.refusals.refuse(pod.shape, node, self._store, beside_mates=bool(mates))
        if names and (is_complete(names) or not pod.counted_elsewhere):
            state.learn_offer(pod.shape, names, self._clock())

    def close_unoffered(self, cycle: BindingCycle, pod: Pod) -> None:
        """Close the nodes to a cycle that kube-scheduler did not offer to a member, but for nodes of placed mates.

        A node of mates may be missing only because the mates fill it; it is as good for the remaining mates as before.
        """
        if not pod.counted_elsewhere:
            return
        state = self._groups.states[cycle.reservation.group]
        slots = cycle.reservation.slots
        unoffered = state.list_unoffered([pod], self._clock(), self._nodes)
        if unoffered:
            mates = (slot.node for uid, slot in slots.items() if cycle.member(uid).filtered_at is not None)
            cycle.close_nodes(unoffered.difference(mates))

    def exempt_if_evicted(self, cycle: BindingCycle, pod: Pod) -> None:
        """Exempt a member's node from further evictions if kube-scheduler refuses it after victims have ended."""
        if cycle.eviction_sent:
            node = cycle.reservation.slots[pod.uid].node
            self._groups.states[cycle.reservation.group].refusals.spare(pod.shape, node, self._clock(), self._store)

    def note_rejected_domain(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> None:
        """Note all nodes of the gang's domain as refused for a member if kube-scheduler offers none of them."""
        if not is_complete(names):
            return
        state, mates = self._groups.states[cycle.reservation.group], self._list_nodes_of_mates(cycle, pod)
        for name in self._list_domain(cycle, pod) - mates - set(names):
            state.refusals.refuse(pod.shape, name, self._store, beside_mates=bool(mates))

    def find_rejected(self, cycle: BindingCycle, uids: Collection[str]) -> list[str]:
        """Return the UIDs of those members for which kube-scheduler has found no node since the cycle began.

        A member that has reached filter or its bind call since then does not count: its condition is older. In a cycle
        with victims, a member that lacked room on some nodes does not count either: those may be the nodes of the
        victims. Where kube-scheduler may not have seen freed room yet, its refusal counts only after a while without
        progress.
        """
        slots, pods = cycle.reservation.slots, self._pods
        planned = [
            pods[uid] for uid in uids if uid in slots and uid in pods and not cycle.open_slots.waits_for_mates(uid)
        ]
        refused = [pod for pod in planned if pod.refused and pod.pending]
        if cycle.preempted:
            refused = [pod for pod in refused if not is_partly_checked(pod.objection)]
        if cycle.idle_seconds >= REJECTION_COUNTS_SECONDS:
            tried = self._activity.find_rejected(cycle, uids)
            settled = [pod for pod in planned if pod.uid in tried and cycle.idle_seconds >= self._find_lag(cycle, pod)]
            refused += [pod for pod in settled if pod.objection and pod.pending]
        left = [uid for uid in dict.fromkeys(pod.uid for pod in refused) if not self._was_reached(cycle, uid)]
        return [uid for uid in left if self._members.group_of(uid) == cycle.reservation.group]

    def find_rejected_after_filter(self, cycle: BindingCycle, uids: Iterable[str]) -> list[str]:
        """Return the UIDs of those members that kube-scheduler has refused after filter had answered their nodes.

        A later plugin or another extender has refused the node. A condition from an earlier try may arrive late, so
        only members that should have reached their bind calls by now count.
        """
        stuck = self.find_stuck(cycle, uids)
        return sorted(self._activity.find_rejected(cycle, stuck)) if stuck else []

    def find_stuck(self, cycle: BindingCycle, uids: Iterable[str]) -> list[str]:
        """Return the UIDs of those members whose node filter has answered long enough ago for a bind call."""
        since = self._clock() - REJECTION_COUNTS_SECONDS
        slots, committed = cycle.reservation.slots, cycle.reservation.committed
        sent = ((uid, cycle.member(uid)) for uid in uids if uid in slots and uid not in committed)
        filtered = ((uid, member.filtered_at) for uid, member in sent if member.stage is MemberStage.FILTERED)
        return [uid for uid, at in filtered if at is not None and at <= since]

    def note_rejection_after_filter(self, cycle: BindingCycle, pod: Pod) -> None:
        """Note that kube-scheduler refuses a member's node after filter had answered it."""
        node = cycle.reservation.slots[pod.uid].node
        refusals, evicted = self._groups.states[cycle.reservation.group].refusals, cycle.eviction_sent
        refusals.refuse_after_filter(pod, node, self._clock(), self._store, evicted=evicted)

    def _was_reached(self, cycle: BindingCycle, uid: str) -> bool:
        return uid in cycle.reservation.committed or cycle.member(uid).reached

    def _find_lag(self, cycle: BindingCycle, pod: Pod) -> float:
        """Return for how many seconds no member of a cycle may reach its node until a refused one counts as refused.

        kube-scheduler may refuse a member only because its mates do not have their nodes yet.
        """
        if pod.affinity and lacks_matching_pods(pod.objection):
            mates = (self._pods[uid] for uid in cycle.reservation.slots if uid != pod.uid and uid in self._pods)
            if any(selects(term, mate.labels) for mate in mates for term in pod.affinity):
                return _REJECTION_COUNTS_WITH_AFFINITY_SECONDS
        return _REJECTION_COUNTS_AFTER_EVICTION_SECONDS if cycle.eviction_sent else REJECTION_COUNTS_SECONDS

    def drop_rejected(self, cycle: BindingCycle, news: Collection[str]) -> Verdict | None:
        """Drop the members that kube-scheduler refuses on every node.

        Return the verdict with which the cycle must end, if any. Only members with ``news`` (UIDs) are checked.
        """
        refused = [self._pods[uid] for uid in self.find_rejected(cycle, news)]
        if not refused:
            return None
        state, taken = self._groups.states[cycle.reservation.group], self._list_nodes_of_mates(cycle, refused[0])
        group_members = self._members.classify(cycle.group.key)
        beside = " while others of its gang have theirs" if taken else ""
        need = cycle.group.policy.min_count or 1
        verdict = describe_refused(group_members, need, refused, beside)
        apart = {pod.uid: self._list_nodes_to_close(cycle, pod, taken) for pod in refused}
        for pod in refused:
            self._drop_rejected(cycle, pod, taken)
        if cycle.reservation.committed or not cycle.out_of_reach():
            return None
        if self._reassignments.drop_parts(cycle, cycle.reservation.slots):
            return None
        for pod in refused:
            if taken and is_by_node(pod.objection):
                now, evicted = self._clock(), cycle.eviction_sent
                state.refusals.reject(pod, apart[pod.uid], taken, verdict.detail, now, self._store, evicted=evicted)
        return verdict

    def _drop_rejected(self, cycle: BindingCycle, pod: Pod, taken: set[str]) -> None:
        if is_by_node(pod.objection):  # a reason in the pod itself says nothing of the node
            self.exempt_if_evicted(cycle, pod)
            state, node = self._groups.states[cycle.reservation.group], cycle.reservation.slots[pod.uid].node
            state.refusals.refuse(pod.shape, node, self._store, beside_mates=bool(taken))
        self._reassignments.drop(cycle, pod.uid, "the scheduler refuses the pod on every node")

    def _list_nodes_to_close(self, cycle: BindingCycle, pod: Pod, taken: set[str]) -> set[str]:
        """Return the nodes to close for a member that has no node while its mates have ``taken`` theirs."""
        if pod.counted_elsewhere:
            return set()  # other devices may be free the next time
        return self._list_domain(cycle, pod) or taken | {cycle.reservation.slots[pod.uid].node}

    def _list_nodes_of_mates(self, cycle: BindingCycle, pod: Pod) -> set[str]:
        """Return the nodes of all other members that kube-scheduler has reached."""
        slots = cycle.reservation.slots.items()
        return {slot.node for uid, slot in slots if uid != pod.uid and cycle.member(uid).reached}

    def _list_domain(self, cycle: BindingCycle, pod: Pod) -> set[str]:
        """Return the nodes of the narrowest domain in which a member must be; none without a topology key."""
        path = find_path(cycle.group.tree, self._members.leaf_of(pod.uid))
        key = next((each.topology_key for each in reversed(path) if each.topology_key is not None), None)
        own = self._nodes.get(cycle.reservation.slots[pod.uid].node)
        if key is None or own is None or key not in own.labels:
            return set()
        return {name for name, node in self._nodes.items() if node.labels.get(key) == own.labels[key]}


def _has_no_node(said: Verdict | None) -> bool:
    """Return whether the last plan had no node for any member."""
    return said is not None and Mark.ROOM in said.reason.marks and not said.have


def is_complete(names: Sequence[str]) -> bool:
    """Return whether a list has all feasible nodes. A sample ends with its hundredth node."""
    return len(names) < MAX_COMPLETE_LIST
