"""What kube-scheduler offers, and refuses, to members that it alone can count for: that is how a gang learns of it.

Synchronous, like the conductor: what is learnt here decides its next plan, or ends the round that is open.
"""

from collections.abc import Callable, Mapping, Sequence

from extender.gang import Gang
from extender.moves import Moves
from extender.objections import describe_refused, find_refused
from extender.round import Round
from serried.cluster.store import Store
from serried.model.group import Key
from serried.model.pod import Pod
from serried.model.verdict import Verdict


class Offers:
    """Reads the scheduler's word. ``gangs`` is the conductor's own map, ``wake`` has it look again."""

    def __init__(
        self,
        store: Store,
        moves: Moves,
        gangs: Mapping[Key, Gang],
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._store, self._moves, self._gangs, self._clock, self._wake = store, moves, gangs, clock, wake

    def note(self, uid: str, names: Sequence[str]) -> None:
        """The scheduler takes these nodes for a pod, and no others."""
        pod, key = self._store.pods.get(uid), self._store.group_of(uid)
        gang = self._gangs.get(key) if key is not None else None
        if pod is None or key is None or gang is None or not pod.counted_elsewhere:
            return
        if gang.learn_offer(pod.shape, names, self._clock()):
            gang.tried = ()
            self._store.touched.add(key)
            self._wake()

    def close(self, round_: Round, pod: Pod) -> None:
        """Keep a round from the nodes that the scheduler did not offer to a member, but for those of its mates.

        One that is full by now because they are there is as good for them as before.
        """
        gang, slots = self._gangs[round_.reservation.group], round_.reservation.slots
        unoffered = gang.unoffered([pod], self._clock(), self._store.nodes)
        if unoffered:
            round_.closed |= unoffered - {slots[mate].node for mate in round_.confirmed if mate in slots}

    def drop_refused(self, round_: Round) -> Verdict | None:
        """Take the members out that the scheduler refuses on every node; why the round must end, if it must."""
        refused = find_refused(round_, self._store)
        for uid in refused:
            self._moves.drop(round_, uid, "the scheduler refuses the pod on every node")
        if not refused or round_.reservation.committed or not round_.out_of_reach():
            return None
        if self._moves.leave_out(round_, round_.reservation.slots):
            return None
        return describe_refused(self._store.stand(round_.group.key), round_.group.policy.min_count or 1, self._store)
