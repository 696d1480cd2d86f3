"""Compares the Store, the cache of watched objects, with the API server (`Comparison`), to find bugs in the cache.

Each watched kind is listed in pages, and compared in slices of 2 ms, so that the event loop can run other tasks. A
watch is always slightly behind, so an object that differs is compared again after a second. The difference is reported
if it persists although the Store has not changed the object meanwhile.
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
"""The size of a page: small, because a page is decoded without a pause, and a node may have more than 10 kB."""

_SLICE_SECONDS = 0.002
"""The time in seconds after which the comparison pauses, for as long as it has run."""

_MAX_PAUSE_SECONDS = 0.01
"""The maximum pause of a comparison, in seconds.

A pause is as long as the work before it. That time may include a wait for the API server, which blocks nothing.
"""

_RECHECK_SECONDS = 1.0
"""The pause before differing objects are compared again: within this time a watch shows the latest change."""

MAX_NAMED = 100
"""The maximum number of objects of a kind that are compared again and reported by name."""


class Difference(StrEnum):
    """The ways in which the Store can differ from the API server in one object."""

    MISSING = "missing"
    """The object exists, but not in the Store."""

    EXTRA = "extra"
    """The object is in the Store, but does not exist any more."""

    STALE = "stale"
    """The Store has another state of the object."""

    MALFORMED = "malformed"
    """Serried cannot decode the object, so the Store keeps its last valid state, if any."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The result of a comparison for one kind."""

    kind: Kind

    listed: int = 0
    """The number of objects of the kind at the API server."""

    cached: int = 0
    """The number of objects of the kind in the Store."""

    named: tuple[tuple[str, Difference], ...] = ()
    """The objects that differed in both comparisons, as (``namespace/name`` or name, difference)."""

    left_off: int = 0
    """The number of further objects that differed in the first comparison, and were not compared again."""

    served: bool = True
    """False if the API server does not serve the kind, so that there is nothing to compare; the counts are 0."""

    error: str = ""
    """The reason why the kind could not be compared; "" if it was."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """An object that differed between the cache and the API server, and is compared once more, which decides."""

    identity: Hashable
    """The key of the object in the Store's map (`Channel.identify`)."""

    key: Key
    """The namespace ("" if cluster-scoped) and name of the object."""

    cached: Item | None
    """The object in the Store at the first comparison; None if it was not there."""


class _Pace:
    """Limits a comparison to about half of the time of the event loop, by pauses."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()

    async def rest_if_due(self) -> None:
        """Pause if more than 2 ms have passed since the last pause. Call it after each object."""
        spent = time.perf_counter() - self._begun
        if spent > _SLICE_SECONDS:
            await asyncio.sleep(min(spent, _MAX_PAUSE_SECONDS))
            self._begun = time.perf_counter()


class Comparison:
    """Compares the Store with the API server on request.

    ``feed`` runs the watches that keep the Store up to date. ``sleep`` waits for a number of seconds.
    """

    def __init__(
        self, client: ApiClient, feed: Feed, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._client = client
        self._feed = feed
        self._sleep = sleep

        self.under_way = False
        """True during a comparison. Callers must not start another one then: each costs the API server full lists."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that can be compared: those that are watched for the Store at the moment."""
        return self._feed.followed

    async def compare(self, kinds: Iterable[Kind]) -> list[Drift]:
        """Compare these kinds one after the other. Return one result for each, also if the API server fails."""
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
            await self._sleep(_RECHECK_SECONDS)
        named = [(each.key, found) for each in suspects[:MAX_NAMED] if (found := await self._check_again(kind, each))]
        names = tuple((_write_key(key), found) for key, found in named)
        return Drift(kind, len(listed), cached, names, max(0, len(suspects) - MAX_NAMED))

    async def _list(self, kind: Kind, suspects: list[_Suspect]) -> AsyncGenerator[Hashable, None]:
        """List a kind. Yield the identity of each object, and append the objects that differ to ``suspects``."""
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
        """Read one object from the API server again. Return how the Store still differs from it.

        Return None if it does not differ, or if the Store has changed the object since the first comparison.
        """
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
    """Return how the Store differs from ``obj``, an object as the API server has it; None if it does not.

    ``channel`` has the decoder for the kind of the object, and the Store's map of the objects.
    """
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
