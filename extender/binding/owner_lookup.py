"""Whether the Job or parent of held pods exists is asked of the API server, not of a watch.

It is a list of one name, as the right to list is the one that there is: this answers the newest state, too, and an
empty list is the word of an API server, which no page of a proxy is.
"""

import asyncio
import logging
from collections.abc import Callable, Set

from extender.scheduling.awaited_owner import Waiter
from extender.scheduling.groups import Groups
from serried.cluster.provisional import owner_of_provisional
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError
from serried.kube.wire import JOBS, Selection, identity, parents, select_name
from serried.model.group import GroupKey
from serried.model.parent import JOB, OwnerKey, ParentKind
from serried.observe.log import name_group

log = logging.getLogger(__name__)

_QUESTIONS = 8
"""How many are asked at the same time."""


class OwnerLookup:
    """Tells the groups what the API server has. ``clock`` gives loop seconds."""

    def __init__(self, client: ApiClient, groups: Groups, clock: Callable[[], float]) -> None:
        self._client = client
        self._groups = groups
        self._clock = clock
        self._few = asyncio.Semaphore(_QUESTIONS)

    async def look_up(self, key: GroupKey, waiters: Set[Waiter]) -> None:
        """Find out whether the owner for which this group's pods wait exists, and have the group looked at again."""
        owner_key = owner_of_provisional(key)
        if owner_key is None:
            return
        try:
            async with self._few:
                found = await self._find_uid(owner_key)
        except ApiError as error:
            log.warning("cannot tell whether an owner exists", extra={**name_group(key), "err": str(error)})
            self._note_unknown(key, str(error))
        except Exception as error:
            self._note_unknown(key, repr(error))  # else nobody would ask again
            raise
        else:
            self._note_found(key, waiters, found)
        self._groups.look_again(key)

    async def _find_uid(self, owner_key: OwnerKey) -> str:
        resource = JOBS if owner_key.kind == JOB else parents(ParentKind(owner_key.kind))
        namespace, name = owner_key.key
        found = [each async for each in self._client.items(resource, Selection(namespace, fields=select_name(name)))]
        return next((uid for _, named, uid in map(identity, found) if named == name), "")

    def _note_found(self, key: GroupKey, waiters: Set[Waiter], found: str) -> None:
        state = self._groups.states.get(key)
        if state is not None and state.awaited is not None:
            state.awaited.note_found(waiters, found, self._clock())

    def _note_unknown(self, key: GroupKey, why: str) -> None:
        state = self._groups.states.get(key)
        if state is not None and state.awaited is not None:
            state.awaited.note_unknown(why, self._clock())
