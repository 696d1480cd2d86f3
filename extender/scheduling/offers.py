"""What kube-scheduler offers, and refuses, to members that it alone can count for: that is how a gang learns of it.

Synchronous, like the group scheduler: what is learnt here decides its next plan, or ends the cycle that is open.
"""

from collections.abc import Callable, Sequence

from extender.scheduling.cycle import BindingCycle
from extender.scheduling.groups import Groups
from extender.scheduling.moves import Moves
from extender.scheduling.objections import describe_refused, find_refused
from serried.cluster.store import Store
from serried.model.pod import Pod
from serried.model.verdict import Verdict


class Offers:
    """Reads the scheduler's word."""

    def __init__(self, store: Store, groups: Groups, moves: Moves, clock: Callable[[], float]) -> None:
        self._store = store
        self._groups = groups
        self._moves = moves
        self._clock = clock

    def note(self, uid: str, names: Sequence[str]) -> None:
        """The scheduler takes these nodes for a pod, and no others."""
        pod, key = self._store.pods.get(uid), self._store.members.group_of(uid)
        gang = self._groups.states.get(key) if key is not None else None
        if pod is None or key is None or gang is None or not pod.counted_elsewhere:
            return
        if gang.learn_offer(pod.shape, names, self._clock()):
            gang.tried = ()
            self._groups.look_again(key)

    def close(self, cycle: BindingCycle, pod: Pod) -> None:
        """Keep a cycle from the nodes that the scheduler did not offer to a member, but for those of its mates.

        One that is full by now because they are there is as good for them as before.
        """
        gang, slots = self._groups.states[cycle.reservation.group], cycle.reservation.slots
        unoffered = gang.unoffered([pod], self._clock(), self._store.nodes)
        if unoffered:
            cycle.closed |= unoffered - {slots[mate].node for mate in cycle.confirmed if mate in slots}

    def drop_refused(self, cycle: BindingCycle) -> Verdict | None:
        """Take the members out that the scheduler refuses on every node; why the cycle must end, if it must."""
        refused = find_refused(cycle, self._store)
        for uid in refused:
            self._moves.drop(cycle, uid, "the scheduler refuses the pod on every node")
        if not refused or cycle.reservation.committed or not cycle.out_of_reach():
            return None
        if self._moves.leave_out(cycle, cycle.reservation.slots):
            return None
        return describe_refused(
            self._store.members.classify(cycle.group.key), cycle.group.policy.min_count or 1, self._store
        )
