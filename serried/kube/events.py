"""Writes core/v1 Events: the first of its kind at once, repeats as a count. Callers never wait for one."""

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
from serried.kube.retry import RateLimiter, Turns
from serried.kube.wire import EVENTS, JSON

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 5.0

_MAX_MESSAGE_LENGTH = 1024
"""In characters; the API server takes no longer ones."""

_SECONDS_BETWEEN_LOOKS = 0.25
"""How often a writer that gives way looks whether it still has to."""

_SeriesKey = tuple[str, str]
"""The UID of the object, and the reason."""


@dataclass(slots=True)
class _Series:
    """All occurrences of one reason at one object."""

    regarding: Mapping[str, str]
    """The reference to the object."""

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
    """Whether the series is in a queue, to be written."""

    due: float = 0.0
    """The monotonic time from which on it may be written again."""

    @property
    def namespace(self) -> str:
        return self.regarding.get("namespace") or "default"


@dataclass(eq=False)
class EventWriter:
    """Writes Events. `emit` may be called at any time, `run` writes until cancelled.

    There are two queues for new series, one for warnings and one, behind it, for Events of type Normal, and a third for
    repeats. In each, namespaces take turns. If a queue for new series is full, the namespace that has most in it loses
    its newest.
    """

    client: ApiClient

    component: str
    """What the Events name as their source."""

    pause: float = 60.0
    """The shortest time in seconds between two writes of one series."""

    limit: int = 2000
    """How many series each queue for new ones may hold; more are dropped. Twice as many are remembered."""

    writers: int = 8
    """How many writes may be in flight."""

    rate_limiter: RateLimiter | None = None
    """How many writes may be begun; None for any number."""

    gives_way: Callable[[], bool] = lambda: False
    """Whether the API server has more important work now, for which Events of type Normal wait; warnings do not."""

    clock: Callable[[], float] = time.monotonic
    """The monotonic time in seconds."""

    dropped: int = field(default=0, init=False)
    """How many occurrences were not written."""

    _warnings: Turns[_SeriesKey] = field(default_factory=Turns, init=False)
    _normal: Turns[_SeriesKey] = field(default_factory=Turns, init=False)

    _repeated: Turns[_SeriesKey] = field(default_factory=Turns, init=False)
    """Series that are due."""

    _later: list[tuple[float, _SeriesKey]] = field(default_factory=list, init=False)
    """A heap of repeated series, with when each is due."""

    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self._series: FIFOCache[_SeriesKey, _Series] = FIFOCache(2 * self.limit)

    def emit(self, regarding: Mapping[str, str], kind: str, reason: str, message: str) -> None:
        """Queue an Event with this message about an object; never blocks or raises.

        ``regarding`` has apiVersion, kind, name, uid and, for namespaced objects, namespace; ``kind`` is Normal or
        Warning. Events of the same UID and reason are one series.
        """
        now = write_time(time.time())
        message = message[:_MAX_MESSAGE_LENGTH]
        key = (regarding["uid"], reason)
        series = self._series.get(key)
        fresh = self._warnings if kind == "Warning" else self._normal
        if series is not None:
            series.count = series.count + 1
            series.last = now
            series.message = message
            series.type = kind
            if not series.queued:
                series.queued = True
                self._put_off(key, series)
        else:
            self._queue_fresh(fresh, key, _Series(regarding, kind, reason, message, first=now, last=now))
        self._wake.set()

    def _queue_fresh(self, fresh: Turns[_SeriesKey], key: _SeriesKey, series: _Series) -> None:
        if len(fresh) >= self.limit:
            self._drop()
            given_up = fresh.make_room(series.namespace)
            if given_up is None:
                return
            self._series.pop(given_up, None)
        self._series[key] = series
        fresh.add(series.namespace, key)

    def _put_off(self, key: _SeriesKey, series: _Series) -> None:
        if series.due < math.inf:  # else it is being written, and put off again when that has ended
            heapq.heappush(self._later, (series.due, key))

    async def run(self) -> None:
        """Write what was emitted until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.writers):
                group.create_task(self._write_all())

    async def _write_all(self) -> NoReturn:
        while True:
            while (key := self._next()) is not None:
                await self._write(key)
            self._wake.clear()
            try:
                async with asyncio.timeout(self._next_due()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _next(self) -> _SeriesKey | None:
        if self.rate_limiter is not None and self.rate_limiter.delay(self.clock()):
            return None
        key = self._pop_fresh() or self._pop_repeated()
        if key is not None and self.rate_limiter is not None:
            self.rate_limiter.take()
        return key

    def _pop_fresh(self) -> _SeriesKey | None:
        return self._pop(self._warnings) or (None if self.gives_way() else self._pop(self._normal))

    def _pop_repeated(self) -> _SeriesKey | None:
        now = self.clock()
        while self._later and self._later[0][0] <= now:
            key = heapq.heappop(self._later)[1]
            # An entry may be of a series that was forgotten and has begun anew.
            if self._is_queued(key) and self._series[key].due <= now:
                self._repeated.add(self._series[key].namespace, key)
        return self._pop(self._repeated)

    def _pop(self, queue: Turns[_SeriesKey]) -> _SeriesKey | None:
        while (key := queue.take()) is not None:
            if self._is_queued(key):
                return key
        return None

    def _is_queued(self, key: _SeriesKey) -> bool:
        """Whether the series still is to be written; it may have been forgotten since it was queued."""
        series = self._series.get(key)
        return series is not None and series.queued

    def _next_due(self) -> float | None:
        now = self.clock()
        due = self._later[0][0] if self._later else math.inf
        if self._repeated:
            due = now
        if self._warnings or self._normal:
            due = now + (_SECONDS_BETWEEN_LOOKS if self.gives_way() else 0.0)
        if due == math.inf:
            return None
        return max(0.0, due - now, self.rate_limiter.delay(now) if self.rate_limiter is not None else 0.0)

    async def _write(self, key: _SeriesKey) -> None:
        series = self._series[key]
        # What is repeated meanwhile waits until this write has ended: a series has one writer at a time.
        series.queued = False
        series.due = math.inf
        try:
            await (self._count_up(series) if series.name else self._create(series))
        except ApiError as err:
            self._drop()
            if not series.name:
                # The next occurrence is a first one again.
                self._series.pop(key, None)
            log.warning("event not written", extra={"reason": series.reason, "err": str(err)})
        except Exception:
            # A defect that one Event brings out must not stop the others.
            self._drop()
            log.exception("event not written", extra={"reason": series.reason})
        finally:
            series.due = self.clock() + self.pause
            if series.queued and self._series.get(key) is series:
                self._put_off(key, series)
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

    async def _count_up(self, series: _Series) -> None:
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

    def _drop(self) -> None:
        self.dropped += 1
        self.client.metrics.event_dropped()


def _count_fields(series: _Series) -> JSON:
    return {"type": series.type, "message": series.message, "count": series.count, "lastTimestamp": series.last}
