"""Compares the Store with the API server (`Comparison`): objects missing, superfluous or outdated in the Store.

Each watched kind is listed in pages and compared in slices, so that the event loop can do other work. A watch is always
slightly behind, so differences are checked twice: one is only reported if it persists after a pause in which the Store
has not changed the object.
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
"""Small, because a page is decoded at once, and a node with its images has more than ten kilobytes."""

_SLICE_SECONDS = 0.002
"""The time spent on objects after which the loop pauses, for as long again."""

_LONGEST_REST_SECONDS = 0.01
"""The maximum pause. Waiting for a page counts as time spent, and needs no pause of that length."""

_SETTLE_SECONDS = 1.0
"""The time that a watch may be behind."""

MAX_NAMED = 100
"""The maximum number of objects of a kind that are checked twice and reported by name."""


class Difference(StrEnum):
    """The ways in which an object in the Store can differ from the API server."""

    MISSING = "missing"
    EXTRA = "extra"
    STALE = "stale"

    MALFORMED = "malformed"
    """Serried cannot decode the object, and keeps its last valid state."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The result of a comparison for one kind."""

    kind: Kind

    listed: int = 0
    """The number of objects at the API server."""

    cached: int = 0
    """The number of objects in the Store."""

    named: tuple[tuple[str, Difference], ...] = ()
    """The differing objects as ``namespace/name``, or as the name alone."""

    left_off: int = 0
    """The number of further objects that differed at the first check."""

    served: bool = True
    """False if the API server does not serve the kind, so that there is nothing to compare."""

    error: str = ""
    """The reason why the kind could not be compared; "" if it was."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """An object that differed at the first check."""

    identity: Hashable
    """The identity under which the Store has it."""

    key: Key
    cached: Item | None


class _Pace:
    """Limits a comparison to half of the time of the event loop."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()

    async def rest_if_due(self) -> None:
        """Pause if a slice is over."""
        spent = time.perf_counter() - self._begun
        if spent > _SLICE_SECONDS:
            await asyncio.sleep(min(spent, _LONGEST_REST_SECONDS))
            self._begun = time.perf_counter()


class Comparison:
    """Compares on request, one kind after another. ``rest`` sleeps."""

    def __init__(self, client: ApiClient, feed: Feed, rest: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._client = client
        self._feed = feed
        self._rest = rest

        self.under_way = False
        """True during a comparison. Callers make one at a time, because it costs the API server lists."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that can be compared: those that the feed watches."""
        return self._feed.followed

    async def compare(self, kinds: Iterable[Kind]) -> list[Drift]:
        """Return the drift of each kind."""
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
            await pace.rest_if_due()
        if suspects:
            await self._rest(_SETTLE_SECONDS)
        named = [(each.key, found) for each in suspects[:MAX_NAMED] if (found := await self._check_again(kind, each))]
        names = tuple((_write_key(key), found) for key, found in named)
        return Drift(kind, len(listed), cached, names, max(0, len(suspects) - MAX_NAMED))

    async def _list(self, kind: Kind, suspects: list[_Suspect]) -> AsyncGenerator[Hashable, None]:
        """Yield the identity of each object at the API server, and add those that differ to ``suspects``."""
        channel = self._feed.channels[kind]
        reflector = self._feed.reflectors[kind]
        path = reflector.resource.path(reflector.selection.namespace)
        async with aclosing(self._client.pages(path, reflector.selection, _OBJECTS_PER_PAGE)) as pages:
            pace = _Pace()
            async for page in pages:
                for obj in page.items:
                    key = channel.identify(obj)
                    if _compare_object(channel, obj) is not None:
                        suspects.append(_Suspect(key, Key(*identity(obj)[:2]), channel.held.get(key)))
                    yield key
                    await pace.rest_if_due()

    async def _check_again(self, kind: Kind, suspect: _Suspect) -> Difference | None:
        """Return how the object still differs; None if it does not, or if the Store has changed it meanwhile."""
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
            return _compare_object(channel, now)
        return Difference.EXTRA if suspect.cached is not None else None


def _compare_object(channel: Channel[Any, Any], obj: JSON) -> Difference | None:
    """Return how the Store differs from an object at the API server; None if it does not."""
    held = channel.held.get(channel.identify(obj))
    if held is not None and held.version and held.version == obj["metadata"].get("resourceVersion"):
        return None
    new = channel.decode(obj)
    if isinstance(new, Malformed):
        return Difference.MALFORMED
    if held is None:
        return Difference.MISSING
    # The Store omits heartbeats of nodes, so an object with another version can be equal.
    return None if replace(new, version=held.version) == held else Difference.STALE


def _find_key(item: Any) -> Key:
    if isinstance(item, Pod):
        return Key(item.namespace, item.name)
    key = getattr(item, "key", None)  # cluster-scoped objects only have a name
    return Key("", item.name) if key is None else Key(key.namespace, key.name)


def _write_key(key: Key) -> str:
    return str(key) if key.namespace else key.name
