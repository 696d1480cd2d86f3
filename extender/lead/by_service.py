"""Leader election where kube-scheduler calls a Service: the extenders' own Lease, and the Service's EndpointSlice.

`Candidacy.run` takes part in the election. `EndpointSlice.run` writes the leader's address into the EndpointSlice, so
that the Service leads to it. A selector of the Service would not do, because it selects all ready pods. A standby is
ready, too, so that rollouts and drains need not wait for it. And the pod on a node that has lost its power stays ready
for most of a minute.
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

It is long enough for another extender to acquire the Lease, which it checks every few seconds. It is also longer than
the time for which the last renewal would still let this extender lead (`extender.lead.leadership.Leadership`).
"""

_LOOK_SECONDS = 1.0
"""The pause between two checks whether the leader still plans, in seconds.

It is the period of the probe that does this check where kube-scheduler runs in the same Pod as the extender.
"""


class Candidacy:
    """One extender in the election: it acquires and renews the Lease, and releases it if the extender does not plan.

    A Lease would be renewed even if its holder hangs. So a leader that has not planned for too long releases the Lease,
    and stays out of the election for `REST_SECONDS`, in which another extender takes over. If there is no other one,
    it acquires the Lease again.

    ``may_keep_leading`` is `extender.lead.leadership.Idleness.may_keep_leading`: False if the extender has not planned
    for too long. It is called every ``check_seconds`` while the Lease is held, and at least once after the Lease
    was lost or released: this call ends the idle time of the term, so that it does not count in the next one.
    ``cancel_requests`` cancels the requests of this term to the API server, and returns when none is in flight.
    ``clock`` returns monotonic seconds.
    """

    def __init__(
        self,
        election: Election,
        leadership: Leadership,
        may_keep_leading: Callable[[], bool],
        cancel_requests: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        *,
        check_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._election = election
        self._leadership = leadership
        self._may_keep_leading = may_keep_leading
        self._cancel_requests = cancel_requests
        self._clock = clock
        self._check_seconds = check_seconds

    async def run(self) -> NoReturn:
        """Take part in the election until cancelled. Call it after the first list of every watch."""
        while True:
            await self._election.acquire()
            try:
                await self._renew_lease()
            except LeaseLostError:
                self._may_keep_leading()  # resets the idle time, which must not count in the next term
            else:
                await self._stay_out()

    async def _renew_lease(self) -> None:
        """Renew the Lease. Return when this extender has not planned for too long; the Lease is still held then.

        Raises LeaseLostError if the Lease could not be renewed in time.
        """
        keeping = asyncio.create_task(self._election.keep())
        try:
            while self._may_keep_leading():
                lost, _ = await asyncio.wait([keeping], timeout=self._check_seconds)
                if lost:
                    await keeping
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _stay_out(self) -> None:
        log.warning("this instance has not planned for too long: it releases the Lease, so that another one can lead")
        # In this order: no request of this instance may be in flight when the next leader begins.
        self._leadership.suspend()
        await self._cancel_requests()
        await self._election.release()
        until = self._clock() + REST_SECONDS
        while self._clock() < until:
            self._may_keep_leading()
            await asyncio.sleep(self._check_seconds)
        self._leadership.resume()


ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")

_SERVICE_NAME = "kubernetes.io/service-name"

_SLICE_LOOK_SECONDS = 5.0
"""The pause between two checks by the leader that the EndpointSlice still has its address, in seconds."""

_RETRY = Backoff(first=0.5, cap=_SLICE_LOOK_SECONDS)
"""The pauses after failed writes. They are short, as kube-scheduler calls the earlier leader until one succeeds."""


class EndpointSlice:
    """Writes this instance's address into the Service's EndpointSlice while it leads.

    ``name`` is the namespace and name of Service and EndpointSlice, ``address`` the IP address of this Pod, ``ports``
    the port numbers by the names of the Service's ports. ``leads`` returns True while this instance leads; ``client``
    refuses to write at other times. The EndpointSlice is checked every ``check_seconds``.
    """

    def __init__(
        self,
        client: ApiClient,
        name: Key,
        address: str,
        ports: Mapping[str, int],
        *,
        leads: Callable[[], bool],
        check_seconds: float = _SLICE_LOOK_SECONDS,
    ) -> None:
        self.obstacle = ""
        """The error of the last write; "" if it succeeded, and while this instance does not lead."""

        self._client = client
        self._name = name
        self._leads = leads
        self._check_seconds = check_seconds
        self._object = _describe(name, address, ports)
        self._leadership_changed = asyncio.Event()
        self._failures = 0
        """The number of failed writes in a row, since the last success or change of leadership."""

    def on_leadership_change(self) -> None:
        """Let `run` check the EndpointSlice at once, because this instance has won or lost leadership."""
        self._leadership_changed.set()

    async def run(self) -> None:
        """Write the EndpointSlice whenever it is not as this leader needs it. Run until cancelled."""
        while True:
            self._leadership_changed.clear()  # first, so that a change during the write below is not missed
            if self._leads():
                await self.reconcile()
            else:
                self.obstacle, self._failures = "", 0
            try:
                async with asyncio.timeout(self._pause_seconds):
                    await self._leadership_changed.wait()
            except TimeoutError:
                continue

    @property
    def _pause_seconds(self) -> float:
        return min(self._check_seconds, _RETRY.delay(self._failures)) if self._failures else self._check_seconds

    async def reconcile(self) -> None:
        """Write the EndpointSlice if it is missing, or has another address, Service or ports.

        An ApiError is logged, and its text is kept in the attribute ``obstacle`` until a write succeeds.
        """
        try:
            if not await self._is_current():
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

    async def _is_current(self) -> bool:
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
    """Return the fields of an EndpointSlice that matter for comparing two: the Service's name, endpoints and ports."""
    labels = (found.get("metadata") or {}).get("labels") or {}
    endpoints = [
        (each.get("addresses"), (each.get("conditions") or {}).get("ready")) for each in found.get("endpoints") or ()
    ]
    ports = {each.get("name"): each.get("port") for each in found.get("ports") or ()}
    return labels.get(_SERVICE_NAME), endpoints, ports
