"""Evict or delete victims: the condition DisruptionTarget is written first, then the pod is evicted or deleted.

Before the first victim is evicted, `Rehearsal` asks the API server by dry run whether all of them may be evicted, so
that no victim is evicted in vain because another one must stay.

A victim that a PodDisruptionBudget selects is evicted by the eviction subresource, so each such eviction is tried by a
dry run. A victim that no budget selects is deleted, as kube-scheduler does it, because an eviction has the same effect
and costs several times as many requests. RBAC or a webhook may reject an eviction, too, but usually does so for all
pods of one owner. So of these victims one per owner is tried, and the owner's other victims only if that one is
rejected.
"""

import asyncio
import logging
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from extender.options import EvictionMethod
from serried.api.budget import DisruptionBudget, decode_budget, selects_pod, uses_allowance
from serried.api.names import DISRUPTION_TARGET, PREEMPTED, Key, Malformed, write_time
from serried.api.pod import Pod
from serried.api.reservation import Victim
from serried.cluster.cache import Store
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, BudgetRefusal, Conflict, NotFound
from serried.kube.many import do_each
from serried.kube.wire import BUDGETS, PODS
from serried.ops.log import name_pod

log = logging.getLogger(__name__)


def find_running(pods: Mapping[str, Pod], victim: Victim) -> Pod | None:
    """Return the pod of a victim from ``pods`` (by UID); None if it is gone, not bound, or already being deleted."""
    pod = pods.get(victim.uid)
    return pod if pod is not None and pod.bound and not pod.deleting else None


async def set_disruption_target(client: ApiClient, pod: Pod | Victim, text: str) -> None:
    """Write the condition DisruptionTarget of a victim. ``text`` is its message: for which gang it is preempted.

    Do nothing if the pod is gone. Any other ApiError is logged, and not raised.
    """
    condition = {"type": DISRUPTION_TARGET, "status": "True", "reason": PREEMPTED, "message": text}
    # kube-controller-manager removes a condition without a time at once.
    await _patch_condition(client, pod, {**condition, "lastTransitionTime": write_time(time.time())})


async def remove_disruption_target(client: ApiClient, pod: Pod | Victim) -> None:
    """Remove the condition DisruptionTarget from a pod that is not evicted after all.

    Do nothing if the pod is gone. Any other ApiError is logged, and not raised.
    """
    await _patch_condition(client, pod, {"type": DISRUPTION_TARGET, "$patch": "delete"})


async def _patch_condition(client: ApiClient, pod: Pod | Victim, condition: dict[str, str]) -> None:
    body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
    try:
        await client.patch_strategic(PODS, pod.namespace, pod.name, body, "status")
    except (NotFound, Conflict):
        return
    except ApiError as error:
        log.warning(
            "could not patch the condition DisruptionTarget of a pod", extra=name_pod(pod) | {"err": str(error)}
        )


_MAX_TRIES = 3
"""The number of tries of one dry run, if it fails for another reason than a PodDisruptionBudget."""

_REFUSAL = "a PodDisruptionBudget does not allow the eviction"

_PODS_PER_STEP = 20
"""The number of pods that are matched with budgets at a time. After that, other tasks get the event loop."""


class Rehearsal:
    """Tries the evictions of one preemption by dry run. Call `list_budgets` first, then `find_refused`.

    With ``method`` DELETION budgets do not count, so nothing is tried and nothing is refused.
    """

    def __init__(self, client: ApiClient, store: Store, method: EvictionMethod) -> None:
        self._client = client
        self._store = store
        self._method = method

        self._listed: Mapping[str, Sequence[DisruptionBudget]] | None = {}
        """The budgets from `list_budgets`, by namespace; None if they could not be listed, and any pod may have one."""

    async def list_budgets(self) -> None:
        """List the PodDisruptionBudgets from the API server, because the watch may be late. An ApiError is logged."""
        if self._method is EvictionMethod.DELETION:
            return
        try:
            budgets = [decode_budget(each) for each in await self._client.list_all(BUDGETS)]
        except ApiError as error:
            log.warning(
                "could not list PodDisruptionBudgets, so all victims count as protected", extra={"err": str(error)}
            )
            self._listed = None
            return
        listed: dict[str, list[DisruptionBudget]] = {}
        for each in budgets:
            if isinstance(each, Malformed):
                self._listed = None
                return
            listed.setdefault(each.key.namespace, []).append(each)
        self._listed = listed

    def has_budget(self, pod: Pod) -> bool:
        """Return whether a PodDisruptionBudget selects a pod, by the list or the watch.

        True, too, if they could not be listed. Always False with method DELETION, because budgets do not count then.
        """
        if self._method is EvictionMethod.DELETION:
            return False
        budgets = self._iterate_budgets(pod.namespace)
        return self._listed is None or any(selects_pod(budget, pod.namespace, pod.labels) for budget in budgets)

    async def find_refused(self, victims: Iterable[Victim]) -> dict[str, str]:
        """Try to evict the victims by dry run. Return those that the API server refuses to evict: UID and reason.

        Victims that are gone meanwhile are left out. An error of the API server counts as a refusal.
        """
        if self._method is EvictionMethod.DELETION:
            return {}
        guarded, alike = await self._group(victims)
        over_budget = await self._find_over_budget(guarded)
        within = [pod for pod in guarded if pod.uid not in over_budget]
        answers = await do_each([*([pod] for pod in within), *alike], self._rehearse_first)
        refused = over_budget | {pod.uid: why for pod, why, _ in filter(None, answers) if why}
        doubtful = [[pod] for _, why, others in filter(None, answers) if why for pod in others]
        more = await do_each(doubtful, self._rehearse_first)
        return refused | {pod.uid: why for pod, why, _ in filter(None, more) if why}

    async def _group(self, victims: Iterable[Victim]) -> tuple[list[Pod], list[list[Pod]]]:
        """Return the pods of the victims: those that a budget selects, and the others in one list per owner."""
        guarded: list[Pod] = []
        alike: dict[Hashable, list[Pod]] = {}
        for index, victim in enumerate(victims, start=1):
            if index % _PODS_PER_STEP == 0:
                await asyncio.sleep(0)
            pod = find_running(self._store.pods, victim)
            if pod is None:
                continue
            if self.has_budget(pod):
                guarded.append(pod)
            else:
                alike.setdefault(_find_kind(pod), []).append(pod)
        return guarded, list(alike.values())

    async def _find_over_budget(self, pods: Iterable[Pod]) -> dict[str, str]:
        """Return the pods that exceed a budget together with the pods before them, by UID, with the reason.

        A dry run changes no budget, so it would allow each of two pods whose budget allows one eviction.
        """
        left: dict[Key, int] = {}
        over_budget: dict[str, str] = {}
        for index, pod in enumerate(pods, start=1):
            if index % _PODS_PER_STEP == 0:
                await asyncio.sleep(0)
            allowed = self._list_allowed(pod)
            if any(left.setdefault(key, count) <= 0 for key, count in allowed.items()):
                over_budget[pod.uid] = _REFUSAL
            else:
                left.update({key: left[key] - 1 for key in allowed})
        return over_budget

    def _list_allowed(self, pod: Pod) -> dict[Key, int]:
        """Return how many evictions each budget of a pod still allows: the smaller number if list and watch differ."""
        allowed: dict[Key, int] = {}
        for budget in self._iterate_budgets(pod.namespace):
            if uses_allowance(budget, pod):
                allowed[budget.key] = min(budget.allowed, allowed.get(budget.key, budget.allowed))
        return allowed

    def _iterate_budgets(self, namespace: str) -> Iterator[DisruptionBudget]:
        """Yield the budgets of a namespace, the listed ones and then the watched ones. A budget may come twice."""
        yield from (self._listed or {}).get(namespace, ())
        yield from self._store.budgets_in.get(namespace, {}).values()

    async def _rehearse_first(self, pods: Sequence[Pod]) -> tuple[Pod, str, Sequence[Pod]] | None:
        """Try to evict the first of these pods that still exists, by dry run.

        Return this pod, the reason why the API server would refuse ("" if it would not), and the pods after it, which
        were not tried. Return None if all are gone.
        """
        for place, pod in enumerate(pods, start=1):
            known = self._store.pods.get(pod.uid)
            why = None if known is None or known.deleting else await self._rehearse_one(pod)
            if why is not None:
                return pod, why, pods[place:]
        return None

    async def _rehearse_one(self, pod: Pod) -> str | None:
        """Try to evict a pod by dry run.

        Return why it would be refused; "" if it would not be, None if the pod is gone.
        """
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


def _find_kind(pod: Pod) -> Hashable:
    """Return the key by which pods are grouped for dry runs: those of one owner have equal keys.

    Of pods with equal keys, one is tried for all. Pods without an owner have equal keys if their labels are equal.
    """
    if pod.owner is not None:
        return pod.namespace, pod.owner.uid
    return pod.namespace, frozenset(pod.labels.items())


async def evict(client: ApiClient, pod: Pod) -> None:
    """Evict a member of a gang that ends as a whole. Do nothing if the pod is gone.

    A refusal by a PodDisruptionBudget and any other ApiError are logged, and not raised; the caller may try again.
    """
    try:
        await client.evict(pod.namespace, pod.name, pod.uid)
    except (NotFound, Conflict):
        pass
    except BudgetRefusal:
        log.info("a PodDisruptionBudget refuses the eviction of a member", extra=name_pod(pod))
    except ApiError as error:
        log.warning("could not evict a member", extra=name_pod(pod) | {"err": str(error)})
