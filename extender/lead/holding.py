"""How members are held, by filter or by scheduling gate, and the members that no way holds.

A gate, which the API server adds at creation, costs the scheduler nothing while a gang waits, and a write per pod when
it goes: right for long queues. The MutatingAdmissionPolicy reads a ConfigMap as its parameter: that is the switch.
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
from serried.kube.wire import PODS, Resource

log = logging.getLogger(__name__)

CONFIG_MAPS = Resource("", "v1", "configmaps")

_LOOK_SECONDS = 1.0
"""The pause between two looks for members that have not been told of."""

_RETRY_SECONDS = 60.0
"""The pause before a switch is tried again that is not there, or not ours to set."""


@dataclass(slots=True, eq=False)
class HoldSwitch:
    """Sets the switch. ``clock`` gives loop seconds."""

    _client: ApiClient

    _switch: Key
    """The ConfigMap."""

    mode: str
    """What was asked for: filter, gate or auto."""

    _limit: int
    """With more pods held by filter, auto turns to gates; with less than half as many, back."""

    _schedules_gangs: Callable[[], bool]
    """Whether kube-scheduler's own gang scheduling is on: auto then has no gates."""

    _clock: Callable[[], float]

    _autoscaled: Callable[[], bool | None] = lambda: False
    """Whether there is an autoscaler, which adds nodes for pods that no gate holds; None if that is not known yet."""

    way: str = ""
    """How new members are held, filter or gate; "" before that is known."""

    obstacle: str = ""
    """Why the switch could not be set; "" for no reason."""

    _retry_at: float = 0.0
    """When the switch may be tried again, in loop seconds."""

    _turns: int = 0
    """How often leadership has turned."""

    def forget(self) -> None:
        """Leadership has turned: another instance may set the switch, or has done so."""
        self._turns += 1
        self._retry_at = 0.0
        self.way = ""

    def choose(self, held: int) -> str:
        """The way for new pods, with so many held by filter now."""
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
        """Keep the switch right until cancelled; only the active instance sets it."""
        while True:
            if is_active():
                await self.settle(count_held())
            await asyncio.sleep(_LOOK_SECONDS)

    async def settle(self, held: int) -> None:
        """Write the switch if the way changes. A cluster without the switch holds by filter, whatever was chosen."""
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
                self._meet(error, way)
            return
        if turns == self._turns:  # else another leader's write may have come after it
            self.way = way
            self.obstacle = ""

    def _meet(self, error: ApiError, way: str) -> None:
        """Nobody reads a switch that does not exist, so no pod gets a gate; of any other failure nothing follows."""
        said = f"the gate's switch cannot be set: {error}"
        if isinstance(error, NotFound | Forbidden):
            self._retry_at = self._clock() + _RETRY_SECONDS
        if isinstance(error, NotFound):
            self.way = "filter"
            said = f"there is no ConfigMap {self._switch}: pods get a gate only with manifests/kustomize/overlays/gate"
        if self.mode == self.way:
            said = ""  # as was asked for
        elif said != self.obstacle:
            level = logging.WARNING if way == "gate" else logging.INFO
            log.log(level, "cannot set the gate's switch", extra={"configMap": str(self._switch), "err": str(error)})
        self.obstacle = said


UNMARKED = "Unmarked"
"""The event of a member without markers."""

_MESSAGE = (
    "it may be a gang's but lacks the markers scheduling.serried.dev/member and /member-bind, so kube-scheduler binds"
    " it alone; it was made before the policy serried-marker, or without it: delete it, and let it be made anew"
)

_MAX_EXAMPLES = 10
"""How many of them are named on ``/debug/selfcheck``."""


class Isolation:
    """Follows the pods of our scheduler that could be members and lack a marker, as long as they wait for a node.

    An isolated scheduler does not ask about them (docs/install.md): kube-scheduler binds them one by one, as plain
    pods, and nothing here can stop it but saying so at once. ``isolated`` is whether the scheduler's config asks about
    marked pods only; if not, they are counted, for whoever is about to turn it on, and nothing is said.
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
