"""What becomes of a gang of disruption mode ``all`` when somebody ends one of its members.

Whoever disrupts a pod writes the condition DisruptionTarget first, and ends the pod right after it; from then on those
that go with it are ended, too. It does not matter who it was, nor whether kube-scheduler has asked before
(`extender.scheduling.plain_pods`, docs/decisions/0025-a-gang-goes-whole.md).
"""

from extender.options import Disrupted, Method
from extender.scheduling.effects import Context, EvictTogether, Preempt
from extender.scheduling.group import GroupState
from extender.status.timeline import Milestone
from serried.api.group import PodGroup
from serried.api.names import PREEMPTED, GroupKey
from serried.api.pod import Pod
from serried.api.verdict import render_disruption
from serried.cluster.priorities import Company


class Disruptions:
    """Has the rest of a gang follow a member. Every method is synchronous."""

    def __init__(self, context: Context) -> None:
        self._pods = context.store.pods
        self._members = context.store.members
        self._membership = context.store.membership
        self._forest = context.store.forest
        self._companies = context.store.companies
        self._vacancies = context.store.vacancies
        self._yields = context.store.yields
        self._outbox = context.outbox
        self._status = context.status
        self._timelines = context.timelines
        self._rule = context.options.disrupted
        self._method = context.options.preempt_by

    def follow(self, key: GroupKey, state: GroupState, group: PodGroup) -> None:
        """Have those ended that go with a disrupted member. What has followed once does not follow again."""
        if self._rule is Disrupted.KEEP:
            return
        for pod in self._list_disrupted(key):
            if pod.uid not in state.disrupted:
                state.disrupted.add(pod.uid)
                self._end_rest(state, Company(key, group.find_disrupted(self._find_part(pod))), pod)
        if state.disrupted:
            self._let_go(key, state)

    def _list_disrupted(self, key: GroupKey) -> list[Pod]:
        """The members that run, or ran until just now, and that somebody disrupts."""
        found = [pod for pod in self._members.iterate_disrupted(key) if pod.bound]
        found += [vacancy.pod for vacancy in self._vacancies.of_group(key)]
        return [pod for pod in found if self._counts(pod)]

    def _counts(self, pod: Pod) -> bool:
        if pod.uid in self._yields:
            return False  # who goes with it was decided with it (`preemption`)
        if self._yields.was_let_off(pod.uid) and not pod.deleting:
            return False  # it stays after all, and nobody may go with it
        if pod.disruption == PREEMPTED:
            return self._is_preempted(pod)
        return self._rule is Disrupted.ANY and bool(pod.disruption)

    def _is_preempted(self, pod: Pod) -> bool:
        """Whether a pod ends, or is gone: that it only says so may be all that ever happens to it.

        Whoever has written it may have died before the delete, or have been refused that. But a member that says that
        it follows another one goes on following, though that one is gone and nobody knows of it any more.
        """
        known = self._pods.get(pod.uid)
        return pod.deleting or pod.says_follower or known is None or not known.bound

    def _find_part(self, pod: Pod) -> str:
        own = self._membership.resolve(pod)  # whoever is gone is in no group any more
        return own.name if own is not None and own != self._forest.lift(own) else ""

    def _end_rest(self, state: GroupState, company: Company, pod: Pod) -> None:
        running = self._companies.list_running(company)
        # Nobody else ends one that follows: whoever was to do it is gone.
        rest = [each for each in running if each.uid != pod.uid or pod.says_follower]
        uids = tuple(each.uid for each in rest if each.uid not in state.leaving and not _is_newer(each, pod))
        if not uids:
            return
        state.disrupted.update(uids)
        others = sum(uid != pod.uid for uid in uids)
        text = render_disruption(pod.name, pod.disruption, others)
        if others:
            self._timelines.note(company.group, Milestone.PREEMPTED)
            self._status.report_disrupted(company.group, text)
        if self._ends_as_preempted(pod):
            state.leaving.update(uids, (pod.uid,))
            self._outbox.put(Preempt(company.group, uids, text))
        else:  # they leave once it is known that all of them may
            self._outbox.put(EvictTogether(company.group, uids, pod.uid))

    def _ends_as_preempted(self, pod: Pod) -> bool:
        """Whether those that go with a pod end as kube-scheduler ends its victims, without asking their budgets.

        They do not where it was evicted for a gang of ours that was given up: it was evicted because budgets count.
        """
        own_victim = pod.says_victim and self._method is Method.EVICTION
        return pod.disruption == PREEMPTED and not own_victim

    def _let_go(self, key: GroupKey, state: GroupState) -> None:
        """Keep no slot of those that go together, and remember nobody who is gone."""
        for vacancy in self._vacancies.of_group(key):
            if vacancy.pod.uid in state.leaving:
                self._vacancies.close(vacancy)
        left = {vacancy.pod.uid for vacancy in self._vacancies.of_group(key)}
        state.disrupted = {uid for uid in state.disrupted if uid in self._pods or uid in left}
        state.leaving = {uid for uid in state.leaving if uid in self._pods or uid in left}


def _is_newer(pod: Pod, disrupted: Pod) -> bool:
    """Whether a member began only after another one was disrupted: it is of the gang that was placed anew."""
    return pod.started is not None and disrupted.disrupted is not None and pod.started > disrupted.disrupted
