"""Plain pods that kube-scheduler has nominated to where members waited at bind, and may not try though these have gone.

It ends such a member like any other victim, and tries the preemptor again when a pod that counts on a node is deleted.
A member stops counting at once when its bind call fails, which is when its gang ends: at the first victim, so before
the others are deleted, or before kube-scheduler itself has seen the deletion. What kube-scheduler then hears of comes
while it still waits for its own deletions to return, when it tries the preemptor not at all (upstream's
pkg/scheduler/framework/preemption/executor.go: isRunningPreemption), and the deletion of a pod that counts nowhere is
no reason to try it later (pkg/scheduler/eventhandlers.go: deletePodFromSchedulingQueue).
"""

from collections.abc import Callable, Iterator

from extender.scheduling.effects import Outbox, Requeue
from serried.cluster.store import Store
from serried.model.pod import Pod
from serried.plan.fit import slots

_REMEMBERED_SECONDS = 30.0
"""For how long after a failed bind call its node is looked at: the deletions of victims may be many, or slow."""

_PATIENCE_SECONDS = 11.0
"""How long there is room for a pod before it is woken, and woken once more.

More than kube-scheduler's longest backoff (``podMaxBackoffSeconds``, 10 by default), after which a pod is tried anyway.
To be woken costs the pod its nomination, which is all that keeps others off the node.
"""

_MAX_WOKEN = 8
"""How many pods are woken at a time, twice a second."""

PodOnNode = tuple[str, str]
"""The UID of a pod, and the node that it is for."""


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

        self._found: dict[PodOnNode, float] = {}
        """Those that were found at the last review, and since when they were, or when they were woken."""

        self._woken: set[PodOnNode] = set()
        """Those of them that were woken, so that they carry no nomination any more.

        It may have been too early once more: kube-scheduler may still have waited for its deletions.
        """

    def note_left(self, node: str) -> None:
        """A bind call for this node has failed: kube-scheduler gives its room away."""
        self._left.pop(node, None)
        self._left[node] = self._clock()

    def end_term(self) -> None:
        """Another instance may lead from now on: what was seen is too old when this one does again."""
        self._left.clear()
        self._found.clear()
        self._woken.clear()

    def review(self) -> None:
        """Have those woken for whom there has been room for a while. Called about twice a second."""
        now = self._clock()
        while self._left and self._left[first := next(iter(self._left))] < now - _REMEMBERED_SECONDS:
            del self._left[first]
        found = {(pod.uid, node): pod for pod, node in self._find()} if self._left else {}
        self._found = {key: self._found.get(key, now) for key in found}
        self._woken &= found.keys()
        due = [key for key, since in self._found.items() if now - since >= _PATIENCE_SECONDS]
        if due:
            self._wake({key: found[key] for key in due[:_MAX_WOKEN]}, now)

    def _wake(self, due: dict[PodOnNode, Pod], now: float) -> None:
        # The deletion of a pod that counts there wakes them in time. Before that they would look for other victims.
        ending = {pod.node for pod in self._store.pods.values() if pod.deleting and pod.node in self._left}
        for key, pod in due.items():
            self._found[key] = now
            if key[1] not in ending:
                self._woken.add(key)
                self._outbox.put(Requeue(pod, key[1]))

    def _find(self) -> Iterator[tuple[Pod, str]]:
        """Those pods that have room on the node that they are nominated to, or were when they were woken."""
        for pod, node in self._candidates():
            if node in self._left and self._may_be_overlooked(pod) and self._has_room(pod, node):
                yield pod, node

    def _candidates(self) -> Iterator[tuple[Pod, str]]:
        for pod in self._store.nominations:
            yield pod, pod.nominated
        for uid, node in self._woken:
            woken = self._store.pods.get(uid)
            if woken is not None and woken.pending and not woken.nominated:
                yield woken, node

    def _may_be_overlooked(self, pod: Pod) -> bool:
        """Whether it is a pod of no gang, and one that kube-scheduler does not nominate while it waits in PreBind.

        There it waits for volumes and devices (upstream's NominatedNodeNameForExpectation), and needs no waking.
        """
        if pod.scheduler not in self._store.schedulers or self._store.members.group_of(pod.uid) is not None:
            return False
        return not pod.counted_elsewhere and not self._store.volumes.count_unbound([pod])

    def _has_room(self, pod: Pod, name: str) -> bool:
        node = self._store.nodes.get(name)
        return node is not None and slots(pod.shape, node, self._store.occupancy.used.get(name)) > 0
