"""Observes when kube-scheduler works, so that a gang's deadline runs only while kube-scheduler could work on the gang.

Two things prove that kube-scheduler works: it calls filter, or the watch shows that a pod of one of its profiles was
bound or rejected. Both are reported to the one `SchedulerActivity` (`note_call`, `note_pod`). Twice a second
`CycleUpdates` has it count the idle time of each binding cycle (`count_idle`), and asks which members kube-scheduler
has rejected (`find_rejected`).
"""

from collections.abc import Callable, Iterable, Set

from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.cycle_member import Member, MemberStage
from serried.api.group import PodGroup
from serried.api.pod import Link, Pod
from serried.cluster.cache import Store

_SILENT_SECONDS = 1.0

LONGEST_PREBIND_SECONDS = 900.0
"""The longest time in seconds for which a member counts as assumed after filter has answered its node.

kube-scheduler prepares volumes and devices in that time (PreBind). Its timeout for a bind call (httpTimeout) is as
long.
"""


def may_be_simulated(group: PodGroup | None, pod: Pod, store: Store) -> bool:
    """Return whether a filter call for this pod may be a simulation, after which kube-scheduler does not bind the pod.

    That is so if kube-scheduler's own gang scheduling handles the pod's PodGroup ``group``: it tries one domain after
    the other. ``group`` is None if the PodGroup is not known.
    """
    native = store.schedules_gangs or (group is not None and group.told_natively)
    return native and pod.link is Link.FIELD


class SchedulerActivity:
    """Observes when kube-scheduler was last working, and which members of a cycle it has rejected or assumed.

    A gang's deadline runs only while kube-scheduler is idle: a busy one will still reach the gang's members, and one
    that has assumed a member may be preparing its volumes or devices in PreBind, which cannot be observed.
    ``last_sign`` is the loop time at which it was last seen working, 0 for never. One instance per process.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self.last_sign = 0.0
        self._store = store
        self._clock = clock

    def note_call(self) -> None:
        """Note that kube-scheduler has called filter, for any pod: it is working now."""
        self.last_sign = self._clock()

    def note_pod(self, before: Pod, now: Pod) -> None:
        """Note a change of a pod in the watch. kube-scheduler is working now if it has bound or rejected the pod.

        This covers pods outside of gangs, for which kube-scheduler may be configured not to call filter. ``before`` and
        ``now`` are the pod before and after the change.
        """
        bound = now.bound and not before.bound
        refused = now.unschedulable and not before.unschedulable
        if (bound or refused) and now.scheduler in self._store.schedulers:
            self.note_call()

    def is_silent(self) -> bool:
        """Return whether kube-scheduler was last seen working more than a second ago."""
        return self._clock() - self.last_sign > _SILENT_SECONDS

    def count_idle(self, cycle: BindingCycle) -> None:
        """Add the time since the last call for this cycle to its idle seconds, which move it towards its deadline.

        If kube-scheduler has rejected a member that the quorum needs, or any member of a committed gang, all of the
        time counts. Otherwise only time counts in which kube-scheduler was silent: while it was busy with other pods,
        the deadline waits. While it has assumed a member, the silent time does not move the deadline either.
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
        return cycle.reservation.misses_quorum((cycle.reservation.slots.keys() | cycle.bound) - refused)

    def has_assumed(self, cycle: BindingCycle) -> bool:
        """Return whether any member of a cycle is assumed by kube-scheduler, and its bind call has not come yet.

        A member is taken for assumed if filter has answered its node less than LONGEST_PREBIND_SECONDS ago, and it
        was not rejected since.
        """
        return self._is_assumed(cycle, self.find_rejected(cycle))

    def _is_assumed(self, cycle: BindingCycle, refused: Set[str]) -> bool:
        since, slots, pods = self._clock() - LONGEST_PREBIND_SECONDS, cycle.reservation.slots, self._store.pods
        for uid in slots.keys() - refused:
            member, pod = cycle.member(uid), pods.get(uid)
            if member.stage is MemberStage.FILTERED and pod is not None and (member.filtered_at or 0.0) > since:
                return not may_be_simulated(cycle.group, pod, self._store)
        return False

    def find_rejected(self, cycle: BindingCycle, among: Iterable[str] | None = None) -> frozenset[str]:
        """Return the UIDs of the members with a slot that kube-scheduler has tried and rejected in this cycle.

        Only the members in ``among`` (UIDs) are checked; None checks all members with a slot.
        """
        slots = cycle.reservation.slots
        uids = slots if among is None else [uid for uid in among if uid in slots]
        return frozenset(uid for uid in uids if self._was_refused(cycle, uid, cycle.member(uid)))

    def _was_refused(self, cycle: BindingCycle, uid: str, member: Member) -> bool:
        pod, slot = self._store.pods.get(uid), cycle.reservation.slots.get(uid)
        if pod is None or slot is None:
            return False
        if member.stage is MemberStage.FILTERED:
            # Filter has answered the node, and then a later plugin or extender has rejected it.
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
