"""Plain pods that got no victims for the moment: those on their nodes belong to gangs that are just being bound.

kube-scheduler would try such a pod again when a pod ends or a node changes, else after 5 minutes; the end of a binding
cycle is neither. So it is woken when that cycle has ended. It was rejected for want of room, not by filter, so it takes
more than a touch (`effects.Requeue`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice

from extender.scheduling.cycle import BindingCycle
from extender.scheduling.effects import Outbox, Requeue
from extender.scheduling.groups import Groups
from serried.model.group import GroupKey
from serried.model.pod import Pod

_MAX_WOKEN = 8
"""How many pods are woken at a time, twice a second."""

_MAX_REMEMBERED = 10_000
"""How many pods are remembered; of more, the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """A pod, a node that it could have, and the cycles that stood in its way."""

    pod: Pod
    node: str
    cycles: Mapping[GroupKey, BindingCycle]


class RefusedPreemptors:
    """Remembers and wakes them. Synchronous.

    The next leader does not know of them: after a failover in this moment they wait as they would without us.
    """

    def __init__(self, groups: Groups, outbox: Outbox) -> None:
        self._groups = groups
        self._outbox = outbox
        self._refused: dict[str, _Refused] = {}

    def note(self, pod: Pod, node: str, cycles: Mapping[GroupKey, BindingCycle]) -> None:
        """No candidate was left to this pod, and these cycles were the reason for the node and maybe for others."""
        self._refused.pop(pod.uid, None)
        self._refused[pod.uid] = _Refused(pod, node, cycles)
        if len(self._refused) > _MAX_REMEMBERED:
            self.forget(next(iter(self._refused)))

    def forget(self, uid: str) -> None:
        """This pod has got an answer that names victims."""
        self._refused.pop(uid, None)

    def review(self) -> None:
        """Have those woken of whose cycles one has ended. Called about twice a second."""
        due = (refused for refused in self._refused.values() if self._has_ended(refused.cycles))
        self._wake(list(islice(due, _MAX_WOKEN)))

    def _has_ended(self, cycles: Mapping[GroupKey, BindingCycle]) -> bool:
        states = self._groups.states
        return any(key not in states or states[key].cycle is not cycle for key, cycle in cycles.items())

    def _wake(self, due: Collection[_Refused]) -> None:
        for refused in due:
            del self._refused[refused.pod.uid]
            self._outbox.put(Requeue(refused.pod, refused.node))
