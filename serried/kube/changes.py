"""The events that a reflector sends to its sink, and the bookkeeping that makes their sequence complete. No I/O.

The sink is a synchronous callable. It gets `Upserted` and `Deleted` for single objects, in the server's order, and
marks for all of them: `Listed` when the first list is complete, `Relisted` after each later one, `Unserved` when the
server does not know the resource, `Denied` when it does not show it to us. Objects that vanished between two lists are
`Deleted` before the mark; an object that was made anew under an old name is `Deleted` (old UID), then `Upserted`. So a
consumer that applies every event has the server's state at every mark.
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
