"""Leader election where kube-scheduler calls a Service: the extenders' own Lease, and the Service's EndpointSlice.

`Candidacy.run` takes part in the election; `EndpointSlice.run` writes the leader's address. A Service with a selector
would not do, as it goes by readiness. A standby is ready, so that rollouts and drains need not wait for it, and the pod
on a node that has lost its power stays ready for most of a minute.
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
"""The time for which an extender that gave up the Lease stays out of the election, in seconds.

A waiting extender looks at the Lease several times in it. It is longer than the part of the Lease's duration for which
the last renewal would count.
"""

_LOOK_SECONDS = 1.0
"""The pause between two checks for idleness: as long as between the probes of a kube-scheduler in the same Pod."""


class Candidacy:
    """One extender's part in the election. ``clock`` is monotonic, in seconds.

    A Lease is renewed whether its holder plans or not. So a leader that has not planned for too long releases the
    Lease, and stays out of the election for a while, in which the other extender takes over. If there is no other, it
    acquires the Lease again.

    ``may_keep_leading`` (`Idleness.may_keep_leading`) is called while the Lease is held, and at least once after that.
    ``settle`` waits until no request of this term is in flight.
    """

    def __init__(
        self,
        election: Election,
        leadership: Leadership,
        may_keep_leading: Callable[[], bool],
        settle: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        *,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._election = election
        self._leadership = leadership
        self._may_keep_leading = may_keep_leading
        self._settle = settle
        self._clock = clock
        self._look_seconds = look_seconds

    async def run(self) -> NoReturn:
        """Take part until cancelled. Call after the first list of every watch."""
        while True:
            await self._election.acquire()
            try:
                await self._keep()
            except LeaseLostError:
                self._may_keep_leading()  # resets the idle time, which must not count in the next term
            else:
                await self._step_back()

    async def _keep(self) -> None:
        """Renew the Lease until nothing has been planned for too long. Raises LeaseLostError."""
        keeping = asyncio.create_task(self._election.keep())
        try:
            while self._may_keep_leading():
                lost, _ = await asyncio.wait([keeping], timeout=self._look_seconds)
                if lost:
                    await keeping
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _step_back(self) -> None:
        log.warning("this instance has not planned for too long: it releases the Lease, so that another one can lead")
        # In this order: no request of this instance may be in flight when the next leader begins.
        self._leadership.suspend()
        await self._settle()
        await self._election.release()
        until = self._clock() + REST_SECONDS
        while self._clock() < until:
            self._may_keep_leading()
            await asyncio.sleep(self._look_seconds)
        self._leadership.resume()


ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")

_SERVICE_NAME = "kubernetes.io/service-name"

_SLICE_LOOK_SECONDS = 5.0
"""The pause in which the leader compares the EndpointSlice with what it has written."""

_RETRY = Backoff(first=0.5, cap=_SLICE_LOOK_SECONDS)
"""The pauses after failures. Until the write succeeds, calls go to the earlier leader."""


class EndpointSlice:
    """Writes this instance's address to the Service's EndpointSlice while it leads.

    ``client`` writes only while this instance leads; ``ports`` are the Service's ports by name.
    """

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
        """The error of the last write; "" if it succeeded, and while this instance does not lead."""

        self._client = client
        self._name = name
        self._leads = leads
        self._look_seconds = look_seconds
        self._object = _describe(name, address, ports)
        self._turned = asyncio.Event()
        self._failures = 0
        """The number of failures in a row."""

    def note_turn(self) -> None:
        """Take note that leadership has changed: this instance has won or lost it."""
        self._turned.set()

    async def run(self) -> None:
        """Keep the EndpointSlice up to date until cancelled."""
        while True:
            self._turned.clear()  # first, so that a change of leadership during the write below is not missed
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
        """Write the EndpointSlice if it differs. A failure is logged, and kept in ``obstacle``."""
        try:
            if not await self._is_right():
                await self._client.apply(ENDPOINT_SLICES, self._name.namespace, self._name.name, self._object)
                log.info("the Service now leads to this instance", extra={"endpointSlice": str(self._name)})
        except ApiError as error:
            if str(error) != self.obstacle:
                text = "cannot write the EndpointSlice, so kube-scheduler does not reach this leader; trying again"
                log.error(text, extra={"endpointSlice": str(self._name), "err": str(error)})
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
    """Return the Service's name, the endpoints and the ports of an EndpointSlice; fields may be missing."""
    labels = (found.get("metadata") or {}).get("labels") or {}
    endpoints = [
        (each.get("addresses"), (each.get("conditions") or {}).get("ready")) for each in found.get("endpoints") or ()
    ]
    ports = {each.get("name"): each.get("port") for each in found.get("ports") or ()}
    return labels.get(_SERVICE_NAME), endpoints, ports
