"""Changes of indexes: what is found under a key, and nothing under a key that has nothing."""

from collections.abc import Hashable
from typing import TypeVar

from serried.model.group import GroupKey, Key, PodGroup, Workload

Place = TypeVar("Place", bound=Hashable)
Item = TypeVar("Item", bound=tuple[str, ...])


def reindex(index: dict[Place, tuple[Item, ...]], old: Place | None, new: Place | None, key: Item) -> set[Place]:
    """Follow one object from place to place; returns both. Sorted tuples: a set of one costs four times as much."""
    if old is not None and old != new:
        left = tuple(each for each in index[old] if each != key)
        if left:
            index[old] = left
        else:
            del index[old]
    if new is not None and key not in index.get(new, ()):
        index[new] = tuple(sorted((*index.get(new, ()), key)))
    return {place for place in (old, new) if place is not None}


def discard(index: dict[Place, dict[str, None]], place: Place, uid: str) -> None:
    """Take a pod out of the ordered set at a place."""
    entry = index.get(place)
    if entry is not None:
        entry.pop(uid, None)
        if not entry:
            del index[place]


def key_of_workload(old: Workload | None, new: Workload | None) -> Key:
    """The key of the Workload that changed from ``old`` to ``new``."""
    item = new or old
    assert item is not None  # noqa: S101 - narrows for the type checker: one of two states exists in every change
    return item.key


def key_of_group(old: PodGroup | None, new: PodGroup | None) -> GroupKey:
    """The key of the PodGroup that changed from ``old`` to ``new``."""
    item = new or old
    assert item is not None  # noqa: S101 - narrows for the type checker: one of two states exists in every change
    return item.key
