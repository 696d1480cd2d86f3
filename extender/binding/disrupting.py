"""What is done to pods that are ended for others, whoever decides on it: the condition says so, a few at a time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from extender.status.conditions import tell_time
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Conflict, NotFound
from serried.kube.wire import PODS
from serried.model.group import GroupKey
from serried.model.pod import DISRUPTION_TARGET, FOR_A_GANG, PREEMPTED, Pod
from serried.model.reservation import Victim

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
    """What is said on a pod that ends for this gang. A restart goes by it (`extender.binding.reach`)."""
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
