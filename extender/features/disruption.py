"""Disruption mode ``all``: when one member of a gang is disrupted, the other members are ended, too.

A component that disrupts a pod writes the condition DisruptionTarget first, and ends the pod right after it. From then
on the other members are ended, whichever component it was, and whether or not kube-scheduler called preempt before
(decision 25). The core calls `Disruption.observe` whenever it considers a gang.

`Followers` remembers which members were handled, until they are gone. A new term starts without this memory.
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
from extender.options import Disrupted, Method
from serried.api.group import PodGroup
from serried.api.names import PREEMPTED, GroupKey
from serried.api.pod import OURS, Pod
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
"""The number of tries to delete the members of a preempted gang. After that the gang is repaired, or stays broken."""


@dataclass(slots=True)
class Followers(Memory):
    """The disrupted members of one group, and the members that are ended because of them."""

    disrupted: set[str] = field(default_factory=set)
    """The UIDs of members that were handled: disrupted by another component, or ended because of such a member."""

    leaving: set[str] = field(default_factory=set)
    """The UIDs of handled members that are being ended together, until they are gone or Serried gives up."""


class Disruption(Feature):
    """Ends the rest of a gang when one member is disrupted. Every method is synchronous; writes go to the outbox."""

    memories = (Followers,)

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
        """End the members that go with a disrupted member. A disruption is handled once."""
        if self._rule is Disrupted.KEEP or group is None:
            return
        disrupted = self._list_disrupted(key)
        if not disrupted and gang.memory.find(Followers) is None:
            return
        memory = gang.memory.get_or_create(Followers)
        for pod in disrupted:
            if pod.uid not in memory.disrupted:
                memory.disrupted.add(pod.uid)
                self._end_rest(memory, DisruptionGroup(key, group.find_disrupted(self._find_part(pod))), pod)
        if memory.disrupted:
            self._forget_gone(key, memory)
        if not (memory.disrupted or memory.leaving):
            del gang.memory[Followers]

    def _list_disrupted(self, key: GroupKey) -> list[Pod]:
        """Return the disrupted members that run, or whose slots are still kept after their end."""
        found = [pod for pod in self._members.iterate_disrupted(key) if pod.bound]
        found += [vacancy.pod for vacancy in self._vacancies.of_group(key)]
        return [pod for pod in found if self._counts(pod)]

    def _counts(self, pod: Pod) -> bool:
        if pod.uid in self._pending_victims:
            return False  # a victim of Serried: `preemption` has chosen the members that go with it
        if self._pending_victims.was_spared(pod.uid) and not pod.deleting:
            return False  # a victim that is no longer evicted
        if pod.disruption == PREEMPTED:
            return self._is_preempted(pod)
        return self._rule is Disrupted.ANY and bool(pod.disruption)

    def _is_preempted(self, pod: Pod) -> bool:
        """Return whether a pod with the condition DisruptionTarget is really being ended.

        kube-scheduler may write the condition and then fail to delete the pod. So the pod counts only when it is
        deleted or gone. A pod whose condition was written by Serried because of another member counts always: that
        member may be gone, and nothing else would end this pod.
        """
        known = self._pods.get(pod.uid)
        return pod.deleting or pod.says_follower or known is None or not known.bound

    def _find_part(self, pod: Pod) -> str:
        own = self._membership.resolve(pod)  # not from `Members`, which no longer knows a pod that is gone
        return own.name if own is not None and own != self._forest.lift(own) else ""

    def _end_rest(self, memory: Followers, disruption_group: DisruptionGroup, pod: Pod) -> None:
        running = self._disruption_groups.list_running(disruption_group)
        # A member that was to follow another one is included: after a restart, no other task ends it.
        rest = [each for each in running if each.uid != pod.uid or pod.says_follower]
        uids = tuple(each.uid for each in rest if each.uid not in memory.leaving and not _is_newer(each, pod))
        if not uids:
            return
        memory.disrupted.update(uids)
        others = sum(uid != pod.uid for uid in uids)
        text = render_disruption(pod.name, pod.disruption, others)
        if others:
            self._timelines.note(disruption_group.group, Milestone.PREEMPTED)
            self._status.report_disrupted(disruption_group.group, text)
        if self._ends_as_preempted(pod):
            memory.leaving.update(uids, (pod.uid,))
            self._outbox.put(InBackground(partial(self._endings.preempt, disruption_group.group, uids, text)))
        else:  # they count as leaving only when a dry run has shown that all of them may be evicted
            self._outbox.put(InBackground(partial(self._endings.evict_together, disruption_group.group, uids, pod.uid)))

    def _ends_as_preempted(self, pod: Pod) -> bool:
        """Return whether the others are deleted without asking their budgets, as kube-scheduler's own victims are.

        False for a victim of Serried itself that was evicted: there, budgets count.
        """
        own_victim = pod.says_victim and self._method is Method.EVICTION
        return pod.disruption == PREEMPTED and not own_victim

    def _forget_gone(self, key: GroupKey, memory: Followers) -> None:
        """Release the slots kept for leaving members, and forget members that are gone."""
        for vacancy in self._vacancies.of_group(key):
            if vacancy.pod.uid in memory.leaving:
                self._vacancies.close(vacancy)
        left = {vacancy.pod.uid for vacancy in self._vacancies.of_group(key)}
        memory.disrupted = {uid for uid in memory.disrupted if uid in self._pods or uid in left}
        memory.leaving = {uid for uid in memory.leaving if uid in self._pods or uid in left}


def _is_newer(pod: Pod, disrupted: Pod) -> bool:
    """Return whether a member started after the disruption, so that it belongs to the gang's next placement."""
    return pod.started is not None and disrupted.disrupted is not None and pod.started > disrupted.disrupted


class _Endings:
    """Ends the members that go with a disrupted one: by eviction if their budgets count, else by deletion."""

    def __init__(self, client: ApiClient, context: Context) -> None:
        self._client = client
        self._store = context.store
        self._pods = context.store.pods
        self._members = context.store.members
        self._groups = context.groups
        self._term = context.term

        self._turn = asyncio.Lock()
        """Held from a gang's dry run to its evictions: budgets may allow the evictions of one gang, and not of two."""

    async def preempt(self, key: GroupKey, uids: Collection[str], message: str) -> None:
        """End members as kube-scheduler ends its victims: the condition first, then deletion; budgets do not count.

        All conditions are written before the first deletion. So if this process dies in between, the next one finds the
        conditions, and deletes the rest.
        """
        for _ in range(_ATTEMPTS):
            left = self._list_leaving(key, uids)
            if not left:
                return
            await self._each(left, lambda pod: self._mark(pod, message))
            await self._each(left, self._delete)
            await asyncio.sleep(_RETRY_SECONDS)
        if self._list_leaving(key, uids):
            text = "some members of a preempted gang still run after several deletions; they stay"
            log.warning(text, extra=name_group(key))
        self._give_up(key)

    def _list_leaving(self, key: GroupKey, uids: Iterable[str]) -> list[Pod]:
        memory = self._find(key)
        return [pod for pod in self._list_running(uids) if memory is not None and pod.uid in memory.leaving]

    def _give_up(self, key: GroupKey) -> None:
        memory = self._find(key)
        if memory is not None:
            memory.leaving.clear()
            self._groups.mark_dirty(key)

    def _find(self, key: GroupKey) -> Followers | None:
        gang = self._groups.states.get(key)
        return gang.memory.find(Followers) if gang is not None else None

    async def evict_together(self, key: GroupKey, uids: Collection[str], disrupted: str) -> None:
        """Evict all members that go with the member ``disrupted`` (UID), or none if one of them may not be evicted.

        A budget may refuse some of them all the same, if other pods were evicted meanwhile. Then the rest is tried
        again until none is left, or until the gang has its quorum again, and keeps its members.
        """
        begun = False
        while (left := self._list_running(uids)) and not (begun and self._is_mended(key)):
            async with self._turn:
                may_go = await self._may_evict(key, left)
                if may_go:
                    begun = True
                    self._note_leaving(key, {*uids, disrupted})
                    await self._each(left, lambda pod: evict(self._client, pod))
            if not begun:
                break
            await asyncio.sleep(_RETRY_SECONDS)
        self._let_stay(key, uids)

    def _list_running(self, uids: Iterable[str]) -> list[Pod]:
        return [self._pods[uid] for uid in uids if self._runs(uid)]

    async def _may_evict(self, key: GroupKey, pods: Iterable[Pod]) -> bool:
        """Return whether all of these pods may be evicted, one by one and together."""
        rehearsal = Rehearsal(self._client, self._store, Method.EVICTION)
        await rehearsal.list_budgets()
        refused = await rehearsal.find_refused([Victim(pod.uid, pod.namespace, pod.name) for pod in pods])
        if refused:
            uid = next(iter(refused))
            said = {"uid": uid, "err": refused[uid], "pods": len(refused)}
            text = "the other members of a disrupted gang stay, as some of them may not be evicted"
            log.warning(text, extra=name_group(key) | said)
        return not refused

    def _is_mended(self, key: GroupKey) -> bool:
        """Return whether the gang has its quorum again, or is being bound, or no longer exists.

        A group without policy gang has no quorum, so the answer is False.
        """
        group, gang = self._store.groups.get(key), self._groups.states.get(key)
        if group is None or gang is None:
            return True  # the group was deleted
        if gang.cycle is not None and gang.cycle.reservation.committed:
            return True
        return group.policy.is_gang and has_quorum(group, self._members.classify(key))

    def _note_leaving(self, key: GroupKey, uids: Collection[str]) -> None:
        gang = self._groups.states.get(key)
        if gang is not None:
            gang.memory.get_or_create(Followers).leaving.update(uids)
            self._groups.mark_dirty(key)

    def _let_stay(self, key: GroupKey, uids: Iterable[str]) -> None:
        """Count the members that still run as usual ones again: their own disruption ends the others."""
        memory = self._find(key)
        staying = self._list_running(uids)
        if memory is not None and staying:
            memory.leaving.difference_update(pod.uid for pod in staying)
            let_off = self._store.pending_victims.was_spared  # the condition of such a victim is being removed
            memory.disrupted.difference_update(pod.uid for pod in staying if not pod.disruption or let_off(pod.uid))
            self._groups.mark_dirty(key)

    async def _each(self, pods: Iterable[Pod], do: Callable[[Pod], Awaitable[object]]) -> list[object]:
        async def do_one(pod: Pod) -> object:
            return await do(pod) if self._runs(pod.uid) else True

        return await do_each(pods, do_one)

    def _runs(self, uid: str) -> bool:
        """Return whether a pod is bound and not being deleted; False once the term is over."""
        pod = self._pods.get(uid)
        return self._term.active and pod is not None and pod.bound and not pod.deleting

    async def _mark(self, pod: Pod, message: str) -> None:
        if pod.disruption != PREEMPTED:
            await set_disruption_target(self._client, pod, f"{OURS}{message}")

    async def _delete(self, pod: Pod) -> None:
        try:
            await self._client.delete(PODS, pod.namespace, pod.name, pod.uid)
        except (NotFound, Conflict):
            pass
        except ApiError as error:
            text = "could not delete a member of a preempted gang; trying again"
            log.warning(text, extra={"namespace": pod.namespace, "pod": pod.name, "err": str(error)})
