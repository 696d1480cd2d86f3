"""How much one namespace may have for itself: exclusive domains, and nodes kept for the head or for replacements."""

from collections.abc import Collection
from dataclasses import dataclass

from extender.scheduling.checks import list_occupants
from serried.cluster.backlog import Backlog
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.model.group import PodGroup

ALL_PERCENT = 100
"""The share with which nothing is limited."""


def find_most(share_percent: int, count: int) -> int:
    """How many of so many nodes or domains one namespace may have: its share, rounded down, and never none."""
    return max(1, count * share_percent // 100)


@dataclass(frozen=True, slots=True)
class SpentShare:
    """A namespace that has all the exclusive domains of one key that it may have."""

    namespace: str
    held: frozenset[str]
    domains: frozenset[str]
    """All domains of the key."""

    def describe(self) -> str:
        """What is said of a gang that would need one more."""
        count = f"{len(self.held)} of {len(self.domains)} domains"
        return f"gangs of namespace {self.namespace} have {count} exclusively, and may have no more"


class ExclusiveShares:
    """Counts the domains that the exclusive gangs of each namespace have, and stops them at ``share_percent``."""

    def __init__(self, store: Store, ledger: Ledger, share_percent: int = ALL_PERCENT) -> None:
        self._store = store
        self._ledger = ledger
        self._share_percent = share_percent

    def find_spent(
        self, group: PodGroup, gone: Collection[str] = frozenset(), promised: Collection[str] = ()
    ) -> SpentShare | None:
        """The share of a group's namespace if the group may have no domain beyond it; None if it may.

        A domain counts in which another exclusive gang of the namespace is planned, runs, or has slots kept, and those
        that are ``promised`` to one that is before it in the queue. It is as if the pods with the UIDs ``gone`` were
        gone.
        """
        key = group.topology_key
        if key is None or not group.preference.exclusive or self._share_percent == ALL_PERCENT:
            return None
        domains = frozenset(domain for (domain,) in self._store.capacity.domains((key,)))
        namespace = group.key.namespace
        held = frozenset(
            each.domain
            for each in list_occupants(group, self._store, self._ledger)
            if each.namespace == namespace and (each.pod is None or each.pod.uid not in gone)
        ).union(promised)
        has_more = len(held) < find_most(self._share_percent, len(domains))
        return None if has_more else SpentShare(namespace, held, domains)


class SlotShares:
    """Counts the nodes on which slots are kept for each namespace, and stops them at ``share_percent`` of all nodes.

    Slots whose replacements are there do not count: a quota counts these.
    """

    def __init__(self, store: Store, backlog: Backlog, share_percent: int = ALL_PERCENT) -> None:
        self._store = store
        self._backlog = backlog
        self._share_percent = share_percent

    def is_exceeded(self, namespace: str) -> bool:
        """Whether more is kept for a namespace than it may have, and a group of another one waits for room."""
        if self._share_percent == ALL_PERCENT or not self._backlog.holds_others(namespace):
            return False
        kept = self._store.vacancies.count_nodes(namespace)
        return kept > find_most(self._share_percent, len(self._store.nodes))
