"""Signs of work of kube-scheduler: while it works through its queue, nobody can tell when it comes to a member."""

from collections.abc import Callable, Iterable

from extender.scheduling.cycle import BindingCycle
from extender.scheduling.member import Member, MemberStage
from serried.cluster.store import Store
from serried.model.pod import Pod

_SILENT_SECONDS = 1.0


class SchedulerActivity:
    """``last_sign`` is the loop time of the last sign, 0 for none yet."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self.last_sign = 0.0
        self._store = store
        self._clock = clock

    def note_call(self) -> None:
        """The scheduler has called filter, for whatever pod: it is busy, and will come to the others."""
        self.last_sign = self._clock()

    def note_pod(self, before: Pod, now: Pod) -> None:
        """The watch shows a change of a pod: where plain pods do not come to filter, it shows that they are seen to."""
        bound = now.bound and not before.bound
        refused = now.unschedulable and not before.unschedulable
        if (bound or refused) and now.scheduler in self._store.schedulers:
            self.note_call()

    def is_silent(self) -> bool:
        """Whether there was no sign for a while."""
        return self._clock() - self.last_sign > _SILENT_SECONDS

    def count_idle(self, cycle: BindingCycle) -> None:
        """Count the time since the last look as idle, but for what the scheduler has spent on others.

        It counts in any case if the scheduler was there, and has refused a member without which there is no quorum, or
        one beyond it.
        """
        now = self._clock()
        since = max(cycle.idle_counted, cycle.progressed)
        idle = 0.0
        if self._lacks_refused(cycle):
            idle = now - since
        elif self.is_silent():
            idle = now - max(since, self.last_sign)
        cycle.count_idle(now, idle)

    def _lacks_refused(self, cycle: BindingCycle) -> bool:
        refused = self.find_refused(cycle)
        if not refused or cycle.reservation.committed:
            return bool(refused)
        return cycle.reservation.lacks((cycle.reservation.slots.keys() | cycle.bound) - refused)

    def find_refused(self, cycle: BindingCycle, among: Iterable[str] | None = None) -> frozenset[str]:
        """The members that the scheduler has tried in vain, though each has a slot; UIDs, of these if any are named."""
        slots = cycle.reservation.slots
        uids = slots if among is None else [uid for uid in among if uid in slots]
        return frozenset(uid for uid in uids if self._was_refused(cycle, uid, cycle.member(uid)))

    def _was_refused(self, cycle: BindingCycle, uid: str, member: Member) -> bool:
        pod, slot = self._store.pods.get(uid), cycle.reservation.slots.get(uid)
        if member.stage is not MemberStage.UNSCHEDULABLE or pod is None or slot is None:
            return False
        if pod.objection and pod.objection != member.said:
            return True  # maybe before its nomination was written, which does not have it tried again then
        # A member that nothing has told the scheduler to try again is put aside, not refused, and so is one whose
        # nomination still stands: the scheduler erases it when it has tried in vain.
        return (member.nominated or member.missed) and pod.nominated != slot.node
