"""What a decision asks for outside of this process, as values. Scheduling puts them out, binding carries them out.

A decision is synchronous and calls nobody above it: it changes the state, and leaves its effects in the ``Outbox``.
Whoever asked for the decision has them carried out right after it, in order, before anything else runs
(`extender.core.binding.run.CycleRunner.carry_out`).

Beside them the `Context` that decisions are made in, with the term of this instance.
"""

import math
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from extender.core.feature import Features
from extender.core.scheduling.awaited_owner import Waiter
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.group import Groups
from extender.core.timeline import StatusSink, Timelines
from extender.options import Options
from serried.api.names import GroupKey
from serried.api.pod import Pod
from serried.cluster.cache import Store
from serried.cluster.ledger import Ledger
from serried.ops.metrics import ExtenderMetrics


@dataclass(frozen=True, slots=True)
class StartCycle:
    """Run this cycle, whose reservation is held."""

    cycle: BindingCycle


@dataclass(frozen=True, slots=True)
class Nominate:
    """Send these members of a cycle (UIDs) to their slots."""

    cycle: BindingCycle
    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """These members (UIDs) have no slot any more. ``pods`` are those from which our nomination is taken off."""

    uids: frozenset[str]
    pods: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class Activate:
    """Make the scheduler try this pod: nothing holds it any more."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Requeue:
    """Make the scheduler try this pod that its own plugins have rejected; it is shortly nominated to the node.

    Nothing is done if it runs, is going or is nominated to another node when its turn comes.
    """

    pod: Pod
    node: str


@dataclass(frozen=True, slots=True)
class ActivateIdle:
    """Make the scheduler try the members of this cycle for which a wake-up seems lost."""

    cycle: BindingCycle


@dataclass(frozen=True, slots=True)
class InBackground:
    """Do a feature's work in the background, until the end of the term."""

    begin: Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class LookUpOwner:
    """Ask the API server whether the owner exists for which this group's pods wait."""

    group: GroupKey
    waiters: frozenset[Waiter]


@dataclass(frozen=True, slots=True)
class WorkOnTasks:
    """Have the plans and forecasts made that take long (`extender.core.scheduling.planning_tasks`)."""


Effect = StartCycle | Nominate | Release | Activate | Requeue | ActivateIdle | InBackground | LookUpOwner | WorkOnTasks


class Outbox:
    """The effects that are asked for and not carried out yet, the oldest first."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def put(self, effect: Effect) -> None:
        """Ask for an effect."""
        self._effects.append(effect)

    def take(self) -> list[Effect]:
        """The effects asked for since the last call."""
        taken = self._effects
        self._effects = []
        return taken


class Term:
    """One term after the other. ``holds_lease`` is asked whether the term has not run out by now."""

    def __init__(self, holds_lease: Callable[[], bool]) -> None:
        self.holds_lease = holds_lease

        self.active = False
        """Whether this term looks at groups at all."""

        self.recovering = False
        """Whether it is just taking over what earlier terms have left."""

        self.obstacle = ""
        """Why it cannot plan any group yet, a phrase; "" for no reason."""

    def leads(self) -> bool:
        """Whether this instance may write at this moment."""
        return (self.active or self.recovering) and self.holds_lease()

    @property
    def plans(self) -> bool:
        """Whether groups are looked at, and planned."""
        return self.active and not self.obstacle

    def end(self) -> None:
        """Another instance may lead from now on."""
        self.active = False
        self.recovering = False
        self.obstacle = ""


@dataclass(slots=True, eq=False)
class Context:
    """What nearly every part works on that decides, or carries out what was decided."""

    store: Store
    term: Term
    status: StatusSink
    metrics: ExtenderMetrics
    options: Options

    clock: Callable[[], float]
    """Loop seconds."""

    wall: Callable[[], float] = time.time
    """Seconds since 1970."""

    installation: str = "serried-system"
    """The namespace of this installation of Serried: its name where several are in one cluster."""

    ledger: Ledger = field(init=False)
    groups: Groups = field(init=False)
    timelines: Timelines = field(init=False)
    outbox: Outbox = field(default_factory=Outbox, init=False)

    features: Features = field(default_factory=Features, init=False)
    """What else has a say; none before the parts are wired."""

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.store.occupancy, self.store.pending_victims)
        self.timelines = Timelines(self.wall)
        self.groups = Groups(self.store, self.ledger, self.status, self.timelines, self.clock, self.metrics)


class WriteBurst:
    """A context for each that writes what others wait for, any number at a time. ``clock`` gives loop seconds."""

    def __init__(self, clock: Callable[[], float], aftermath: float, longest: float) -> None:
        """It lasts for ``aftermath`` seconds beyond the last write, and ``longest`` in all."""
        self._clock = clock
        self._aftermath = aftermath
        self._longest = longest
        self._writers = 0
        self._begun = -math.inf
        self._ended = -math.inf

    def __enter__(self) -> None:
        if not self._is_recent():
            self._begun = self._clock()
        self._writers += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writers -= 1
        self._ended = self._clock()

    def prolong(self) -> None:
        """Victims have ended, and others may follow: if it is on, it lasts a while longer."""
        if self._is_recent():
            self._ended = self._clock()

    def is_on(self) -> bool:
        """Whether somebody writes, or has just done so."""
        return self._is_recent() and self._clock() < self._begun + self._longest

    def _is_recent(self) -> bool:
        return self._writers > 0 or self._clock() < self._ended + self._aftermath
