"""Plain pods that kube-scheduler has nominated to where members waited at bind, and may not try though these have gone.

It ends such a member like any other victim, and tries the preemptor again when a pod that counts on a node is deleted.
A member stops counting at once when its bind call fails, which is when its gang ends: at the first victim, so before
the others are deleted, or before kube-scheduler itself has seen the deletion. What kube-scheduler then hears of comes
while it still waits for its own deletions to return, when it tries the preemptor not at all (upstream's
pkg/scheduler/framework/preemption/executor.go: isRunningPreemption), and the deletion of a pod that counts nowhere is
no reason to try it later (pkg/scheduler/eventhandlers.go: deletePodFromSchedulingQueue).
"""

from collections.abc import Callable, Iterable, Iterator

from extender.scheduling.effects import Outbox, Requeue
from serried.cluster.store import Store
from serried.model.pod import Pod
from serried.plan.fit import slots

_REMEMBERED_SECONDS = 30.0
"""For how long after a failed bind call its node is looked at: the deletions of victims may be many, or slow."""

_PATIENCE_SECONDS = 1.0
"""How long there is room for a pod before it is woken.

kube-scheduler may be about to try it, or may not have the answers to its own deletions yet.
"""


class OverlookedPreemptors:
    """Finds and wakes them. Synchronous. ``clock`` gives loop seconds.

    The next leader does not know of them, like `scheduling.refused_preemptors`.
    """

    def __init__(self, store: Store, outbox: Outbox, clock: Callable[[], float]) -> None:
        self._store = store
        self._outbox = outbox
        self._clock = clock
        self._left: dict[str, float] = {}
        """The nodes for which a bind call has failed, the oldest first, and when."""

        self._found: dict[str, float] = {}
        """The UIDs of those that were found at the last review, and since when they were."""

    def note_left(self, node: str) -> None:
        """A member's bind call for this node has failed: kube-scheduler gives its room away."""
        self._left.pop(node, None)
        self._left[node] = self._clock()

    def review(self) -> None:
        """Have those woken for whom there has been room for a while. Called about twice a second."""
        now = self._clock()
        while self._left and (first := next(iter(self._left))) and self._left[first] < now - _REMEMBERED_SECONDS:
            del self._left[first]
        found = {pod.uid: pod for pod in self._find(self._store.nominations)} if self._left else {}
        self._found = {uid: self._found.get(uid, now) for uid in found}
        for uid in [uid for uid, since in self._found.items() if now - since >= _PATIENCE_SECONDS]:
            del self._found[uid]
            self._outbox.put(Requeue(found[uid], found[uid].nominated))

    def _find(self, nominated: Iterable[Pod]) -> Iterator[Pod]:
        """Those pods of no gang that have room on the node that they are nominated to, where a member waited."""
        members, schedulers = self._store.members, self._store.schedulers
        for pod in nominated:
            if pod.nominated not in self._left or pod.scheduler not in schedulers:
                continue
            if members.group_of(pod.uid) is None and self._has_room(pod):
                yield pod

    def _has_room(self, pod: Pod) -> bool:
        node = self._store.nodes.get(pod.nominated)
        return node is not None and slots(pod.shape, node, self._store.occupancy.used.get(node.name)) > 0
