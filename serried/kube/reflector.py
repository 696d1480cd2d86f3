"""The reflector: lists and watches one resource until cancelled, and sends every change to a sink.

`Reflector.run` is the entry.

    run      loops until cancelled: after each end of a watch decides whether to list again, and how long to wait
    _follow  lists if needed, then watches until the watch ends
    _watch   one request

A watch resumes from the last resourceVersion if possible. A new list is made only if the server has compacted that
version (410), or if watches keep failing. A list is streamed (sendInitialEvents) or read in pages; after several lists
that broke off, the other mode is used. Changes are applied in slices, so that the event loop can run other tasks.

The sink is a synchronous callable. For single objects it gets `Upserted` and `Deleted`, in the server's order. For the
resource as a whole it gets these events:

    Listed     the first list is complete
    Relisted   a later list is complete
    Unserved   the API server does not serve the resource (404)
    Denied     the API server forbids list or watch (403)

An object that is missing in a new list is `Deleted` before `Relisted`. An object that was recreated under the same name
is `Deleted` (old UID), then `Upserted`. So a sink that applies every event has the server's state of the list when it
gets `Listed` or `Relisted`.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from typing import NoReturn

from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, Gone, Invalid, NotFound, Unavailable, api_error
from serried.kube.retry import Backoff
from serried.kube.wire import (
    EVERYTHING,
    JSON,
    BadLineError,
    Change,
    LineSplitter,
    Resource,
    Selection,
    decode_change,
    identity,
    read_failure,
    stream_params,
    watch_params,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Upserted:
    """An object was added or changed; ``obj`` is its current state. The same state may be sent twice."""

    obj: JSON


@dataclass(frozen=True, slots=True)
class Deleted:
    """An object was deleted, or does not match the selection any more."""

    obj: JSON
    """The object's last state if the server sent it, else only ``metadata`` with namespace, name and UID."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The first list is complete."""

    count: int
    """The number of objects in the list."""

    version: str
    """The resourceVersion of the list."""


@dataclass(frozen=True, slots=True)
class Relisted:
    """A later list is complete."""

    count: int
    """The number of objects in the list."""

    version: str
    """The resourceVersion of the list."""

    vanished: int
    """The number of objects that were reported as `Deleted`, because they are missing in the list."""


@dataclass(frozen=True, slots=True)
class Unserved:
    """The API server answers 404 for the resource.

    After this event, every known object is reported as `Deleted`. `Listed` follows when the resource is served again.
    """

    resource: Resource


@dataclass(frozen=True, slots=True)
class Denied:
    """The API server answers 403 for the resource. No object is reported as `Deleted`: they still exist, unobserved."""

    resource: Resource


Event = Upserted | Deleted | Listed | Relisted | Unserved | Denied
Sink = Callable[[Event], None]

_Key = tuple[str, str]


class KnownObjects:
    """The objects that one reflector has reported to its sink. Turns list items and watch changes into events."""

    def __init__(self, resource: Resource, sink: Sink) -> None:
        self._resource = resource
        self._sink = sink
        self._uids: dict[_Key, str] = {}
        """The UIDs of the known objects, by namespace and name."""
        self._unseen: set[_Key] = set()
        """The known objects that the current list has not contained so far."""
        self._vanished = 0
        """The number of known objects that were missing in the current list."""
        self._listed = False
        """True if a list has been complete since the resource is served."""
        self._unserved = False
        """True if `Unserved` was sent, and no list began since."""

    def begin_list(self) -> None:
        """Start a list, also after one that broke off. `drop_unseen` will report the known objects that it lacks."""
        self._unseen = set(self._uids)
        self._vanished = 0
        self._unserved = False

    def upsert(self, obj: JSON) -> None:
        """Report an added or changed object; raise BadLineError if it has no name."""
        namespace, name, uid = identity(obj)
        key = (namespace, name)
        known = self._uids.get(key)
        if known is not None and known != uid:
            self._send(Deleted(_make_tombstone(key, known)))
        if known != uid:  # keep the old string: each version of the object has its own copy of the UID
            self._uids[key] = uid
        self._unseen.discard(key)
        self._send(Upserted(obj))

    def delete(self, obj: JSON) -> None:
        """Report a deleted object. Ignored if the object is not known, or its name belongs to another UID by now."""
        namespace, name, uid = identity(obj)
        key = (namespace, name)
        if self._uids.get(key) == uid:
            self._forget(key)
            self._send(Deleted(obj))

    def drop_unseen(self) -> Iterator[None]:
        """Report the objects missing in the list as Deleted. Yield after each, so that the caller can pause."""
        for key in sorted(self._unseen):
            uid = self._uids[key]
            self._forget(key)
            self._vanished += 1
            self._send(Deleted(_make_tombstone(key, uid)))
            yield

    def end_list(self, version: str) -> None:
        """Send `Listed` or `Relisted` to the sink: the list is complete. Call it when `drop_unseen` is exhausted."""
        count = len(self._uids)
        self._send(Relisted(count, version, self._vanished) if self._listed else Listed(count, version))
        self._listed = True

    def report_unserved(self) -> Iterator[None]:
        """Send `Unserved` to the sink, then `Deleted` for every known object. Yield after each, so that others can run.

        `Unserved` comes first, so that the sink knows that the objects were not deleted one by one.
        """
        if not self._unserved:
            self._unserved = True
            self._listed = False
            self._send(Unserved(self._resource))
        self._unseen = set(self._uids)
        yield from self.drop_unseen()

    def report_denied(self) -> None:
        """Send `Denied` to the sink: the API server forbids to list or watch the resource."""
        self._send(Denied(self._resource))

    def _forget(self, key: _Key) -> None:
        del self._uids[key]
        self._unseen.discard(key)

    def _send(self, event: Event) -> None:
        try:
            self._sink(event)
        except Exception as err:
            # A bug that one object triggers must not stop the stream of all others.
            fields = {"resource": str(self._resource), "object": _name_object(event), "err": repr(err)}
            log.exception(
                "an internal error stopped the processing of an object from a watch; the next objects are processed",
                extra=fields,
            )


def _make_tombstone(key: _Key, uid: str) -> JSON:
    namespace, name = key
    scope = {"namespace": namespace} if namespace else {}
    return {"metadata": scope | {"name": name, "uid": uid}}


def _name_object(event: Event) -> str:
    if isinstance(event, Upserted | Deleted):
        namespace, name, _ = identity(event.obj)
        return f"{namespace}/{name}" if namespace else name
    return type(event).__name__


class Cause(StrEnum):
    """The cause of the end of a watch; its value is a label of the metric of restarted watches."""

    SCHEDULED = "scheduled"
    """The server ended the watch after timeoutSeconds, as requested."""
    ENDED = "ended"
    """The server closed the watch in order, but early: it restarts, or this client was too slow."""
    SILENT = "silent"
    """No event and no bookmark for `WatchTiming.silence` seconds."""
    LOST = "lost"
    """The connection broke, or could not be made."""
    GONE = "gone"
    """The resourceVersion is too old: a new list follows."""
    BAD_LINE = "bad_line"
    MISSING = "missing"
    """The server has answered 404, but not for long enough to believe it (see `WatchTiming.unserved_after`)."""
    UNSERVED = "unserved"
    FORBIDDEN = "forbidden"
    REFUSED = "refused"
    """The server has answered with another error."""
    DEFECT = "defect"
    """A bug in Serried: an unexpected exception, which is logged."""


_RESUMED_AT_ONCE = frozenset(
    {Cause.SCHEDULED, Cause.ENDED, Cause.SILENT, Cause.LOST, Cause.GONE, Cause.BAD_LINE},
)
# Ends in which the server answers but sends no changes after our resourceVersion. A new list may help.
_SUSPICIOUS = frozenset({Cause.ENDED, Cause.BAD_LINE, Cause.REFUSED, Cause.DEFECT})
# The request was refused before a list began, so the mode of listing is not the cause.
_REFUSED_CAUSES = frozenset({Cause.MISSING, Cause.UNSERVED, Cause.FORBIDDEN})


_BACKOFF = Backoff(first=0.2, cap=30.0)

_REFUSED_SECONDS = 1.0
"""The longest wait after a 404 or 403 that may be temporary (see `WatchTiming.unserved_after`)."""


@dataclass(frozen=True, slots=True)
class WatchTiming:
    """The timeouts, waits and sizes of a reflector; times in seconds."""

    timeout: tuple[int, int] = (300, 600)
    """The range of timeoutSeconds. Each watch gets a random value, so that watches do not end at the same time."""

    silence: float = 150.0
    """The time after which a watch that brings neither an event nor a bookmark is ended."""

    backoff: Backoff = _BACKOFF
    """The upper bounds of the waits after watches without progress; each wait has full jitter."""

    unserved: float = 3.0
    """The wait before the next try after a 404 or 403 that counts (see ``unserved_after``)."""

    unserved_after: float = 5.0
    """The time for which every answer must be 404, or every one 403, until that counts.

    From then on the resource is reported as `Unserved` or `Denied`. A single 404 or 403 may be temporary. During an
    upgrade only some API servers serve a new API; an API server that has just started may not have loaded the RBAC
    roles; and a role that is recreated is missing for a moment. In the core group a 404 never counts: every API server
    serves that group.
    """

    absent_after: float = 5.0
    """The time for which every answer must be 404 before the first complete list; with 0.0 the first 404 counts.

    After the first list ``unserved_after`` holds instead. Before the first list, the first 403 always counts.
    """

    page: int = 500
    """The number of objects in a page. It is doubled after each list in pages that broke off, until one is complete."""

    in_pages: float = 600.0
    """The period in which lists are read in pages after streamed lists have failed."""

    slice_changes: int = 200
    """The number of changes that are applied without a pause; then other tasks of the event loop run."""

    slice_seconds: float = 0.002
    """The time spent on applying changes after which other tasks of the event loop run."""


MAX_SUSPICIOUS_ENDS = 5
"""The number of watches in a row that must end for a suspicious cause, without progress, until a new list is made.

Suspicious causes are those of `_SUSPICIOUS`: the server answers, but sends no changes.
"""

MAX_CUT_LISTS = 3
"""The number of lists in a row that must break off until the next list uses the other mode (streamed or in pages)."""

_STEADY_SECONDS = 10.0
"""The time after which a watch counts as progress, even if it has brought no change."""


@dataclass(eq=False)
class Reflector:
    """Lists and watches one resource, and calls ``sink`` with every change, such as `Upserted` or `Relisted`.

    ``selection`` limits it to some of the objects. A reflector lives as long as the process.
    """

    client: ApiClient
    resource: Resource
    sink: InitVar[Sink]
    selection: Selection = field(default=EVERYTHING, kw_only=True)
    timing: WatchTiming = field(default=WatchTiming(), kw_only=True)

    listed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when the first list is complete, cleared while the resource is not served."""

    known: KnownObjects = field(init=False)
    """The objects that were reported to the sink."""

    last_event_monotonic: float = field(default=0.0, init=False)
    """The monotonic time of the last event from the server, bookmarks included; 0.0 if there was none."""

    blind_since_monotonic: float = field(default_factory=time.monotonic, init=False)
    """The monotonic time since which no changes arrive: no list or watch is established. Infinity while they arrive."""

    _version: str = field(default="", init=False)
    """The resourceVersion to resume from; "" if a list is needed."""

    _listing: bool = field(default=False, init=False)
    """True while a list has begun and is not complete."""

    _changes_followed: int = field(default=0, init=False)
    """The number of changes received outside of lists."""

    _server_reached: bool = field(default=True, init=False)
    """True if a request of the current watch may have reached the server."""

    _relist_forced: bool = field(default=False, init=False)
    """True if the last list was made because watches kept failing, and no watch has made progress since."""

    _since: float = field(default=0.0, init=False)
    """The monotonic time at which the current watch began."""

    _failures: int = field(default=0, init=False)
    """The number of watches in a row that ended without progress. A 404 or 403 sets it to 0."""

    _last_message: str = field(default="", init=False)
    """The last logged message about the end of a watch; an equal one is logged only at level DEBUG."""

    def __post_init__(self, sink: Sink) -> None:
        timing = self.timing
        self.known = KnownObjects(self.resource, sink)
        self._path = self.resource.path(self.selection.namespace)
        never = (math.inf, math.inf)
        self._absence = _RefusalTimer(*((timing.absent_after, timing.unserved_after) if self.resource.group else never))
        self._denial = _RefusalTimer(0.0, timing.unserved_after)
        self._list_mode = _ListMode(timing)
        self._slice = _Slice(timing)

    async def run(self) -> NoReturn:
        """List and watch the resource until cancelled. Errors are logged and retried, never raised."""
        while True:
            followed = self._changes_followed
            listed = self.listed.is_set()
            cause, retry_after = await self._follow_until_end()
            self.blind_since_monotonic = min(self.blind_since_monotonic, time.monotonic())
            lasted = time.monotonic() - self._since >= _STEADY_SECONDS
            steady = lasted or (self._changes_followed > followed and cause is not Cause.GONE)
            # A broken list is no progress, however long it lasted: the next one starts with the first object again.
            fine = steady and not self._listing
            # A 404 or 403 restarts the count: an API server that has just begun to serve a kind rejects its watches for
            # a moment (429, "storage is (re)initializing").
            self._failures = 0 if fine or cause in _REFUSED_CAUSES else self._failures + 1
            self._relist_forced = self._relist_forced and self._failures > 0
            if self._listing and self._server_reached and cause not in _REFUSED_CAUSES:
                self._list_mode.on_list_broken()
            if listed or cause not in {Cause.UNSERVED, Cause.FORBIDDEN}:  # a watch that never began has not ended
                self.client.metrics.watch_restarted(self.resource.plural, cause)
            stuck = self._failures > 0 and self._failures % MAX_SUSPICIOUS_ENDS == 0
            if self._version and (cause is Cause.GONE or (cause in _SUSPICIOUS and stuck)):
                self._version = ""
                self._relist_forced = True
            await asyncio.sleep(max(self._delay(cause), retry_after))

    def _delay(self, cause: Cause) -> float:
        if cause is Cause.UNSERVED or (cause is Cause.FORBIDDEN and self._denial.counted):
            return self.timing.unserved
        if cause in _RESUMED_AT_ONCE and self._failures <= 1:
            return 0.0
        if cause not in _REFUSED_CAUSES:
            longest = self.timing.backoff.delay(self._failures + 1)
        else:
            longest = min(_REFUSED_SECONDS, self.timing.unserved)  # another API server may answer the retry
        return random.uniform(0.0, longest)  # noqa: S311

    async def _follow_until_end(self) -> tuple[Cause, float]:
        """List and watch once. Return why the watch ended, and the server's Retry-After in seconds (0.0 for none)."""
        self._since = time.monotonic()
        self._server_reached = True
        try:
            return await self._follow(), 0.0
        except BadLineError as err:
            return self._log_interruption(Cause.BAD_LINE, f"cannot decode a line of the watch: {err}"), 0.0
        except ApiError as err:
            return await self._classify(err), err.retry_after or 0.0
        except Exception as err:
            # A bug in Serried must not stop the updates of the cache for ever.
            log.exception(
                "an internal error stopped the watch of a resource; it is started again",
                extra={"resource": str(self.resource)},
            )
            return self._log_interruption(Cause.DEFECT, repr(err)), 0.0
        finally:
            self._slice.reset()

    async def _classify(self, err: ApiError) -> Cause:
        if isinstance(err, NotFound):
            self._denial.reset()
            return await self._handle_not_found(err)
        self._absence.reset()
        if isinstance(err, Forbidden):
            return self._handle_forbidden(err)
        self._denial.reset()
        if isinstance(err, Gone):
            return Cause.GONE
        if isinstance(err, Unavailable) and not err.status:
            self._server_reached = not err.unsent
            return self._log_interruption(Cause.LOST, str(err))
        if "Too large resource version" in err.message:
            # The server was restored from a backup: it will take long until it reaches the version that we have.
            return Cause.GONE
        return self._log_interruption(Cause.REFUSED, str(err))

    async def _handle_not_found(self, err: NotFound) -> Cause:
        if self._absence.observe(time.monotonic()):
            return await self._drop_unserved()
        return self._log_interruption(
            Cause.MISSING, f"{err}; the cache keeps its objects, and the request is sent again"
        )

    def _handle_forbidden(self, err: Forbidden) -> Cause:
        if self._denial.observe(time.monotonic()):
            self._version = ""  # a new list will tell when access is granted again
            self.known.report_denied()
        group = self.resource.group or '""'
        needed = f"grant list and watch on {self.resource.plural} in API group {group}"
        return self._log_interruption(Cause.FORBIDDEN, f"{err}; {needed}")

    def _reset_refusals(self) -> None:
        self._absence.reset()
        self._denial.reset()

    async def _drop_unserved(self) -> Cause:
        self._version = ""
        self.listed.clear()
        for _ in self.known.report_unserved():
            await self._slice.pause()
        return self._log_interruption(Cause.UNSERVED, "the API server does not serve this resource")

    def _log_interruption(self, cause: Cause, text: str) -> Cause:
        # Level INFO: only the consumer knows whether it needs the resource.
        first = logging.INFO if cause is Cause.UNSERVED else logging.WARNING
        level = logging.DEBUG if text == self._last_message else first
        self._last_message = text
        log.log(level, "watch interrupted", extra={"resource": str(self.resource), "cause": cause, "err": text})
        return cause

    async def _follow(self) -> Cause:
        timeout = random.randint(*self.timing.timeout)  # noqa: S311
        if not self._version and self._list_mode.streams:
            self._begin_list()
            return await self._stream_list(timeout)
        if not self._version:
            await self._list_pages()
        return await self._watch(watch_params(self.selection, self._version, timeout), timeout)

    async def _stream_list(self, timeout: int) -> Cause:  # noqa: ASYNC109 - the server's
        try:
            cause = await self._watch(stream_params(self.selection, timeout), timeout)
        except Invalid:
            if self._listing:
                self._list_mode.use_pages()
                return await self._follow()
            raise
        if cause is Cause.SILENT and self._listing:
            # A server that ignores sendInitialEvents never sends the bookmark at their end.
            self._list_mode.use_pages()
        return cause

    async def _list_pages(self) -> None:
        self._begin_list()
        async with aclosing(self.client.pages(self._path, self.selection, self._list_mode.page)) as pages:
            async for page in pages:
                self._reset_refusals()
                self._slice.resume()
                for obj in page.items:
                    self._count_change()
                    self.known.upsert(obj)
                    await self._slice.pause()
        await self._end_list(page.version)

    def _begin_list(self) -> None:
        self._listing = True
        self.known.begin_list()

    async def _end_list(self, version: str) -> None:
        for _ in self.known.drop_unseen():
            await self._slice.pause()
        self._listing = False
        self._absence.start_grace()
        self._denial.start_grace()
        self._version = version
        self._last_message = ""
        self._list_mode.on_list_complete()
        if not self._relist_forced:
            self._failures = 0  # an outage is over. After a forced list that is not known before a watch has lasted
        self._since = time.monotonic()
        self.blind_since_monotonic = math.inf
        self.known.end_list(version)
        self.listed.set()

    async def _watch(self, params: dict[str, str], timeout: int) -> Cause:  # noqa: ASYNC109 - the server's
        loop = asyncio.get_running_loop()
        begun = loop.time()
        lines = LineSplitter()
        try:
            async with (
                # The timeout includes the response headers: an idle connection of the pool may be dead, too.
                asyncio.timeout(self.timing.silence) as limit,
                self.client.stream(self._path, params) as chunks,
            ):
                self._reset_refusals()
                if not self._listing:
                    self.blind_since_monotonic = math.inf
                async for chunk in chunks:
                    self._slice.resume()
                    for line in lines.feed(chunk):
                        await self._apply(decode_change(line))
                        await self._slice.pause()
                    limit.reschedule(loop.time() + self.timing.silence)
        except TimeoutError:
            return self._log_interruption(Cause.SILENT, f"neither event nor bookmark for {self.timing.silence:g} s")
        return Cause.SCHEDULED if loop.time() - begun >= timeout - 1 else Cause.ENDED

    async def _apply(self, change: Change) -> None:
        if change.kind == "ERROR":
            raise api_error(f"WATCH {self._path}", read_failure(change.obj))
        self._count_change()
        if change.kind in {"ADDED", "MODIFIED"}:
            self.known.upsert(change.obj)
        elif change.kind == "DELETED":
            self.known.delete(change.obj)
        elif change.kind != "BOOKMARK":
            raise BadLineError(f"unknown kind {change.kind!r}")
        if not self._listing:
            # Set it after the sink has the change: a resumed watch must never skip one.
            self._version = change.version or self._version
            self._changes_followed += 1
        elif change.ends_initial_events:
            await self._end_list(change.version)

    def _count_change(self) -> None:
        self.last_event_monotonic = time.monotonic()
        self.client.metrics.watch_received(self.resource.plural, 1)


class _RefusalTimer:
    """Decides when a status (404, or 403) counts, so that the reflector reports `Unserved` or `Denied`.

    The status counts once all answers of some seconds have had it. Before the first complete list, this takes ``first``
    seconds, afterwards ``later`` seconds. With 0.0 the first answer with the status counts; with infinity none does.
    The reflector has one timer for 404 and one for 403.
    """

    def __init__(self, first: float, later: float) -> None:
        self.counted = False
        """The last result of `observe`."""
        self._required_seconds = first
        """The seconds for which every answer must have the status until it counts, i.e. is no longer temporary."""
        self._grace_seconds = later
        """The value of ``_required_seconds`` after the first complete list."""
        self._since: float | None = None
        """The monotonic time of the first answer in a row with the status; None if the last answer had another one."""

    def reset(self) -> None:
        """Record an answer with another status than the timer's, so that the seconds begin anew."""
        self._since = None

    def start_grace(self) -> None:
        """Require the ``later`` seconds of equal answers from now on. Call it after a complete list.

        After a complete list, a 404 that counts makes the reflector report all known objects as deleted. So a
        temporary 404 must not count then.
        """
        self._required_seconds = self._grace_seconds

    def observe(self, now: float) -> bool:
        """Record an answer with the status at the monotonic time ``now``. Return whether the status counts now."""
        first = self._since is None
        self._since = now if self._since is None else self._since
        self.counted = self._required_seconds <= 0 if first else now - self._since >= self._required_seconds
        return self.counted


class _ListMode:
    """Decides how the next list is read: streamed, or in pages of some size. Lists that broke off change this."""

    def __init__(self, timing: WatchTiming) -> None:
        self.page = timing.page
        """The number of objects in the next page."""
        self._timing = timing
        self._broken_lists = 0
        """The number of lists in a row that broke off."""
        self._pages_until = -math.inf
        """The monotonic time until which lists are read in pages."""

    @property
    def streams(self) -> bool:
        """Return whether the next list is streamed."""
        return time.monotonic() >= self._pages_until

    def use_pages(self) -> None:
        """Read lists in pages for `WatchTiming.in_pages` seconds. Not for ever: an upgraded server may stream."""
        self._pages_until = time.monotonic() + self._timing.in_pages

    def on_list_broken(self) -> None:
        """Count a list that broke off: double the page size, and change the mode after MAX_CUT_LISTS in a row."""
        self._broken_lists += 1
        if not self.streams:
            # The continue token expires when its version is compacted. Larger pages finish the list earlier.
            self.page *= 2
        if self._broken_lists % MAX_CUT_LISTS:
            return
        if self.streams:
            self.use_pages()
        else:
            self._pages_until = -math.inf

    def on_list_complete(self) -> None:
        """Reset the page size and the count of broken lists after a complete list."""
        self._broken_lists = 0
        self.page = self._timing.page


class _Slice:
    """Counts the changes applied, and the time spent on them, since the event loop last ran other tasks.

    Such a slice of work ends at `WatchTiming.slice_changes` or `WatchTiming.slice_seconds`, so that filter calls are
    answered while a long list is read.
    """

    def __init__(self, timing: WatchTiming) -> None:
        self._timing = timing
        self.reset()

    def reset(self) -> None:
        """Start a new slice, because other tasks have just run."""
        self._changes = 0
        self._spent = 0.0
        self._mark = time.perf_counter()

    def resume(self) -> None:
        """Continue the slice after a wait for the server, whose time does not count."""
        self._mark = time.perf_counter()

    async def pause(self) -> None:
        """Count one change. If the slice is used up, let other tasks run and start a new one."""
        now = time.perf_counter()
        self._changes += 1
        self._spent += now - self._mark
        self._mark = now
        if self._changes >= self._timing.slice_changes or self._spent >= self._timing.slice_seconds:
            await asyncio.sleep(0)
            self.reset()
