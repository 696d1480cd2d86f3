"""Holding: the pods that filter has turned away, and the switch between holding by filter and by scheduling gate.

A gate, which the API server adds at creation, costs the scheduler nothing while a gang waits, and a write per pod when
it goes: right for long queues. The MutatingAdmissionPolicy reads a ConfigMap as its parameter; that ConfigMap is the
switch.
"""

import logging
from collections.abc import Callable, Iterator, Mapping

from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, NotFound
from serried.kube.wire import Resource
from serried.model.group import Key
from serried.model.pod import Pod

log = logging.getLogger(__name__)

CONFIG_MAPS = Resource("", "v1", "configmaps")

_STRANGER_SECONDS = 360.0
"""Longer than kube-scheduler leaves a pod alone (5 minutes, looked at every 30 s): it asks again before that."""

_MOST_STRANGERS = 50_000

_RETRY_SECONDS = 60.0
"""A switch that is not there, or not ours to set, is tried again so rarely."""


class HeldPods:
    """The pods that filter has turned away, by UID, so that those which turn out to need no gang can be woken.

    A pod that our watch has not shown yet is a stranger: news to our watch only, or gone already, nobody can tell. It
    is remembered until kube-scheduler would have asked about it again by itself; of too many, the oldest are forgotten.
    ``len`` and iteration are over the pods that are known. ``pods`` is the Store's own map.
    """

    def __init__(self, pods: Mapping[str, Pod]) -> None:
        self._pods = pods
        self._known: dict[str, None] = {}
        self._strangers: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __contains__(self, uid: str) -> bool:
        return uid in self._known or uid in self._strangers

    def note(self, uid: str, now: float) -> None:
        """Filter has turned this pod away at this time."""
        self._strangers.pop(uid, None)
        if uid in self._pods:
            self._known[uid] = None
            return
        self._strangers[uid] = now
        if len(self._strangers) > _MOST_STRANGERS:
            del self._strangers[next(iter(self._strangers))]

    def forget(self, uid: str) -> bool:
        """This pod is held no longer; whether it was."""
        return self._strangers.pop(uid, None) is not None or self._known.pop(uid, "") is None

    def review(self, now: float) -> None:
        """Keep only pods that may still be waiting; strangers that the watch has shown meanwhile are known now."""
        for uid in [uid for uid in self._strangers if uid in self._pods]:
            del self._strangers[uid]
            self._known[uid] = None
        while self._strangers and now - self._strangers[oldest := next(iter(self._strangers))] > _STRANGER_SECONDS:
            del self._strangers[oldest]
        self._known = {uid: None for uid in self._known if uid in self._pods and self._pods[uid].pending}


class HoldSwitch:
    """Sets the switch.

    ``mode`` is filter, gate or auto: auto turns to gates above ``limit`` pods held by filter, and back below half.
    ``way`` is how new members are held, "" before that is known; ``obstacle`` says why the switch could not be set.
    """

    def __init__(self, client: ApiClient, switch: Key, mode: str, limit: int, clock: Callable[[], float]) -> None:
        self.way, self.obstacle = "", ""
        self._client, self._switch, self._mode, self._limit = client, switch, mode, limit
        self._clock, self._again = clock, 0.0

    def choose(self, held: int) -> str:
        """The way for new pods, with so many held by filter now."""
        if self._mode != "auto":
            return self._mode
        if held > self._limit:
            return "gate"
        return "filter" if held < self._limit / 2 else self.way or "filter"

    async def settle(self, held: int) -> None:
        """Write the switch if the way changes. A cluster without the switch holds by filter, whatever was chosen."""
        way = self.choose(held)
        if (way == self.way and not self.obstacle) or self._clock() < self._again:
            return
        try:
            body = {"data": {"hold": way}}
            await self._client.patch_merge(CONFIG_MAPS, self._switch.namespace, self._switch.name, body)
        except ApiError as error:
            self._meet(error, way)
            return
        self.way, self.obstacle = way, ""

    def _meet(self, error: ApiError, way: str) -> None:
        """Nobody reads a switch that does not exist, so no pod gets a gate; of any other failure nothing follows."""
        said = f"the gate's switch cannot be set: {error}"
        if isinstance(error, NotFound | Forbidden):
            self._again = self._clock() + _RETRY_SECONDS
        if isinstance(error, NotFound):
            self.way = "filter"
            said = f"there is no ConfigMap {self._switch}: pods get a gate only with manifests/kustomize/overlays/gate"
        if self._mode == self.way:
            said = ""  # as was asked for
        elif said != self.obstacle:
            level = logging.WARNING if way == "gate" else logging.INFO
            log.log(level, "cannot set the gate's switch", extra={"configMap": str(self._switch), "err": str(error)})
        self.obstacle = said
