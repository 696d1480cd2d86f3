"""Whose turn it is among studies that are to be made: those that take little first, one namespace after the other."""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from extender.scheduling.study import Study, StudyKind
from serried.model.group import GroupKey

_MAX_BEGUN = 8
"""How many studies of one namespace are under way at a time: each has a copy of the cluster, and takes its turns."""

_MAX_SEARCHES_BEGUN = 1
"""The same for searches for victims: two that see the same cluster find the same victims, and only one gets them."""

_LONG_SECONDS = 0.5
"""A search that has taken so much work keeps no other waiting, as long as there are not too many of them."""


class _Lane(NamedTuple):
    """Studies that begin one after the other."""

    namespace: str
    searches: bool
    """Whether victims are looked for."""


def _lane_of(study: Study) -> _Lane:
    return _Lane(study.group.namespace, study.kind is StudyKind.PREEMPTION)


class StudyTurns:
    """The studies that are not done. ``studies`` is live: one that is not in it any more has no turn."""

    def __init__(self, studies: Mapping[GroupKey, Sequence[Study]]) -> None:
        self._studies = studies

        self._fresh: dict[_Lane, deque[Study]] = {}
        """Those that have not begun, in the order in which they were asked for."""

        self._begun: list[Study] = []
        """Those that have: each has a copy of the cluster."""

        self._served: dict[str, int] = {}
        """When a study of each namespace was begun last, as a number of ``_count``."""

        self._count = 0
        """How many studies have begun."""

    def add(self, study: Study) -> None:
        """Something new is asked for."""
        self._fresh.setdefault(_lane_of(study), deque()).append(study)

    def add_again(self, study: Study) -> None:
        """A study is to be made once more."""
        self._begun.append(study)

    def clear(self) -> None:
        """Nobody waits for anything."""
        self._fresh.clear()
        self._begun.clear()
        self._served.clear()

    def choose(self, asides: Collection[Study]) -> Study | None:
        """The next one, of these and of ``asides``; None if nothing is to be done."""
        self._begun = [each for each in self._begun if self._is_open(each)]
        waiting = [study for lane in self._list_free() if (study := self._find_first(lane)) is not None]
        chosen = min([*self._begun, *waiting, *asides], key=self._rank, default=None)
        if chosen is not None and chosen in waiting:
            self._begun.append(self._fresh[_lane_of(chosen)].popleft())
            self._count += 1
            self._served[chosen.group.namespace] = self._count
        return chosen

    def _list_free(self) -> list[_Lane]:
        """The lanes in which another study may begin."""
        begun = Counter(_lane_of(each) for each in self._begun)
        short = Counter(_lane_of(each) for each in self._begun if not _is_long_search(each))
        free = [lane for lane in self._fresh if begun[lane] < _MAX_BEGUN]
        return [lane for lane in free if not lane.searches or short[lane] < _MAX_SEARCHES_BEGUN]

    def _rank(self, study: Study) -> tuple[int, int, int]:
        """As their places are; of equals that of the namespace of which one was begun the longest ago."""
        level, turn = study.place
        return level, self._served.get(study.group.namespace, 0), turn

    def _find_first(self, lane: _Lane) -> Study | None:
        """The first study of a lane that has not begun and that somebody still waits for."""
        fresh = self._fresh[lane]
        while fresh:
            if self._is_open(fresh[0]):
                return fresh[0]
            fresh.popleft()
        del self._fresh[lane]
        if not any(each.namespace == lane.namespace for each in self._fresh):
            self._served.pop(lane.namespace, None)
        return None

    def _is_open(self, study: Study) -> bool:
        return not study.done and study in self._studies.get(study.group, ())


def _is_long_search(study: Study) -> bool:
    return study.kind is StudyKind.PREEMPTION and study.spent > _LONG_SECONDS
