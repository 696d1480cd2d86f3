"""A gang of disruption mode ``all`` goes with a member that somebody ends.

Whoever disrupts a pod writes the condition DisruptionTarget first, and ends the pod right after it; from then on those
that go with it are ended, too. It does not matter who it was, nor whether kube-scheduler has asked before (decision
25). Each look at a gang that loses members finds them (`observe`).

Which members have followed is remembered until they are gone (`Followers`); a term that begins looks anew.
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
from extender.evictions import Rehearsal, evict, mark
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
from serried.plan.quorum import is_whole

log = logging.getLogger(__name__)

_RETRY_SECONDS = 10.0
"""The pause before the members that are left are looked at again."""

_ATTEMPTS = 6
"""How often members that go with a preempted one are tried; after that the gang is mended, or stays broken."""


@dataclass(slots=True)
class Followers(Memory):
    """The members of one group that somebody disrupts, and those that go with them."""

    disrupted: set[str] = field(default_factory=set)
    """The UIDs of members that somebody disrupts, or that go with one: what was to follow has followed."""

    leaving: set[str] = field(default_factory=set)
    """The UIDs of those of them that are being ended together, until they are gone or it is given up."""


class Disruption(Feature):
    """Has the rest of a gang follow a member. Every method is synchronous."""

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
        """Have those ended that go with a disrupted member. What has followed once does not follow again."""
        if self._rule is Disrupted.KEEP or group is None:
            return
        disrupted = self._list_disrupted(key)
        if not disrupted and gang.memory.find(Followers) is None:
            return
        memory = gang.memory.of(Followers)
        for pod in disrupted:
            if pod.uid not in memory.disrupted:
                memory.disrupted.add(pod.uid)
                self._end_rest(memory, DisruptionGroup(key, group.find_disrupted(self._find_part(pod))), pod)
        if memory.disrupted:
            self._let_go(key, memory)
        if not (memory.disrupted or memory.leaving):
            del gang.memory[Followers]

    def _list_disrupted(self, key: GroupKey) -> list[Pod]:
        """The members that run, or ran until just now, and that somebody disrupts."""
        found = [pod for pod in self._members.iterate_disrupted(key) if pod.bound]
        found += [vacancy.pod for vacancy in self._vacancies.of_group(key)]
        return [pod for pod in found if self._counts(pod)]

    def _counts(self, pod: Pod) -> bool:
        if pod.uid in self._pending_victims:
            return False  # who goes with it was decided with it (`preemption`)
        if self._pending_victims.was_let_off(pod.uid) and not pod.deleting:
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

    def _end_rest(self, memory: Followers, disruption_group: DisruptionGroup, pod: Pod) -> None:
        running = self._disruption_groups.list_running(disruption_group)
        # Nobody else ends one that follows: whoever was to do it is gone.
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
        else:  # they leave once it is known that all of them may
            self._outbox.put(InBackground(partial(self._endings.evict_together, disruption_group.group, uids, pod.uid)))

    def _ends_as_preempted(self, pod: Pod) -> bool:
        """Whether those that go with a pod end as kube-scheduler ends its victims, without asking their budgets.

        They do not where it was evicted for a gang of ours that was given up: it was evicted because budgets count.
        """
        own_victim = pod.says_victim and self._method is Method.EVICTION
        return pod.disruption == PREEMPTED and not own_victim

    def _let_go(self, key: GroupKey, memory: Followers) -> None:
        """Keep no slot of those that go together, and remember nobody who is gone."""
        for vacancy in self._vacancies.of_group(key):
            if vacancy.pod.uid in memory.leaving:
                self._vacancies.close(vacancy)
        left = {vacancy.pod.uid for vacancy in self._vacancies.of_group(key)}
        memory.disrupted = {uid for uid in memory.disrupted if uid in self._pods or uid in left}
        memory.leaving = {uid for uid in memory.leaving if uid in self._pods or uid in left}


def _is_newer(pod: Pod, disrupted: Pod) -> bool:
    """Whether a member began only after another one was disrupted: it is of the gang that was placed anew."""
    return pod.started is not None and disrupted.disrupted is not None and pod.started > disrupted.disrupted


class _Endings:
    """Ends members that go with another one: if their budgets count by eviction, else by deletion."""

    def __init__(self, client: ApiClient, context: Context) -> None:
        self._client = client
        self._store = context.store
        self._pods = context.store.pods
        self._members = context.store.members
        self._groups = context.groups
        self._term = context.term

        self._turn = asyncio.Lock()
        """Held by the gang whose evictions are rehearsed and made: what a budget allows is promised to one of them."""

    async def preempt(self, key: GroupKey, uids: Collection[str], message: str) -> None:
        """End members as kube-scheduler ends its victims: the condition first, then deletion; budgets do not count.

        All conditions are written before the first deletion. So whoever dies half-way leaves members behind that say
        that they go, and the next process has them ended.
        """
        for _ in range(_ATTEMPTS):
            left = self._list_leaving(key, uids)
            if not left:
                return
            await self._each(left, lambda pod: self._mark(pod, message))
            await self._each(left, self._delete)
            await asyncio.sleep(_RETRY_SECONDS)
        if self._list_leaving(key, uids):
            log.warning("members of a preempted gang could not be ended", extra=name_group(key))
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
        """Evict members, as another one is disrupted, all or none: if one of them may not go, they all stay.

        If a budget refuses one half-way all the same, as others were evicted meanwhile, the rest is tried again in the
        same way until none is left, or the gang is whole again: then it stays with those that have come.
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
        """Whether all of them may go, by the sum over their budgets, too."""
        rehearsal = Rehearsal(self._client, self._store, Method.EVICTION)
        await rehearsal.prepare()
        refused = await rehearsal.run([Victim(pod.uid, pod.namespace, pod.name) for pod in pods])
        if refused:
            uid = next(iter(refused))
            said = {"uid": uid, "err": refused[uid], "pods": len(refused)}
            log.warning("members of a disrupted gang stay: not all of them may go", extra=name_group(key) | said)
        return not refused

    def _is_mended(self, key: GroupKey) -> bool:
        """Whether the quorum runs, or is just being bound. A group that is no gang has none, and is not mended."""
        group, gang = self._store.groups.get(key), self._groups.states.get(key)
        if group is None or gang is None:
            return True  # nobody asks for it any more
        if gang.cycle is not None and gang.cycle.reservation.committed:
            return True
        return group.policy.is_gang and is_whole(group, self._members.classify(key))

    def _note_leaving(self, key: GroupKey, uids: Collection[str]) -> None:
        gang = self._groups.states.get(key)
        if gang is not None:
            gang.memory.of(Followers).leaving.update(uids)
            self._groups.mark_dirty(key)

    def _let_stay(self, key: GroupKey, uids: Iterable[str]) -> None:
        """Whoever of them still runs is a member as before: when it is disrupted itself, the others go with it."""
        memory = self._find(key)
        staying = self._list_running(uids)
        if memory is not None and staying:
            memory.leaving.difference_update(pod.uid for pod in staying)
            let_off = self._store.pending_victims.was_let_off  # what a victim says of itself is just being taken back
            memory.disrupted.difference_update(pod.uid for pod in staying if not pod.disruption or let_off(pod.uid))
            self._groups.mark_dirty(key)

    async def _each(self, pods: Iterable[Pod], do: Callable[[Pod], Awaitable[object]]) -> list[object]:
        async def do_one(pod: Pod) -> object:
            return await do(pod) if self._runs(pod.uid) else True

        return await do_each(pods, do_one)

    def _runs(self, uid: str) -> bool:
        """Whether a pod is bound and nobody has ended it yet; not asked for any more once the term is over."""
        pod = self._pods.get(uid)
        return self._term.active and pod is not None and pod.bound and not pod.deleting

    async def _mark(self, pod: Pod, message: str) -> None:
        if pod.disruption != PREEMPTED:
            await mark(self._client, pod, f"{OURS}{message}")

    async def _delete(self, pod: Pod) -> None:
        try:
            await self._client.delete(PODS, pod.namespace, pod.name, pod.uid)
        except (NotFound, Conflict):
            pass
        except ApiError as error:
            log.warning("could not delete a member of a preempted gang", extra={"pod": pod.name, "err": str(error)})
