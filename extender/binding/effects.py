"""Carries out single effects of decisions: nominations, activations, evictions, and work in the background."""

from collections.abc import Coroutine
from typing import Any, assert_never

from extender.binding.evictions import Evictions
from extender.binding.nominator import Nominator
from extender.binding.tasks import Tasks
from extender.scheduling.cycle import BindingCycle
from extender.scheduling.effects import (
    Activate,
    ActivateIdle,
    Effect,
    Evict,
    EvictTogether,
    Nominate,
    Preempt,
    Release,
    StartCycle,
    WorkOnStudies,
)
from extender.scheduling.studies import Studies


class Effects:
    """Everything but the run of a cycle itself. Nothing here waits: writes are queued, or done in the background."""

    def __init__(self, nominator: Nominator, evictions: Evictions, studies: Studies, tasks: Tasks) -> None:
        self._nominator = nominator
        self._evictions = evictions
        self._studies = studies
        self._tasks = tasks

    def carry_out(self, effect: Effect) -> None:
        """Begin with one effect. Raises TypeError for the start of a cycle, which is its runner's."""
        match effect:
            case Nominate(cycle, uids):
                self._nominator.nominate(cycle, uids)
            case Release(uids, pods):
                self._nominator.release(uids, pods)
            case Activate(pod):
                self._nominator.activate(pod)
            case ActivateIdle(cycle):
                self._nominator.activate_idle(cycle)
            case Evict(group):
                self._tasks.spawn(self._evictions.evict(group))
            case Preempt(group, uids, message):
                self._tasks.spawn(self._evictions.preempt(group, uids, message))
            case EvictTogether(group, uids, disrupted):
                self._tasks.spawn(self._evictions.evict_together(group, uids, disrupted))
            case WorkOnStudies():
                self._tasks.spawn(self._studies.work())
            case StartCycle():
                raise TypeError(effect)
            case _:
                assert_never(effect)

    def nominate(self, cycle: BindingCycle) -> None:
        """Send all members of a cycle to their slots."""
        self._nominator.nominate(cycle, list(cycle.reservation.slots))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background, until the end of the term."""
        self._tasks.spawn(work)

    def end_term(self) -> frozenset[str]:
        """Another instance may lead from now on: nothing more is written, every task ends where it stands.

        The UIDs of the pods that are not activated any more.
        """
        asleep = self._nominator.end_term()
        self._tasks.cancel()
        return asleep
