"""Lists and watches one resource for ever, and sends what changed to a sink.

    run      for ever: decides what to do after each end, backs off, never gives up
    _follow  list if needed, then watch, until the watch ends
    _watch   one request

A watch is resumed from the last resourceVersion whenever possible; a new list is made only when the server has
forgotten that version (410) or resuming keeps failing. There are two ways to list: streamed, or in pages. A list that
breaks off is begun anew after a pause, and after several such lists in the other way. Changes are applied in slices,
between which the event loop runs other tasks.

The sink is a synchronous callable. It gets `Upserted` and `Deleted` for single objects, in the server's order, and
marks for all of them: `Listed` when the first list is complete, `Relisted` after each later one, `Unserved` when the
server does not know the resource, `Denied` when it does not show it to us. Objects that vanished between two lists are
`Deleted` before the mark; an object that was made anew under an old name is `Deleted` (old UID), then `Upserted`. So a
consumer that applies every event has the server's state at every mark.
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
    """The object exists and looks like this. The same state may come twice."""

    obj: JSON


@dataclass(frozen=True, slots=True)
class Deleted:
    """The object is gone, or left the selection."""

    obj: JSON
    """Its last state if the server sent it, else only ``metadata`` with namespace, name and UID."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The first list is complete."""

    count: int
    """How many objects there are."""

    version: str
    """The resourceVersion of the list."""


@dataclass(frozen=True, slots=True)
class Relisted:
    """A later list is complete."""

    count: int
    """How many objects there are."""

    version: str
    """The resourceVersion of the list."""

    vanished: int
    """How many objects were reported Deleted because the list lacked them."""


@dataclass(frozen=True, slots=True)
class Unserved:
    """The server answers 404 for the resource. All its objects were reported Deleted; Listed follows if it returns."""

    resource: Resource


@dataclass(frozen=True, slots=True)
class Denied:
    """The server answers 403 for the resource. Nothing is deleted: the objects just cannot be followed any more."""

    resource: Resource


Event = Upserted | Deleted | Listed | Relisted | Unserved | Denied
Sink = Callable[[Event], None]

_Key = tuple[str, str]


class KnownObjects:
    """The objects that the sink knows. Turns list items and watch changes into events."""

    def __init__(self, resource: Resource, sink: Sink) -> None:
        self._resource = resource
        self._sink = sink
        self._uids: dict[_Key, str] = {}
        """The UIDs of the known objects."""
        self._unseen: set[_Key] = set()
        """The known objects that the list under way has not named yet."""
        self._vanished = 0
        """How many objects the list under way has turned out to lack."""
        self._listed = False
        """Whether a list has been complete, since the resource is served."""
        self._unserved = False
        """Whether the sink knows that the resource is not served."""

    def begin_list(self) -> None:
        """A list begins, also after one that broke off. Known objects that it does not name have vanished."""
        self._unseen = set(self._uids)
        self._vanished = 0
        self._unserved = False

    def upsert(self, obj: JSON) -> None:
        """The object exists; raises BadLineError if it has no name."""
        namespace, name, uid = identity(obj)
        key = (namespace, name)
        known = self._uids.get(key)
        if known is not None and known != uid:
            self._send(Deleted(_remains(key, known)))
        if known != uid:  # else each version would leave a new copy of the same string here
            self._uids[key] = uid
        self._unseen.discard(key)
        self._send(Upserted(obj))

    def delete(self, obj: JSON) -> None:
        """The object is gone. Nothing happens if an object with another UID has its name, or the sink never knew it."""
        namespace, name, uid = identity(obj)
        key = (namespace, name)
        if self._uids.get(key) == uid:
            self._forget(key)
            self._send(Deleted(obj))

    def drop_unseen(self) -> Iterator[None]:
        """Report the objects that the list lacked. Yields after each, so that the caller can let other tasks run."""
        for key in sorted(self._unseen):
            uid = self._uids[key]
            self._forget(key)
            self._vanished += 1
            self._send(Deleted(_remains(key, uid)))
            yield

    def end_list(self, version: str) -> None:
        """The list is complete and `drop_unseen` exhausted."""
        count = len(self._uids)
        self._send(Relisted(count, version, self._vanished) if self._listed else Listed(count, version))
        self._listed = True

    def end_service(self) -> Iterator[None]:
        """The resource is not served: report that once, then every object as Deleted; yields after each.

        In this order, so that the sink does not take the deletions for those of single objects.
        """
        if not self._unserved:
            self._unserved = True
            self._listed = False
            self._send(Unserved(self._resource))
        self._unseen = set(self._uids)
        yield from self.drop_unseen()

    def deny(self) -> None:
        """The API server does not show us the resource."""
        self._send(Denied(self._resource))

    def _forget(self, key: _Key) -> None:
        del self._uids[key]
        self._unseen.discard(key)

    def _send(self, event: Event) -> None:
        try:
            self._sink(event)
        except Exception as err:
            # A defect that one object brings out must not stop the stream of all others.
            fields = {"resource": str(self._resource), "object": _describe(event), "err": repr(err)}
            log.exception("the consumer of a watch failed", extra=fields)


def _remains(key: _Key, uid: str) -> JSON:
    namespace, name = key
    scope = {"namespace": namespace} if namespace else {}
    return {"metadata": scope | {"name": name, "uid": uid}}


def _describe(event: Event) -> str:
    if isinstance(event, Upserted | Deleted):
        namespace, name, _ = identity(event.obj)
        return f"{namespace}/{name}" if namespace else name
    return type(event).__name__


class Cause(StrEnum):
    """Why a watch ended; the value is the metric's label."""

    SCHEDULED = "scheduled"
    """The server kept to timeoutSeconds."""
    ENDED = "ended"
    """An orderly end before its time: a slow consumer, a server that restarts."""
    SILENT = "silent"
    """Neither event nor bookmark for too long."""
    LOST = "lost"
    """The connection broke or was not made."""
    GONE = "gone"
    """The resourceVersion is too old: a new list follows."""
    BAD_LINE = "bad_line"
    MISSING = "missing"
    """A 404 that does not count yet (`WatchTiming.unserved_after`)."""
    UNSERVED = "unserved"
    FORBIDDEN = "forbidden"
    REFUSED = "refused"
    """Any other error of the server."""
    DEFECT = "defect"
    """An error of ours, which the log shows."""


_RESUMED_AT_ONCE = frozenset(
    {Cause.SCHEDULED, Cause.ENDED, Cause.SILENT, Cause.LOST, Cause.GONE, Cause.BAD_LINE},
)
# With these the server is there and answers, but not with changes after our version.
_SUSPICIOUS = frozenset({Cause.ENDED, Cause.BAD_LINE, Cause.REFUSED, Cause.DEFECT})
# With these a list was never begun, so its way is not to blame.
_KEPT_OUT = frozenset({Cause.MISSING, Cause.UNSERVED, Cause.FORBIDDEN})


_BACKOFF = Backoff(first=0.2, cap=30.0)

_REFUSED_SECONDS = 1.0
"""The longest wait after a 404 or 403 that does not count: several come before they count."""


@dataclass(frozen=True, slots=True)
class WatchTiming:
    """The times and sizes by which a reflector goes; times in seconds."""

    timeout: tuple[int, int] = (300, 600)
    """The range of a watch's length; each has a random one, so that watches do not end together."""

    silence: float = 150.0
    """The longest time without event or bookmark after which a watch is ended."""

    backoff: Backoff = _BACKOFF
    """The longest waits after ends without progress; each has full jitter."""

    unserved: float = 3.0
    """The wait after a 404 or 403 that counts."""

    unserved_after: float = 5.0
    """For how long every answer must be 404 until the resource counts as not served any more; or 403, as not shown.

    A single one may be that of one API server of several: in an upgrade one of them serves the API, another one does
    not, or not yet; one that has just started may not know our roles yet, and a role that is made anew is away for a
    moment. In the core group no 404 ever counts: every API server serves it.
    """

    absent_after: float = 5.0
    """The same before the first list; with 0.0 the first 404 counts, as the first 403 always does there."""

    page: int = 500
    """How many objects a page has at first."""

    in_pages: float = 600.0
    """How long lists are made in pages after streams were cut or refused."""

    slice_changes: int = 200
    """The number of applied changes after which other tasks run."""

    slice_seconds: float = 0.002
    """The time spent on changes after which other tasks run."""


MAX_SUSPICIOUS_ENDS = 5
"""After this many suspicious ends in a row without progress the list is made anew, and again after as many."""

MAX_CUT_LISTS = 3
"""After this many lists in a row that broke off, the next one is made in the other way."""

_STEADY_SECONDS = 10.0
"""A watch that lasted this long was fine, even if nothing happened in it."""


@dataclass(eq=False)
class Reflector:
    """Follows a resource and calls ``sink`` with every `changes.Event`."""

    client: ApiClient
    resource: Resource
    sink: InitVar[Sink]
    selection: Selection = field(default=EVERYTHING, kw_only=True)
    timing: WatchTiming = field(default=WatchTiming(), kw_only=True)

    listed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set from the first complete list on, cleared while the resource is not served."""

    known: KnownObjects = field(init=False)
    """What the sink knows by now."""

    last_event_monotonic: float = field(default=0.0, init=False)
    """When the server last sent anything, bookmarks included; 0.0 for never."""

    blind_since_monotonic: float = field(default_factory=time.monotonic, init=False)
    """Since when changes do not reach us: a list or a watch is still to come. Infinity while they do."""

    _version: str = field(default="", init=False)
    """The resourceVersion to resume from; "" if a list is needed."""

    _listing: bool = field(default=False, init=False)
    """Whether a list is under way."""

    _followed: int = field(default=0, init=False)
    """How many changes came after lists."""

    _reached: bool = field(default=True, init=False)
    """Whether the server was reached since the last end."""

    _forced: bool = field(default=False, init=False)
    """Whether the last list was made because watches did not last, and none has lasted since."""

    _since: float = field(default=0.0, init=False)
    """The monotonic time since which the watch lasts."""

    _fruitless: int = field(default=0, init=False)
    """How many ends in a row there were without progress, since the last 404 or 403."""

    _complaint: str = field(default="", init=False)
    """The last message in the log, which is not repeated at the same level."""

    def __post_init__(self, sink: Sink) -> None:
        timing = self.timing
        self.known = KnownObjects(self.resource, sink)
        self._path = self.resource.path(self.selection.namespace)
        never = (math.inf, math.inf)
        self._absence = _Refusal(*((timing.absent_after, timing.unserved_after) if self.resource.group else never))
        self._denial = _Refusal(0.0, timing.unserved_after)
        self._ways = _Ways(timing)
        self._slice = _Slice(timing)

    async def run(self) -> NoReturn:
        """Follow the resource until cancelled."""
        while True:
            followed = self._followed
            listed = self.listed.is_set()
            cause, retry_after = await self._end_of_follow()
            self.blind_since_monotonic = min(self.blind_since_monotonic, time.monotonic())
            lasted = time.monotonic() - self._since >= _STEADY_SECONDS
            steady = lasted or (self._followed > followed and cause is not Cause.GONE)
            # Half a list is no progress, however long it took: the next one begins with the first object again.
            fine = steady and not self._listing
            # What comes after refusals is the first failure again: an API server that has just got a kind back refuses
            # its watches for a moment (429, "storage is (re)initializing").
            self._fruitless = 0 if fine or cause in _KEPT_OUT else self._fruitless + 1
            self._forced = self._forced and self._fruitless > 0
            if self._listing and self._reached and cause not in _KEPT_OUT:
                self._ways.cut()
            if listed or cause not in {Cause.UNSERVED, Cause.FORBIDDEN}:  # a watch that never began has not ended
                self.client.metrics.watch_restarted(self.resource.plural, cause)
            stuck = self._fruitless > 0 and self._fruitless % MAX_SUSPICIOUS_ENDS == 0
            if self._version and (cause is Cause.GONE or (cause in _SUSPICIOUS and stuck)):
                self._version = ""
                self._forced = True
            await asyncio.sleep(max(self._delay(cause), retry_after))

    def _delay(self, cause: Cause) -> float:
        if cause is Cause.UNSERVED or (cause is Cause.FORBIDDEN and self._denial.counted):
            return self.timing.unserved
        if cause in _RESUMED_AT_ONCE and self._fruitless <= 1:
            return 0.0
        if cause not in _KEPT_OUT:
            longest = self.timing.backoff.delay(self._fruitless + 1)
        else:
            longest = min(_REFUSED_SECONDS, self.timing.unserved)  # the next server may serve it, and show it
        return random.uniform(0.0, longest)  # noqa: S311

    async def _end_of_follow(self) -> tuple[Cause, float]:
        """Follow until an end; its cause and the seconds that the server asked to wait."""
        self._since = time.monotonic()
        self._reached = True
        try:
            return await self._follow(), 0.0
        except BadLineError as err:
            return self._complain(Cause.BAD_LINE, f"a line of the watch is not understood: {err}"), 0.0
        except ApiError as err:
            return await self._judge(err), err.retry_after or 0.0
        except Exception as err:
            # A defect of ours must not stop the caches for ever.
            log.exception("following a resource failed", extra={"resource": str(self.resource)})
            return self._complain(Cause.DEFECT, repr(err)), 0.0
        finally:
            self._slice.reset()

    async def _judge(self, err: ApiError) -> Cause:
        if isinstance(err, NotFound):
            self._denial.end()
            return await self._judge_absence(err)
        self._absence.end()
        if isinstance(err, Forbidden):
            return self._judge_denial(err)
        self._denial.end()
        if isinstance(err, Gone):
            return Cause.GONE
        if isinstance(err, Unavailable) and not err.status:
            self._reached = not err.unsent
            return self._complain(Cause.LOST, str(err))
        if "Too large resource version" in err.message:
            # The server was restored from a backup: the version that we hold will not come for long.
            return Cause.GONE
        return self._complain(Cause.REFUSED, str(err))

    async def _judge_absence(self, err: NotFound) -> Cause:
        if self._absence.counts(time.monotonic()):
            return await self._end_service()
        return self._complain(Cause.MISSING, f"{err}; the known objects are kept, and it is asked again")

    def _judge_denial(self, err: Forbidden) -> Cause:
        if self._denial.counts(time.monotonic()):
            self._version = ""  # a new list says when it is over
            self.known.deny()
        group = self.resource.group or '""'
        needed = f"grant list and watch on {self.resource.plural} in API group {group}"
        return self._complain(Cause.FORBIDDEN, f"{err}; {needed}")

    def _note_answered(self) -> None:
        self._absence.end()
        self._denial.end()

    async def _end_service(self) -> Cause:
        self._version = ""
        self.listed.clear()
        for _ in self.known.end_service():
            await self._slice.pause()
        return self._complain(Cause.UNSERVED, "the API server does not serve this resource")

    def _complain(self, cause: Cause, text: str) -> Cause:
        # Only the consumer knows whether it matters that a resource is not served.
        first = logging.INFO if cause is Cause.UNSERVED else logging.WARNING
        level = logging.DEBUG if text == self._complaint else first
        self._complaint = text
        log.log(level, "watch interrupted", extra={"resource": str(self.resource), "cause": cause, "err": text})
        return cause

    async def _follow(self) -> Cause:
        timeout = random.randint(*self.timing.timeout)  # noqa: S311
        if not self._version and self._ways.streams:
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
                self._ways.turn_to_pages()
                return await self._follow()
            raise
        if cause is Cause.SILENT and self._listing:
            # A server that ignores sendInitialEvents never sends the bookmark that ends them.
            self._ways.turn_to_pages()
        return cause

    async def _list_pages(self) -> None:
        self._begin_list()
        async with aclosing(self.client.pages(self._path, self.selection, self._ways.page)) as pages:
            async for page in pages:
                self._note_answered()
                self._slice.resume()
                for obj in page.items:
                    self._count()
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
        self._absence.forbid_at_once()
        self._denial.forbid_at_once()
        self._version = version
        self._complaint = ""
        self._ways.complete()
        if not self._forced:
            self._fruitless = 0  # an outage is over; a list that we forced is no sign that watches last now
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
                # Around the first answer as well: an idle connection may be as dead as the one that fell silent.
                asyncio.timeout(self.timing.silence) as limit,
                self.client.stream(self._path, params) as chunks,
            ):
                self._note_answered()
                if not self._listing:
                    self.blind_since_monotonic = math.inf
                async for chunk in chunks:
                    self._slice.resume()
                    for line in lines.feed(chunk):
                        await self._take(decode_change(line))
                        await self._slice.pause()
                    limit.reschedule(loop.time() + self.timing.silence)
        except TimeoutError:
            return self._complain(Cause.SILENT, f"neither event nor bookmark for {self.timing.silence:g} s")
        return Cause.SCHEDULED if loop.time() - begun >= timeout - 1 else Cause.ENDED

    async def _take(self, change: Change) -> None:
        if change.kind == "ERROR":
            raise api_error(f"WATCH {self._path}", read_failure(change.obj))
        self._count()
        if change.kind in {"ADDED", "MODIFIED"}:
            self.known.upsert(change.obj)
        elif change.kind == "DELETED":
            self.known.delete(change.obj)
        elif change.kind != "BOOKMARK":
            raise BadLineError(f"unknown kind {change.kind!r}")
        if not self._listing:
            # Only now, when the sink has it: a resume must never skip a change.
            self._version = change.version or self._version
            self._followed += 1
        elif change.ends_initial_events:
            await self._end_list(change.version)

    def _count(self) -> None:
        self.last_event_monotonic = time.monotonic()
        self.client.metrics.watch_received(self.resource.plural, 1)


class _Refusal:
    """Since when every answer is the same refusal, and whether that counts by now."""

    def __init__(self, first: float, later: float) -> None:
        self.counted = False
        """Whether the last such answer counted."""
        self._wait = first
        """For how long every answer must be this one."""
        self._later = later
        """The same after the first list."""
        self._since: float | None = None
        """The monotonic time of the first one; None if the last answer was another."""

    def end(self) -> None:
        """There was another answer."""
        self._since = None

    def forbid_at_once(self) -> None:
        """A list is complete: from now on there is something to lose."""
        self._wait = self._later

    def counts(self, now: float) -> bool:
        """The answer is this one: whether it counts."""
        first = self._since is None
        self._since = now if self._since is None else self._since
        self.counted = self._wait <= 0 if first else now - self._since >= self._wait
        return self.counted


class _Ways:
    """How the next list is made: streamed or in pages, and how large these are. Depends on the lists that broke off."""

    def __init__(self, timing: WatchTiming) -> None:
        self.page = timing.page
        """How many objects the next page has."""
        self._timing = timing
        self._cuts = 0
        """How many lists in a row broke off."""
        self._pages_until = -math.inf
        """The monotonic time until which lists are made in pages."""

    @property
    def streams(self) -> bool:
        """Whether the next list is streamed."""
        return time.monotonic() >= self._pages_until

    def turn_to_pages(self) -> None:
        """List in pages for a while: a server that does not stream now may do so after its next upgrade."""
        self._pages_until = time.monotonic() + self._timing.in_pages

    def cut(self) -> None:
        """A list broke off."""
        self._cuts += 1
        if not self.streams:
            # The token of the next page expires when its version is compacted: fewer pages are read sooner.
            self.page *= 2
        if self._cuts % MAX_CUT_LISTS:
            return
        if self.streams:
            self.turn_to_pages()
        else:
            self._pages_until = -math.inf

    def complete(self) -> None:
        """A list is complete."""
        self._cuts = 0
        self.page = self._timing.page


class _Slice:
    """Counts the changes applied, and the time spent on them, since other tasks last ran."""

    def __init__(self, timing: WatchTiming) -> None:
        self._timing = timing
        self.reset()

    def reset(self) -> None:
        """Other tasks have just run."""
        self._changes = 0
        self._spent = 0.0
        self._mark = time.perf_counter()

    def resume(self) -> None:
        """The work goes on after a wait, whose time does not count."""
        self._mark = time.perf_counter()

    async def pause(self) -> None:
        """Let other tasks run if the slice is used up."""
        now = time.perf_counter()
        self._changes += 1
        self._spent += now - self._mark
        self._mark = now
        if self._changes >= self._timing.slice_changes or self._spent >= self._timing.slice_seconds:
            await asyncio.sleep(0)
            self.reset()
