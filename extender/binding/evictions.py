"""Evicting what is left of a gang that stays broken, where that is asked for (``--broken-gangs evict``)."""

import asyncio
import logging

from extender.scheduling.groups import Groups
from extender.scheduling.term import Term
from serried.cluster.store import Store
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Conflict, NotFound, TooMany
from serried.model.group import GroupKey
from serried.model.pod import Pod

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 10.0


class Evictions:
    """Uses the Eviction API, so that disruption budgets count: what they refuse is asked for again later."""

    def __init__(self, client: ApiClient, store: Store, groups: Groups, term: Term) -> None:
        self._client = client
        self._store = store
        self._groups = groups
        self._term = term

    async def evict(self, key: GroupKey) -> None:
        """Evict the bound members one after the other, until none is left or the gang is whole again.

        Before each one it is looked again: a gang that was repaired meanwhile keeps what it has. Dying half-way, or at
        the end of the term, leaves a broken gang, which the next process reports, and evicts, after a grace of its own.
        """
        while left := [pod for pod in self._store.members.of_group(key) if self._is_due(key, pod.uid)]:
            for pod in left:
                if self._is_due(key, pod.uid):
                    await self._evict(pod)
            await asyncio.sleep(_AGAIN_SECONDS)

    def _is_due(self, key: GroupKey, uid: str) -> bool:
        gang, pod = self._groups.states.get(key), self._store.pods.get(uid)
        if gang is None or not gang.evicting or not self._term.active:
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
