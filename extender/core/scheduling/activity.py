"""Observes when kube-scheduler works, so that a gang's deadline runs only while kube-scheduler could work on the gang.

Calls of filter, and pods of its profiles that the watch shows bound or rejected, prove that it works.
"""

from collections.abc import Callable, Iterable, Set

from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.cycle_member import Member, MemberStage
from serried.api.group import PodGroup
from serried.api.pod import Link, Pod
from serried.cluster.cache import Store

_SILENT_SECONDS = 1.0

LONGEST_PREBIND_SECONDS = 900.0
"""The longest time that kube-scheduler may take between filter and bind.

Bind calls that wait for such a member end then.
"""


def may_be_simulated(group: PodGroup | None, pod: Pod, store: Store) -> bool:
    """Return whether kube-scheduler schedules the pod's gang itself, so that a call may be about a simulation."""
    native = store.schedules_gangs or (group is not None and group.told_natively)
    return native and pod.link is Link.FIELD


class SchedulerActivity:
    """Observes when kube-scheduler was last working, and which members of a cycle it has refused or assumed.

    A gang's deadline runs only while kube-scheduler is idle: a busy one will still reach the gang's members, and one
    that has assumed a member may be preparing its volumes or devices in PreBind, which cannot be observed.
    ``last_sign`` is the loop time at which it was last seen working, 0 for never.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self.last_sign = 0.0
        self._store = store
        self._clock = clock

    def note_call(self) -> None:
        """Note that kube-scheduler has called filter for any pod."""
        self.last_sign = self._clock()

    def note_pod(self, before: Pod, now: Pod) -> None:
        """Note a pod that the watch shows bound or rejected.

        Plain pods may not come to filter, but this shows the work on them.
        """
        bound = now.bound and not before.bound
        refused = now.unschedulable and not before.unschedulable
        if (bound or refused) and now.scheduler in self._store.schedulers:
            self.note_call()

    def is_silent(self) -> bool:
        """Return whether kube-scheduler was not seen working for a while."""
        return self._clock() - self.last_sign > _SILENT_SECONDS

    def count_idle(self, cycle: BindingCycle) -> None:
        """Add the time since the last call to the cycle's idle time, but for the time in which kube-scheduler was busy.

        If kube-scheduler has refused a member that the quorum needs, or one of a committed gang, all of the time
        counts. Else time in which it has assumed a member is no delay of the gang.
        """
        now, refused = self._clock(), self.find_rejected(cycle)
        since = max(cycle.idle_counted_until, cycle.progressed)
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
        return self._is_assumed(cycle, self.find_rejected(cycle))

    def _is_assumed(self, cycle: BindingCycle, refused: Set[str]) -> bool:
        since, slots, pods = self._clock() - LONGEST_PREBIND_SECONDS, cycle.reservation.slots, self._store.pods
        for uid in slots.keys() - refused:
            member, pod = cycle.member(uid), pods.get(uid)
            if member.stage is MemberStage.FILTERED and pod is not None and (member.filtered_at or 0.0) > since:
                return not may_be_simulated(cycle.group, pod, self._store)
        return False

    def find_rejected(self, cycle: BindingCycle, among: Iterable[str] | None = None) -> frozenset[str]:
        """Return the UIDs of members that kube-scheduler has refused though they have slots.

        Only the members in ``among`` are checked; all for None.
        """
        slots = cycle.reservation.slots
        uids = slots if among is None else [uid for uid in among if uid in slots]
        return frozenset(uid for uid in uids if self._was_refused(cycle, uid, cycle.member(uid)))

    def _was_refused(self, cycle: BindingCycle, uid: str, member: Member) -> bool:
        pod, slot = self._store.pods.get(uid), cycle.reservation.slots.get(uid)
        if pod is None or slot is None:
            return False
        if member.stage is MemberStage.FILTERED:
            # Filter has answered the node, and then a later plugin or extender has refused it.
            return bool(pod.said) and (
                pod.said != member.last_message or (member.nominated_at_filter and pod.nominated != slot.node)
            )
        if member.stage is not MemberStage.UNSCHEDULABLE:
            return False
        if pod.objection and pod.said != member.last_message:
            return True  # even if this was before the nomination, which did not make kube-scheduler try again
        # A member that was never nominated is only waiting, and so is one whose nomination is still there:
        # kube-scheduler clears the nomination when it has tried the pod and failed.
        return (member.nominated or member.not_offered) and pod.nominated != slot.node
