"""How far an earlier term came with a commit: who of it is bound, and where.

The cache may be behind the last burst of that term, and show members pending that are bound. So no commit of an earlier
term is withdrawn before the API server has said that nobody of it is bound.
"""

import logging
from collections.abc import Collection

from extender.binding.unseen import UnjudgedError, UnseenMembers
from extender.scheduling.cycle import BindingCycle
from extender.scheduling.term import Term
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.kube.attempts import Attempts
from serried.model.backoff import Backoff
from serried.model.group import Key
from serried.model.pod import Pod
from serried.observe.log import name_group

log = logging.getLogger(__name__)

_PAUSE = Backoff(first=0.2, cap=5.0)


class EarlierBindings:
    """Tells cycles of what an earlier term has bound."""

    def __init__(self, store: Store, ledger: Ledger, term: Term, unseen: UnseenMembers) -> None:
        self._store = store
        self._ledger = ledger
        self._term = term
        self._unseen = unseen

    def note(self, cycle: BindingCycle, bound: Collection[Pod]) -> None:
        """These members of the commit are bound: the cycle, which goes on, learns how far it is and where it runs."""
        cycle.take_up(pod.uid for pod in bound)
        if any(not pod.deleting for pod in bound):
            cycle.note_binding_sent()
        key = cycle.group.topology_key
        if key is None:
            return
        nodes = [self._store.nodes[pod.node] for pod in bound if pod.node in self._store.nodes]
        domains = {node.labels.get(key, "") for node in nodes}
        if len(domains) == 1:
            # Its nodes may have got another label meanwhile: the others follow those that run.
            self._ledger.rename_domain(cycle.reservation, domains.pop())

    async def ask(self, cycle: BindingCycle) -> None:
        """Ask until the API server has said which members of the commit are bound, or cycle or term are over."""
        async for _ in Attempts(_PAUSE):
            if cycle.over or not self._term.leads():
                return
            try:
                bound = await self._list_bound(cycle)
            except UnjudgedError as error:
                log.warning("a commit cannot be judged yet", extra=name_group(cycle.group.key) | {"err": str(error)})
                continue
            if not cycle.over:  # else its slots may be those of the next cycle by now
                self.note(cycle, bound)
            return

    async def _list_bound(self, cycle: BindingCycle) -> list[Pod]:
        reservation = cycle.reservation
        namespace = reservation.group.namespace
        members = {uid: Key(namespace, slot.name) for uid, slot in reservation.slots.items()}
        found = await self._unseen.list_bound({uid: members[uid] for uid in reservation.committed & members.keys()})
        # While others were asked for, the watch may have shown that one of them has gone since.
        return [pod for pod in found if pod.uid in reservation.slots and pod.uid in self._store.pods]
