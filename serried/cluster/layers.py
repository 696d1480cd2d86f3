"""Objects of one kind at two API levels, of which one map of the Store shows one for each key.

A name is one group, whichever level its object is at: pods that name it stay its members when the cluster turns from
one level to another, and when somebody makes the object anew at the other level. Of two objects of a name, that of the
level in use counts (docs/decisions/0030-the-ground-changes.md).
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Layers(Generic[K, V]):
    """The objects of the level in use over those beside it; ``put`` and ``drop`` are the Store's."""

    def __init__(self, identify: Callable[[V], K], put: Callable[[V], None], drop: Callable[[K], None]) -> None:
        self.upper: dict[K, V] = {}
        """The objects of the level in use."""

        self.lower: dict[K, V] = {}
        """The objects of the level beside it."""

        self._identify = identify
        self._put = put
        self._drop = drop

    def put_upper(self, item: V) -> None:
        """An object of the level in use came or changed."""
        self.upper[self._identify(item)] = item
        self._put(item)

    def drop_upper(self, key: K) -> None:
        """An object of the level in use went; what is below it, if anything, counts from now on."""
        self.upper.pop(key, None)
        below = self.lower.get(key)
        if below is None:
            self._drop(key)
        else:
            self._put(below)

    def put_lower(self, item: V) -> None:
        """An object of the level beside it came or changed."""
        key = self._identify(item)
        self.lower[key] = item
        if key not in self.upper:
            self._put(item)

    def drop_lower(self, key: K) -> None:
        """An object of the level beside it went."""
        self.lower.pop(key, None)
        if key not in self.upper:
            self._drop(key)
