"""One watch connection of the fake API server: from a version, or from a streaming list, to its end."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import orjson

from serried.kube.wire import INITIAL_EVENTS_END, JSON, Resource
from tests.support.selectors import Match
from tests.support.storage import Record, RefusedError, Storage


@dataclass(eq=False, slots=True)
class Watch:
    """The watch of one client. Lines are queued when a change is made, and sent in order.

    ``dropping`` is the number of next changes that are not sent to the client.
    """

    resource: Resource
    namespace: str
    match: Match
    dropping: int = 0
    aborted: bool = False
    _lines: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)

    def queue_change(self, record: Record) -> None:
        """Queue the change if the watch concerns it."""
        if (record.resource.group, record.resource.plural) != (self.resource.group, self.resource.plural):
            return
        if self.namespace and record.last["metadata"].get("namespace") != self.namespace:
            return
        seen = record.as_seen_by(self.match)
        if seen is None:
            return
        if self.dropping:
            self.dropping -= 1
            return
        self.queue_event(*seen)

    def queue_event(self, kind: str, obj: JSON) -> None:
        """Queue one event."""
        self.inject(orjson.dumps({"type": kind, "object": obj}))

    def inject(self, line: bytes) -> None:
        """Queue any line."""
        self._lines.put_nowait(line + b"\n")

    def queue_bookmark(self, revision: int, kind: str, *, annotations: dict[str, str] | None = None) -> None:
        """Queue a bookmark at ``revision`` for objects of ``kind``."""
        metadata: JSON = {"resourceVersion": str(revision), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        self.queue_event("BOOKMARK", {"apiVersion": self.resource.api_version, "kind": kind, "metadata": metadata})

    def end(self) -> None:
        """Queue the normal end of the stream."""
        self._lines.put_nowait(None)

    def abort(self) -> None:
        """Break the connection after what is queued."""
        self.aborted = True
        self.end()

    async def lines(self, seconds: float) -> AsyncIterator[bytes]:
        """Yield all lines until the stream ends or the timeout passes."""
        try:
            async with asyncio.timeout(seconds):
                while (line := await self._lines.get()) is not None:
                    yield line
        except TimeoutError:
            return


def begin_watch(storage: Storage, watch: Watch, version: str) -> None:
    """Queue the changes since ``version`` (all objects for "" and "0"), then queue each new change.

    Raises RefusedError 410 if the version is too old, 400 if it is none.
    """
    if not version.isdigit() and version:
        raise RefusedError(400, "BadRequest", f"Invalid value: {version!r}: resourceVersion")
    if int(version or 0) == 0:
        for obj in list(select(storage, watch)):
            watch.queue_event("ADDED", obj)
    elif int(version) < storage.compacted:
        message = f"too old resource version: {version} ({storage.compacted})"
        raise RefusedError(410, "Expired", message)
    else:
        for record in storage.history:
            if record.revision > int(version):
                watch.queue_change(record)
    storage.listeners.add(watch.queue_change)


@dataclass(slots=True)
class Cut:
    """A fault of the next ``left`` streaming lists: each ends after ``after`` objects, ``abruptly`` or normally."""

    after: int
    left: int
    abruptly: bool


def begin_stream(storage: Storage, watch: Watch, kind: str, cut: Cut | None = None) -> None:
    """Queue all objects and the bookmark after them, then queue each change. A ``cut`` ends the list early."""
    found = list(select(storage, watch))
    if cut is not None and cut.left:
        cut.left -= 1
        for obj in found[: cut.after]:
            watch.queue_event("ADDED", obj)
        return watch.abort() if cut.abruptly else watch.end()
    for obj in found:
        watch.queue_event("ADDED", obj)
    watch.queue_bookmark(storage.revision, kind, annotations={INITIAL_EVENTS_END: "true"})
    storage.listeners.add(watch.queue_change)
    return None


def select(storage: Storage, watch: Watch) -> Iterator[JSON]:
    """Yield the objects that match a watch or list, sorted by namespace and name."""
    for (namespace, _), obj in sorted(storage.objects(watch.resource).items()):
        if watch.namespace in {"", namespace} and watch.match(obj):
            yield obj
