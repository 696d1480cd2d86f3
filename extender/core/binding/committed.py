"""Asks the API server which members of committed records exist and are bound, where the watch may be late.

`Recovery` calls `EarlierBindings.wait_until_shown` after it has read the records. A member that is not in the cache is
deleted, or the watch has not shown it yet. If Serried took one for the other, half a gang would be bound and its record
deleted.

`CycleRunner` calls `EarlierBindings.read_bound` before it withdraws a commit of an earlier term. The cache may still
show members as pending that the earlier term has bound in its last moments. So only the API server can say that none of
them is bound.
"""

import logging
from collections.abc import Collection, Iterable, Mapping

from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.effects import Context
from serried.api.names import Key, Malformed
from serried.api.pod import Pod, decode_pod
from serried.api.reservation import Reservation
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, NotFound
from serried.kube.many import do_each
from serried.kube.retry import Attempts, Backoff
from serried.kube.wire import PODS
from serried.ops.log import name_group

log = logging.getLogger(__name__)

_CHECK_PAUSE = Backoff(first=0.05, cap=1.0)

_MAX_CHECKS = 12
"""The number of checks whether the cache has a member that exists. They take 9 s; no sound watch is so late."""


class UndecidedError(Exception):
    """Raised while it is unknown whether members of a committed record exist or are bound; the message says why.

    Until that is known, Serried can neither continue the record nor drop it.
    """


_READ_PAUSE = Backoff(first=0.2, cap=5.0)


class EarlierBindings:
    """Finds out which members of committed gangs exist, and which of them earlier terms have bound.

    One instance lives as long as the process.
    """

    def __init__(self, client: ApiClient, context: Context) -> None:
        self._client = client
        self._store = context.store
        self._pods = context.store.pods
        self._ledger = context.ledger
        self._term = context.term

    async def wait_until_shown(self, records: Iterable[Reservation]) -> None:
        """Wait until the cache has all members of committed records that exist and have not ended, or the term is over.

        The members come from the watch. They are read from the API server, too, but never put into the cache from here,
        because an older state could then replace a newer one. Raise UndecidedError if the API server does not say
        whether a member exists, or if the watch does not show an existing one within nine seconds.
        """
        unseen = {
            slot.uid: Key(record.group.namespace, slot.name)
            for record in records
            if record.committed
            for slot in record.slots.values()
            if slot.uid not in self._pods
        }
        async for checks in Attempts(_CHECK_PAUSE):
            unseen = {uid: pod for uid, pod in unseen.items() if uid not in self._pods}
            unseen = await self._list_unshown(unseen)
            if not unseen or not self._term.leads():
                return
            if checks == 0:
                text = "the watch does not show all members of a committed gang yet, so planning waits for it"
                log.info(text, extra={"pods": len(unseen)})
            if checks >= _MAX_CHECKS:
                first = next(iter(unseen.values()))
                raise UndecidedError(
                    f"the watch of pods does not show {first}, a member of a committed gang that exists"
                )

    async def _list_unshown(self, unseen: Mapping[str, Key]) -> dict[str, Key]:
        """Return those of the pods ``unseen`` (by UID) that exist, and that are not in the cache even now."""
        existing = await do_each(unseen.items(), lambda member: self._exists(*member))
        found = zip(unseen.items(), existing, strict=True)
        return {uid: pod for (uid, pod), exists in found if exists and uid not in self._pods}

    async def _exists(self, uid: str, pod: Key) -> bool:
        """Return whether a member exists and is bound or pending; False, too, if the pod has ended.

        Only such members are bound when the binding of a record's gang is continued after a restart.
        """
        if uid in self._pods:
            return True  # the watch has shown it meanwhile
        found = await self._get(uid, pod)
        return found is not None and (found.pending or found.bound)

    async def _list_bound_of(self, members: Mapping[str, Key]) -> list[Pod]:
        """Return those of the members (by UID) that are bound according to the API server, whatever the cache shows.

        Raise UndecidedError if the API server does not answer for each of them.
        """
        found = await do_each(members.items(), lambda member: self._get(*member))
        return [pod for pod in found if pod is not None and pod.bound]

    async def _get(self, uid: str, pod: Key) -> Pod | None:
        try:
            found = decode_pod(await self._client.get(PODS, pod.namespace, pod.name))
        except NotFound:
            return None
        except ApiError as error:
            raise UndecidedError(f"cannot tell whether {pod}, a member of a committed gang, exists: {error}") from error
        if isinstance(found, Malformed):
            return None  # no watch will ever show it
        return found if found.uid == uid else None

    def restore_bound(self, cycle: BindingCycle, bound: Collection[Pod]) -> None:
        """Mark the members ``bound`` as bound in a binding cycle, whose gang an earlier term has committed.

        If they all run in one domain, it becomes the domain of the reservation, as node labels may have changed.
        """
        cycle.restore_bound(pod.uid for pod in bound)
        if any(not pod.deleting for pod in bound):
            cycle.note_binding_sent()
        key = cycle.group.topology_key
        if key is None:
            return
        nodes = [self._store.nodes[pod.node] for pod in bound if pod.node in self._store.nodes]
        domains = {node.labels.get(key, "") for node in nodes}
        if len(domains) == 1:
            # The nodes' label may have changed since the plan. The other members must go to the domain of those that
            # run.
            self._ledger.rename_domain(cycle.reservation, domains.pop())

    async def read_bound(self, cycle: BindingCycle) -> None:
        """Ask the API server which committed members of a cycle are bound, and mark them as bound in the cycle.

        Retry until the API server answers for all of them, or the cycle or the term is over.
        """
        async for _ in Attempts(_READ_PAUSE):
            if cycle.over or not self._term.leads():
                return
            try:
                bound = await self._list_bound(cycle)
            except UndecidedError as error:
                text = "cannot find out yet which members of a committed gang are bound; trying again"
                log.warning(text, extra=name_group(cycle.group.key) | {"err": str(error)})
                continue
            if not cycle.over:  # else its slots may belong to the next cycle by now
                self.restore_bound(cycle, bound)
            return

    async def _list_bound(self, cycle: BindingCycle) -> list[Pod]:
        reservation = cycle.reservation
        namespace = reservation.group.namespace
        members = {uid: Key(namespace, slot.name) for uid, slot in reservation.slots.items()}
        found = await self._list_bound_of({uid: members[uid] for uid in reservation.committed & members.keys()})
        # The watch may have shown meanwhile that one of them is deleted.
        return [pod for pod in found if pod.uid in reservation.slots and pod.uid in self._pods]
