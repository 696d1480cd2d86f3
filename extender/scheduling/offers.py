"""What kube-scheduler offers, and refuses, to members that it alone can count for: that is how a gang learns of it.

Synchronous, like the group scheduler: what is learnt here decides its next plan, or ends the cycle that is open.
"""

from collections.abc import Callable, Mapping, Sequence

from extender.scheduling.cycle import BindingCycle
from extender.scheduling.groups import Groups
from extender.scheduling.moves import Moves
from extender.scheduling.objections import describe_refused, find_refused
from serried.cluster.members import Members
from serried.cluster.uncounted import Uncounted
from serried.model.node import Node
from serried.model.pod import Pod
from serried.model.verdict import Verdict


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
        clock: Callable[[], float],
    ) -> None:
        self._pods = pods
        self._nodes = nodes
        self._members = members
        self._uncounted = uncounted
        self._groups = groups
        self._moves = moves
        self._clock = clock

    def note(self, uid: str, names: Sequence[str]) -> None:
        """The scheduler takes these nodes for a pod, and no others."""
        pod = self._pods.get(uid)
        key = self._members.group_of(uid)
        state = self._groups.states.get(key) if key is not None else None
        if pod is None or key is None or state is None or not pod.counted_elsewhere:
            return
        if state.learn_offer(pod.shape, names, self._clock()):
            state.tried = ()
            self._groups.look_again(key)

    def close(self, cycle: BindingCycle, pod: Pod) -> None:
        """Keep a cycle from the nodes that the scheduler did not offer to a member, but for those of other members.

        One that is full by now because they are there is as good for them as before.
        """
        state = self._groups.states[cycle.reservation.group]
        slots = cycle.reservation.slots
        unoffered = state.unoffered([pod], self._clock(), self._nodes)
        if unoffered:
            mates = (slot.node for uid, slot in slots.items() if cycle.member(uid).filtered_at is not None)
            cycle.close_nodes(unoffered.difference(mates))

    def note_vain(self, cycle: BindingCycle, pod: Pod) -> None:
        """The scheduler refuses a member on its node: if others have ended for that, they have in vain."""
        if cycle.eviction_sent and pod.counted_elsewhere:
            node = cycle.reservation.slots[pod.uid].node
            self._groups.states[cycle.reservation.group].note_vain(pod.shape, node, self._clock(), self._nodes)

    def drop_refused(self, cycle: BindingCycle) -> Verdict | None:
        """Take the members out that the scheduler refuses on every node; why the cycle must end, if it must."""
        refused = find_refused(cycle, self._pods, self._members)
        for uid in refused:
            self.note_vain(cycle, self._pods[uid])
            self._moves.drop(cycle, uid, "the scheduler refuses the pod on every node")
        if not refused or cycle.reservation.committed or not cycle.out_of_reach():
            return None
        if self._moves.leave_out(cycle, cycle.reservation.slots):
            return None
        group_members = self._members.classify(cycle.group.key)
        return describe_refused(group_members, cycle.group.policy.min_count or 1, self._uncounted)
