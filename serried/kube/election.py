"""Leader election with a Lease, as in client-go: one of several processes leads, the others wait.

Use: `Election.acquire`, then `Election.keep` until it raises, then `Election.release`.

If the leader dies, the Lease names it until the Lease has expired; until then no process leads. A leader that ends in
order releases the Lease at once. A leader that is suspended, or cannot reach the API server, stops leading by its own
clock (`Timing.renew`), seconds before another process may acquire the Lease (`Timing.lease`).
"""

import asyncio
import logging
import random
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

import orjson

from serried.api.names import Key, Malformed, Raw, decode_or_malformed, read_int, read_map, read_text, read_time
from serried.kube.client import ONCE, ApiClient
from serried.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound, misread
from serried.kube.wire import JSON, LEASES


@dataclass(frozen=True, slots=True)
class Lease:
    """A coordination.k8s.io/v1 Lease."""

    holder: str
    """The identity of the process that holds it; "" if no process does."""

    renewed: int | None = None
    """The renewTime in seconds since 1970, by the holder's clock; None if the Lease has none."""

    duration: int = 0
    """The leaseDurationSeconds: after this many seconds without renewal another process may acquire the Lease."""


def decode_lease(obj: object) -> Lease | Malformed:
    """Decode a Lease; every field may be absent."""
    return decode_or_malformed("Lease", _read_lease, obj)


def _read_lease(obj: Raw) -> Lease:
    spec = read_map(obj, "spec")
    renewed = read_time(spec, "renewTime")
    duration = read_int(spec, "leaseDurationSeconds")
    return Lease(read_text(spec, "holderIdentity"), renewed, duration)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """The durations of an election, in seconds."""

    lease: float = 15.0
    """The duration of the Lease: so long after the last renewal no other process may acquire it."""

    renew: float = 10.0
    """The holder leads for so long after its last renewal; less than ``lease``, so that its last requests arrive."""

    retry: float = 1.0
    """The pause between two renewals. Processes that wait for the Lease try after 1 to 2.2 times this pause."""

    release: float = 2.0
    """The timeout of the request that releases the Lease when the process ends."""


TIMING = Timing()

_JITTER = 1.2
"""The random part of the pause of a waiting process, as a multiple of `Timing.retry` (client-go's JitterFactor)."""


class LeaseLostError(Exception):
    """Raised when the Lease was not renewed in time: another process may hold it by now."""


@dataclass(eq=False)
class Election:
    """One process as a candidate for the Lease ``lease``. ``clock`` is monotonic, ``wall`` returns seconds since 1970.

    ``holder`` is the name of this process's Pod. A Pod runs one process at a time, so a Lease whose holder is an
    earlier process of the same Pod is acquired at once. If the name is "", every other holder counts as running.
    """

    client: ApiClient
    lease: Key
    holder: str
    clock: Callable[[], float]
    wall: Callable[[], float]
    timing: Timing = TIMING

    identity: str = field(init=False)
    """The holderIdentity of this process: the name of the Pod or host, and a random UUID."""
    _renewed: float | None = field(default=None, init=False)
    """The time by ``clock`` at which the last successful renewal was sent; None without the Lease."""

    _observed: tuple[str, float] = field(default=("", 0.0), init=False)
    """The last resourceVersion of a Lease held by another process, and when it was observed first, by ``clock``."""

    _last_warning: str = field(default="", init=False)
    """The last logged failure, whose warning is not repeated; "" after a successful request."""

    def __post_init__(self) -> None:
        self.identity = f"{self.holder or socket.gethostname()}_{uuid.uuid4()}"

    def leads(self) -> bool:
        """Return whether this process leads. It is True only while no other process can hold the Lease."""
        return self._renewed is not None and self.clock() < self._renewed + self.timing.renew

    async def acquire(self) -> None:
        """Wait until this process holds the Lease."""
        while True:
            if await self._try_acquire_or_renew():
                break
            await asyncio.sleep(self.timing.retry * (1.0 + random.uniform(0.0, _JITTER)))  # noqa: S311
        log.info("this process holds the Lease now", extra={"lease": str(self.lease), "holder": self.identity})

    async def keep(self) -> NoReturn:
        """Renew the Lease every `Timing.retry` seconds until cancelled. Call it after `acquire`.

        Raises LeaseLostError if no renewal has succeeded for `Timing.renew` seconds.
        """
        while True:
            await asyncio.sleep(self.timing.retry)
            if not await self._try_acquire_or_renew() and not self.leads():
                self._renewed = None
                raise LeaseLostError(f"this process could not renew the Lease {self.lease}")

    async def release(self) -> None:
        """Release the Lease if this process holds it, so that others need not wait until it expires. Never raises."""
        if self._renewed is None:
            return
        self._renewed = None
        try:
            async with asyncio.timeout(self.timing.release):
                await self._release()
        except (ApiError, TimeoutError) as error:
            log.warning(
                "could not release the Lease; another process acquires it when it expires",
                extra={"lease": str(self.lease), "err": str(error)},
            )

    async def _release(self) -> None:
        try:
            await self._clear_holder()
        except Conflict:
            await self._clear_holder()  # our last renewal, cancelled but already sent, changed the Lease meanwhile

    async def _clear_holder(self) -> None:
        found = await self._read()
        if found is not None and _decode_found(found).holder == self.identity:
            await self._write(found, "", seconds=1)

    async def _try_acquire_or_renew(self) -> bool:
        """Acquire or renew the Lease. Return whether this process holds it now; False also if the request failed."""
        asked = self.clock()
        try:
            async with asyncio.timeout(self.timing.renew / 2):
                taken = await self._acquire_or_renew()
        except (ApiError, TimeoutError) as error:
            self._log_failure(error)
            return False
        self._last_warning = ""
        if taken:
            self._renewed = asked
        return taken

    def _log_failure(self, error: Exception) -> None:
        # Other failures are temporary. A missing right lasts until an administrator grants it.
        warns = isinstance(error, Forbidden) and str(error) != self._last_warning
        self._last_warning = str(error)
        level = logging.WARNING if warns else logging.INFO
        log.log(
            level,
            "cannot acquire or renew the Lease; trying again",
            extra={"lease": str(self.lease), "err": str(error)},
        )

    async def _acquire_or_renew(self) -> bool:
        found = await self._read()
        if found is not None and not self._may_acquire(found):
            self._renewed = None
            return False
        try:
            await self._write(found, self.identity, seconds=int(self.timing.lease))
        except (AlreadyExists, Conflict):
            return False  # another process was faster, or our own last write arrived late
        return True

    def _may_acquire(self, found: JSON) -> bool:
        lease, version = _decode_found(found), str(found["metadata"].get("resourceVersion"))
        if lease.holder in {"", self.identity}:
            return True
        if self._renewed is not None:
            return False  # this process held it, and another one has acquired it
        if self.holder and lease.holder.rpartition("_")[0] == self.holder:
            return True
        now = self.clock()
        if version != self._observed[0]:
            # The duration is measured from here by our own clock: the holder's clock may differ.
            self._observed = (version, now)
        return now >= self._observed[1] + lease.duration

    async def _read(self) -> JSON | None:
        try:
            return await self._ask("GET", self._path(self.lease.name))
        except NotFound:
            return None

    async def _write(self, found: JSON | None, holder: str, seconds: int) -> None:
        now = datetime.fromtimestamp(self.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = (found or {}).get("spec") or {}
        turns = old.get("holderIdentity") != holder
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "renewTime": now,
            "acquireTime": now if turns else old.get("acquireTime", now),
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + bool(turns and holder and found),
        }
        if found is None:
            metadata = {"name": self.lease.name, "namespace": self.lease.namespace}
            body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": spec}
            await self._ask("POST", self._path(), body=orjson.dumps(body))
        else:
            body = {**found, "spec": {**old, **spec}}
            await self._ask("PUT", self._path(self.lease.name), body=orjson.dumps(body))

    async def _ask(self, method: str, path: str, **how: Any) -> JSON:
        """Send a request, and return the Lease in the answer. Raise Unavailable if the answer is no Lease."""
        found = await self.client.ask_object(method, path, retry=ONCE, **how)
        if found.get("kind") != "Lease":
            raise misread(f"{method} {path}", 200, f"no Lease: {str(found)[:80]}")
        return found

    def _path(self, name: str = "") -> str:
        return LEASES.path(self.lease.namespace, name)


def _decode_found(found: JSON) -> Lease:
    lease = decode_lease(found)
    return Lease("") if isinstance(lease, Malformed) else lease
