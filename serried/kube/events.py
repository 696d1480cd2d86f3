"""Writes core/v1 Events in the background. The first occurrence is written at once, repeats raise its ``count``.

`EventWriter.emit` queues an occurrence, and `EventWriter.run` writes.
"""

import asyncio
import heapq
import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import orjson
from cachetools import FIFOCache

from serried.api.names import write_time
from serried.kube.calls import JSON_TYPE
from serried.kube.client import MERGE_PATCH, ONCE, ApiClient
from serried.kube.errors import ApiError, NotFound
from serried.kube.retry import FairQueue, RateLimiter
from serried.kube.wire import EVENTS, JSON

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 5.0

_MAX_MESSAGE_LENGTH = 1024
"""The maximum length of an Event's message, in characters. The API server rejects longer ones."""

_GIVE_WAY_POLL_SECONDS = 0.25
"""The interval of calls of `EventWriter.gives_way` while Events of type Normal wait for more important writes."""

_SeriesKey = tuple[str, str]
"""Identifies a series: the UID of the object, and the reason."""


@dataclass(slots=True)
class _Series:
    """All occurrences of one reason for one object. They are written as one Event object with a count."""

    regarding: Mapping[str, str]
    """The reference to the object that the Event is about (``involvedObject``)."""

    type: str
    """Normal or Warning."""

    reason: str

    message: str
    """The message of the last occurrence."""

    first: str
    """The time of the first occurrence, as the API writes it."""

    last: str
    """The time of the last occurrence."""

    count: int = 1

    name: str = ""
    """The name of the Event; "" until it exists."""

    queued: bool = True
    """True while the series is in a queue: it has occurrences that are not written yet."""

    due: float = 0.0
    """The earliest monotonic time of the next write; infinity while a write is in flight."""

    @property
    def namespace(self) -> str:
        return self.regarding.get("namespace") or "default"


@dataclass(eq=False)
class EventWriter:
    """The Events of one process. `emit` queues them at any time, `run` writes them until cancelled.

    There are three queues, in this order: new series of type Warning, new series of type Normal, and repeats. Each
    serves the namespaces round robin. If a queue for new series is full, the namespace with the most entries loses its
    newest one.
    """

    client: ApiClient

    component: str
    """The ``source.component`` of the Events."""

    pause: float = 60.0
    """The shortest time in seconds between two writes of one series."""

    limit: int = 2000
    """The capacity of each queue for new series; more are dropped.

    Twice as many series are remembered, so that repeats raise the count of the same Event.
    """

    writers: int = 8
    """The maximum number of writes in flight."""

    rate_limiter: RateLimiter | None = None
    """Limits how often a write starts; None for no limit."""

    gives_way: Callable[[], bool] = lambda: False
    """Function that returns whether more important writes are in progress, such as Bindings.

    While it returns True, Events of type Normal wait; Warnings do not.
    """

    clock: Callable[[], float] = time.monotonic
    """The monotonic time in seconds."""

    dropped: int = field(default=0, init=False)
    """The number of occurrences that were lost because a queue was full or a write failed."""

    _warnings: FairQueue[_SeriesKey] = field(default_factory=FairQueue, init=False)
    _normal: FairQueue[_SeriesKey] = field(default_factory=FairQueue, init=False)

    _repeated: FairQueue[_SeriesKey] = field(default_factory=FairQueue, init=False)
    """The keys of series with new repeats that may be written now (``due`` has passed)."""

    _later: list[tuple[float, _SeriesKey]] = field(default_factory=list, init=False)
    """A heap of series with new repeats that are not due yet, as (monotonic time of the next write, key)."""

    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self._series: FIFOCache[_SeriesKey, _Series] = FIFOCache(2 * self.limit)

    def emit(self, regarding: Mapping[str, str], kind: str, reason: str, message: str) -> None:
        """Queue an Event with this message about an object. Never blocks, never raises.

        ``regarding`` has apiVersion, kind, name, uid and, for namespaced objects, namespace. ``kind`` is "Normal" or
        "Warning". Events with the same UID and reason form one series.
        """
        now = write_time(time.time())
        message = message[:_MAX_MESSAGE_LENGTH]
        key = (regarding["uid"], reason)
        series = self._series.get(key)
        new_queue = self._warnings if kind == "Warning" else self._normal
        if series is not None:
            series.count = series.count + 1
            series.last = now
            series.message = message
            series.type = kind
            if not series.queued:
                series.queued = True
                self._schedule_repeat(key, series)
        else:
            self._queue_new(new_queue, key, _Series(regarding, kind, reason, message, first=now, last=now))
        self._wake.set()

    def _queue_new(self, new_queue: FairQueue[_SeriesKey], key: _SeriesKey, series: _Series) -> None:
        if len(new_queue) >= self.limit:
            self._count_dropped()
            given_up = new_queue.pop_newest_for(series.namespace)
            if given_up is None:
                return
            self._series.pop(given_up, None)
        self._series[key] = series
        new_queue.add(series.namespace, key)

    def _schedule_repeat(self, key: _SeriesKey, series: _Series) -> None:
        if series.due < math.inf:  # else a write is in flight, and schedules the repeat when it ends
            heapq.heappush(self._later, (series.due, key))

    async def run(self) -> None:
        """Write the queued Events until cancelled, at most as many at a time as the field ``writers`` says."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.writers):
                group.create_task(self._run_writer())

    async def _run_writer(self) -> NoReturn:
        while True:
            while (key := self._pop_next()) is not None:
                await self._write(key)
            self._wake.clear()
            try:
                async with asyncio.timeout(self._seconds_to_next()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _pop_next(self) -> _SeriesKey | None:
        if self.rate_limiter is not None and self.rate_limiter.delay(self.clock()):
            return None
        key = self._pop_new() or self._pop_repeated()
        if key is not None and self.rate_limiter is not None:
            self.rate_limiter.take()
        return key

    def _pop_new(self) -> _SeriesKey | None:
        return self._pop(self._warnings) or (None if self.gives_way() else self._pop(self._normal))

    def _pop_repeated(self) -> _SeriesKey | None:
        now = self.clock()
        while self._later and self._later[0][0] <= now:
            key = heapq.heappop(self._later)[1]
            # The entry may be outdated: its series was forgotten, and a new one has the same key.
            if self._is_queued(key) and self._series[key].due <= now:
                self._repeated.add(self._series[key].namespace, key)
        return self._pop(self._repeated)

    def _pop(self, queue: FairQueue[_SeriesKey]) -> _SeriesKey | None:
        while (key := queue.take()) is not None:
            if self._is_queued(key):
                return key
        return None

    def _is_queued(self, key: _SeriesKey) -> bool:
        """Return whether the series of this key still has to be written.

        Since it was queued, the series may have been dropped, because too many are remembered.
        """
        series = self._series.get(key)
        return series is not None and series.queued

    def _seconds_to_next(self) -> float | None:
        now = self.clock()
        due = self._later[0][0] if self._later else math.inf
        if self._repeated:
            due = now
        if self._warnings or self._normal:
            due = now + (_GIVE_WAY_POLL_SECONDS if self.gives_way() else 0.0)
        if due == math.inf:
            return None
        return max(0.0, due - now, self.rate_limiter.delay(now) if self.rate_limiter is not None else 0.0)

    async def _write(self, key: _SeriesKey) -> None:
        series = self._series[key]
        # Occurrences during this write are written by a later one: a series has one writer at a time.
        series.queued = False
        series.due = math.inf
        try:
            await (self._patch_count(series) if series.name else self._create(series))
        except ApiError as err:
            self._count_dropped()
            if not series.name:
                # Forget the series, so that its next occurrence creates the Event.
                self._series.pop(key, None)
            log.warning("could not write an event; it is dropped", extra={"reason": series.reason, "err": str(err)})
        except Exception:
            # A bug that one Event triggers must not stop the writer for all others.
            self._count_dropped()
            log.exception("could not write an event; it is dropped", extra={"reason": series.reason})
        finally:
            series.due = self.clock() + self.pause
            if series.queued and self._series.get(key) is series:
                self._schedule_repeat(key, series)
            self._wake.set()

    async def _create(self, series: _Series) -> None:
        name = f"{series.regarding['name'][:220]}.{uuid.uuid4().hex[:16]}"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": series.namespace},
            "involvedObject": dict(series.regarding),
            "type": series.type,
            "reason": series.reason,
            "source": {"component": self.component},
            "reportingComponent": self.component,
            "firstTimestamp": series.first,
        }
        self.client.metrics.wrote("create", EVENTS.plural)
        await self._send("POST", EVENTS.path(series.namespace), body | _count_fields(series), JSON_TYPE)
        series.name = name

    async def _patch_count(self, series: _Series) -> None:
        self.client.metrics.wrote("patch", EVENTS.plural)
        try:
            await self._send("PATCH", EVENTS.path(series.namespace, series.name), _count_fields(series), MERGE_PATCH)
        except NotFound:
            # Events expire on the server, an hour after their last write by default.
            await self._create(series)

    async def _send(self, method: str, path: str, body: JSON, content_type: str) -> None:
        # No retries: the next Event is worth more than a late one.
        await self.client.ask(
            method, path, body=orjson.dumps(body), content_type=content_type, timeout=_TIMEOUT_SECONDS, retry=ONCE
        )

    def _count_dropped(self) -> None:
        self.dropped += 1
        self.client.metrics.event_dropped()


def _count_fields(series: _Series) -> JSON:
    return {"type": series.type, "message": series.message, "count": series.count, "lastTimestamp": series.last}
