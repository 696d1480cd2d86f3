"""What kube-scheduler offers, and refuses, to members: that is how a gang learns what only the scheduler knows.

Synchronous, like the group scheduler: what is learnt here decides its next plan, or ends the cycle that is open.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from extender.answers import MAX_COMPLETE_LIST
from extender.scheduling.activity import SchedulerActivity
from extender.scheduling.cycle import BindingCycle
from extender.scheduling.groups import Groups
from extender.scheduling.moves import Moves
from extender.scheduling.objections import describe_refused, find_refused
from serried.cluster.members import Members
from serried.cluster.uncounted import Uncounted
from serried.model.node import Node
from serried.model.pod import Pod
from serried.model.verdict import Verdict

_SETTLED_SECONDS = 0.5
"""After how long without progress it counts that the scheduler has tried a member in vain, whatever it lacked."""

_LAG_SECONDS = 5.0
"""The same where others have ended: the scheduler may see that late."""


class Offers:
    """Reads the scheduler's word. ``clock`` gives loop seconds."""

    def __init__(
        self,
        pods: Mapping[str, Pod],
        nodes: Mapping[str, Node],
        members: Members,
        uncounted: Uncounted,
        *,
        groups: Groups,
        moves: Moves,
        activity: SchedulerActivity,
        clock: Callable[[], float],
    ) -> None:
        self._pods = pods
        self._nodes = nodes
        self._members = members
        self._uncounted = uncounted
        self._groups = groups
        self._moves = moves
        self._activity = activity
        self._clock = clock

    def note(self, uid: str, names: Sequence[str]) -> None:
        """The scheduler takes these nodes for a pod, and if it alone can count for that no others.

        Of other pods it matters once some node was refused: then those that were offered are tried first.
        """
        pod = self._pods.get(uid)
        key = self._members.group_of(uid)
        state = self._groups.states.get(key) if key is not None else None
        if pod is None or key is None or state is None or not names:
            return
        if not (is_complete(names) if pod.counted_elsewhere else state.refusals):
            return
        if state.learn_offer(pod.shape, names, self._clock()):
            state.tried = ()
            self._groups.look_again(key)

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

    def note_vain(self, cycle: BindingCycle, pod: Pod) -> None:
        """The scheduler refuses a member on its node: if others have ended for that, they have in vain."""
        if cycle.eviction_sent:
            node = cycle.reservation.slots[pod.uid].node
            self._groups.states[cycle.reservation.group].note_vain(pod.shape, node, self._clock(), self._nodes)

    def refuse_domain(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> None:
        """A member is offered these nodes, and finds none in its gang's domain: the others there need no try."""
        key = cycle.group.topology_key
        if key is None or not is_complete(names):
            return
        state, mates = self._groups.states[cycle.reservation.group], self._list_taken(cycle)
        for name in self._list_domain(cycle) - mates - set(names):
            state.refuse(pod.shape, name, self._nodes)

    def find_refused(self, cycle: BindingCycle, uids: Collection[str]) -> list[str]:
        """Those of these members for whom the scheduler has no node; UIDs.

        Where some nodes lacked nothing but room it may not have seen yet what was freed: that counts after a while.
        """
        lag = _LAG_SECONDS if cycle.eviction_sent else _SETTLED_SECONDS
        tried = self._activity.find_refused(cycle, uids) if cycle.idle_seconds >= lag else ()
        return find_refused(cycle, uids, self._pods, self._members, tried)

    def drop_refused(self, cycle: BindingCycle, news: Collection[str]) -> Verdict | None:
        """Take the members out that the scheduler refuses on every node; why the cycle must end, if it must.

        Only those are asked for of whom there is ``news`` (UIDs).
        """
        refused = [self._pods[uid] for uid in self.find_refused(cycle, news)]
        if not refused:
            return None
        state, taken = self._groups.states[cycle.reservation.group], self._list_taken(cycle)
        group_members = self._members.classify(cycle.group.key)
        beside = " while others of its gang have theirs" if taken else ""
        need = cycle.group.policy.min_count or 1
        verdict = describe_refused(group_members, need, self._uncounted, refused, beside)
        for pod in refused:
            own = cycle.reservation.slots[pod.uid].node
            self.note_vain(cycle, pod)
            state.refuse(pod.shape, own, self._nodes)
            if taken and not cycle.reservation.committed:
                # What devices there are may be others the next time; where pods may be is the same.
                apart = set[str]() if pod.counted_elsewhere else self._list_domain(cycle) or taken | {own}
                state.reject(pod, apart, verdict.detail, self._clock(), self._nodes)
            self._moves.drop(cycle, pod.uid, "the scheduler refuses the pod on every node")
        if cycle.reservation.committed or not cycle.out_of_reach():
            return None
        return None if self._moves.leave_out(cycle, cycle.reservation.slots) else verdict

    def _list_taken(self, cycle: BindingCycle) -> set[str]:
        """The nodes of the members to which the scheduler has come."""
        return {slot.node for uid, slot in cycle.reservation.slots.items() if cycle.member(uid).reached}

    def _list_domain(self, cycle: BindingCycle) -> set[str]:
        """The nodes of the gang's domain; none without a topology key."""
        key, domain = cycle.group.topology_key, cycle.reservation.domain
        if key is None:
            return set()
        return {name for name, node in self._nodes.items() if node.labels.get(key) == domain}


def is_complete(names: Sequence[str]) -> bool:
    """Whether the scheduler would take no other node: a sample ends with its hundredth one."""
    return len(names) < MAX_COMPLETE_LIST
