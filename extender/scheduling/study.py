"""One plan, forecast or search that is made in slices (`extender.scheduling.studies`)."""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from serried.cluster.vacancies import Vacancy
from serried.model.group import GroupKey
from serried.model.node import Node
from serried.model.plan import PlanRequest, Snapshot
from serried.plan.capacity import Capacity
from serried.plan.steps import Haste, Work

GO_SECONDS = 0.05
"""Work that every study gets at once. One that takes more comes after those that take less."""

Make = Callable[[Snapshot, Capacity], Work[Any]]
"""Begins the work on a snapshot."""


class StudyKind(Enum):
    """What is asked for."""

    PLAN = "plan"
    FORECAST = "forecast"
    PREEMPTION = "preemption"

    ASIDE = "aside"
    """Something of which no group hears."""


@dataclass(slots=True, eq=False)
class Study:
    """One question, and how far its answer is."""

    group: GroupKey
    kind: StudyKind
    request: PlanRequest

    leaving: tuple[Vacancy, ...]
    """Slots that count as free for it."""

    make: Make

    limit: float
    """Seconds of work after which it is given up."""

    turn: int
    """Its number among all studies, in the order in which they were asked for."""

    tried: bool
    """Whether it was tried straight before."""

    haste: Haste | None = None
    """How it is told to end soon; None if it cannot end sooner."""

    work: Work[Any] | None = None
    """The work while it goes on."""

    spent: float = 0.0
    """Seconds of work so far."""

    done: bool = False
    """Whether the answer is there."""

    told: bool = False
    """Whether the answer was given to somebody."""

    found: Any = None
    """The answer."""

    failure: Exception | None = None
    """What was raised in its place."""

    tell: Callable[[Any], None] | None = None
    """Gets the answer; None if its group asks for it."""

    restarts: int = 0

    nodes: Mapping[str, Node] = field(default_factory=dict)
    """The nodes as they were when the work began."""

    room: tuple[int, int] = (0, 0)
    """How often room had become free by then (`Snapshots.count_freed`)."""

    @property
    def place(self) -> tuple[int, int]:
        """Who took little comes before who took much, each time twice as much; of equals the first one."""
        return int(math.log2(max(1.0, self.spent / GO_SECONDS)) + (self.spent >= GO_SECONDS)), self.turn

    def asks(self, request: PlanRequest, leaving: tuple[Vacancy, ...]) -> bool:
        """Whether it answers this question."""
        same = len(leaving) == len(self.leaving) and all(map(operator.is_, leaving, self.leaving))
        return same and self.request.asks_the_same(request)
