"""Helpers for indexes: maps from a property of objects, called place, to the keys of the objects with this property.

For instance from an owner to its pods. A place without objects is removed from the map.
"""

from bisect import bisect_left
from collections.abc import Hashable
from typing import TypeVar

from serried.api.group import PodGroup, Workload
from serried.api.names import GroupKey, Key

Place = TypeVar("Place", bound=Hashable)
Entry = TypeVar("Entry", bound=Hashable)
Item = TypeVar("Item", bound=tuple[str, ...])


def reindex(index: dict[Place, tuple[Item, ...]], old: Place | None, new: Place | None, key: Item) -> set[Place]:
    """Move the object ``key`` in an index from the place ``old`` to the place ``new``; None for no place.

    Return both places, as far as they are not None. Keys are in sorted tuples, because a set with one element needs
    four times as much memory.
    """
    if old is not None and old != new:
        _remove(index, old, key)
    if new is not None:
        found = index.get(new, ())
        at = bisect_left(found, key)
        # Binary search: a user may create thousands of objects that name one place.
        if found[at : at + 1] != (key,):
            index[new] = (*found[:at], key, *found[at:])
    return {place for place in (old, new) if place is not None}


def _remove(index: dict[Place, tuple[Item, ...]], place: Place, key: Item) -> None:
    found = index[place]
    at = bisect_left(found, key)
    left = found[:at] + found[at + 1 :] if found[at : at + 1] == (key,) else found
    if left:
        index[place] = left
    else:
        del index[place]


def discard(index: dict[Place, dict[Entry, None]], place: Place, entry: Entry) -> None:
    """Remove an entry from the ordered set (a dict with values None) at a key (``place``) of an index, if it is there.

    A place without entries is removed as well.
    """
    found = index.get(place)
    if found is not None:
        found.pop(entry, None)
        if not found:
            del index[place]


def key_of_workload(old: Workload | None, new: Workload | None) -> Key:
    """Return the key of a Workload that has changed from ``old`` to ``new``.

    Only one of them may be None (no Workload).
    """
    item = new or old
    assert item is not None  # noqa: S101 - narrows for the type checker: one of two states exists in every change
    return item.key


def key_of_group(old: PodGroup | None, new: PodGroup | None) -> GroupKey:
    """Return the key of a PodGroup that has changed from ``old`` to ``new``.

    Only one of them may be None (no PodGroup).
    """
    item = new or old
    assert item is not None  # noqa: S101 - narrows for the type checker: one of two states exists in every change
    return item.key
