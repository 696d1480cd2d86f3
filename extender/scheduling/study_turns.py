"""Whose turn it is among studies that are to be made: those that take little first, one namespace after the other."""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence

from extender.scheduling.study import Study
from serried.model.group import GroupKey

_MAX_BEGUN = 8
"""How many studies of one namespace are under way at a time: each has a copy of the cluster, and takes its turns."""


class StudyTurns:
    """The studies that are not done. ``studies`` is live: one that is not in it any more has no turn."""

    def __init__(self, studies: Mapping[GroupKey, Sequence[Study]]) -> None:
        self._studies = studies

        self._fresh: dict[str, deque[Study]] = {}
        """Those that have not begun, by namespace, in the order in which they were asked for."""

        self._begun: list[Study] = []
        """Those that have: each has a copy of the cluster."""

        self._served: dict[str, int] = {}
        """When a study of each namespace was begun last, as a number of ``_count``."""

        self._count = 0
        """How many studies have begun."""

    def add(self, study: Study) -> None:
        """Something new is asked for."""
        self._fresh.setdefault(study.group.namespace, deque()).append(study)

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
        counts = Counter(each.group.namespace for each in self._begun)
        free = [namespace for namespace in list(self._fresh) if counts[namespace] < _MAX_BEGUN]
        waiting = [study for namespace in free if (study := self._find_first(namespace)) is not None]
        chosen = min([*self._begun, *waiting, *asides], key=self._rank, default=None)
        if chosen is not None and chosen in waiting:
            self._begun.append(self._fresh[chosen.group.namespace].popleft())
            self._count += 1
            self._served[chosen.group.namespace] = self._count
        return chosen

    def _rank(self, study: Study) -> tuple[int, int, int]:
        """As their places are; of equals that of the namespace of which one was begun the longest ago."""
        level, turn = study.place
        return level, self._served.get(study.group.namespace, 0), turn

    def _find_first(self, namespace: str) -> Study | None:
        """The first study of a namespace that has not begun and that somebody still waits for."""
        fresh = self._fresh[namespace]
        while fresh:
            if self._is_open(fresh[0]):
                return fresh[0]
            fresh.popleft()
        del self._fresh[namespace]
        self._served.pop(namespace, None)
        return None

    def _is_open(self, study: Study) -> bool:
        return not study.done and study in self._studies.get(study.group, ())
