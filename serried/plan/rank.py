"""The rank of a gang's member: its number in what the gang was made for, and the order that follows from it."""

from collections.abc import Callable, Mapping
from functools import lru_cache

from serried.model.group import Key
from serried.model.parent import OwnerKey, Parent, Place
from serried.model.pod import Pod

Position = tuple[str, tuple[int | str, ...], int, str, int, str]
"""Where a member comes in its gang; compared from the left."""


def find_rank(place: Place, index: int, parent: Parent) -> int | None:
    """The number of a pod in its JobSet: its completion index, after all pods of the Jobs before its own.

    None for a Job that the JobSet does not have, or not so large.
    """
    span = next((span for span in parent.spans if span.stage == place.stage), None)
    return span.first + place.job * span.each + index if span is not None and index < span.each else None


def order_by_rank(parents: Mapping[OwnerKey, Parent]) -> Callable[[Pod], Position]:
    """The key that sorts the members of a group: by what they are parts of, there by rank, and else by name.

    Names that end in numbers follow the numbers. Members of one parent have positions that agree with their ranks, also
    where the parent is not known, as far as labels tell.
    """
    starts: dict[Place, tuple[int | str, ...]] = {}

    def position(pod: Pod) -> Position:
        place = pod.place
        head = pod.owner.name if pod.owner is not None else ""
        start: tuple[int | str, ...] = ()
        if place is not None:
            head = place.parent
            start = starts.get(place) or starts.setdefault(place, _find_start(place, pod.namespace, parents))
        if pod.index is not None:
            return head, start, pod.index, "", 0, pod.name
        return head, start, -1, *_split(pod.name), pod.name

    return position


@lru_cache(1 << 16)
def _split(name: str) -> tuple[str, int]:
    # A gang is sorted at each look, and splitting the names of thousands of members took most of that.
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


def _find_start(place: Place, namespace: str, parents: Mapping[OwnerKey, Parent]) -> tuple[int | str, ...]:
    parent = parents.get(OwnerKey(place.kind, Key(namespace, place.parent)))
    stages = [span.stage for span in parent.spans] if parent is not None else []
    known = stages.index(place.stage) if place.stage in stages else len(stages)
    stage = "" if place.replica else place.stage  # a replica's pods are numbered through leader and workers
    return len(place.replica), place.replica, known, stage, place.job
