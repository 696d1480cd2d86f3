"""The pods that the API server would not evict: they are no victims for a while."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from serried.model.group import GroupKey

REFUSAL_SECONDS = 60.0
"""For how long a pod is left alone whose eviction was refused."""


@dataclass(slots=True)
class _Series:
    """What was refused for one gang, one search after the other."""

    until: float = -math.inf
    whys: dict[str, str] = field(default_factory=dict)


class Refusals:
    """Which evictions were refused lately, by the gang for which they were rehearsed. ``clock`` gives loop seconds.

    As long as evictions are refused for a gang, all stay known that were: each search leaves out more than the last,
    so there is an end to it however many there are.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._series: dict[GroupKey, _Series] = {}
        self._by_uid: dict[str, _Series] = {}

    def add(self, group: GroupKey, refused: Mapping[str, str]) -> None:
        """The evictions of these pods were refused: their UIDs, and a phrase why."""
        now = self._clock()
        for key in [key for key, series in self._series.items() if now >= series.until]:
            self._drop(key)
        series = self._series.setdefault(group, _Series())
        series.until = now + REFUSAL_SECONDS
        series.whys.update(refused)
        self._by_uid.update(dict.fromkeys(refused, series))

    def find(self, uid: str) -> str:
        """Why a pod would not be evicted, a phrase; "" if it would, as far as is known."""
        series = self._by_uid.get(uid)
        return series.whys[uid] if series is not None and self._clock() < series.until else ""

    def _drop(self, group: GroupKey) -> None:
        series = self._series.pop(group)
        for uid in series.whys:
            if self._by_uid.get(uid) is series:
                del self._by_uid[uid]
