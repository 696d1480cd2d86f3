"""The way of holding new members: by filter, or by a scheduling gate that the API server adds at creation.

A gate costs the scheduler nothing while a gang waits, and a write per pod when it goes: right for long queues. The
MutatingAdmissionPolicy reads a ConfigMap as its parameter; that ConfigMap is the switch.
"""

import logging

from serried.kube.client import ApiClient
from serried.kube.errors import ApiError
from serried.kube.wire import Resource
from serried.model.group import Key

log = logging.getLogger(__name__)

CONFIG_MAPS = Resource("", "v1", "configmaps")


class HoldSwitch:
    """Sets the switch.

    ``mode`` is filter, gate or auto: auto turns to gates above ``limit`` pods held by filter, and back below half.
    """

    def __init__(self, client: ApiClient, switch: Key, mode: str, limit: int) -> None:
        self.way = ""
        self._client, self._switch, self._mode, self._limit = client, switch, mode, limit

    def choose(self, held: int) -> str:
        """The way for new pods, with so many held by filter now."""
        if self._mode != "auto":
            return self._mode
        if held > self._limit:
            return "gate"
        return "filter" if held < self._limit / 2 else self.way or "filter"

    async def settle(self, held: int) -> None:
        """Write the switch if the way changes. A cluster without the gate's policy keeps holding by filter."""
        way = self.choose(held)
        if way == self.way:
            return
        try:
            body = {"data": {"hold": way}}
            await self._client.patch_merge(CONFIG_MAPS, self._switch.namespace, self._switch.name, body)
        except ApiError as error:
            if self._mode == "gate" or way == "gate":
                log.warning("cannot set the gate's switch", extra={"configMap": str(self._switch), "err": str(error)})
            if error.status != 404:
                return
        self.way = way
