"""Evict or delete victims: the condition DisruptionTarget is written first, then the pod is evicted or deleted.

`Rehearsal` asks the API server by dry run whether all victims may be evicted, before the first one is (decision 27). A
pod that a PodDisruptionBudget selects will be evicted, so its eviction is rehearsed. A pod that no budget selects is
deleted, as kube-scheduler does: an eviction has the same effect and costs several times as many requests. A role or a
webhook may refuse an eviction, too, but refuses it for all pods of one kind. So one eviction per owner is rehearsed,
and those of the owner's other pods only when the first is refused.
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
from serried.ops.log import name_pod

log = logging.getLogger(__name__)


def find_running(pods: Mapping[str, Pod], victim: Victim) -> Pod | None:
    """Return the pod of a victim; None if it is gone, not bound, or already being deleted."""
    pod = pods.get(victim.uid)
    return pod if pod is not None and pod.bound and not pod.deleting else None


async def set_disruption_target(client: ApiClient, pod: Pod | Victim, text: str) -> None:
    """Write the condition DisruptionTarget of a victim; ``text`` says for which gang it is preempted.

    A pod that is gone is passed over. Any other failure is logged, and not raised.
    """
    condition = {"type": DISRUPTION_TARGET, "status": "True", "reason": PREEMPTED, "message": text}
    # kube-controller-manager removes a condition without a time at once.
    await _patch_condition(client, pod, {**condition, "lastTransitionTime": write_time(time.time())})


async def remove_disruption_target(client: ApiClient, pod: Pod | Victim) -> None:
    """Remove the condition that `set_disruption_target` has written; failures as there."""
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
"""The number of times that one dry run is tried while the API server fails to answer."""

_REFUSAL = "its PodDisruptionBudget does not allow it"

_PODS_PER_TURN = 20
"""The number of pods that are matched with budgets before other tasks, such as filter, get the event loop."""


class Rehearsal:
    """The evictions of one preemption, tried by dry run. Call `list_budgets` first, then `find_refused`."""

    def __init__(self, client: ApiClient, store: Store, method: Method) -> None:
        self._client = client
        self._store = store
        self._method = method

        self._listed: Mapping[str, Sequence[DisruptionBudget]] | None = {}
        """The budgets from `list_budgets`, by namespace; None if they could not be listed: any pod may have one."""

    async def list_budgets(self) -> None:
        """List the PodDisruptionBudgets from the API server, as the watch may be late. A failure is logged."""
        if self._method is Method.DELETION:
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

    def is_guarded(self, pod: Pod) -> bool:
        """Return whether a listed or watched budget selects a pod, so that its eviction may be refused."""
        if self._method is Method.DELETION:
            return False
        budgets = self._iterate_budgets(pod.namespace)
        return self._listed is None or any(selects_pod(budget, pod.namespace, pod.labels) for budget in budgets)

    async def find_refused(self, victims: Iterable[Victim]) -> dict[str, str]:
        """Try to evict the victims by dry run. Return the reason of each refusal by the victim's UID."""
        if self._method is Method.DELETION:
            return {}
        guarded, alike = await self._group(victims)
        beyond = await self._find_beyond(guarded)
        within = [pod for pod in guarded if pod.uid not in beyond]
        answers = await do_each([*([pod] for pod in within), *alike], self._rehearse_first)
        refused = beyond | {pod.uid: why for pod, why, _ in filter(None, answers) if why}
        doubtful = [[pod] for _, why, others in filter(None, answers) if why for pod in others]
        more = await do_each(doubtful, self._rehearse_first)
        return refused | {pod.uid: why for pod, why, _ in filter(None, more) if why}

    async def _group(self, victims: Iterable[Victim]) -> tuple[list[Pod], list[list[Pod]]]:
        """Return the pods that budgets select, and all other pods in one list per kind."""
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
        """Return the pods that exceed what their budgets allow in sum, by UID: a dry run judges one pod by itself."""
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
        """Return the evictions that each budget of a pod still allows; the smaller number if list and watch differ."""
        allowed: dict[Key, int] = {}
        for budget in self._iterate_budgets(pod.namespace):
            if counts(budget, pod):
                allowed[budget.key] = min(budget.allowed, allowed.get(budget.key, budget.allowed))
        return allowed

    def _iterate_budgets(self, namespace: str) -> Iterator[DisruptionBudget]:
        """Yield the listed budgets, then the watched ones; the same budget may come twice."""
        yield from (self._listed or {}).get(namespace, ())
        yield from self._store.budgets_in.get(namespace, {}).values()

    async def _rehearse_first(self, pods: Sequence[Pod]) -> tuple[Pod, str, Sequence[Pod]] | None:
        """Rehearse the eviction of the first of these pods that still exists.

        Return this pod, why it could not be evicted ("" if it could), and the pods after it; None if all are gone.
        """
        for place, pod in enumerate(pods, start=1):
            known = self._store.pods.get(pod.uid)
            why = None if known is None or known.deleting else await self._rehearse_one(pod)
            if why is not None:
                return pod, why, pods[place:]
        return None

    async def _rehearse_one(self, pod: Pod) -> str | None:
        """Return why a pod could not be evicted, "" if it could; None if it is gone."""
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
    """Return a key that pods of one owner share; pods without an owner share it if they have the same labels."""
    if pod.owner is not None:
        return pod.namespace, pod.owner.uid
    return pod.namespace, frozenset(pod.labels.items())


async def evict(client: ApiClient, pod: Pod) -> None:
    """Evict a member of a gang. A pod that is gone is passed over; a refusal is logged, and the caller may retry."""
    try:
        await client.evict(pod.namespace, pod.name, pod.uid)
    except (NotFound, Conflict):
        pass
    except BudgetRefusal:
        log.info("a PodDisruptionBudget refuses the eviction of a member", extra=name_pod(pod))
    except ApiError as error:
        log.warning("could not evict a member", extra=name_pod(pod) | {"err": str(error)})
