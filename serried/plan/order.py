"""In which order waiting gangs are planned."""

from collections.abc import Iterable
from dataclasses import dataclass

from serried.model.group import Key


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group whose quorum stands. ``since`` is the time of its first complete quorum, on any one clock."""

    group: Key
    priority: int
    since: float


def order_groups(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Highest priority first, then the longest complete, then by key."""
    return sorted(waiting, key=lambda group: (-group.priority, group.since, group.group))
