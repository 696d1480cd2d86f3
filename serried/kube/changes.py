"""What a reflector tells its sink, and the bookkeeping that makes the sequence complete. No I/O.

The sink is a synchronous callable. It sees `Upserted` and `Deleted` for single objects, in the server's order, and
marks for the whole: `Listed` when the first list is complete, `Relisted` after each later one, `Unserved` when the
server does not know the resource, `Denied` when it does not show it to us. Objects that vanished between two lists are
reported `Deleted` before the mark; an object that was made anew under an old name is `Deleted` (old uid), then
`Upserted`. So a consumer that applies every event has the server's state at every mark.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from serried.kube.wire import JSON, Resource, identity

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Upserted:
    """The object exists and looks like this. The same state may come twice."""

    obj: JSON


@dataclass(frozen=True, slots=True)
class Deleted:
    """The object is gone, or left the selection.

    ``obj`` is its last state if the server sent it, else it has only ``metadata`` with namespace, name and uid.
    """

    obj: JSON


@dataclass(frozen=True, slots=True)
class Listed:
    """The first list is complete: ``count`` objects at resourceVersion ``version``."""

    count: int
    version: str


@dataclass(frozen=True, slots=True)
class Relisted:
    """A later list is complete; ``vanished`` objects were reported Deleted because it lacked them."""

    count: int
    version: str
    vanished: int


@dataclass(frozen=True, slots=True)
class Unserved:
    """The server answers 404 for the resource. All its objects were reported Deleted; Listed follows if it returns."""

    resource: Resource


@dataclass(frozen=True, slots=True)
class Denied:
    """The server answers 403 for the resource: what was told of its objects stands, and nothing newer is known."""

    resource: Resource


Event = Upserted | Deleted | Listed | Relisted | Unserved | Denied
Sink = Callable[[Event], None]

_Key = tuple[str, str]


class KnownObjects:
    """The objects that the sink knows, each with its uid: turns list items and watch changes into events."""

    def __init__(self, resource: Resource, sink: Sink) -> None:
        self._resource = resource
        self._sink = sink
        self._uids: dict[_Key, str] = {}
        self._unseen: set[_Key] = set()
        self._vanished = 0
        self._listed = False
        self._unserved = False

    def begin_list(self) -> None:
        """A list starts: what it does not name has vanished. Also after a list that broke off."""
        self._unseen = set(self._uids)
        self._vanished = 0
        self._unserved = False

    def upsert(self, obj: JSON) -> None:
        """The object exists; raises BadLineError if it has no name."""
        namespace, name, uid = identity(obj)
        key = (namespace, name)
        known = self._uids.get(key)
        if known is not None and known != uid:
            self._tell(Deleted(_remains(key, known)))
        if known != uid:  # else the memory would hold the string of the newest version beside the sink's
            self._uids[key] = uid
        self._unseen.discard(key)
        self._tell(Upserted(obj))

    def delete(self, obj: JSON) -> None:
        """The object is gone; nothing happens if another uid has its name, or if the sink never knew it."""
        namespace, name, uid = identity(obj)
        key = (namespace, name)
        if self._uids.get(key) == uid:
            self._forget(key)
            self._tell(Deleted(obj))

    def drop_unseen(self) -> Iterator[None]:
        """Report what the list lacked; yields after each, so that the caller can let others run."""
        for key in sorted(self._unseen):
            uid = self._uids[key]
            self._forget(key)
            self._vanished += 1
            self._tell(Deleted(_remains(key, uid)))
            yield

    def end_list(self, version: str) -> None:
        """The list is complete and `drop_unseen` exhausted."""
        count = len(self._uids)
        self._tell(Relisted(count, version, self._vanished) if self._listed else Listed(count, version))
        self._listed = True

    def end_service(self) -> Iterator[None]:
        """The resource is not served: say so once, then report every object; yields after each.

        In this order, so that nobody takes the end of the service for the end of the objects.
        """
        if not self._unserved:
            self._unserved = True
            self._listed = False
            self._tell(Unserved(self._resource))
        self._unseen = set(self._uids)
        yield from self.drop_unseen()

    def deny(self) -> None:
        """The resource is not ours to see, for now."""
        self._tell(Denied(self._resource))

    def _forget(self, key: _Key) -> None:
        del self._uids[key]
        self._unseen.discard(key)

    def _tell(self, event: Event) -> None:
        try:
            self._sink(event)
        except Exception as err:
            # One object that a consumer cannot digest must not stop the stream of all others.
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
