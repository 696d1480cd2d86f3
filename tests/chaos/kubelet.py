"""The kubelet's refusal of a pod for which its node has no room. kwok runs whatever is bound.

As `Admit` of pkg/kubelet/lifecycle/predicate.go and `rejectPod` of pkg/kubelet/kubelet.go do, for CPU and the number of
pods. A pod counts on its node until it has ended, also while it is being deleted.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.chaos.objects import Node, Pod

_LOOK_SECONDS = 0.02
_GONE = frozenset({404, 409})


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pod that was bound to a node without room for it."""

    pod: Pod
    at: float

    resource: str
    """``cpu`` or ``pods``."""

    text: str

    contested: bool
    """True if another scheduler may have taken the room a moment before."""

    @property
    def reason(self) -> str:
        """The reason in the pod's status."""
        return f"OutOf{self.resource}"

    def describe_status(self) -> dict[str, Any]:
        """The patch by which the kubelet fails the pod, and none that has its name since."""
        message = f"Pod was rejected: {self.text}"
        status = {"phase": "Failed", "reason": self.reason, "message": message}
        return {"metadata": {"uid": self.pod.uid}, "status": status}


def find_lacking(pod: Pod, node: Node, there: Iterable[Pod]) -> tuple[str, str] | None:
    """The resource that a node lacks for one more pod beside those that are there, and how; None if it has room."""
    others = list(there)
    asked = {"cpu": pod.milli_cpu, "pods": 1}
    used = {"cpu": sum(other.milli_cpu for other in others), "pods": len(others)}
    room = {"cpu": node.milli_cpu, "pods": node.pods}
    for resource, amount in asked.items():
        if used[resource] + amount > room[resource]:
            figures = f"requested: {amount}, used: {used[resource]}, capacity: {room[resource]}"
            return resource, f"Node didn't have enough resource: {resource}, {figures}"
    return None


class Kubelets:
    """Fails those that are refused, for as long as they are seen alive."""

    def __init__(self, refused: dict[str, Refusal], pods: dict[tuple[str, str], Pod]) -> None:
        self._refused = refused
        self._pods = pods

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Until cancelled."""
        while True:
            for refusal in list(self._refused.values()):
                pod = self._pods.get(refusal.pod.name)
                if pod is not None and pod.uid == refusal.pod.uid and not pod.ended:
                    await self._fail(session, refusal)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _fail(self, session: aiohttp.ClientSession, refusal: Refusal) -> None:
        namespace, name = refusal.pod.name
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        headers = {"Content-Type": "application/merge-patch+json"}
        try:
            async with session.patch(path, json=refusal.describe_status(), headers=headers) as answer:
                if answer.status not in _GONE:
                    answer.raise_for_status()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return  # at the next turn
