"""Disruption mode ``all``: when one member of a gang is disrupted, Serried ends the other members, too.

A component that disrupts a pod, for instance kube-scheduler or the API server on an eviction, writes the condition
DisruptionTarget first, and deletes the pod right after it. Serried watches that condition, whichever component wrote
it, and whether or not kube-scheduler called preempt before (decision 25). A setting (`DisruptionTrigger`) says for
which disruptions the others are ended. The core calls `Disruption.observe` whenever it considers a gang.

`HandledMembers` remembers which members were handled, until they are gone. A new term starts without this memory.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from extender.core.feature import Feature, Memory
from extender.core.parts import Parts
from extender.core.scheduling.effects import Context, InBackground
from extender.core.scheduling.group import GroupState
from extender.core.timeline import Milestone
from extender.evictions import Rehearsal, evict, set_disruption_target
from extender.options import DisruptionTrigger, EvictionMethod
from serried.api.group import PodGroup
from serried.api.names import PREEMPTED, GroupKey
from serried.api.pod import DISRUPTION_PREFIX, Pod
from serried.api.reservation import Victim
from serried.api.verdict import render_disruption
from serried.cluster.priorities import DisruptionGroup
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Conflict, NotFound
from serried.kube.many import do_each
from serried.kube.wire import PODS
from serried.ops.log import name_group
from serried.plan.quorum import has_quorum

log = logging.getLogger(__name__)

_RETRY_SECONDS = 10.0
"""The pause between two tries to end members, in seconds."""

_ATTEMPTS = 6
"""The number of tries to delete the other members of a gang of which kube-scheduler has preempted a member.

After that the members that still run stay. The gang then gets a replacement, or is below its quorum.
"""


@dataclass(slots=True)
class HandledMembers(Memory):
    """The disrupted members of one gang, and the members that are ended because of them."""

    handled: set[str] = field(default_factory=set)
    """The UIDs of members whose disruption was handled, so that it is not handled again.

    These are members that another component has disrupted, and the members that Serried ends because of those.
    """

    ending: set[str] = field(default_factory=set)
    """The UIDs of ``handled`` members that are being ended together, until they are gone or Serried gives up.

    No slot is kept for a replacement of these.
    """


class Disruption(Feature):
    """The feature that ends the rest of a gang when one member is disrupted, if the gang has disruption mode ``all``.

    Every method is synchronous. Conditions, evictions and deletions are written in the background.
    """

    memories = (HandledMembers,)

    def __init__(self, parts: Parts) -> None:
        context = parts.context
        self._pods = context.store.pods
        self._members = context.store.members
        self._membership = context.store.membership
        self._forest = context.store.forest
        self._disruption_groups = context.store.disruption_groups
        self._vacancies = context.store.vacancies
        self._pending_victims = context.store.pending_victims
        self._outbox = context.outbox
        self._status = context.status
        self._timelines = context.timelines
        self._rule = context.options.disrupted
        self._method = context.options.preempt_by
        self._endings = _Endings(parts.client, context)

    def observe(self, key: GroupKey, gang: GroupState, group: PodGroup | None) -> None:
        """End the other members of a gang, in the background, if a member was disrupted since the last call.

        In a tree these are only the members of the PodGroups that are disrupted together. Each disruption is handled
        once. Does nothing if the setting says so (`DisruptionTrigger.KEEP`) or the PodGroup is gone.
        """
        if self._rule is DisruptionTrigger.KEEP or group is None:
            return
        disrupted = self._list_disrupted(key)
        if not disrupted and gang.memory.find(HandledMembers) is None:
            return
        memory = gang.memory.get_or_create(HandledMembers)
        for pod in disrupted:
            if pod.uid not in memory.handled:
                memory.handled.add(pod.uid)
                self._end_rest(memory, DisruptionGroup(key, group.find_disrupted(self._find_part(pod))), pod)
        if memory.handled:
            self._forget_gone(key, memory)
        if not (memory.handled or memory.ending):
            del gang.memory[HandledMembers]

    def _list_disrupted(self, key: GroupKey) -> list[Pod]:
        """Return the disrupted members of a gang that still run, or have ended and whose slot is still kept."""
        found = [pod for pod in self._members.iterate_disrupted(key) if pod.bound]
        found += [vacancy.pod for vacancy in self._vacancies.of_group(key)]
        return [pod for pod in found if self._is_disrupted(pod)]

    def _is_disrupted(self, pod: Pod) -> bool:
        if pod.uid in self._pending_victims:
            return False  # a victim of Serried's own preemption, which has chosen the other members, too
        if self._pending_victims.was_spared(pod.uid) and not pod.deleting:
            return False  # a victim that is no longer evicted
        if pod.disruption == PREEMPTED:
            return self._is_preempted(pod)
        return self._rule is DisruptionTrigger.ANY and bool(pod.disruption)

    def _is_preempted(self, pod: Pod) -> bool:
        """Return whether a pod with the condition DisruptionTarget, reason PreemptionByScheduler, is really ending.

        kube-scheduler may write the condition and then fail to delete the pod. So the pod counts only once it is being
        deleted or gone. If Serried wrote the condition because of another member, the pod always counts: that member
        may be gone after a restart, and nothing else would end this pod.
        """
        known = self._pods.get(pod.uid)
        return pod.deleting or pod.is_marked_follower or known is None or not known.bound

    def _find_part(self, pod: Pod) -> str:
        own = self._membership.resolve(pod)  # not from `Members`, which no longer knows a pod that is gone
        return own.name if own is not None and own != self._forest.find_tree_key(own) else ""

    def _end_rest(self, memory: HandledMembers, disruption_group: DisruptionGroup, pod: Pod) -> None:
        running = self._disruption_groups.list_running(disruption_group)
        # A member that an earlier term was about to end because of another one is included: no other task ends it.
        rest = [each for each in running if each.uid != pod.uid or pod.is_marked_follower]
        uids = tuple(each.uid for each in rest if each.uid not in memory.ending and not _is_newer(each, pod))
        if not uids:
            return
        memory.handled.update(uids)
        others = sum(uid != pod.uid for uid in uids)
        text = render_disruption(pod.name, pod.disruption, others)
        if others:
            self._timelines.note(disruption_group.group, Milestone.PREEMPTED)
            self._status.report_disrupted(disruption_group.group, text)
        if self._ignores_budgets(pod):
            memory.ending.update(uids, (pod.uid,))
            self._outbox.put(InBackground(partial(self._endings.preempt, disruption_group.group, uids, text)))
        else:  # they are added to ``ending`` only when a dry run has shown that all of them may be evicted
            self._outbox.put(InBackground(partial(self._endings.evict_together, disruption_group.group, uids, pod.uid)))

    def _ignores_budgets(self, pod: Pod) -> bool:
        """Return whether the other members are deleted whatever their PodDisruptionBudgets allow.

        True if ``pod``, the disrupted member, was preempted by kube-scheduler, or by Serried by deletion: both may
        violate budgets. False if Serried has preempted it by eviction, or if another component has disrupted it.
        """
        own_victim = pod.is_marked_victim and self._method is EvictionMethod.EVICTION
        return pod.disruption == PREEMPTED and not own_victim

    def _forget_gone(self, key: GroupKey, memory: HandledMembers) -> None:
        """Release the slots kept for members that are ended together, and drop from ``memory`` members that are gone.

        Members that are ended together need no slots for replacements, because the whole gang is planned anew.
        """
        for vacancy in self._vacancies.of_group(key):
            if vacancy.pod.uid in memory.ending:
                self._vacancies.close(vacancy)
        left = {vacancy.pod.uid for vacancy in self._vacancies.of_group(key)}
        memory.handled = {uid for uid in memory.handled if uid in self._pods or uid in left}
        memory.ending = {uid for uid in memory.ending if uid in self._pods or uid in left}


def _is_newer(pod: Pod, disrupted: Pod) -> bool:
    """Return whether member ``pod`` started after member ``disrupted`` was disrupted.

    Then it belongs to the gang's next placement, and does not end with it. False if one of the times is unknown.
    """
    return pod.started is not None and disrupted.disrupted is not None and pod.started > disrupted.disrupted


class _Endings:
    """Ends the other members of a gang with a disrupted member, in background tasks.

    It evicts them if their PodDisruptionBudgets count (`evict_together`), else it deletes them (`preempt`).
    """

    def __init__(self, client: ApiClient, context: Context) -> None:
        self._client = client
        self._store = context.store
        self._pods = context.store.pods
        self._members = context.store.members
        self._groups = context.groups
        self._term = context.term

        self._eviction_lock = asyncio.Lock()
        """Held from a gang's dry run until its evictions are sent.

        Budgets may allow the evictions of one gang, but not those of two gangs at the same time.
        """

    async def preempt(self, key: GroupKey, uids: Collection[str], message: str) -> None:
        """End the members ``uids`` as kube-scheduler ends its victims: write the condition, then delete the pod.

        Their PodDisruptionBudgets do not count. All conditions, with the text ``message``, are written before the first
        deletion. So if this process dies in between, the next leader finds the conditions, and deletes the rest.
        Failures are tried again every 10 seconds, up to six tries.
        """
        for _ in range(_ATTEMPTS):
            left = self._list_ending(key, uids)
            if not left:
                return
            await self._do_each_running(left, lambda pod: self._write_condition(pod, message))
            await self._do_each_running(left, self._delete)
            await asyncio.sleep(_RETRY_SECONDS)
        if self._list_ending(key, uids):
            text = "some members of a preempted gang still run after several deletions; they stay"
            log.warning(text, extra=name_group(key))
        self._give_up(key)

    def _list_ending(self, key: GroupKey, uids: Iterable[str]) -> list[Pod]:
        memory = self._find_memory(key)
        return [pod for pod in self._list_running(uids) if memory is not None and pod.uid in memory.ending]

    def _give_up(self, key: GroupKey) -> None:
        memory = self._find_memory(key)
        if memory is not None:
            memory.ending.clear()
            self._groups.mark_dirty(key)

    def _find_memory(self, key: GroupKey) -> HandledMembers | None:
        gang = self._groups.states.get(key)
        return gang.memory.find(HandledMembers) if gang is not None else None

    async def evict_together(self, key: GroupKey, uids: Collection[str], disrupted: str) -> None:
        """Evict all members ``uids`` or none of them, because the member ``disrupted`` (UID) was disrupted.

        None is evicted if a dry run shows that one of them may not be evicted. Even after it, a budget may forbid some
        evictions, if other pods were evicted meanwhile. These are tried again until no member is left, or until the
        gang has its quorum again; then the remaining members stay.
        """
        begun = False
        while (left := self._list_running(uids)) and not (begun and self._has_quorum_again(key)):
            async with self._eviction_lock:
                may_go = await self._may_evict(key, left)
                if may_go:
                    begun = True
                    self._mark_ending(key, {*uids, disrupted})
                    await self._do_each_running(left, lambda pod: evict(self._client, pod))
            if not begun:
                break
            await asyncio.sleep(_RETRY_SECONDS)
        self._keep_remaining(key, uids)

    def _list_running(self, uids: Iterable[str]) -> list[Pod]:
        return [self._pods[uid] for uid in uids if self._is_running(uid)]

    async def _may_evict(self, key: GroupKey, pods: Iterable[Pod]) -> bool:
        """Return whether the API server would evict all these pods, by dry run, and their budgets allow them in sum.

        If not, log why, for the gang ``key``.
        """
        rehearsal = Rehearsal(self._client, self._store, EvictionMethod.EVICTION)
        await rehearsal.list_budgets()
        refused = await rehearsal.find_refused([Victim(pod.uid, pod.namespace, pod.name) for pod in pods])
        if refused:
            uid = next(iter(refused))
            said = {"uid": uid, "err": refused[uid], "pods": len(refused)}
            text = "the other members of a disrupted gang stay, as some of them may not be evicted"
            log.warning(text, extra=name_group(key) | said)
        return not refused

    def _has_quorum_again(self, key: GroupKey) -> bool:
        """Return whether to stop evicting: the gang has its quorum again, is being bound, or no longer exists.

        A group without the gang policy has no quorum, so the answer is False while it exists.
        """
        group, gang = self._store.groups.get(key), self._groups.states.get(key)
        if group is None or gang is None:
            return True  # the group was deleted
        if gang.cycle is not None and gang.cycle.reservation.committed:
            return True
        return group.policy.is_gang and has_quorum(group, self._members.classify(key))

    def _mark_ending(self, key: GroupKey, uids: Collection[str]) -> None:
        gang = self._groups.states.get(key)
        if gang is not None:
            gang.memory.get_or_create(HandledMembers).ending.update(uids)
            self._groups.mark_dirty(key)

    def _keep_remaining(self, key: GroupKey, uids: Iterable[str]) -> None:
        """Drop the members that still run from the gang's `HandledMembers`, because Serried evicts them no longer.

        If one of them is disrupted later, that is handled as a new disruption. A member that is disrupted already stays
        in ``HandledMembers.handled``, unless its condition is being removed.
        """
        memory = self._find_memory(key)
        staying = self._list_running(uids)
        if memory is not None and staying:
            memory.ending.difference_update(pod.uid for pod in staying)
            let_off = self._store.pending_victims.was_spared  # the condition of such a victim is being removed
            memory.handled.difference_update(pod.uid for pod in staying if not pod.disruption or let_off(pod.uid))
            self._groups.mark_dirty(key)

    async def _do_each_running(self, pods: Iterable[Pod], do: Callable[[Pod], Awaitable[object]]) -> list[object]:
        async def do_one(pod: Pod) -> object:
            return await do(pod) if self._is_running(pod.uid) else True

        return await do_each(pods, do_one)

    def _is_running(self, uid: str) -> bool:
        """Return whether a pod (UID) is bound and not being deleted; False once the term is over."""
        pod = self._pods.get(uid)
        return self._term.active and pod is not None and pod.bound and not pod.deleting

    async def _write_condition(self, pod: Pod, message: str) -> None:
        if pod.disruption != PREEMPTED:
            await set_disruption_target(self._client, pod, f"{DISRUPTION_PREFIX}{message}")

    async def _delete(self, pod: Pod) -> None:
        try:
            await self._client.delete(PODS, pod.namespace, pod.name, pod.uid)
        except (NotFound, Conflict):
            pass
        except ApiError as error:
            text = "could not delete a member of a preempted gang; trying again"
            log.warning(text, extra={"namespace": pod.namespace, "pod": pod.name, "err": str(error)})
