"""Holding a Lease, or following who holds it: one of several processes works, the others wait, as in client-go.

What if we die here: the Lease names us until it has run out, and nobody works; then another one takes it. Who ends in
order gives it up at once. A process that stands still, or does not reach the API server, stops to lead by its own
clock, seconds before anybody else may begin.
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

from serried.api.names import Key, Malformed, Raw, attempt, read_int, read_map, read_text, read_time
from serried.kube.client import ONCE, ApiClient
from serried.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound, misread
from serried.kube.wire import JSON, LEASES


@dataclass(frozen=True, slots=True)
class Lease:
    """A coordination.k8s.io/v1 Lease."""

    holder: str
    """Empty when no process holds it."""

    renewed: int | None = None
    """The renewTime in seconds since 1970, by the holder's clock; None without one."""

    duration: int = 0
    """How many seconds after ``renewed`` others may take the Lease."""


def decode_lease(obj: object) -> Lease | Malformed:
    """A Lease; every field may be absent."""
    return attempt("Lease", _read_lease, obj)


def _read_lease(obj: Raw) -> Lease:
    spec = read_map(obj, "spec")
    renewed = read_time(spec, "renewTime")
    duration = read_int(spec, "leaseDurationSeconds")
    return Lease(read_text(spec, "holderIdentity"), renewed, duration)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """The pace of an election, in seconds."""

    lease: float = 15.0
    """How long after its last renewal others leave a Lease alone."""

    renew: float = 10.0
    """How long after its last renewal its holder leads: what is on its way then arrives before others begin."""

    retry: float = 1.0
    """The pause between two renewals; others look every one to two and a bit of it."""

    release: float = 2.0
    """How long whoever ends waits for the answer when it gives the Lease up."""


TIMING = Timing()

_JITTER = 1.2
"""By how much a pause may be longer, in pauses: those who wait together do not ask together."""


class LeaseLostError(Exception):
    """Somebody else may hold the Lease by now."""


@dataclass(eq=False)
class Election:
    """Takes part for one Lease. ``clock`` is monotonic, ``wall`` gives seconds since 1970.

    ``holder`` names the Pod. There is one process in it at a time, so a Lease that this Pod held is that of a process
    which is gone, and is taken at once. Without a name ("") every Lease is another's.
    """

    client: ApiClient
    lease: Key
    holder: str
    clock: Callable[[], float]
    wall: Callable[[], float]
    timing: Timing = TIMING

    identity: str = field(init=False)

    _renewed: float | None = field(default=None, init=False)
    """When the last renewal was asked for that was granted; None if the Lease is not ours."""

    _seen: tuple[str, float] = field(default=("", 0.0), init=False)
    """The resourceVersion of the Lease as others keep it, and when it was seen first."""

    _complaint: str = field(default="", init=False)
    """The last warning, which is not repeated until an answer has come."""

    def __post_init__(self) -> None:
        self.identity = f"{self.holder or socket.gethostname()}_{uuid.uuid4()}"

    def leads(self) -> bool:
        """Whether nobody else can hold the Lease at this moment."""
        return self._renewed is not None and self.clock() < self._renewed + self.timing.renew

    async def acquire(self) -> None:
        """Wait until the Lease is ours."""
        while True:
            if await self._try():
                break
            await asyncio.sleep(self.timing.retry * (1.0 + random.uniform(0.0, _JITTER)))  # noqa: S311
        log.info("holds the Lease", extra={"lease": str(self.lease), "holder": self.identity})

    async def keep(self) -> NoReturn:
        """Renew the Lease until cancelled. Raises LeaseLostError."""
        while True:
            await asyncio.sleep(self.timing.retry)
            if not await self._try() and not self.leads():
                self._renewed = None
                raise LeaseLostError(f"the Lease {self.lease} could not be renewed")

    async def release(self) -> None:
        """Give the Lease up, if it is ours: others need not wait until it has run out."""
        if self._renewed is None:
            return
        self._renewed = None
        try:
            async with asyncio.timeout(self.timing.release):
                await self._give_up()
        except (ApiError, TimeoutError) as error:
            log.warning("the Lease could not be given up", extra={"lease": str(self.lease), "err": str(error)})

    async def _give_up(self) -> None:
        try:
            await self._clear()
        except Conflict:
            await self._clear()  # our last renewal, of which nobody awaits the answer any more, came between

    async def _clear(self) -> None:
        found = await self._read()
        if found is not None and _decode_found(found).holder == self.identity:
            await self._write(found, "", seconds=1)

    async def _try(self) -> bool:
        """Whether the Lease is ours from now on."""
        asked = self.clock()
        try:
            async with asyncio.timeout(self.timing.renew / 2):
                taken = await self._take()
        except (ApiError, TimeoutError) as error:
            self._complain(error)
            return False
        self._complaint = ""
        if taken:
            self._renewed = asked
        return taken

    def _complain(self, error: Exception) -> None:
        # Other failures pass; this one stays until somebody grants the right.
        warns = isinstance(error, Forbidden) and str(error) != self._complaint
        self._complaint = str(error)
        level = logging.WARNING if warns else logging.INFO
        log.log(level, "cannot ask for the Lease", extra={"lease": str(self.lease), "err": str(error)})

    async def _take(self) -> bool:
        found = await self._read()
        if found is not None and not self._may_take(found):
            self._renewed = None
            return False
        try:
            await self._write(found, self.identity, seconds=int(self.timing.lease))
        except (AlreadyExists, Conflict):
            return False  # another was faster, or our own last write was late
        return True

    def _may_take(self, found: JSON) -> bool:
        lease, version = _decode_found(found), str(found["metadata"].get("resourceVersion"))
        if lease.holder in {"", self.identity}:
            return True
        if self._renewed is not None:
            return False  # it was ours, and somebody has taken it
        if self.holder and lease.holder.rpartition("_")[0] == self.holder:
            return True
        now = self.clock()
        if version != self._seen[0]:
            # Counted from here, by one clock: the holder's may be another.
            self._seen = (version, now)
        return now >= self._seen[1] + lease.duration

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
        """The Lease in the answer; raises Unavailable for any other one, which is no renewal."""
        found = await self.client.ask_object(method, path, retry=ONCE, **how)
        if found.get("kind") != "Lease":
            raise misread(f"{method} {path}", 200, f"no Lease: {str(found)[:80]}")
        return found

    def _path(self, name: str = "") -> str:
        return LEASES.path(self.lease.namespace, name)


def _decode_found(found: JSON) -> Lease:
    lease = decode_lease(found)
    return Lease("") if isinstance(lease, Malformed) else lease
