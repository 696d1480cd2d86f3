"""The switch between holding by filter and by scheduling gate.

A gate, which the API server adds at creation, costs the scheduler nothing while a gang waits, and a write per pod when
it goes: right for long queues. The MutatingAdmissionPolicy reads a ConfigMap as its parameter; that ConfigMap is the
switch.
"""

import asyncio
import logging
from collections.abc import Callable

from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, NotFound
from serried.kube.wire import Resource
from serried.model.group import Key

log = logging.getLogger(__name__)

CONFIG_MAPS = Resource("", "v1", "configmaps")

_LOOK_SECONDS = 1.0
"""The pause between two looks for members that have not been told of."""

_RETRY_SECONDS = 60.0
"""The pause before a switch is tried again that is not there, or not ours to set."""


class HoldSwitch:
    """Sets the switch. ``clock`` gives loop seconds."""

    def __init__(
        self,
        client: ApiClient,
        switch: Key,
        mode: str,
        limit: int,
        *,
        schedules_gangs: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self.mode = mode
        """What was asked for: filter, gate or auto."""

        self.way = ""
        """How new members are held, filter or gate; "" before that is known."""

        self.obstacle = ""
        """Why the switch could not be set; "" for no reason."""

        self._client = client

        self._switch = switch
        """The ConfigMap."""

        self._limit = limit
        """With more pods held by filter, auto turns to gates; with less than half as many, back."""

        self._schedules_gangs = schedules_gangs
        """Whether kube-scheduler's own gang scheduling is on: auto then has no gates."""

        self._clock = clock

        self._retry_at = 0.0
        """When the switch may be tried again, in loop seconds."""

        self._turns = 0
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
