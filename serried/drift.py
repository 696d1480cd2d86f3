"""The Store against the API server now: what is missing in it, what it has too much, and what it has of old.

Every kind that the feed follows is listed in pages and compared in slices, so that the event loop goes on with its
work. A watch is always a little behind, so what differs is looked at twice: it is told only if it differs still after a
while in which the Store has not moved.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from serried.api.names import Key, Malformed
from serried.api.pod import Pod
from serried.feed import Channel, Feed, Item, Kind
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError
from serried.kube.wire import JSON, identity, list_params

_OBJECTS_PER_PAGE = 25
"""Small pages: a page is decoded in one piece, and a node with its images has more than ten kilobytes."""

_SLICE_SECONDS = 0.002
"""The time spent on objects after which other tasks run, for as long again."""

_LONGEST_REST_SECONDS = 0.01
"""A wait for the next page counts as time spent; nobody has to rest as long for it."""

_SETTLE_SECONDS = 1.0
"""How long a watch may be behind."""

MAX_NAMED = 100
"""How many objects of a kind are looked at twice, and named."""


class Difference(StrEnum):
    """How the Store can differ from the API server in one object."""

    MISSING = "missing"
    EXTRA = "extra"
    STALE = "stale"

    MALFORMED = "malformed"
    """Serried cannot read the object, and keeps the last state of it that it could."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How far the Store is from the API server in one kind."""

    kind: Kind

    listed: int = 0
    """How many objects the API server has."""

    cached: int = 0
    """How many the Store has."""

    named: tuple[tuple[str, Difference], ...] = ()
    """The objects that differ; ``namespace/name``, or the name alone."""

    left_off: int = 0
    """How many more differed when they were listed."""

    served: bool = True
    """Whether the API server serves the kind; else there is nothing to compare."""

    error: str = ""
    """Why the kind could not be compared."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """An object that differed at the first look."""

    identity: Hashable
    """Under which the Store keeps it."""

    key: Key
    cached: Item | None


class _Pace:
    """Keeps a comparison from taking the event loop for itself: half of the time is for others."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()

    async def keep(self) -> None:
        """Rest if it is time to."""
        spent = time.perf_counter() - self._begun
        if spent > _SLICE_SECONDS:
            await asyncio.sleep(min(spent, _LONGEST_REST_SECONDS))
            self._begun = time.perf_counter()


class Comparison:
    """Compares on request, one kind after the other. ``rest`` waits for so many seconds."""

    def __init__(self, client: ApiClient, feed: Feed, rest: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._client = client
        self._feed = feed
        self._rest = rest

        self.under_way = False
        """Whether one is being made: it costs the API server lists, so there is one at a time."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What can be compared: all that the feed follows."""
        return self._feed.followed

    async def compare(self, kinds: Iterable[Kind]) -> list[Drift]:
        """The drift of each of these kinds."""
        self.under_way = True
        try:
            return [await self._compare(kind) for kind in kinds]
        finally:
            self.under_way = False

    async def _compare(self, kind: Kind) -> Drift:
        if kind in self._feed.unserved:
            return Drift(kind, served=False)
        try:
            return await self._compare_served(kind)
        except ApiError as error:
            return Drift(kind, error=str(error))

    async def _compare_served(self, kind: Kind) -> Drift:
        channel = self._feed.channels[kind]
        suspects: list[_Suspect] = []
        listed = {key async for key in self._list(kind, suspects)}
        cached = 0
        pace = _Pace()
        for key, item in list(channel.held.items()):
            if channel.owns(key):
                cached += 1
                if key not in listed:
                    suspects.append(_Suspect(key, _find_key(item), item))
            await pace.keep()
        if suspects:
            await self._rest(_SETTLE_SECONDS)
        named = [(each.key, found) for each in suspects[:MAX_NAMED] if (found := await self._look_again(kind, each))]
        names = tuple((_write_key(key), found) for key, found in named)
        return Drift(kind, len(listed), cached, names, max(0, len(suspects) - MAX_NAMED))

    async def _list(self, kind: Kind, suspects: list[_Suspect]) -> AsyncGenerator[Hashable, None]:
        """The identities of all objects that the API server has; those that differ are ``suspects``."""
        channel = self._feed.channels[kind]
        reflector = self._feed.reflectors[kind]
        path = reflector.resource.path(reflector.selection.namespace)
        async with aclosing(self._client.pages(path, reflector.selection, _OBJECTS_PER_PAGE)) as pages:
            pace = _Pace()
            async for page in pages:
                for obj in page.items:
                    key = channel.identify(obj)
                    if _judge(channel, obj) is not None:
                        suspects.append(_Suspect(key, Key(*identity(obj)[:2]), channel.held.get(key)))
                    yield key
                    await pace.keep()

    async def _look_again(self, kind: Kind, suspect: _Suspect) -> Difference | None:
        """How the object differs still; None if it does not, or the Store has learned of it in the meantime."""
        channel = self._feed.channels[kind]
        reflector = self._feed.reflectors[kind]
        only = f"metadata.name={suspect.key.name}"
        fields = f"{reflector.selection.fields},{only}" if reflector.selection.fields else only
        params = list_params(replace(reflector.selection, fields=fields), 1, "")
        page = await self._client.page(reflector.resource.path(suspect.key.namespace), params)
        now = next((obj for obj in page.items if channel.identify(obj) == suspect.identity), None)
        if channel.held.get(suspect.identity) is not suspect.cached:
            return None
        if now is not None:
            return _judge(channel, now)
        return Difference.EXTRA if suspect.cached is not None else None


def _judge(channel: Channel[Any, Any], obj: JSON) -> Difference | None:
    """How the Store differs in an object of the API server; None if it does not."""
    held = channel.held.get(channel.identify(obj))
    if held is not None and held.version and held.version == obj["metadata"].get("resourceVersion"):
        return None
    new = channel.decode(obj)
    if isinstance(new, Malformed):
        return Difference.MALFORMED
    if held is None:
        return Difference.MISSING
    # The Store keeps no heartbeats of nodes: with another version an object can still say the same.
    return None if replace(new, version=held.version) == held else Difference.STALE


def _find_key(item: Any) -> Key:
    if isinstance(item, Pod):
        return Key(item.namespace, item.name)
    key = getattr(item, "key", None)  # what is in no namespace has a name only
    return Key("", item.name) if key is None else Key(key.namespace, key.name)


def _write_key(key: Key) -> str:
    return str(key) if key.namespace else key.name
