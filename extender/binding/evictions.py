"""Ending members that run: what is left of a gang that stays broken, and those that go with a disrupted one.

A broken gang is evicted where that is asked for (``--broken-gangs evict``); which members go with a disrupted one,
`extender.scheduling.disruption` decides.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable

from extender.binding.disrupting import do_each, mark
from extender.binding.rehearsal import Rehearsal
from extender.scheduling.groups import Groups
from extender.scheduling.preemption import Method
from extender.scheduling.term import Term
from serried.cluster.store import Store
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, BudgetRefusal, Conflict, NotFound
from serried.kube.wire import PODS
from serried.model.group import GroupKey
from serried.model.pod import OURS, PREEMPTED, Pod
from serried.model.reservation import Victim
from serried.observe.log import name_group
from serried.plan.quorum import is_whole

log = logging.getLogger(__name__)

_RETRY_SECONDS = 10.0
"""The pause before the members that are left are looked at again."""

_ATTEMPTS = 6
"""How often members that go with a preempted one are tried; after that the gang is mended, or stays broken."""


class Evictions:
    """Uses the Eviction API, so that disruption budgets count; where kube-scheduler preempts, deletion as it does."""

    def __init__(self, client: ApiClient, store: Store, groups: Groups, term: Term) -> None:
        self._client = client
        self._store = store
        self._pods = store.pods
        self._members = store.members
        self._groups = groups
        self._term = term

        self._turn = asyncio.Lock()
        """Held by the gang whose evictions are rehearsed and made: what a budget allows is promised to one of them."""

    # --- what is left of a broken gang -------------------------------------------------------------------------

    async def evict(self, key: GroupKey) -> None:
        """Evict the bound members one after the other, until none is left or the gang is whole again.

        Before each one it is looked again: a gang that was repaired meanwhile keeps what it has. Dying half-way, or at
        the end of the term, leaves a broken gang, which the next process reports, and evicts, after a grace of its own.
        """
        while left := [pod for pod in self._members.of_group(key) if self._is_due(key, pod.uid)]:
            for pod in left:
                if self._is_due(key, pod.uid):
                    await self._evict(pod)
            await asyncio.sleep(_RETRY_SECONDS)

    def _is_due(self, key: GroupKey, uid: str) -> bool:
        gang = self._groups.states.get(key)
        return gang is not None and gang.evicting and self._runs(uid)

    def _runs(self, uid: str) -> bool:
        """Whether a pod is bound and nobody has ended it yet; not asked for any more once the term is over."""
        pod = self._pods.get(uid)
        return self._term.active and pod is not None and pod.bound and not pod.deleting

    # --- members that go with a disrupted one ------------------------------------------------------------------

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
        gang = self._groups.states.get(key)
        return [pod for pod in self._list_running(uids) if gang is not None and pod.uid in gang.leaving]

    def _give_up(self, key: GroupKey) -> None:
        gang = self._groups.states.get(key)
        if gang is not None:
            gang.leaving.clear()
            self._groups.look_again(key)

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
                    await self._each(left, self._evict)
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
            gang.leaving.update(uids)
            self._groups.look_again(key)

    def _let_stay(self, key: GroupKey, uids: Iterable[str]) -> None:
        """Whoever of them still runs is a member as before: when it is disrupted itself, the others go with it."""
        gang = self._groups.states.get(key)
        staying = self._list_running(uids)
        if gang is not None and staying:
            gang.leaving.difference_update(pod.uid for pod in staying)
            let_off = self._store.yields.was_let_off  # what a victim says of itself is just being taken back
            gang.disrupted.difference_update(pod.uid for pod in staying if not pod.disruption or let_off(pod.uid))
            self._groups.look_again(key)

    async def _each(self, pods: Iterable[Pod], do: Callable[[Pod], Awaitable[object]]) -> list[object]:
        async def do_one(pod: Pod) -> object:
            return await do(pod) if self._runs(pod.uid) else True

        return await do_each(pods, do_one)

    # --- one pod -----------------------------------------------------------------------------------------------

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

    async def _evict(self, pod: Pod) -> None:
        try:
            await self._client.evict(pod.namespace, pod.name, pod.uid)
        except (NotFound, Conflict):
            pass
        except BudgetRefusal:
            log.info("a disruption budget keeps a member", extra={"pod": pod.name})
        except ApiError as error:
            log.warning("could not evict a member", extra={"pod": pod.name, "err": str(error)})
