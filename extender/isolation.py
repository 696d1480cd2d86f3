"""Members that an isolated scheduler does not ask about, because they lack the markers (docs/isolation.md).

kube-scheduler binds them one by one, as plain pods; nothing here can stop it. What can be done is to say so at once.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from serried.cluster.members import Members
from serried.feed import Item
from serried.kube.events import EventWriter
from serried.kube.wire import PODS
from serried.model.group import GroupKey, PodGroup
from serried.model.pod import Pod

log = logging.getLogger(__name__)

UNMARKED = "Unmarked"
"""The event of a member without markers."""

_MESSAGE = (
    "it may be a gang's but lacks the markers scheduling.serried.dev/member and /member-bind, so kube-scheduler binds"
    " it alone; it was made before the policy serried-marker, or without it: delete it, and let it be made anew"
)
_LOOK_SECONDS = 1.0
"""The pause between two looks for members that have not been told of."""

_MAX_EXAMPLES = 10
"""How many of them are named on ``/debug/selfcheck``."""


class Isolation:
    """Follows the pods of our scheduler that could be members and lack a marker, as long as they wait for a node.

    ``isolated`` is whether the scheduler's config asks about marked pods only; if not, they are counted, for whoever is
    about to turn it on, and nothing is said.
    """

    def __init__(
        self,
        members: Members,
        groups: Mapping[GroupKey, PodGroup],
        events: EventWriter,
        schedulers: Collection[str],
        *,
        isolated: bool,
        leads: Callable[[], bool],
    ) -> None:
        self.isolated = isolated
        self._members = members
        self._groups = groups
        self._events = events
        self._schedulers = schedulers

        self._leads = leads
        """Whether this instance is the one that tells; what another has told may be told once more."""

        self._waiting: dict[str, Pod] = {}
        """Unmarked pods that wait for a node and could be members, by UID."""

        self._told: set[str] = set()
        """Those of them for which there was an event."""

    def note(self, old: Item | None, new: Item | None) -> None:
        """Follow one change of the cluster; other kinds than pods are passed over."""
        if isinstance(new, Pod):
            self._follow(new)
        elif isinstance(old, Pod):
            self._forget(old.uid)

    def _follow(self, new: Pod) -> None:
        if new.marked or new.scheduler not in self._schedulers:
            return
        if new.pending and new.linked:
            self._waiting[new.uid] = new
            if self.isolated:
                self._tell(new)  # at once: the scheduler does not wait for us
            return
        self._forget(new.uid)

    def _forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._told.discard(uid)

    def list_unmarked(self) -> list[Pod]:
        """The waiting members without markers: of what could be one, what is one."""
        return [pod for uid, pod in self._waiting.items() if self._is_member(uid)]

    def _is_member(self, uid: str) -> bool:
        key = self._members.group_of(uid)
        group = self._groups.get(key) if key is not None else None
        return key is not None and (group is None or group.policy.is_gang or group.topology_key is not None)

    def warn(self) -> None:
        """Tell of those that have not been told of, because they have become members since."""
        for pod in self._waiting.values():
            self._tell(pod)

    def _tell(self, pod: Pod) -> None:
        if pod.uid in self._told or not self._is_member(pod.uid) or not self._leads():
            return
        self._told.add(pod.uid)
        log.warning("a member without markers", extra={"pod": f"{pod.namespace}/{pod.name}"})
        about = {"apiVersion": PODS.api_version, "kind": "Pod", "namespace": pod.namespace}
        self._events.emit(about | {"name": pod.name, "uid": pod.uid}, "Warning", UNMARKED, _MESSAGE)

    def describe(self) -> dict[str, Any]:
        """As JSON, for ``/debug/selfcheck``."""
        names = sorted(f"{pod.namespace}/{pod.name}" for pod in self.list_unmarked())
        return {"isolated": self.isolated, "unmarkedMembers": len(names), "examples": names[:_MAX_EXAMPLES]}

    async def run(self) -> None:
        """Warn until cancelled, where the scheduler is isolated."""
        while self.isolated:
            self.warn()
            await asyncio.sleep(_LOOK_SECONDS)
