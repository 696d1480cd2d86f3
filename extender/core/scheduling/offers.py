"""Learns from the nodes that kube-scheduler offers to members, and from the nodes that it rejects.

A node is *offered* to a member if kube-scheduler's filter call for the member lists it as feasible. A node is
*rejected* if a filter call does not list it, or the pod's condition PodScheduled says so. `ExtenderService` and
`CycleUpdates` call `Offers`. What it learns is kept in `Refusals` and limits the gang's next plan, or ends the open
cycle. *Mates* are other members of the same gang. Nothing here awaits.
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
from serried.api.verdict import Trait, Verdict

REJECTION_COUNTS_SECONDS = 0.5
"""The seconds without progress of a cycle after which the rejection of a member counts, whatever its reason.

Before, kube-scheduler may only have not seen yet that resources are free.
"""

_REJECTION_COUNTS_AFTER_EVICTION_SECONDS = 5.0
"""The seconds without progress of a cycle after which a rejection counts if pods were evicted for the cycle.

kube-scheduler's watch may show late that these pods have ended.
"""

_REJECTION_COUNTS_WITH_AFFINITY_SECONDS = 12.0
"""The seconds without progress of a cycle after which a rejection counts of a member with affinity to another one.

kube-scheduler tries it again up to 10 s after the other member has its node.
"""


class Offers:
    """Reads kube-scheduler's filter calls and the conditions that it writes. Every method is synchronous."""

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
        """Note the nodes that kube-scheduler offers to a waiting member. Requeue its group if a plan may succeed now.

        Do both only if ``names`` are all feasible nodes, as a sample proves nothing, and if one of these is true:
        - the member requests devices that only kube-scheduler can count;
        - a node was rejected for a member before;
        - the last plan had no node for any member, and the member has rules, such as affinity, which may allow a node
          by now.
        """
        pod = self._pods.get(uid)
        key = self._members.group_of(uid)
        state = self._groups.states.get(key) if key is not None else None
        if pod is None or key is None or state is None or not names or not is_complete(names):
            return
        if pod.only_scheduler_counts or state.refusals.excluded:
            matters = state.learn_offer(pod.shape, names, self._clock())
        elif self._store.is_ruled(pod) and _has_no_node(state.verdict):
            matters = state.entry.add_unplanned_offers(frozenset(names) & self._nodes.keys())
        else:
            return
        if matters:
            state.entry.force_retry()
            self._groups.mark_dirty(key)

    def note_rejected_node(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> None:
        """Note that kube-scheduler rejects the node of a member's slot, so that the next plan avoids it.

        ``names`` are the nodes that its filter call offers instead, maybe a sample of them. They are noted for the
        next plan. For a member with devices that only kube-scheduler can count, a sample is ignored.
        """
        state, mates = self._groups.states[cycle.reservation.group], self._list_nodes_of_mates(cycle, pod)
        node = cycle.reservation.slots[pod.uid].node
        state.refusals.exclude_node(pod.shape, node, self._store, beside_mates=bool(mates))
        if names and (is_complete(names) or not pod.only_scheduler_counts):
            state.learn_offer(pod.shape, names, self._clock())

    def close_unoffered(self, cycle: BindingCycle, pod: Pod) -> None:
        """Have the cycle avoid all nodes that kube-scheduler does not offer to members with the requests of ``pod``.

        Only for members with devices that only kube-scheduler can count. Nodes that filter has answered to other
        members of the cycle are not avoided: kube-scheduler may leave them out only because these members fill them.
        """
        if not pod.only_scheduler_counts:
            return
        state = self._groups.states[cycle.reservation.group]
        slots = cycle.reservation.slots
        unoffered = state.list_unoffered([pod], self._clock(), self._nodes)
        if unoffered:
            mates = (slot.node for uid, slot in slots.items() if cycle.member(uid).filtered_at is not None)
            cycle.close_nodes(unoffered.difference(mates))

    def exempt_if_evicted(self, cycle: BindingCycle, pod: Pod) -> None:
        """Have no more pods evicted on the node of a member's slot, as kube-scheduler rejects it despite evictions.

        Does nothing if no eviction was sent for the cycle. It holds for all members with the same requests and
        constraints as ``pod``.
        """
        if cycle.eviction_sent:
            node = cycle.reservation.slots[pod.uid].node
            self._groups.states[cycle.reservation.group].refusals.exempt_from_evictions(
                pod.shape, node, self._clock(), self._store
            )

    def note_rejected_domain(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> None:
        """Note all nodes of a member's domain as rejected that kube-scheduler does not offer.

        ``names`` are the offered nodes. Ignored if they may be only a sample. Nodes that other members of the gang have
        already are left out.
        """
        if not is_complete(names):
            return
        state, mates = self._groups.states[cycle.reservation.group], self._list_nodes_of_mates(cycle, pod)
        for name in self._list_domain(cycle, pod) - mates - set(names):
            state.refusals.exclude_node(pod.shape, name, self._store, beside_mates=bool(mates))

    def find_rejected(self, cycle: BindingCycle, uids: Collection[str]) -> list[str]:
        """Return those of these members for which kube-scheduler has found no node since the cycle began.

        Members are given and returned as UIDs. Left out are:
        - members that have reached filter or bind since, as their condition PodScheduled is older;
        - members that must wait until other ones are placed;
        - in a cycle with victims, members that lacked resources on some nodes, as these may be the victims' nodes. But
          they count after the idle seconds below.

        If kube-scheduler may not have seen yet that resources were freed, a rejection counts only after some idle
        seconds, in which kube-scheduler could have worked on the gang but did not.
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
        """Return those of these members that kube-scheduler has rejected after filter had answered their nodes.

        Members are given as UIDs, and returned sorted. A later plugin or another extender has then rejected the node. A
        condition from an earlier try may arrive late, so only members count that should have had a bind call by now
        (`find_stuck`).
        """
        stuck = self.find_stuck(cycle, uids)
        return sorted(self._activity.find_rejected(cycle, stuck)) if stuck else []

    def find_stuck(self, cycle: BindingCycle, uids: Iterable[str]) -> list[str]:
        """Return those of these members (UIDs) that should have had a bind call by now.

        Filter has answered their nodes at least REJECTION_COUNTS_SECONDS ago. Committed members do not count.
        """
        since = self._clock() - REJECTION_COUNTS_SECONDS
        slots, committed = cycle.reservation.slots, cycle.reservation.committed
        sent = ((uid, cycle.member(uid)) for uid in uids if uid in slots and uid not in committed)
        filtered = ((uid, member.filtered_at) for uid, member in sent if member.stage is MemberStage.FILTERED)
        return [uid for uid, at in filtered if at is not None and at <= since]

    def note_rejection_after_filter(self, cycle: BindingCycle, pod: Pod) -> None:
        """Note that kube-scheduler has rejected the node of a member's slot after filter had answered it.

        The next plans avoid the node, and no pods are evicted there for the member.
        """
        node = cycle.reservation.slots[pod.uid].node
        refusals, evicted = self._groups.states[cycle.reservation.group].refusals, cycle.eviction_sent
        refusals.exclude_after_filter(pod, node, self._clock(), self._store, evicted=evicted)

    def _was_reached(self, cycle: BindingCycle, uid: str) -> bool:
        return uid in cycle.reservation.committed or cycle.member(uid).reached

    def _find_lag(self, cycle: BindingCycle, pod: Pod) -> float:
        """Return the idle seconds of the cycle after which the rejection of a member counts.

        Idle seconds are those in which kube-scheduler could have worked on the gang but did not. Serried waits so
        long because a rejection may have a cause that goes away: other members do not have their nodes yet, or
        kube-scheduler has not seen that victims have ended.
        """
        if pod.affinity and lacks_matching_pods(pod.objection):
            mates = (self._pods[uid] for uid in cycle.reservation.slots if uid != pod.uid and uid in self._pods)
            if any(selects(term, mate.labels) for mate in mates for term in pod.affinity):
                return _REJECTION_COUNTS_WITH_AFFINITY_SECONDS
        return _REJECTION_COUNTS_AFTER_EVICTION_SECONDS if cycle.eviction_sent else REJECTION_COUNTS_SECONDS

    def drop_rejected(self, cycle: BindingCycle, uids: Collection[str]) -> Verdict | None:
        """Drop from the cycle the members for which kube-scheduler finds no node at all.

        Only the members in ``uids`` are checked. Return the verdict with which the cycle must end, because its quorum
        is out of reach without them; None if it goes on.
        """
        refused = [self._pods[uid] for uid in self.find_rejected(cycle, uids)]
        if not refused:
            return None
        state, taken = self._groups.states[cycle.reservation.group], self._list_nodes_of_mates(cycle, refused[0])
        group_members = self._members.classify(cycle.group.key)
        beside = " while other members of the gang have nodes" if taken else ""
        need = cycle.group.policy.min_count or 1
        verdict = describe_refused(group_members, need, refused, beside)
        apart = {pod.uid: self._list_nodes_to_close(cycle, pod, taken) for pod in refused}
        for pod in refused:
            self._drop_rejected(cycle, pod, taken)
        if cycle.reservation.committed or not cycle.out_of_reach():
            return None
        if self._reassignments.drop_incomplete_groups(cycle, cycle.reservation.slots):
            return None
        for pod in refused:
            if taken and is_by_node(pod.objection):
                now, evicted = self._clock(), cycle.eviction_sent
                state.refusals.note_rejection(
                    pod, apart[pod.uid], taken, verdict.detail, now, self._store, evicted=evicted
                )
        return verdict

    def _drop_rejected(self, cycle: BindingCycle, pod: Pod, taken: set[str]) -> None:
        if is_by_node(pod.objection):  # a reason in the pod itself says nothing of the node
            self.exempt_if_evicted(cycle, pod)
            state, node = self._groups.states[cycle.reservation.group], cycle.reservation.slots[pod.uid].node
            state.refusals.exclude_node(pod.shape, node, self._store, beside_mates=bool(taken))
        self._reassignments.drop(cycle, pod.uid, "kube-scheduler rejects the pod on every node")

    def _list_nodes_to_close(self, cycle: BindingCycle, pod: Pod, taken: set[str]) -> set[str]:
        """Return the nodes that later plans must avoid for a member that got no node while other members had theirs.

        With a topology key they are all nodes of the member's domain. Without one they are the node of its slot and
        the nodes ``taken`` by the other members. Empty for a member with devices that only kube-scheduler can count:
        other devices may be free the next time.
        """
        if pod.only_scheduler_counts:
            return set()  # other devices may be free the next time
        return self._list_domain(cycle, pod) or taken | {cycle.reservation.slots[pod.uid].node}

    def _list_nodes_of_mates(self, cycle: BindingCycle, pod: Pod) -> set[str]:
        """Return the nodes of all other members for which filter has answered a node, or which have reached bind."""
        slots = cycle.reservation.slots.items()
        return {slot.node for uid, slot in slots if uid != pod.uid and cycle.member(uid).reached}

    def _list_domain(self, cycle: BindingCycle, pod: Pod) -> set[str]:
        """Return the nodes of the narrowest domain that a member must be in, by the planned node of its slot.

        Empty if no group that it belongs to has a topology key, or if the planned node is gone or has no such label.
        """
        path = find_path(cycle.group.tree, self._members.leaf_of(pod.uid))
        key = next((each.topology_key for each in reversed(path) if each.topology_key is not None), None)
        own = self._nodes.get(cycle.reservation.slots[pod.uid].node)
        if key is None or own is None or key not in own.labels:
            return set()
        return {name for name, node in self._nodes.items() if node.labels.get(key) == own.labels[key]}


def _has_no_node(said: Verdict | None) -> bool:
    """Return whether the last plan found no node for any member, by the group's verdict (None if it has none)."""
    return said is not None and Trait.NEEDS_RESOURCES in said.reason.traits and not said.have


def is_complete(names: Sequence[str]) -> bool:
    """Return whether a filter call's list holds all feasible nodes of the cluster.

    kube-scheduler looks for at least 100 feasible nodes. So a shorter list holds all; a longer one may be a sample.
    """
    return len(names) < MAX_COMPLETE_LIST
