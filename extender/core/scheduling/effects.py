"""The effects of a decision outside of this process, as values, and the `Context` in which decisions are made.

A decision is synchronous: it changes the state and puts its effects into the ``Outbox``. The caller of the decision has
them carried out right after it, in order, before anything else runs
(`extender.core.binding.run.CycleRunner.carry_out`). So code in ``scheduling`` never calls code in ``binding``.
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
    """Start the task of a cycle whose reservation is in the ledger."""

    cycle: BindingCycle


@dataclass(frozen=True, slots=True)
class Nominate:
    """Nominate these members of a cycle (UIDs) to the nodes of their slots."""

    cycle: BindingCycle
    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Stop work on these members (UIDs), which have no slot any more.

    ``pods`` are those whose nomination is removed.
    """

    uids: frozenset[str]
    pods: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class Activate:
    """Make kube-scheduler try this pod at once: it is not held any more."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Requeue:
    """Make kube-scheduler try a pod again that its own plugins have rejected, by a short nomination to the node.

    Nothing is done if the pod is bound, ending or nominated to another node by then.
    """

    pod: Pod
    node: str


@dataclass(frozen=True, slots=True)
class ActivateIdle:
    """Make kube-scheduler try those members of a cycle again for which an earlier activation seems lost."""

    cycle: BindingCycle


@dataclass(frozen=True, slots=True)
class InBackground:
    """Asks that a coroutine of a feature runs in the background. It is cancelled when this instance leads no more."""

    begin: Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class LookUpOwner:
    """Ask the API server whether the owner exists for which pods of this group wait."""

    group: GroupKey
    waiters: frozenset[Waiter]


@dataclass(frozen=True, slots=True)
class WorkOnTasks:
    """Continue the plans and forecasts that take long (`extender.core.scheduling.planning_tasks`)."""


Effect = StartCycle | Nominate | Release | Activate | Requeue | ActivateIdle | InBackground | LookUpOwner | WorkOnTasks


class Outbox:
    """The effects that are not carried out yet, oldest first. One per `Context`."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def put(self, effect: Effect) -> None:
        """Append an effect."""
        self._effects.append(effect)

    def drain(self) -> list[Effect]:
        """Remove and return the effects put since the last call."""
        taken = self._effects
        self._effects = []
        return taken


class Term:
    """The state of the present term; one instance serves all terms.

    ``holds_lease`` says whether the Lease is still held.
    """

    def __init__(self, holds_lease: Callable[[], bool]) -> None:
        self.holds_lease = holds_lease

        self.active = False
        """True while groups are considered."""

        self.recovering = False
        """True while the records of earlier terms are taken over."""

        self.obstacle = ""
        """The phrase that says why no group can be planned yet; "" for no obstacle."""

    def leads(self) -> bool:
        """Return whether this instance may write at this moment."""
        return (self.active or self.recovering) and self.holds_lease()

    @property
    def plans(self) -> bool:
        """True while groups are considered and planned."""
        return self.active and not self.obstacle

    def end(self) -> None:
        """End the term: another instance may lead from now on."""
        self.active = False
        self.recovering = False
        self.obstacle = ""


@dataclass(slots=True, eq=False)
class Context:
    """The state and services shared by the parts of one core; it lives as long as the process."""

    store: Store
    term: Term
    status: StatusSink
    metrics: ExtenderMetrics
    options: Options

    clock: Callable[[], float]
    """The loop time in seconds."""

    wall: Callable[[], float] = time.time
    """The wall time in seconds since 1970."""

    installation: str = "serried-system"
    """The namespace of this installation. It names the installation where several are in one cluster."""

    ledger: Ledger = field(init=False)
    groups: Groups = field(init=False)
    timelines: Timelines = field(init=False)
    outbox: Outbox = field(default_factory=Outbox, init=False)

    features: Features = field(default_factory=Features, init=False)
    """The installed features; none before `extender.wiring` installs them."""

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.store.occupancy, self.store.pending_victims)
        self.timelines = Timelines(self.wall)
        self.groups = Groups(self.store, self.ledger, self.status, self.timelines, self.clock, self.metrics)


class WriteBurst:
    """A context manager around writes for which gangs wait; any number at a time. ``clock`` gives loop seconds.

    While it `is_on`, less urgent writes wait.
    """

    def __init__(self, clock: Callable[[], float], aftermath: float, longest: float) -> None:
        """Let the burst last for ``aftermath`` seconds after its last write, and for ``longest`` seconds in all."""
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
        """Extend a burst that is on by another ``aftermath``, because victims have ended and more writes may follow."""
        if self._is_recent():
            self._ended = self._clock()

    def is_on(self) -> bool:
        """Return whether such a write is under way, or has just ended."""
        return self._is_recent() and self._clock() < self._begun + self._longest

    def _is_recent(self) -> bool:
        return self._writers > 0 or self._clock() < self._ended + self._aftermath
