"""The ways to hold waiting members, filter or scheduling gate, and a warning about members that neither can hold.

`HoldSwitch.run` chooses the way. A gate, which the API server adds when the pod is created, costs kube-scheduler
nothing while the gang waits, and one write per pod when it is removed: right for long queues. The switch is a ConfigMap
that the MutatingAdmissionPolicy reads as its parameter. `Isolation` finds the members that an isolated scheduler binds
without a call.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from serried.api.group import PodGroup
from serried.api.names import GroupKey, Key
from serried.api.pod import Pod
from serried.cluster.members import Members
from serried.feed import Item
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, NotFound
from serried.kube.events import EventWriter
from serried.kube.wire import CONFIG_MAPS, PODS

log = logging.getLogger(__name__)


_LOOK_SECONDS = 1.0
"""The pause between two rounds of `HoldSwitch` and of `Isolation`."""

_RETRY_SECONDS = 60.0
"""The pause after a write that failed because the ConfigMap is missing or may not be written."""


@dataclass(slots=True, eq=False)
class HoldSwitch:
    """Chooses how new members are held, and writes it to the ConfigMap. ``clock`` gives loop seconds."""

    _client: ApiClient

    _switch: Key
    """The ConfigMap that the admission policy reads."""

    mode: str
    """The flag ``--hold``: filter, gate or auto."""

    _limit: int
    """The number of pods held by filter above which auto turns to gates; below half of it, auto turns back."""

    _schedules_gangs: Callable[[], bool]
    """Returns True while kube-scheduler's own gang scheduling is on: auto then never chooses gates."""

    _clock: Callable[[], float]

    _autoscaled: Callable[[], bool | None] = lambda: False
    """Returns whether there is an autoscaler, which adds nodes for pods without gates; None if that is not known."""

    way: str = ""
    """The way in which new members are held, filter or gate; "" before the ConfigMap was written."""

    obstacle: str = ""
    """The reason why the ConfigMap could not be written, a sentence; "" if it was."""

    _retry_at: float = 0.0
    """The time of the next try after a failure, in loop seconds."""

    _turns: int = 0
    """The number of changes of leadership, by which a late answer is recognized."""

    def forget(self) -> None:
        """Forget what was written, as leadership has changed: another instance may write the ConfigMap meanwhile."""
        self._turns += 1
        self._retry_at = 0.0
        self.way = ""

    def choose(self, held: int) -> str:
        """Return the way for new pods, filter or gate; ``held`` is the number of pods that filter holds now."""
        if self.mode != "auto":
            return self.mode
        if self._schedules_gangs():
            return "filter"
        if self._autoscaled():
            return "gate"
        if held > self._limit:
            return "gate"
        return "filter" if held < self._limit / 2 else self.way or "filter"

    async def run(self, is_active: Callable[[], bool], count_held: Callable[[], int]) -> None:
        """Keep the ConfigMap up to date while ``is_active``, until cancelled."""
        while True:
            if is_active():
                await self.settle(count_held())
            await asyncio.sleep(_LOOK_SECONDS)

    async def settle(self, held: int) -> None:
        """Write the ConfigMap if the way has changed. Without the ConfigMap, filter holds, whatever was chosen."""
        if self.mode == "auto" and self._autoscaled() is None:
            return
        way = self.choose(held)
        if (way == self.way and not self.obstacle) or self._clock() < self._retry_at:
            return
        turns = self._turns
        try:
            body = {"data": {"hold": way}}
            await self._client.patch_merge(CONFIG_MAPS, self._switch.namespace, self._switch.name, body)
        except ApiError as error:
            if turns == self._turns:
                self._note_failure(error, way)
            return
        if turns == self._turns:  # else another leader may have written the ConfigMap after this write
            self.way = way
            self.obstacle = ""

    def _note_failure(self, error: ApiError, way: str) -> None:
        """Set ``obstacle``, and log it once. If the ConfigMap does not exist, no pod gets a gate, so filter holds."""
        said = f"the gate's switch cannot be set: {error}"
        if isinstance(error, NotFound | Forbidden):
            self._retry_at = self._clock() + _RETRY_SECONDS
        if isinstance(error, NotFound):
            self.way = "filter"
            said = f"there is no ConfigMap {self._switch}: pods get a gate only with manifests/kustomize/overlays/gate"
        if self.mode == self.way:
            said = ""  # filter was asked for, and holds
        elif said != self.obstacle:
            level = logging.WARNING if way == "gate" else logging.INFO
            text = "could not write the ConfigMap that switches scheduling gates on and off; trying again"
            log.log(level, text, extra={"configMap": str(self._switch), "err": str(error)})
        self.obstacle = said


UNMARKED = "Unmarked"
"""The event of a member without markers."""

_MESSAGE = (
    "it may be a gang's but lacks the markers scheduling.serried.dev/member and /member-bind, so kube-scheduler binds"
    " it alone; it was made before the policy serried-marker, or without it: delete it, and let it be made anew"
)

_MAX_EXAMPLES = 10
"""The number of unmarked members that ``/debug/selfcheck`` names."""


class Isolation:
    """Finds waiting pods of Serried's schedulers that could be members and lack a marker.

    An isolated kube-scheduler calls the extender for marked pods only (docs/install.md). It binds unmarked members one
    by one, as plain pods. Serried cannot stop that, so it emits an event at once. ``isolated`` is True if the
    scheduler's configuration is such. Otherwise the pods are only counted, for administrators who plan to isolate it.
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
        """Returns whether this instance emits events. After a change of leadership, an event may come twice."""

        self._waiting: dict[str, Pod] = {}
        """Unmarked pods that wait for a node and could be members, by UID."""

        self._told: set[str] = set()
        """The UIDs of those pods for which there was an event."""

    def note(self, old: Item | None, new: Item | None) -> None:
        """Take note of one change in the Store; kinds other than pods are passed over."""
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
                self._emit(new)  # at once, as kube-scheduler does not wait
            return
        self._forget(new.uid)

    def _forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._told.discard(uid)

    def list_unmarked(self) -> list[Pod]:
        """Return the waiting pods without markers that are members of a gang."""
        return [pod for uid, pod in self._waiting.items() if self._is_member(uid)]

    def _is_member(self, uid: str) -> bool:
        key = self._members.group_of(uid)
        group = self._groups.get(key) if key is not None else None
        return key is not None and (group is None or group.policy.is_gang or group.topology_key is not None)

    def warn(self) -> None:
        """Emit an event for each unmarked pod that has become a member since its last change."""
        for pod in self._waiting.values():
            self._emit(pod)

    def _emit(self, pod: Pod) -> None:
        if pod.uid in self._told or not self._is_member(pod.uid) or not self._leads():
            return
        self._told.add(pod.uid)
        text = "a member lacks its markers, so kube-scheduler binds it without its gang"
        log.warning(text, extra={"pod": f"{pod.namespace}/{pod.name}"})
        about = {"apiVersion": PODS.api_version, "kind": "Pod", "namespace": pod.namespace}
        self._events.emit(about | {"name": pod.name, "uid": pod.uid}, "Warning", UNMARKED, _MESSAGE)

    def describe(self) -> dict[str, Any]:
        """Return the JSON part of ``/debug/selfcheck`` about unmarked members."""
        names = sorted(f"{pod.namespace}/{pod.name}" for pod in self.list_unmarked())
        return {"isolated": self.isolated, "unmarkedMembers": len(names), "examples": names[:_MAX_EXAMPLES]}

    async def run(self) -> None:
        """Warn again and again until cancelled; return at once if the scheduler is not isolated."""
        while self.isolated:
            self.warn()
            await asyncio.sleep(_LOOK_SECONDS)
