"""The two ways to hold the members of a waiting gang, and a warning about members that neither way can hold.

Either filter holds a member: kube-scheduler tries it, and the extender's filter call returns no node. Or a scheduling
gate holds it, so that kube-scheduler does not try it. The gate saves kube-scheduler this work, but costs one write per
pod when it is removed; so it is better for long queues. A MutatingAdmissionPolicy adds the gate when a pod is created,
if the ConfigMap that it has as its parameter says so. `HoldSwitch.run` chooses the way and writes this ConfigMap.

`Isolation.run` reports members that a kube-scheduler binds without calling the extender, because they do not request a
marker, an extended resource (`serried.api.resources.MARKERS`).
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
"""The pause between two rounds of `HoldSwitch.run`, and of `Isolation.run`, in seconds."""

_RETRY_SECONDS = 60.0
"""The pause after a write that failed because the ConfigMap is missing or may not be written, in seconds."""


@dataclass(slots=True, eq=False)
class HoldSwitch:
    """Chooses whether filter or a gate holds new members, and writes the choice into the ConfigMap. One per process."""

    _client: ApiClient

    _switch: Key
    """The namespace and name of the ConfigMap that the MutatingAdmissionPolicy reads."""

    mode: str
    """The value of the flag ``--hold``: filter, gate, or auto, with which `choose` decides."""

    _limit: int
    """The number of pods held by filter above which auto chooses gate; below half of it, auto chooses filter again."""

    _schedules_gangs: Callable[[], bool]
    """Returns True while kube-scheduler's own gang scheduling is on; auto then always chooses filter."""

    _clock: Callable[[], float]

    _autoscaled: Callable[[], bool | None] = lambda: False
    """Returns True if the cluster has an autoscaler, which would add nodes for pods that filter holds; None if unknown.

    With an autoscaler auto chooses gate. While that is unknown, `reconcile` does nothing in mode auto.
    """

    way: str = ""
    """The way in which new members are held since the last write: filter or gate; "" before a term's first write."""

    obstacle: str = ""
    """The reason why the last write of the ConfigMap failed, a sentence; "" if it succeeded.

    It is also "" if the setting is filter and the ConfigMap does not exist, because filter holds then anyway.
    """

    _retry_at: float = 0.0
    """The time before which there is no further write after a failure, by ``_clock``."""

    _leadership_changes: int = 0
    """The number of changes of leadership so far. If it grows during a write, the result of the write is ignored."""

    def forget(self) -> None:
        """Forget what was written.

        Called when leadership changes, because another leader may have written the ConfigMap.
        """
        self._leadership_changes += 1
        self._retry_at = 0.0
        self.way = ""

    def choose(self, held: int) -> str:
        """Return the way to hold new members: filter or gate.

        The flag ``--hold`` decides. If it is auto, the way is filter while kube-scheduler's own gang scheduling is on.
        Otherwise it is gate if the cluster has an autoscaler, or if ``held``, the number of pods that filter holds now,
        exceeds a limit. Below half of the limit it is filter again; in between it stays as it is.
        """
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
        """Call `reconcile` every second, until cancelled.

        It is called only while ``is_active`` returns True, i.e. while this instance leads. ``count_held`` returns the
        number of pods that filter holds now.
        """
        while True:
            if is_active():
                await self.reconcile(count_held())
            await asyncio.sleep(_LOOK_SECONDS)

    async def reconcile(self, held: int) -> None:
        """Choose whether filter or a gate holds new members, and write the choice into the ConfigMap if it has changed.

        Write it also if the last write failed and the pause after that is over. Does nothing in mode auto while it is
        unknown whether the cluster has an autoscaler. ``held`` is the number of pods that filter holds now.
        """
        if self.mode == "auto" and self._autoscaled() is None:
            return
        way = self.choose(held)
        if (way == self.way and not self.obstacle) or self._clock() < self._retry_at:
            return
        before = self._leadership_changes
        try:
            body = {"data": {"hold": way}}
            await self._client.patch_merge(CONFIG_MAPS, self._switch.namespace, self._switch.name, body)
        except ApiError as error:
            if before == self._leadership_changes:
                self._set_obstacle(error, way)
            return
        if before == self._leadership_changes:  # else another leader may have written the ConfigMap after this write
            self.way = way
            self.obstacle = ""

    def _set_obstacle(self, error: ApiError, way: str) -> None:
        """Set ``obstacle``, the sentence about a failed write of the ConfigMap, and log the error if it is a new one.

        ``way`` is the value that could not be written: filter or gate. If the ConfigMap does not exist, no pod gets a
        gate, so the attribute ``way`` becomes filter. If that is the setting, ``obstacle`` is "", and nothing is
        logged.
        """
        said = f"Serried cannot write the ConfigMap that switches scheduling gates: {error}"
        if isinstance(error, NotFound | Forbidden):
            self._retry_at = self._clock() + _RETRY_SECONDS
        if isinstance(error, NotFound):
            self.way = "filter"
            said = (
                f"ConfigMap {self._switch} does not exist: for scheduling gates, apply "
                "manifests/kustomize/overlays/gate"
            )
        if self.mode == self.way:
            said = ""  # filter was asked for, and holds
        elif said != self.obstacle:
            level = logging.WARNING if way == "gate" else logging.INFO
            text = "could not write the ConfigMap that switches scheduling gates on and off; trying again"
            log.log(level, text, extra={"configMap": str(self._switch), "err": str(error)})
        self.obstacle = said


UNMARKED = "Unmarked"
"""The reason of the event about a member without markers, which kube-scheduler binds without its gang."""

_MESSAGE = (
    "the pod may be a member of a gang, but it lacks the markers scheduling.serried.dev/member and /member-bind, so"
    " kube-scheduler binds it without its gang. It was created before the policy serried-marker was installed: delete"
    " the pod, so that its owner creates it again"
)

_MAX_EXAMPLES = 10
"""The number of unmarked members that ``/debug/selfcheck`` names."""


class Isolation:
    """Finds waiting members of gangs that lack a marker, and emits an event about each.

    A marker is an extended resource (`serried.api.resources.MARKERS`) that an admission policy adds to the requests of
    members. A kube-scheduler can be configured to call the extender only for pods that request it, so that other pods
    do not depend on the extender (an isolated installation, docs/install.md). It binds a member without markers by
    itself, without its gang. Serried cannot stop that, so it emits an event at once.

    ``isolated`` is True if kube-scheduler is configured so. Otherwise there are no events, and the members without
    markers are only counted, for administrators who plan to configure it so. ``schedulers`` are the schedulerNames that
    Serried serves. ``leads`` returns True while this instance leads.
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
        """Returns True while this instance leads: only then it emits events. A new leader may repeat an event."""

        self._waiting: dict[str, Pod] = {}
        """The pods without markers that wait for a node and name a group or an owner that may have one, by UID."""

        self._emitted: set[str] = set()
        """The UIDs of the pods in ``_waiting`` about which an event was emitted."""

    def on_change(self, old: Item | None, new: Item | None) -> None:
        """Update the list of waiting members without markers after one change in the Store.

        ``old`` is None for a new object, ``new`` for a deleted one.
        """
        if isinstance(new, Pod):
            self._update(new)
        elif isinstance(old, Pod):
            self._forget(old.uid)

    def _update(self, new: Pod) -> None:
        if new.marked or new.scheduler not in self._schedulers:
            return
        if new.pending and new.may_be_member:
            self._waiting[new.uid] = new
            if self.isolated:
                self._emit(new)  # at once, as kube-scheduler does not wait
            return
        self._forget(new.uid)

    def _forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._emitted.discard(uid)

    def list_unmarked(self) -> list[Pod]:
        """Return the waiting pods that are members of a gang but do not request the markers (see `Isolation`)."""
        return [pod for uid, pod in self._waiting.items() if self._is_member(uid)]

    def _is_member(self, uid: str) -> bool:
        key = self._members.group_of(uid)
        group = self._groups.get(key) if key is not None else None
        return key is not None and (group is None or group.policy.is_gang or group.topology_key is not None)

    def emit_events(self) -> None:
        """Emit an event about each waiting member that requests no marker (see the module) and has none yet."""
        for pod in self._waiting.values():
            self._emit(pod)

    def _emit(self, pod: Pod) -> None:
        if pod.uid in self._emitted or not self._is_member(pod.uid) or not self._leads():
            return
        self._emitted.add(pod.uid)
        text = "a member lacks its markers, so kube-scheduler binds it without its gang"
        log.warning(text, extra={"pod": f"{pod.namespace}/{pod.name}"})
        about = {"apiVersion": PODS.api_version, "kind": "Pod", "namespace": pod.namespace}
        self._events.emit(about | {"name": pod.name, "uid": pod.uid}, "Warning", UNMARKED, _MESSAGE)

    def describe(self) -> dict[str, Any]:
        """Return the part of ``/debug/selfcheck`` about members without markers: their number and some names."""
        names = sorted(f"{pod.namespace}/{pod.name}" for pod in self.list_unmarked())
        return {"isolated": self.isolated, "unmarkedMembers": len(names), "examples": names[:_MAX_EXAMPLES]}

    async def run(self) -> None:
        """Call `emit_events` every second until cancelled.

        Return at once if kube-scheduler calls the extender about all pods, with or without markers.
        """
        while self.isolated:
            self.emit_events()
            await asyncio.sleep(_LOOK_SECONDS)
