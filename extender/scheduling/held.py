"""The pods that filter has turned away."""

from collections.abc import Iterator, Mapping

from cachetools import TTLCache

from serried.model.pod import Pod

_STRANGER_SECONDS = 360.0
"""How long a pod that is not known is remembered.

Longer than kube-scheduler leaves a pod alone (5 minutes, looked at every 30 s): it asks again before that.
"""

_MAX_STRANGERS = 50_000


class HeldPods:
    """The pods that filter has turned away, by UID, so that those which turn out to need no gang can be woken.

    A pod that our watch does not show is a stranger: the watch may be late, or the pod gone. It is remembered until
    kube-scheduler would have asked about it again by itself; of too many, the oldest are forgotten. ``len`` and
    iteration are over the pods that are known. ``pods`` is the Store's own map.
    """

    def __init__(self, pods: Mapping[str, Pod]) -> None:
        self._pods = pods
        self._known: dict[str, None] = {}
        self._now = 0.0
        self._strangers: TTLCache[str, None] = TTLCache(_MAX_STRANGERS, _STRANGER_SECONDS, timer=lambda: self._now)

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __contains__(self, uid: str) -> bool:
        return uid in self._known or uid in self._strangers

    def note(self, uid: str, now: float) -> None:
        """Filter has turned this pod away at this time."""
        self._now = now
        self._strangers.pop(uid, None)
        (self._known if uid in self._pods else self._strangers)[uid] = None

    def forget(self, uid: str) -> bool:
        """This pod is held no longer; whether it was."""
        # Asked for each filter answer, when nearly always nobody is a stranger: a pop would look at the clock first.
        was_stranger = self._strangers.currsize > 0 and self._strangers.pop(uid, "") is None
        return was_stranger or self._known.pop(uid, "") is None

    def needs_activation(self, pod: Pod) -> bool:
        """Whether the scheduler has put a pod aside, and tries it again only when a write of ours wakes it."""
        return pod.unschedulable or pod.uid in self

    def review(self, now: float) -> None:
        """Keep only pods that may still be waiting; strangers that the watch has shown meanwhile are known now."""
        self._now = now
        for uid in [uid for uid in self._strangers if uid in self._pods]:
            del self._strangers[uid]
            self._known[uid] = None
        self._known = {uid: None for uid in self._known if uid in self._pods and self._pods[uid].pending}
