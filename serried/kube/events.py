"""Writing core/v1 Events: the first of its kind at once, repeats as a count, never in anybody's way."""

import asyncio
import logging
import math
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NoReturn

import orjson

from serried.kube.client import JSON_TYPE, MERGE_PATCH, ONCE, ApiClient
from serried.kube.errors import ApiError, NotFound
from serried.kube.wire import EVENTS, JSON

log = logging.getLogger(__name__)

_TIMEOUT = 5.0
_MESSAGE_LIMIT = 1024
_SERIES_LIMIT = 5_000

_Kind = tuple[str, str]


@dataclass(slots=True)
class _Series:
    """All occurrences of one reason at one object. ``name`` is "" until the Event exists."""

    regarding: Mapping[str, str]
    type: str
    reason: str
    message: str
    first: str
    last: str
    count: int = 1
    name: str = ""
    queued: bool = True
    due: float = field(default=0.0)

    @property
    def namespace(self) -> str:
        return self.regarding.get("namespace") or "default"


class EventWriter:
    """Writes Events as ``component``. `emit` may be called at any time, `run` writes until cancelled.

    ``pause`` is the shortest time in seconds between two writes of one series, ``limit`` the length of the queue;
    what does not fit is dropped and counted in ``dropped``. ``writers`` is how many writes may be in flight.
    """

    def __init__(
        self,
        client: ApiClient,
        component: str,
        *,
        pause: float = 60.0,
        limit: int = 4000,
        writers: int = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dropped = 0
        self._client = client
        self._component = component
        self._pause = pause
        self._limit = limit
        self._writers = writers
        self._clock = clock
        self._series: OrderedDict[_Kind, _Series] = OrderedDict()
        self._fresh: deque[_Kind] = deque()
        self._repeated: deque[_Kind] = deque()
        self._wake = asyncio.Event()

    def emit(self, regarding: Mapping[str, str], kind: str, reason: str, message: str) -> None:
        """Say ``message`` about an object; never blocks or raises.

        ``regarding`` has apiVersion, kind, name, uid and, for namespaced objects, namespace; ``kind`` is Normal or
        Warning. Events of the same uid and reason are one series.
        """
        now, message = _timestamp(), message[:_MESSAGE_LIMIT]
        key = (regarding["uid"], reason)
        series = self._series.get(key)
        if series is not None:
            series.count, series.last, series.message, series.type = series.count + 1, now, message, kind
            if not series.queued:
                series.queued = True
                self._repeated.append(key)
        elif len(self._fresh) >= self._limit:
            self._drop()
        else:
            self._series[key] = _Series(regarding, kind, reason, message, first=now, last=now)
            self._fresh.append(key)
            self._forget_oldest()
        self._wake.set()

    async def run(self) -> None:
        """Write what was emitted until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._writers):
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

    def _next(self) -> _Kind | None:
        if self._fresh:
            return self._fresh.popleft()
        now = self._clock()
        for key in self._repeated:
            if self._series[key].due <= now:
                self._repeated.remove(key)
                return key
        return None

    def _next_due(self) -> float | None:
        due = min((self._series[key].due for key in self._repeated), default=math.inf)
        return None if due == math.inf else max(0.0, due - self._clock())

    async def _write(self, key: _Kind) -> None:
        series = self._series[key]
        # What is repeated meanwhile waits until this write has ended: a series has one writer at a time.
        series.queued, series.due = False, math.inf
        try:
            await (self._count_up(series) if series.name else self._create(series))
        except ApiError as err:
            self._drop()
            if not series.name:
                # The next occurrence is a first one again.
                self._forget(key)
            log.warning("event not written", extra={"reason": series.reason, "err": str(err)})
        finally:
            series.due = self._clock() + self._pause
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
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": series.first,
        }
        self._client.hooks.wrote("create", EVENTS.plural)
        await self._send("POST", EVENTS.path(series.namespace), body | _tally(series), JSON_TYPE)
        series.name = name

    async def _count_up(self, series: _Series) -> None:
        self._client.hooks.wrote("patch", EVENTS.plural)
        try:
            await self._send("PATCH", EVENTS.path(series.namespace, series.name), _tally(series), MERGE_PATCH)
        except NotFound:
            # Events expire on the server, an hour after their last write by default.
            await self._create(series)

    async def _send(self, method: str, path: str, body: JSON, content_type: str) -> None:
        # A late event is worth less than the next one: no retries.
        await self._client.request(
            method, path, body=orjson.dumps(body), content_type=content_type, timeout=_TIMEOUT, retry=ONCE
        )

    def _forget_oldest(self) -> None:
        while len(self._series) > _SERIES_LIMIT:
            self._forget(next(iter(self._series)))

    def _forget(self, key: _Kind) -> None:
        self._series.pop(key, None)
        for queue in (self._fresh, self._repeated):
            if key in queue:
                queue.remove(key)

    def _drop(self) -> None:
        self.dropped += 1
        self._client.hooks.event_dropped()


def _tally(series: _Series) -> JSON:
    return {"type": series.type, "message": series.message, "count": series.count, "lastTimestamp": series.last}


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
