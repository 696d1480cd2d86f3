"""What is done to pods that end for others: the condition says so first, then they are evicted, or deleted.

Whether the API server would let all of some pods go is found out before the first one does (decision 27). A pod that a
PodDisruptionBudget selects is evicted, and its eviction is rehearsed. One that none selects is deleted, as
kube-scheduler does: an eviction would end it in the same way, at several times the price. What else may refuse an
eviction (a role, a webhook) does it for pods of one kind: so of those of one owner one eviction is rehearsed, and all
of them as soon as that is refused.
"""

import asyncio
import logging
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from extender.options import Method
from serried.api.budget import DisruptionBudget, counts, decode_budget, selects_pod
from serried.api.names import DISRUPTION_TARGET, PREEMPTED, Key, Malformed, write_time
from serried.api.pod import Pod
from serried.api.reservation import Victim
from serried.cluster.cache import Store
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, BudgetRefusal, Conflict, NotFound
from serried.kube.many import do_each
from serried.kube.wire import BUDGETS, PODS

log = logging.getLogger(__name__)


def find_running(pods: Mapping[str, Pod], victim: Victim) -> Pod | None:
    """A victim's pod if it is still to be ended."""
    pod = pods.get(victim.uid)
    return pod if pod is not None and pod.bound and not pod.deleting else None


async def mark(client: ApiClient, pod: Pod | Victim, text: str) -> None:
    """Say on a pod that it is preempted, and for whom. A pod that is gone is fine; a failure is logged."""
    said = {"type": DISRUPTION_TARGET, "status": "True", "reason": PREEMPTED, "message": text}
    # kube-controller-manager takes a condition back at once that has no time.
    await _patch(client, pod, {**said, "lastTransitionTime": write_time(time.time())})


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


async def evict(client: ApiClient, pod: Pod) -> None:
    """Evict a member of a gang. One that is gone is fine; what else keeps it is logged, and may be tried again."""
    try:
        await client.evict(pod.namespace, pod.name, pod.uid)
    except (NotFound, Conflict):
        pass
    except BudgetRefusal:
        log.info("a disruption budget keeps a member", extra={"pod": pod.name})
    except ApiError as error:
        log.warning("could not evict a member", extra={"pod": pod.name, "err": str(error)})
