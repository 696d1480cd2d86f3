"""Exclusive gangs, which have a domain to themselves, and the limit for the exclusive domains of one namespace.

A PodGroup with `Preference.exclusive` is planned in no domain of its topology key in which another exclusive gang is
planned, runs, or has slots kept for replacements (`Exclusive.pre_filter`). `Exclusive.allows_plan` checks that again
when victims have ended. The setting ``--namespace-share`` limits how many of the domains exclusive gangs of one
namespace may occupy. If a gang waits because its namespace has reached the limit, `Exclusive.post_filter` adds that to
the verdict.
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
    """A pod or slot of an exclusive gang, which occupies a domain, so that no other exclusive gang may use it."""

    domain: str
    namespace: str

    pod: Pod | None
    """The running pod; None for a slot that is planned, or kept for the replacement of a dead member."""


def find_occupied_domains(
    group: PodGroup, store: Store, ledger: Ledger, gone: Collection[str] = frozenset()
) -> frozenset[str]:
    """Return the domains of the group's topology key that other exclusive gangs occupy with pods or slots.

    An exclusive gang must not be placed there. Empty if ``group`` itself is not exclusive. Pods with the UIDs ``gone``
    count as deleted.
    """
    occupants = list_occupants(group, store, ledger)
    return frozenset(each.domain for each in occupants if each.pod is None or each.pod.uid not in gone)


def find_freeable_domains(
    group: PodGroup, store: Store, ledger: Ledger, gone: Collection[str] = frozenset()
) -> frozenset[str]:
    """Return the domains occupied by other exclusive gangs that evictions could free.

    Only running pods occupy these domains, no planned or kept slots, and none of the pods is already ending. Pods with
    the UIDs ``gone`` count as deleted.
    """
    occupants = [each for each in list_occupants(group, store, ledger) if each.pod is None or each.pod.uid not in gone]
    stay = {
        each.domain
        for each in occupants
        if each.pod is None or each.pod.deleting or each.pod.uid in store.pending_victims
    }
    return frozenset(each.domain for each in occupants if each.domain not in stay)


def exclude_occupied(
    request: PlanRequest,
    group: PodGroup,
    store: Store,
    ledger: Ledger,
    exhausted: "ExhaustedShare | None",
    gone: Collection[str] = frozenset(),
) -> PlanRequest:
    """Return the request with the domains excluded that other exclusive gangs occupy.

    ``exhausted`` is set if the namespace may have no more exclusive domains. Then all domains are excluded, and
    preemption may only take over a domain from another gang of the namespace. Pods with the UIDs ``gone`` count as
    deleted.
    """
    taken = find_occupied_domains(group, store, ledger, gone)
    freeable = find_freeable_domains(group, store, ledger, gone) if taken else taken
    if exhausted is not None:
        taken = exhausted.domains
        freeable &= exhausted.held
    exclusive = find_exclusive_key(group) is not None and exhausted is None
    return replace(request, taken=taken, freeable=freeable, exclusive=exclusive)


def list_occupants(group: PodGroup, store: Store, ledger: Ledger) -> Iterator[Occupant]:
    """Yield all pods and slots of other exclusive gangs that have the same topology key as ``group``.

    Yield nothing if ``group`` is not exclusive. A slot is either planned, or kept for the replacement of a dead member.
    """
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
class ExhaustedShare:
    """A namespace that has as many exclusive domains of one topology key as it may have."""

    namespace: str

    held: frozenset[str]
    """The domains that exclusive gangs of the namespace have, and the one that the head of the queue will get."""

    domains: frozenset[str]
    """All domains of the key in the cluster."""

    def describe(self) -> str:
        """Return the detail of the verdict about a gang of the namespace that waits for one more domain."""
        count = f"{len(self.held)} of {len(self.domains)} domains"
        return f"gangs of namespace {self.namespace} have {count} exclusively, and may have no more (--namespace-share)"


class ExclusiveShares:
    """Finds the namespaces whose exclusive gangs have as many domains as ``--namespace-share`` allows."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._share_percent = context.options.share_percent

    def find_exhausted(
        self, group: PodGroup, gone: Collection[str] = frozenset(), ahead: Collection[str] = ()
    ) -> ExhaustedShare | None:
        """Return the exclusive domains of the group's namespace if there are as many as ``--namespace-share`` allows.

        None if the group may have one more domain, is not exclusive, or there is no limit. Domains count that other
        exclusive gangs of the namespace occupy, and those in ``ahead``, which gangs before this one in the queue will
        get. Pods with the UIDs ``gone`` count as deleted.
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
        ).union(ahead)
        has_more = len(held) < count_share(self._share_percent, len(domains))
        return None if has_more else ExhaustedShare(namespace, held, domains)


@dataclass(slots=True)
class LastShare(Memory):
    """Remembers of a waiting gang whether its namespace had reached its limit of exclusive domains.

    It is updated each time the gang is planned, and lives while the gang waits.
    """

    for_wait = True

    exhausted: ExhaustedShare | None = None
    """The namespace's domains if it had reached its limit; else None."""


class Exclusive(Feature):
    """The feature that keeps exclusive gangs out of each other's domains, and limits their domains per namespace.

    The core calls its methods, which are all synchronous.
    """

    memories = (LastShare,)

    concerns = attrgetter("preference.exclusive")

    def __init__(self, parts: Parts) -> None:
        self._store = parts.context.store
        self._ledger = parts.context.ledger
        self._features = parts.context.features
        self._shares = ExclusiveShares(parts.context)

    def pre_filter(self, gang: GroupState, group: PodGroup, waiting: Waiting, request: PlanRequest) -> PlanRequest:
        """Return the request with the domains of other exclusive gangs excluded.

        If the gang's namespace has reached its limit of exclusive domains, all domains are excluded. Domains that
        other gangs of the namespace will get first, because they precede this gang in the queue, count as well.
        ``waiting`` is this gang's position in the queue.
        """
        ahead = frozenset[str]()
        for feature in self._features[Feature.list_kept_domains]:
            if feature.busy:
                ahead |= feature.list_kept_domains(waiting, group.topology_key)
        exhausted = self._shares.find_exhausted(group, ahead=ahead)
        if exhausted is not None:
            gang.memory.get_or_create(LastShare).exhausted = exhausted
        else:
            gang.memory.pop(LastShare, None)
        return exclude_occupied(request, group, self._store, self._ledger, exhausted)

    def post_filter(self, refused: Refused, refusal: Verdict) -> Verdict:
        """Return the verdict to report for a gang that the planner has rejected with the verdict ``refusal``.

        That is ``refusal``, with a detail if the gang waits because its namespace has as many exclusive domains as it
        may have. ``refused`` has the gang and its request.
        """
        memory = refused.gang.memory.find(LastShare)
        if memory is None or memory.exhausted is None or refused.request.pinned:
            return refusal
        return replace(refusal, detail=memory.exhausted.describe())

    def allows_plan(self, group: PodGroup, plan: Plan, gone: AbstractSet[str]) -> bool:
        """Return whether no other exclusive gang occupies the plan's domain. Pods ``gone`` (UIDs) count as deleted."""
        return plan.domain not in find_occupied_domains(group, self._store, self._ledger, frozenset(gone))
