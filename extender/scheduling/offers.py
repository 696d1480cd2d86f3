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
from serried.decode.objections import is_by_node, lacks_neighbours
from serried.decode.selectors import selects
from serried.model.node import Node
from serried.model.pod import Pod
from serried.model.tree import find_path
from serried.model.verdict import Verdict

_SETTLED_SECONDS = 0.5
"""After how long without progress it counts that the scheduler has tried a member in vain, whatever it lacked."""

_LAG_SECONDS = 5.0
"""The same where others have ended: the scheduler may see that late."""

_FOLLOW_SECONDS = 12.0
"""The same of one that must be beside a mate: the scheduler tries it up to 10 s after that has its node."""


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
        """The scheduler takes these nodes for a pod, and no others.

        Of pods for which plans can count it matters once some node was refused. A sample teaches nothing.
        """
        pod = self._pods.get(uid)
        key = self._members.group_of(uid)
        state = self._groups.states.get(key) if key is not None else None
        if pod is None or key is None or state is None or not names or not is_complete(names):
            return
        if not (pod.counted_elsewhere or state.refusals):
            return
        if state.learn_offer(pod.shape, names, self._clock()):
            state.tried = ()
            self._groups.look_again(key)

    def note_refusal(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> None:
        """The scheduler refuses a member on its node, and has these instead, maybe a sample: they are tried first."""
        state, mates = self._groups.states[cycle.reservation.group], self._list_taken(cycle, pod)
        state.refuse(pod.shape, cycle.reservation.slots[pod.uid].node, self._nodes, mates=mates)
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

    def note_vain(self, cycle: BindingCycle, pod: Pod) -> None:
        """The scheduler refuses a member on its node: if others have ended for that, they have in vain."""
        if cycle.eviction_sent:
            node = cycle.reservation.slots[pod.uid].node
            self._groups.states[cycle.reservation.group].note_vain(pod.shape, node, self._clock(), self._nodes)

    def refuse_domain(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> None:
        """A member is offered these nodes, and finds none in its gang's domain: the others there need no try."""
        if not is_complete(names):
            return
        state, mates = self._groups.states[cycle.reservation.group], self._list_taken(cycle, pod)
        for name in self._list_domain(cycle, pod) - mates - set(names):
            state.refuse(pod.shape, name, self._nodes, mates=mates)

    def find_refused(self, cycle: BindingCycle, uids: Collection[str]) -> list[str]:
        """Those of these members for whom the scheduler has no node; UIDs.

        Where some nodes lacked nothing but room it may not have seen yet what was freed: that counts after a while.
        """
        tried = self._activity.find_refused(cycle, uids) if cycle.idle_seconds >= _SETTLED_SECONDS else ()
        settled = [uid for uid in tried if cycle.idle_seconds >= self._find_lag(cycle, self._pods[uid])]
        return find_refused(cycle, uids, self._pods, self._members, settled)

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
            if is_by_node(pod.objection):  # what is said of the pod itself ends with it
                self.note_vain(cycle, pod)
                state.refuse(pod.shape, cycle.reservation.slots[pod.uid].node, self._nodes, mates=taken)
            self._moves.drop(cycle, pod.uid, "the scheduler refuses the pod on every node")
        if cycle.reservation.committed or not cycle.out_of_reach():
            return None
        if self._moves.leave_out(cycle, cycle.reservation.slots):
            return None
        for pod in refused:
            if taken and is_by_node(pod.objection):
                state.reject(pod, apart[pod.uid], verdict.detail, self._clock(), self._nodes)
        return verdict

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


def is_complete(names: Sequence[str]) -> bool:
    """Whether the scheduler would take no other node: a sample ends with its hundredth one."""
    return len(names) < MAX_COMPLETE_LIST
