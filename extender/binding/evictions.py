"""Ending members that run: what is left of a gang that stays broken, and those that go with a disrupted one.

A broken gang is evicted where that is asked for (``--broken-gangs evict``); which members go with a disrupted one,
`extender.scheduling.disruption` decides.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from extender.binding.disrupting import do_each, mark
from extender.scheduling.groups import Groups
from extender.scheduling.term import Term
from serried.cluster.members import Members
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, BudgetRefusal, Conflict, NotFound
from serried.kube.wire import PODS
from serried.model.group import GroupKey
from serried.model.pod import PREEMPTED, Pod
from serried.observe.log import name_group

log = logging.getLogger(__name__)

_RETRY_SECONDS = 10.0
"""The pause before the members that are left are looked at again."""

_ATTEMPTS = 6
"""How often members that go with a disrupted one are tried; after that the gang is mended, or stays broken."""


class Evictions:
    """Uses the Eviction API, so that disruption budgets count; where kube-scheduler preempts, deletion as it does."""

    def __init__(
        self, client: ApiClient, pods: Mapping[str, Pod], members: Members, *, groups: Groups, term: Term
    ) -> None:
        self._client = client
        self._pods = pods
        self._members = members
        self._groups = groups
        self._term = term

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
        await self._end(key, uids, lambda pod: self._mark(pod, message), self._delete)

    async def evict_together(self, key: GroupKey, uids: Collection[str]) -> None:
        """Evict members, all or none: a budget that refuses one of them keeps them all."""
        allowed = await self._each(self._list_leaving(key, uids), self._may_evict)
        if not all(allowed):
            log.warning("disruption budgets keep members of a disrupted gang", extra=name_group(key))
            self._give_up(key)
            return
        await self._end(key, uids, self._evict)

    async def _end(self, key: GroupKey, uids: Collection[str], *steps: Callable[[Pod], Awaitable[object]]) -> None:
        """Take each step with all members before the next one, and again with those that are left."""
        for _ in range(_ATTEMPTS):
            left = self._list_leaving(key, uids)
            if not left:
                return
            for step in steps:
                await self._each(left, step)
            await asyncio.sleep(_RETRY_SECONDS)
        if self._list_leaving(key, uids):
            log.warning("members of a disrupted gang could not be ended", extra=name_group(key))
        self._give_up(key)

    def _list_leaving(self, key: GroupKey, uids: Iterable[str]) -> list[Pod]:
        gang = self._groups.states.get(key)
        return [self._pods[uid] for uid in uids if gang is not None and uid in gang.leaving and self._runs(uid)]

    def _give_up(self, key: GroupKey) -> None:
        gang = self._groups.states.get(key)
        if gang is not None:
            gang.leaving.clear()
            self._groups.look_again(key)

    async def _each(self, pods: Iterable[Pod], do: Callable[[Pod], Awaitable[object]]) -> list[object]:
        async def do_one(pod: Pod) -> object:
            return await do(pod) if self._runs(pod.uid) else True

        return await do_each(pods, do_one)

    # --- one pod -----------------------------------------------------------------------------------------------

    async def _mark(self, pod: Pod, message: str) -> None:
        if pod.disruption != PREEMPTED:
            await mark(self._client, pod, f"serried: {message}")

    async def _delete(self, pod: Pod) -> None:
        try:
            await self._client.delete(PODS, pod.namespace, pod.name, pod.uid)
        except (NotFound, Conflict):
            pass
        except ApiError as error:
            log.warning("could not delete a member of a preempted gang", extra={"pod": pod.name, "err": str(error)})

    async def _may_evict(self, pod: Pod) -> bool:
        try:
            await self._client.rehearse_eviction(pod.namespace, pod.name, pod.uid)
        except (NotFound, Conflict):
            return True
        except ApiError as error:
            log.info("a member of a disrupted gang stays", extra={"pod": pod.name, "err": str(error)})
            return False
        return True

    async def _evict(self, pod: Pod) -> None:
        try:
            await self._client.evict(pod.namespace, pod.name, pod.uid)
        except (NotFound, Conflict):
            pass
        except BudgetRefusal:
            log.info("a disruption budget keeps a member", extra={"pod": pod.name})
        except ApiError as error:
            log.warning("could not evict a member", extra={"pod": pod.name, "err": str(error)})
