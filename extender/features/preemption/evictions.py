"""Ending members that run: what is left of a gang that stays broken, and those that go with a disrupted one.

A broken gang is evicted where that is asked for (``--broken-gangs evict``); which members go with a disrupted one,
`extender.features.repair` decides.

What is done to pods that are ended for others, whoever decides on it: the condition says so, a few at a time.

Whether the API server would let all victims of a preemption go, found out before the first one does (decision 27).

A victim that a PodDisruptionBudget selects is evicted, and its eviction is rehearsed. One that none selects is deleted,
as kube-scheduler does: an eviction would end it in the same way, at several times the price. What else may refuse an
eviction (a role, a webhook) does it for pods of one kind: so of those of one owner one eviction is rehearsed, and all
of them as soon as that is refused.

When evictions are written, Events of type Normal wait: each victim has one, and the gang waits for its room.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from extender.core.scheduling.effects import Context
from extender.features.status.conditions import tell_time
from extender.options import Method
from serried.api.budget import DisruptionBudget, counts, decode_budget, selects_pod
from serried.api.names import DISRUPTION_TARGET, PREEMPTED, GroupKey, Key, Malformed
from serried.api.pod import FOR_A_GANG, OURS, Pod
from serried.api.reservation import Victim
from serried.cluster.cache import Store
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, BudgetRefusal, Conflict, NotFound
from serried.kube.wire import BUDGETS, PODS
from serried.ops.log import name_group
from serried.plan.quorum import is_whole

Item = TypeVar("Item")
Answer = TypeVar("Answer")

log = logging.getLogger(__name__)

_WRITERS = 64
"""For how many pods something is written at the same time: as many as Bindings, for which the API server keeps room.

With fewer at a time the victims take longer to end, and all the while kube-scheduler tries their preemptor's members
over and over (decision 27).
"""


async def do_each(pods: Iterable[Item], do: Callable[[Item], Awaitable[Answer]]) -> list[Answer]:
    """The answers for all pods, in their order. What one raises ends the others."""
    few = asyncio.Semaphore(_WRITERS)

    async def do_one(pod: Item) -> Answer:
        async with few:
            return await do(pod)

    tasks = [asyncio.ensure_future(do_one(pod)) for pod in pods]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:  # `gather` leaves the others at work when one has failed
            task.cancel()


def find_running(pods: Mapping[str, Pod], victim: Victim) -> Pod | None:
    """A victim's pod if it is still to be ended."""
    pod = pods.get(victim.uid)
    return pod if pod is not None and pod.bound and not pod.deleting else None


def describe_end(group: GroupKey) -> str:
    """What is said on a pod that ends for this gang. A restart goes by it (`extender.core.binding.recovery`)."""
    return f"{FOR_A_GANG}{group.kind} {group} of higher priority"


async def mark(client: ApiClient, pod: Pod | Victim, text: str) -> None:
    """Say on a pod that it is preempted, and for whom. A pod that is gone is fine; a failure is logged."""
    said = {"type": DISRUPTION_TARGET, "status": "True", "reason": PREEMPTED, "message": text}
    # kube-controller-manager takes a condition back at once that has no time.
    await _patch(client, pod, {**said, "lastTransitionTime": tell_time()})


async def unmark(client: ApiClient, pod: Pod | Victim) -> None:
    """Take back what `mark` has written."""
    await _patch(client, pod, {"type": DISRUPTION_TARGET, "$patch": "delete"})


async def _patch(client: ApiClient, pod: Pod | Victim, condition: dict[str, str]) -> None:
    body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
    try:
        await client.patch_strategic(PODS, pod.namespace, pod.name, body, "status")
    except (NotFound, Conflict):
        return
    except ApiError as error:
        log.warning("could not write a disruption condition", extra={"pod": pod.name, "err": str(error)})


_MAX_TRIES = 3
"""How often a dry run is tried that has no answer."""

_REFUSAL = "its PodDisruptionBudget does not allow it"

_PODS_PER_TURN = 20
"""Of how many pods budgets are looked through before others get their turn: filter is served meanwhile."""


class Rehearsal:
    """The victims of one preemption, and what may keep them."""

    def __init__(self, client: ApiClient, store: Store, method: Method) -> None:
        self._client = client
        self._store = store
        self._method = method

        self._listed: Mapping[str, Sequence[DisruptionBudget]] | None = {}
        """The budgets as the API server has them, by namespace; None if it does not say."""

    async def prepare(self) -> None:
        """Ask for the budgets as they are now: our own watch may be late."""
        if self._method is Method.DELETION:
            return
        try:
            budgets = [decode_budget(each) for each in await self._client.list_all(BUDGETS)]
        except ApiError as error:
            log.warning("could not list disruption budgets", extra={"err": str(error)})
            self._listed = None
            return
        listed: dict[str, list[DisruptionBudget]] = {}
        for each in budgets:
            if isinstance(each, Malformed):
                self._listed = None
                return
            listed.setdefault(each.key.namespace, []).append(each)
        self._listed = listed

    def is_guarded(self, pod: Pod) -> bool:
        """Whether a budget may refuse the eviction of a pod: one that was listed, or that the watch has shown since."""
        if self._method is Method.DELETION:
            return False
        budgets = self._iterate_budgets(pod.namespace)
        return self._listed is None or any(selects_pod(budget, pod.namespace, pod.labels) for budget in budgets)

    async def run(self, victims: Iterable[Victim]) -> dict[str, str]:
        """The victims that could not be evicted, by UID, and why."""
        if self._method is Method.DELETION:
            return {}
        guarded, alike = await self._sort(victims)
        beyond = await self._find_beyond(guarded)
        within = [pod for pod in guarded if pod.uid not in beyond]
        answers = await do_each([*([pod] for pod in within), *alike], self._rehearse_first)
        refused = beyond | {pod.uid: why for pod, why, _ in filter(None, answers) if why}
        doubtful = [[pod] for _, why, others in filter(None, answers) if why for pod in others]
        more = await do_each(doubtful, self._rehearse_first)
        return refused | {pod.uid: why for pod, why, _ in filter(None, more) if why}

    async def _sort(self, victims: Iterable[Victim]) -> tuple[list[Pod], list[list[Pod]]]:
        """The pods that budgets select, and the others by their kind."""
        guarded: list[Pod] = []
        alike: dict[Hashable, list[Pod]] = {}
        for index, victim in enumerate(victims, start=1):
            if index % _PODS_PER_TURN == 0:
                await asyncio.sleep(0)
            pod = find_running(self._store.pods, victim)
            if pod is None:
                continue
            if self.is_guarded(pod):
                guarded.append(pod)
            else:
                alike.setdefault(_name_kind(pod), []).append(pod)
        return guarded, list(alike.values())

    async def _find_beyond(self, pods: Iterable[Pod]) -> dict[str, str]:
        """Those whose budgets will allow no more evictions after the others': each dry run is judged by itself."""
        left: dict[Key, int] = {}
        beyond: dict[str, str] = {}
        for index, pod in enumerate(pods, start=1):
            if index % _PODS_PER_TURN == 0:
                await asyncio.sleep(0)
            allowed = self._list_allowed(pod)
            if any(left.setdefault(key, count) <= 0 for key, count in allowed.items()):
                beyond[pod.uid] = _REFUSAL
            else:
                left.update({key: left[key] - 1 for key in allowed})
        return beyond

    def _list_allowed(self, pod: Pod) -> dict[Key, int]:
        """How many evictions each budget of a pod allows: of what was listed and what the watch shows, the smaller."""
        allowed: dict[Key, int] = {}
        for budget in self._iterate_budgets(pod.namespace):
            if counts(budget, pod):
                allowed[budget.key] = min(budget.allowed, allowed.get(budget.key, budget.allowed))
        return allowed

    def _iterate_budgets(self, namespace: str) -> Iterator[DisruptionBudget]:
        """What was listed, and what the watch shows: one of a name may come twice."""
        yield from (self._listed or {}).get(namespace, ())
        yield from self._store.budgets_in.get(namespace, {}).values()

    async def _rehearse_first(self, pods: Sequence[Pod]) -> tuple[Pod, str, Sequence[Pod]] | None:
        """The first of these that is still there, why it could not be evicted, and the others; None if all are gone."""
        for place, pod in enumerate(pods, start=1):
            known = self._store.pods.get(pod.uid)
            why = None if known is None or known.deleting else await self._rehearse_one(pod)
            if why is not None:
                return pod, why, pods[place:]
        return None

    async def _rehearse_one(self, pod: Pod) -> str | None:
        """Why a pod could not be evicted, "" if it could; None for one that is gone, and says nothing of its kind."""
        why = ""
        for _ in range(_MAX_TRIES):
            try:
                await self._client.rehearse_eviction(pod.namespace, pod.name, pod.uid)
            except (NotFound, Conflict):
                return None
            except BudgetRefusal:
                return _REFUSAL
            except ApiError as error:
                why = str(error)
            else:
                return ""
            await asyncio.sleep(0)
        return why


def _name_kind(pod: Pod) -> Hashable:
    """What is the same for pods of one owner; for pods without one, of one purpose."""
    if pod.owner is not None:
        return pod.namespace, pod.owner.uid
    return pod.namespace, frozenset(pod.labels.items())


_RETRY_SECONDS = 10.0
"""The pause before the members that are left are looked at again."""

_ATTEMPTS = 6
"""How often members that go with a preempted one are tried; after that the gang is mended, or stays broken."""


class Evictions:
    """Uses the Eviction API, so that disruption budgets count; where kube-scheduler preempts, deletion as it does."""

    def __init__(self, client: ApiClient, context: Context) -> None:
        self._client = client
        self._store = context.store
        self._pods = context.store.pods
        self._members = context.store.members
        self._groups = context.groups
        self._term = context.term

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
            let_off = self._store.pending_victims.was_let_off  # what a victim says of itself is just being taken back
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
