"""Carries out single effects of decisions: nominations, activations, evictions, and work in the background."""

from collections.abc import Coroutine
from typing import Any, TypeAlias, assert_never

from extender.binding.evictions import Evictions
from extender.binding.nominator import Nominator
from extender.binding.owner_lookup import OwnerLookup
from extender.binding.tasks import Tasks
from extender.scheduling.cycle import BindingCycle
from extender.scheduling.effects import (
    Activate,
    ActivateIdle,
    Effect,
    Evict,
    EvictTogether,
    LookUpOwner,
    Nominate,
    Preempt,
    Release,
    Requeue,
    StartCycle,
    WorkOnStudies,
)
from extender.scheduling.studies import Studies

Work: TypeAlias = Coroutine[Any, Any, None]
"""What is done in the background."""


class Effects:
    """Everything but the run of a cycle itself. Nothing here waits: writes are queued, or done in the background."""

    def __init__(
        self, nominator: Nominator, evictions: Evictions, owner_lookup: OwnerLookup, studies: Studies, tasks: Tasks
    ) -> None:
        self._nominator = nominator
        self._evictions = evictions
        self._owner_lookup = owner_lookup
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
            case Requeue(pod, node):
                self._nominator.requeue(pod, node)
            case ActivateIdle(cycle):
                self._nominator.activate_idle(cycle)
            case StartCycle():
                raise TypeError(effect)
            case _:
                self._tasks.spawn(self._work_on(effect))

    def _work_on(self, effect: Evict | Preempt | EvictTogether | LookUpOwner | WorkOnStudies) -> Work:
        match effect:
            case Evict(group):
                return self._evictions.evict(group)
            case Preempt(group, uids, message):
                return self._evictions.preempt(group, uids, message)
            case EvictTogether(group, uids, disrupted):
                return self._evictions.evict_together(group, uids, disrupted)
            case LookUpOwner(group, waiters):
                return self._owner_lookup.look_up(group, waiters)
            case WorkOnStudies():
                return self._studies.work()
            case _:
                assert_never(effect)

    def nominate(self, cycle: BindingCycle) -> None:
        """Send all members of a cycle to their slots."""
        self._nominator.nominate_all(cycle)

    def spawn(self, work: Work) -> None:
        """Run work in the background, until the end of the term."""
        self._tasks.spawn(work)

    def end_term(self) -> frozenset[str]:
        """Another instance may lead from now on: nothing more is written, every task ends where it stands.

        The UIDs of the pods that are not activated any more.
        """
        asleep = self._nominator.end_term()
        self._tasks.cancel()
        return asleep
