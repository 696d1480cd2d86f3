"""Our nominations of pods that hold no slot: left by a process that died before the end of its record."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from extender.binding.nominator import Nominator
from extender.scheduling.term import Term
from serried.cluster.ledger import Ledger
from serried.cluster.members import Members
from serried.kube.attempts import Attempts
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, NotFound, TooMany, Unavailable
from serried.kube.wire import PODS
from serried.model.backoff import Backoff
from serried.model.pod import Pod

log = logging.getLogger(__name__)

FIELD_MANAGER = "serried"
"""The name under which we write, as ``managedFields`` have it."""

_MAX_READS = 16
"""How many pods are read at the same time."""

_MAX_FAILURES = 3
"""How many failures to read one are outlasted; all that wait for the new leader wait for this."""

_RETRY = Backoff(first=0.5, cap=2.0)


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
        if await self._is_ours(pod, reads) and not self._has_slot(pod) and self._term.leads():
            self._nominator.release([pod.uid], [pod])

    def _has_slot(self, pod: Pod) -> bool:
        return self._ledger.of_pod(pod.uid) is not None

    async def _is_ours(self, pod: Pod, reads: asyncio.Semaphore) -> bool:
        # The scheduler nominates members too (preemption); only the field's manager tells the two apart.
        async for failures in Attempts(_RETRY):
            try:
                async with reads:
                    found = await self._client.get(PODS, pod.namespace, pod.name)
            except NotFound:
                return False
            except ApiError as error:
                if failures < _MAX_FAILURES and isinstance(error, (TooMany, Unavailable)):
                    continue
                detail = {"pod": f"{pod.namespace}/{pod.name}", "node": pod.nominated, "err": str(error)}
                log.warning("cannot tell whose nomination a pod has: it stays", extra=detail)
                return False
            return _has_nominated(found)
        raise AssertionError("attempts do not end")


def _has_nominated(pod: Mapping[str, Any]) -> bool:
    """Whether its nomination is one that we wrote."""
    return any(
        entry.get("manager") == FIELD_MANAGER
        and "f:nominatedNodeName" in (entry.get("fieldsV1") or {}).get("f:status", {})
        for entry in pod["metadata"].get("managedFields") or []
    )
