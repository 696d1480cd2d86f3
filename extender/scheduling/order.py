"""The order of the queue: by priority, which waiting raises, and by the time since when a gang has its quorum.

How much one namespace may have for itself: exclusive domains, and nodes kept for the head or for replacements.
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from extender.scheduling.backlog import Backlog
from extender.scheduling.group import GroupState
from extender.scheduling.request import list_occupants
from serried.api.group import PodGroup
from serried.api.names import GroupKey
from serried.cluster.cache import Store
from serried.cluster.ledger import Ledger
from serried.cluster.priorities import GroupPriorities
from serried.cluster.usage import Vacancies
from serried.plan.request import Ageing, Turn, Waiting, order_groups


class QueueOrder:
    """Says which of two groups is before the other by now.

    ``clock`` gives loop seconds. ``ageing_seconds`` is how long a gang waits before it counts as of the next higher
    priority; infinite for never.
    """

    def __init__(
        self,
        priorities: GroupPriorities,
        vacancies: Vacancies,
        clock: Callable[[], float],
        *,
        ageing_seconds: float = math.inf,
    ) -> None:
        self._priorities = priorities
        self._vacancies = vacancies
        self._clock = clock
        self._ageing = Ageing(ageing_seconds)

    def describe(self, group: GroupKey, state: GroupState | None) -> Waiting:
        """A group as the queue sees it; ``state`` is what is remembered of it."""
        # A member that has just ended counts at once: whoever was looked at first would get the room.
        broken = (state is not None and state.broken_since is not None) or group in self._vacancies
        since = state.quorum_since if state is not None else None
        rejected = state is not None and state.rejection is not None
        return Waiting(group, self._priorities.of_group(group), math.inf if since is None else since, broken, rejected)

    def sort(self, waiting: Iterable[Waiting]) -> list[Waiting]:
        """The first one first."""
        return order_groups(waiting, self._ageing, self._clock())

    def precedes(self, first: Waiting, second: Waiting) -> bool:
        """Whether one group is before another."""
        now = self._clock()
        return self._ageing.place(first, now) < self._ageing.place(second, now)

    def turn_of(self, waiting: Waiting) -> Turn:
        """Where a group stands by now."""
        return self._ageing.place(waiting, self._clock())

    def raised_priority(self, waiting: Waiting) -> int:
        """The priority with which a group counts by now."""
        return self._ageing.raised(waiting, self._clock())

    def note_levels(self) -> None:
        """Look which priorities there are: waiting raises a gang from one of these to the next."""
        self._ageing = replace(self._ageing, levels=sorted(self._priorities.list_levels()))


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
