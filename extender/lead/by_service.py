"""Leading where callers come by a Service: the extenders' own election, and the EndpointSlice that leads to the leader.

A Service with a selector would go by readiness. A standby is ready, so that updates and drains may count on it, and a
node that has lost its power stays ready for the better part of a minute.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from extender.lead.leadership import Leadership
from serried.api.names import INSTALLATION, Key
from serried.kube.client import ApiClient
from serried.kube.election import Election, LeaseLostError
from serried.kube.errors import ApiError, NotFound
from serried.kube.retry import Backoff
from serried.kube.wire import Resource

log = logging.getLogger(__name__)

REST_SECONDS = 15.0
"""How long it keeps out, at least. Whoever waits for the Lease looks for it several times in that.

It is longer than the part of the Lease's duration for which its own last renewal would count.
"""

_LOOK_SECONDS = 1.0
"""How often it looks whether it plans: as often as the probe of a scheduler beside it would."""


class Candidacy:
    """One extender's part in the election. ``clock`` is monotonic.

    A Lease is renewed whether its holder plans or not. So one that does not plan for long gives it up, and keeps out of
    the election for a while: the other one takes over. If there is no other, it takes it again.

    ``may_go_on`` is asked while the Lease is held, and at least once after each turn. ``settle`` returns when nothing
    that was begun in this turn is on its way any more.
    """

    def __init__(
        self,
        election: Election,
        leadership: Leadership,
        may_go_on: Callable[[], bool],
        settle: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        *,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._election = election
        self._leadership = leadership
        self._may_go_on = may_go_on
        self._settle = settle
        self._clock = clock
        self._look_seconds = look_seconds

    async def run(self) -> NoReturn:
        """Take part until cancelled. To be called once all caches are listed."""
        while True:
            await self._election.acquire()
            try:
                await self._keep()
            except LeaseLostError:
                self._may_go_on()  # so that the next turn's time counts from its own begin
            else:
                await self._step_back()

    async def _keep(self) -> None:
        """Renew the Lease until there have been no plans for too long. Raises LeaseLostError."""
        keeping = asyncio.create_task(self._election.keep())
        try:
            while self._may_go_on():
                lost, _ = await asyncio.wait([keeping], timeout=self._look_seconds)
                if lost:
                    await keeping
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _step_back(self) -> None:
        log.warning("has not planned for too long, so it gives the Lease up for a while")
        # In this order: whoever leads next must find nothing of ours still on its way.
        self._leadership.lay_down()
        await self._settle()
        await self._election.release()
        until = self._clock() + REST_SECONDS
        while self._clock() < until:
            self._may_go_on()
            await asyncio.sleep(self._look_seconds)
        self._leadership.take_up()


ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")

_SERVICE_NAME = "kubernetes.io/service-name"

_SLICE_LOOK_SECONDS = 5.0
"""How often the leader looks whether it is still there as it was written."""

_RETRY = Backoff(first=0.5, cap=_SLICE_LOOK_SECONDS)
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
        look_seconds: float = _SLICE_LOOK_SECONDS,
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
                INSTALLATION: name.namespace,
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
