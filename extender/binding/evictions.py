"""Evicting what is left of a gang that stays broken, where that is asked for (``--broken-gangs evict``)."""

import asyncio
import logging
from collections.abc import Mapping

from extender.scheduling.groups import Groups
from extender.scheduling.term import Term
from serried.cluster.members import Members
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Conflict, NotFound, TooMany
from serried.model.group import GroupKey
from serried.model.pod import Pod

log = logging.getLogger(__name__)

_RETRY_SECONDS = 10.0
"""The pause before the members that are left are looked at again."""


class Evictions:
    """Uses the Eviction API, so that disruption budgets count: what they refuse is asked for again later."""

    def __init__(
        self, client: ApiClient, pods: Mapping[str, Pod], members: Members, *, groups: Groups, term: Term
    ) -> None:
        self._client = client
        self._pods = pods
        self._members = members
        self._groups = groups
        self._term = term

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
        state = self._groups.states.get(key)
        pod = self._pods.get(uid)
        if state is None or not state.evicting or not self._term.active:
            return False
        return pod is not None and pod.bound and not pod.deleting

    async def _evict(self, pod: Pod) -> None:
        try:
            await self._client.evict(pod.namespace, pod.name, pod.uid)
        except (NotFound, Conflict):
            pass
        except TooMany:
            log.info("a disruption budget keeps a member of a broken gang", extra={"pod": pod.name})
        except ApiError as error:
            log.warning("could not evict a member of a broken gang", extra={"pod": pod.name, "err": str(error)})
