"""The effects of a decision outside of this process, as values, and the `Context` in which decisions are made.

A decision is a synchronous call that changes the state in memory, and puts what has to be written or started into the
``Outbox``. The caller then has these effects carried out, in order, before anything else runs
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
    """Start the task that drives a binding cycle. The ledger holds the cycle's reservation already."""

    cycle: BindingCycle


@dataclass(frozen=True, slots=True)
class Nominate:
    """Write the nominations of these members (UIDs) of a cycle: each to the node of its slot."""

    cycle: BindingCycle
    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Cancel the queued writes for these members (UIDs), which have lost their slots.

    Also remove the nominations of ``pods``, a subset of the members.
    """

    uids: frozenset[str]
    pods: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class Activate:
    """Make kube-scheduler try this pod at once, by a write: remove Serried's scheduling gate, or set an annotation.

    The pod belongs to no gang any more, or kube-scheduler shall find out by itself where it fits.
    """

    pod: Pod


@dataclass(frozen=True, slots=True)
class Requeue:
    """Make kube-scheduler retry a pod that its own plugins have rejected, by a nomination that is removed at once.

    kube-scheduler requeues pods when a nomination is removed. ``node`` is the node of the nomination. Nothing is
    written if the pod is bound, is being deleted, or is nominated to another node by then.
    """

    pod: Pod
    node: str


@dataclass(frozen=True, slots=True)
class ActivateIdle:
    """Make kube-scheduler retry those members of a cycle that it has not tried for a while.

    The write that should have made it try them was probably lost.
    """

    cycle: BindingCycle


@dataclass(frozen=True, slots=True)
class InBackground:
    """Run a coroutine of a feature, i.e. of a plugin of the core such as preemption, in the background.

    ``begin`` makes the coroutine. The coroutine is cancelled when this instance stops leading.
    """

    begin: Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class LookUpOwner:
    """Ask the API server whether the owner of a group's waiting pods exists.

    Each of the ``waiters`` stands for pods that name one owner. If this owner is gone, they need not wait any longer.
    """

    group: GroupKey
    waiters: frozenset[Waiter]


@dataclass(frozen=True, slots=True)
class WorkOnTasks:
    """Continue the long plans and forecasts in their child processes (`extender.core.scheduling.planning_tasks`)."""


Effect = StartCycle | Nominate | Release | Activate | Requeue | ActivateIdle | InBackground | LookUpOwner | WorkOnTasks


class Outbox:
    """The effects that decisions have requested and were not carried out yet, oldest first. One per `Context`."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def put(self, effect: Effect) -> None:
        """Append an effect, which is carried out after the decision."""
        self._effects.append(effect)

    def drain(self) -> list[Effect]:
        """Remove and return all effects, oldest first."""
        taken = self._effects
        self._effects = []
        return taken


class Term:
    """Says what this instance may do now: write, and plan groups. One instance per process, used again for each term.

    A term is the time in which the instance leads. ``holds_lease`` returns whether it still holds the Lease.
    """

    def __init__(self, holds_lease: Callable[[], bool]) -> None:
        self.holds_lease = holds_lease

        self.active = False
        """True from the end of the recovery to the end of the term: groups are considered."""

        self.recovering = False
        """True at the begin of a term, while the cycles of earlier terms are taken over from their records."""

        self.obstacle = ""
        """A phrase that says why no group can be planned, such as records that cannot be read; "" if groups can."""

    def leads(self) -> bool:
        """Return whether this instance may write at this moment: it is in a term, and still holds the Lease."""
        return (self.active or self.recovering) and self.holds_lease()

    @property
    def plans(self) -> bool:
        """True while this instance plans groups: it is in a term, and nothing such as an unreadable record prevents it.

        The reason that prevents it is in ``obstacle``.
        """
        return self.active and not self.obstacle

    def end(self) -> None:
        """End the term: another instance may lead from now on."""
        self.active = False
        self.recovering = False
        self.obstacle = ""


@dataclass(slots=True, eq=False)
class Context:
    """The objects that all parts of the core share: caches, ledger, states of groups, clocks and outbox.

    One instance per core, which lives as long as the process.
    """

    store: Store
    term: Term
    status: StatusSink
    metrics: ExtenderMetrics
    options: Options

    clock: Callable[[], float]
    """A function that returns the loop time in seconds."""

    wall: Callable[[], float] = time.time
    """A function that returns the wall time in seconds since 1970."""

    installation: str = "serried-system"
    """The namespace of this installation. It distinguishes several installations in one cluster."""

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
    """A context manager around urgent writes, such as Bindings and evictions; several may be open at a time.

    Writers of less urgent objects, such as Events, wait while `is_on`. ``clock`` returns loop seconds.
    """

    def __init__(self, clock: Callable[[], float], aftermath: float, longest: float) -> None:
        """Let a burst last until ``aftermath`` seconds after its last write, but at most ``longest`` seconds in all."""
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
        """Extend a burst by ``aftermath`` seconds from now, because more writes will follow soon.

        Ignored if no burst is on.
        """
        if self._is_recent():
            self._ended = self._clock()

    def is_on(self) -> bool:
        """Return whether a burst is on: an urgent write is open, or ended less than ``aftermath`` seconds ago.

        False once the burst has lasted for ``longest`` seconds.
        """
        return self._is_recent() and self._clock() < self._begun + self._longest

    def _is_recent(self) -> bool:
        return self._writers > 0 or self._clock() < self._ended + self._aftermath
