"""Our nominations of pods that hold no slot: left by a process that died before the end of its record."""

import asyncio
from collections.abc import Mapping

from extender.binding.nominator import Nominator
from extender.scheduling.term import Term
from serried.cluster.ledger import Ledger
from serried.cluster.members import Members
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError
from serried.kube.wire import PODS
from serried.model.pod import Pod

FIELD_MANAGER = "serried"
"""The name under which we write, as ``managedFields`` have it."""

_MAX_READS = 16
"""How many pods are read at the same time."""


class StrayNominations:
    """Takes them off at the start of a term."""

    def __init__(
        self,
        client: ApiClient,
        pods: Mapping[str, Pod],
        members: Members,
        ledger: Ledger,
        *,
        nominator: Nominator,
        term: Term,
    ) -> None:
        self._client = client
        self._pods = pods
        self._members = members
        self._ledger = ledger
        self._nominator = nominator
        self._term = term

    async def clear(self) -> None:
        """Look at every nominated member without a slot. To be called once the ledger is rebuilt."""
        strays = [pod for pod in self._pods.values() if self._may_be_stray(pod)]
        reads = asyncio.Semaphore(_MAX_READS)
        async with asyncio.TaskGroup() as tasks:
            for pod in strays:
                tasks.create_task(self._clear(pod, reads))

    def _may_be_stray(self, pod: Pod) -> bool:
        is_member = self._members.group_of(pod.uid) is not None
        return is_member and pod.pending and bool(pod.nominated) and not self._has_slot(pod)

    async def _clear(self, pod: Pod, reads: asyncio.Semaphore) -> None:
        async with reads:
            if await self._is_ours(pod) and not self._has_slot(pod) and self._term.leads():
                self._nominator.release([pod.uid], [pod])

    def _has_slot(self, pod: Pod) -> bool:
        return self._ledger.of_pod(pod.uid) is not None

    async def _is_ours(self, pod: Pod) -> bool:
        # The scheduler nominates members too (preemption); only the field's manager tells the two apart.
        try:
            found = await self._client.get(PODS, pod.namespace, pod.name)
        except ApiError:
            return False
        managers = found["metadata"].get("managedFields") or []
        return any(
            entry.get("manager") == FIELD_MANAGER
            and "f:nominatedNodeName" in (entry.get("fieldsV1") or {}).get("f:status", {})
            for entry in managers
        )
