"""The EndpointSlice of the Service by which a scheduler elsewhere calls: whoever leads writes its own address there.

A Service with a selector would go by readiness. A standby is ready, so that updates and drains may count on it, and a
node that has lost its power stays ready for the better part of a minute.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Mapping
from typing import Any

from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, NotFound
from serried.kube.wire import Resource
from serried.model.backoff import Backoff
from serried.model.group import Key

log = logging.getLogger(__name__)

ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")

_SERVICE_NAME = "kubernetes.io/service-name"

_LOOK_SECONDS = 5.0
"""How often the leader looks whether it is still there as it was written."""

_RETRY = Backoff(first=0.5, cap=_LOOK_SECONDS)
"""Until it is written, callers go to whoever led before."""


class EndpointSlice:
    """Keeps one right. ``client`` writes only while we lead; ``ports`` are the Service's, by name."""

    def __init__(
        self,
        client: ApiClient,
        name: Key,
        address: str,
        ports: Mapping[str, int],
        *,
        leads: Callable[[], bool],
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self.obstacle = ""
        """Why it could not be written; "" for no reason, and while we do not lead."""

        self._client = client
        self._name = name
        self._leads = leads
        self._look_seconds = look_seconds
        self._object = _describe(name, address, ports)
        self._turned = asyncio.Event()
        self._failures = 0
        """How many looks in a row could not set it right."""

    def note_turn(self) -> None:
        """Leadership has turned, to us or away."""
        self._turned.set()

    async def run(self) -> None:
        """Keep it right until cancelled."""
        while True:
            self._turned.clear()  # before the look: a turn during the writes below is looked at as well
            if self._leads():
                await self.settle()
            else:
                self.obstacle, self._failures = "", 0
            try:
                async with asyncio.timeout(self._pause_seconds):
                    await self._turned.wait()
            except TimeoutError:
                continue

    @property
    def _pause_seconds(self) -> float:
        return min(self._look_seconds, _RETRY.delay(self._failures)) if self._failures else self._look_seconds

    async def settle(self) -> None:
        """Write it if it says anything else."""
        try:
            if not await self._is_right():
                await self._client.apply(ENDPOINT_SLICES, self._name.namespace, self._name.name, self._object)
                log.info("the Service leads to this instance", extra={"endpointSlice": str(self._name)})
        except ApiError as error:
            if str(error) != self.obstacle:
                log.error("cannot write the EndpointSlice", extra={"endpointSlice": str(self._name), "err": str(error)})
            self.obstacle = str(error)
            self._failures += 1
        else:
            self.obstacle, self._failures = "", 0

    async def _is_right(self) -> bool:
        try:
            found = await self._client.get(ENDPOINT_SLICES, self._name.namespace, self._name.name)
        except NotFound:
            return False
        return _read(found) == _read(self._object)


def _describe(name: Key, address: str, ports: Mapping[str, int]) -> dict[str, Any]:
    return {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": "EndpointSlice",
        "metadata": {
            "name": name.name,
            "namespace": name.namespace,
            "labels": {
                _SERVICE_NAME: name.name,
                "endpointslice.kubernetes.io/managed-by": "serried",
            },
        },
        "addressType": f"IPv{ipaddress.ip_address(address).version}",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": port, "port": number, "protocol": "TCP"} for port, number in ports.items()],
    }


def _read(found: Mapping[str, Any]) -> tuple[str | None, list[Any], dict[Any, Any]]:
    """What leads callers here: the Service, its endpoints and its ports. Fields may have been left out."""
    labels = (found.get("metadata") or {}).get("labels") or {}
    endpoints = [
        (each.get("addresses"), (each.get("conditions") or {}).get("ready")) for each in found.get("endpoints") or ()
    ]
    ports = {each.get("name"): each.get("port") for each in found.get("ports") or ()}
    return labels.get(_SERVICE_NAME), endpoints, ports
