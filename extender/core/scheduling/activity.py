"""When kube-scheduler was last seen at work: a gang's deadline runs only while it could get on with that gang.

Signs are calls of filter, and pods of its profiles that the watch shows bound or refused.
"""

from collections.abc import Callable, Iterable, Set

from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.cycle_member import Member, MemberStage
from serried.api.group import PodGroup
from serried.api.pod import Link, Pod
from serried.cluster.cache import Store

_SILENT_SECONDS = 1.0

LONGEST_PREBIND_SECONDS = 900.0
"""How long kube-scheduler may take between filter and bind: bind calls of members that wait for it end then, too."""


def may_try_out(group: PodGroup | None, pod: Pod, store: Store) -> bool:
    """Return whether kube-scheduler schedules the pod's gang itself, so that a call may be about a simulation."""
    native = store.schedules_gangs or (group is not None and group.told_natively)
    return native and pod.link is Link.FIELD


class SchedulerActivity:
    """When kube-scheduler was last seen working, and which members of a cycle it has refused, or assumed.

    A gang's deadline runs only while kube-scheduler could get on with it: a busy one will still come to its members,
    and one that has assumed a member may be preparing its volumes or devices (PreBind), of which nothing is heard.
    ``last_sign`` is the loop time of the last sign of work, 0 for none yet.
    """

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
        """Add the time since the last look to the cycle's idle time, but for what kube-scheduler has spent on others.

        All of it counts if kube-scheduler has refused a member without which there is no quorum, or one beyond it. Else
        it is no delay of the gang while kube-scheduler has assumed a member.
        """
        now, refused = self._clock(), self.find_refused(cycle)
        since = max(cycle.idle_counted, cycle.progressed)
        if self._lacks(cycle, refused):
            cycle.count_idle(now, now - since, assumed=False)
        else:
            idle = now - max(since, self.last_sign) if self.is_silent() else 0.0
            cycle.count_idle(now, idle, assumed=self._is_assumed(cycle, refused))

    def _lacks(self, cycle: BindingCycle, refused: Set[str]) -> bool:
        if not refused or cycle.reservation.committed:
            return bool(refused)
        return cycle.reservation.lacks((cycle.reservation.slots.keys() | cycle.bound) - refused)

    def has_assumed(self, cycle: BindingCycle) -> bool:
        """Return whether kube-scheduler is between filter and bind with a member that has a slot."""
        return self._is_assumed(cycle, self.find_refused(cycle))

    def _is_assumed(self, cycle: BindingCycle, refused: Set[str]) -> bool:
        since, slots, pods = self._clock() - LONGEST_PREBIND_SECONDS, cycle.reservation.slots, self._store.pods
        for uid in slots.keys() - refused:
            member, pod = cycle.member(uid), pods.get(uid)
            if member.stage is MemberStage.FILTERED and pod is not None and (member.filtered_at or 0.0) > since:
                return not may_try_out(cycle.group, pod, self._store)
        return False

    def find_refused(self, cycle: BindingCycle, among: Iterable[str] | None = None) -> frozenset[str]:
        """The members that the scheduler has tried in vain, though each has a slot; UIDs, of these if any are named."""
        slots = cycle.reservation.slots
        uids = slots if among is None else [uid for uid in among if uid in slots]
        return frozenset(uid for uid in uids if self._was_refused(cycle, uid, cycle.member(uid)))

    def _was_refused(self, cycle: BindingCycle, uid: str, member: Member) -> bool:
        pod, slot = self._store.pods.get(uid), cycle.reservation.slots.get(uid)
        if pod is None or slot is None:
            return False
        if member.stage is MemberStage.FILTERED:
            # Filter has answered its node, and then others have refused that.
            return bool(pod.said) and (pod.said != member.said or (member.sent and pod.nominated != slot.node))
        if member.stage is not MemberStage.UNSCHEDULABLE:
            return False
        if pod.objection and pod.said != member.said:
            return True  # maybe before its nomination was written, which does not have it tried again then
        # A member that nothing has told the scheduler to try again is put aside, not refused, and so is one whose
        # nomination still stands: the scheduler erases it when it has tried in vain.
        return (member.nominated or member.missed) and pod.nominated != slot.node
