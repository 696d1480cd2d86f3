"""Helpers for indexes, which map a place to the entries there. A place without entries is removed."""

from bisect import bisect_left
from collections.abc import Hashable
from typing import TypeVar

from serried.api.group import PodGroup, Workload
from serried.api.names import GroupKey, Key

Place = TypeVar("Place", bound=Hashable)
Entry = TypeVar("Entry", bound=Hashable)
Item = TypeVar("Item", bound=tuple[str, ...])


def reindex(index: dict[Place, tuple[Item, ...]], old: Place | None, new: Place | None, key: Item) -> set[Place]:
    """Move one object from the ``old`` place to the ``new`` one; None for no place. Return the places that changed.

    Entries are sorted tuples, because a set with one element needs four times as much memory.
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
    """Remove an entry from the ordered set at a place, if it is there."""
    found = index.get(place)
    if found is not None:
        found.pop(entry, None)
        if not found:
            del index[place]


def key_of_workload(old: Workload | None, new: Workload | None) -> Key:
    """Return the key of the Workload that changed from ``old`` to ``new``; one of them is not None."""
    item = new or old
    assert item is not None  # noqa: S101 - narrows for the type checker: one of two states exists in every change
    return item.key


def key_of_group(old: PodGroup | None, new: PodGroup | None) -> GroupKey:
    """Return the key of the PodGroup that changed from ``old`` to ``new``; one of them is not None."""
    item = new or old
    assert item is not None  # noqa: S101 - narrows for the type checker: one of two states exists in every change
    return item.key
