"""Exclusive gangs, which have a domain to themselves, and the share of exclusive domains that a namespace may have.

A PodGroup with `Preference.exclusive` is planned in no domain of its topology key in which another exclusive gang is
planned, runs, or has slots kept (`Exclusive.pre_filter`). `allow` checks that again when victims have ended. If a gang
waits because its namespace has all the domains of its share, `post_filter` adds that to the verdict (`Share`).
"""

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from extender.core.feature import Feature, Memory, Refused
from extender.core.parts import Parts
from extender.core.scheduling.effects import Context
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.unschedulable import count_share
from extender.options import ALL_PERCENT
from serried.api.group import PodGroup
from serried.api.names import GroupKey
from serried.api.pod import Pod
from serried.api.verdict import Verdict
from serried.cluster.cache import Store
from serried.cluster.ledger import Ledger
from serried.cluster.priorities import find_exclusive_key
from serried.plan.request import Plan, PlanRequest, Waiting


class Occupant(NamedTuple):
    """A pod or slot of another exclusive gang, which occupies a domain."""

    domain: str
    namespace: str

    pod: Pod | None
    """The running pod; None for a slot that is planned or kept."""


def find_taken(group: PodGroup, store: Store, ledger: Ledger, gone: Collection[str] = frozenset()) -> frozenset[str]:
    """Return the domains that other exclusive gangs occupy; none if the group is not exclusive.

    Pods with the UIDs ``gone`` do not count.
    """
    occupants = list_occupants(group, store, ledger)
    return frozenset(each.domain for each in occupants if each.pod is None or each.pod.uid not in gone)


def find_openable(group: PodGroup, store: Store, ledger: Ledger, gone: Collection[str] = frozenset()) -> frozenset[str]:
    """Return the occupied domains that evictions would open: only running pods occupy them, and none is ending yet."""
    occupants = [each for each in list_occupants(group, store, ledger) if each.pod is None or each.pod.uid not in gone]
    stay = {
        each.domain
        for each in occupants
        if each.pod is None or each.pod.deleting or each.pod.uid in store.pending_victims
    }
    return frozenset(each.domain for each in occupants if each.domain not in stay)


def close_taken(
    request: PlanRequest,
    group: PodGroup,
    store: Store,
    ledger: Ledger,
    spent: "SpentShare | None",
    gone: Collection[str] = frozenset(),
) -> PlanRequest:
    """Return the request without the domains that other exclusive gangs occupy.

    If the share of the namespace is ``spent``, no domain is left, and evictions could open only a domain that the
    namespace has already. Pods with the UIDs ``gone`` do not count.
    """
    taken = find_taken(group, store, ledger, gone)
    openable = find_openable(group, store, ledger, gone) if taken else taken
    if spent is not None:
        taken = spent.domains
        openable &= spent.held
    exclusive = find_exclusive_key(group) is not None and spent is None
    return replace(request, taken=taken, openable=openable, exclusive=exclusive)


def list_occupants(group: PodGroup, store: Store, ledger: Ledger) -> Iterator[Occupant]:
    """Yield the pods and slots of other exclusive gangs with the group's key; none if the group is not exclusive."""
    key = find_exclusive_key(group)
    if key is None:
        return

    def is_another(found: GroupKey) -> bool:
        return found != group.key and find_exclusive_key(store.groups.get(found)) == key

    for reservation in ledger:
        if reservation.domain and is_another(reservation.group):
            yield Occupant(reservation.domain, reservation.group.namespace, None)
    running = (pod for other, bound in store.exclusives.iterate(key) if other.key != group.key for pod in bound)
    kept = (vacancy.pod for vacancy in store.vacancies if is_another(vacancy.group))
    for pod, there in [*((pod, pod) for pod in running), *((pod, None) for pod in kept)]:
        domain = store.nodes[pod.node].labels.get(key, "") if pod.node in store.nodes else ""
        if domain:
            yield Occupant(domain, pod.namespace, there)


@dataclass(frozen=True, slots=True)
class SpentShare:
    """A namespace that has all the exclusive domains of one key that it may have."""

    namespace: str
    held: frozenset[str]
    domains: frozenset[str]
    """All domains of the key."""

    def describe(self) -> str:
        """Return the detail of the verdict about a gang that would need one more domain."""
        count = f"{len(self.held)} of {len(self.domains)} domains"
        return f"gangs of namespace {self.namespace} have {count} exclusively, and may have no more"


class ExclusiveShares:
    """Counts the domains that the exclusive gangs of a namespace have, and compares them with its share."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._share_percent = context.options.share_percent

    def find_spent(
        self, group: PodGroup, gone: Collection[str] = frozenset(), promised: Collection[str] = ()
    ) -> SpentShare | None:
        """Return the share of the group's namespace if it is spent; None if the group may have one more domain.

        The domains that count are those occupied by other exclusive gangs of the namespace, and those ``promised`` to
        gangs before this one in the queue. Pods with the UIDs ``gone`` do not count.
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
        has_more = len(held) < count_share(self._share_percent, len(domains))
        return None if has_more else SpentShare(namespace, held, domains)


@dataclass(slots=True)
class Share(Memory):
    """The share of a gang's namespace when the gang was planned last; lives while the gang waits."""

    for_wait = True

    spent: SpentShare | None = None
    """The share; None if it was not spent."""


class Exclusive(Feature):
    """Keeps exclusive gangs out of each other's domains. Every method is synchronous."""

    memories = (Share,)

    concerns = attrgetter("preference.exclusive")

    def __init__(self, parts: Parts) -> None:
        self._store = parts.context.store
        self._ledger = parts.context.ledger
        self._features = parts.context.features
        self._shares = ExclusiveShares(parts.context)

    def pre_filter(self, gang: GroupState, group: PodGroup, waiting: Waiting, request: PlanRequest) -> PlanRequest:
        """Return the request without the domains of other exclusive gangs, or without any if the share is spent."""
        promised = frozenset[str]()
        for feature in self._features[Feature.list_promised]:
            if feature.busy:
                promised |= feature.list_promised(waiting, group.topology_key)
        spent = self._shares.find_spent(group, promised=promised)
        if spent is not None:
            gang.memory.get_or_create(Share).spent = spent
        else:
            gang.memory.pop(Share, None)
        return close_taken(request, group, self._store, self._ledger, spent)

    def post_filter(self, refused: Refused, refusal: Verdict) -> Verdict:
        """Return the refusal, with the spent share as its detail."""
        memory = refused.gang.memory.find(Share)
        if memory is None or memory.spent is None or refused.request.pinned:
            return refusal
        return replace(refusal, detail=memory.spent.describe())

    def allow(self, group: PodGroup, plan: Plan, gone: AbstractSet[str]) -> bool:
        """Return whether the plan's domain is still free of other exclusive gangs; UIDs ``gone`` do not count."""
        return plan.domain not in find_taken(group, self._store, self._ledger, frozenset(gone))
