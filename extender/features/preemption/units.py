"""The candidates of the search for victims, in units: a unit is a set of pods that are evicted together, often one pod.

`Units.list_candidates` makes the units of the pods in the Store. `enforce_budgets`, `enforce_quorums` and
`protect_young` then mark some of them as protected, so that they are not chosen. In a large cluster almost every pod is
a unit of its own.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, dataclass, field, replace

from extender.core.scheduling.binding_cycle import CycleStage
from extender.core.scheduling.effects import Context
from serried.api.budget import DisruptionBudget, limits_eviction, uses_allowance
from serried.api.group import Branch, Leaf, PodGroup, Tree, find_disruption_root
from serried.api.names import GroupKey, GroupKind, Key
from serried.api.pod import Pod, Shape
from serried.cluster.priorities import DisruptionGroup, find_exclusive_key
from serried.plan.eviction import BREAKS, STAYING_OWNERS, TOO_MANY, Allowances, Budget, EvictionUnit, SpareMembers
from serried.plan.fit import count_fitting
from serried.plan.limit import Limit

_RELEASABLE_STAGES = (CycleStage.RECORDING, CycleStage.GATHERING)
"""The stages of a binding cycle in which a gang of higher priority may take over a planned gang's slots."""

_MAX_RIVALS = 64
"""The maximum number of shapes of waiting pods of other schedulers that are compared with each node.

Pods of one shape have the same requests and constraints. If there are more shapes, every node counts as contested, i.e.
such a pod would take what an eviction frees there. The limit exists because any user can create pods of any number of
shapes.
"""

_FOREIGN = "another scheduler serves these pods, and would take the freed resources"
"""The reason why pods of other schedulers are no victims.

kube-scheduler keeps only pods of its own profiles off the resources of a nominated pod. The other scheduler would give
what is freed to another of its pods.
"""

_CONTESTED = "pods of another scheduler wait, and would take the freed resources"


REFUSED_EVICTION_SECONDS = 60.0
"""For how many seconds a pod is no victim after the API server has refused, by dry run, to evict it."""


@dataclass(slots=True)
class _RefusalSeries:
    """The evictions that the API server has refused for one gang, over several searches in a row."""

    until: float = -math.inf
    """The loop time until which these pods are no victims."""

    reasons: dict[str, str] = field(default_factory=dict)
    """The reason why the API server has refused the eviction, a phrase, by the pod's UID."""


class RefusedEvictions:
    """The pods that the API server has refused to evict lately, and that are no victims for a minute.

    They are stored by the gang for which the dry run was made. Each new refusal for a gang prolongs all earlier ones
    for it. So each search leaves out more pods than the one before, and the searches come to an end. ``clock`` gives
    loop seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._series: dict[GroupKey, _RefusalSeries] = {}
        self._by_uid: dict[str, _RefusalSeries] = {}

    def add(self, group: GroupKey, refused: Mapping[str, str]) -> None:
        """Remember pods that the API server refuses to evict for the gang ``group``.

        ``refused`` has, by the pod's UID, a phrase that says why.
        """
        now = self._clock()
        for key in [key for key, series in self._series.items() if now >= series.until]:
            self._drop(key)
        series = self._series.setdefault(group, _RefusalSeries())
        series.until = now + REFUSED_EVICTION_SECONDS
        series.reasons.update(refused)
        self._by_uid.update(dict.fromkeys(refused, series))

    def find_reason(self, uid: str) -> str:
        """Return why the API server has refused to evict a pod lately, a phrase; "" if it has not."""
        series = self._by_uid.get(uid)
        return series.reasons[uid] if series is not None and self._clock() < series.until else ""

    def _drop(self, group: GroupKey) -> None:
        series = self._series.pop(group)
        for uid in series.reasons:
            if self._by_uid.get(uid) is series:
                del self._by_uid[uid]


@dataclass(frozen=True, slots=True)
class VictimCandidates:
    """All units that a search for victims may choose from, with the limits for the choice (``allowances``).

    A unit is a set of pods that are evicted together, often one pod. The limits are how many pods each
    PodDisruptionBudget allows to evict, and how many members each gang may lose.
    """

    units: tuple[EvictionUnit, ...]
    allowances: Allowances


class Units:
    """Groups the pods in the Store into units, i.e. pods that are evicted together, and checks units again later."""

    def __init__(self, context: Context) -> None:
        self.refused_evictions = RefusedEvictions(context.clock)
        """The pods that the API server has refused to evict lately."""

        self._pods = context.store.pods
        self._nodes = context.store.nodes
        self._groups = context.store.groups
        self._members = context.store.members
        self._disruption_groups = context.store.disruption_groups
        self._priorities = context.store.priorities
        self._budgets = context.store.budgets
        self._pending_victims = context.store.pending_victims
        self._states = context.groups
        self._profiles = context.store.profiles
        self._rivals = context.store.rivals

    def list_candidates(
        self, preemptor: GroupKey, gone: AbstractSet[str] = frozenset(), limit: Limit | None = None
    ) -> VictimCandidates:
        """Return all units of the cluster, i.e. pods that are evicted together, except those of the gang ``preemptor``.

        Pods that are being deleted are left out, as they free their resources anyway. Left out, too, are pods that are
        already victims, to be evicted for whichever gang, and the pods with the UIDs ``gone``; they are subtracted from
        what budgets and gangs may still lose. Units that must not be evicted are included, with ``protection`` set.
        ``limit`` counts the work, and raises TooLong if it takes too long; None for no time limit.
        """
        limit = limit or Limit()
        ending = self._pending_victims.uids | gone if gone else self._pending_victims.uids
        units = self._list_planned(preemptor, ending, limit)
        alone_in = find_exclusive_key(self._groups.get(preemptor))
        listing = _Listing(units, alone_in, self._budgets.values(), ending, tuple(self._rivals), limit)
        for pod in self._pods.values():
            limit.spend()
            if not _is_candidate(pod, ending):
                listing.charge_budgets(pod)
                continue
            group = self._find_group(pod)
            if group is None or group.key != preemptor:
                self._add_unit(listing, pod, group)
        return VictimCandidates(tuple(units), Allowances(listing.gangs, listing.allowed))

    def _add_unit(self, listing: "_Listing", pod: Pod, group: PodGroup | None) -> None:
        """Add the unit of a pod, i.e. the pod and all pods that are evicted together with it, to the listing.

        Does nothing if another pod of the unit has added it before. ``group`` is the pod's gang, None for a pod of no
        gang.
        """
        if group is not None and group.key not in listing.priorities:
            listing.priorities[group.key] = self._priorities.find_object_priority(group.key)
            listing.gangs.update(self._list_spare_members(group, listing.ending))
        disruption_group = self._disruption_groups.of_pod(pod.uid)
        together: tuple[Pod, ...] = (pod,)
        if disruption_group is not None:
            if disruption_group in listing.disruption_groups:
                return
            listing.disruption_groups.add(disruption_group)
            together = self._list_together(disruption_group, listing.ending)
            if not together:
                return  # all pods of the disruption group are being deleted, or are victims already
        priority = listing.priorities[group.key] if group is not None else None
        budgets, doubly_guarded = listing.find_budgets(together)
        protection = self._find_protection(together) or self._find_contest_of(listing, together)
        unit = EvictionUnit(
            together,
            pod.priority if priority is None else priority,
            budgets=budgets,
            doubly_guarded=doubly_guarded,
            gang=self._name_gang(group, pod, disruption_group),
            holds_domain=listing.alone_in is not None and find_exclusive_key(group) == listing.alone_in,
            together=disruption_group is not None,
            protection=protection,
        )
        listing.units.append(unit)

    def _list_planned(self, preemptor: GroupKey, ending: AbstractSet[str], limit: Limit) -> list[EvictionUnit]:
        """Return a unit for each gang but ``preemptor`` whose planned slots can be taken over (`_find_planned`).

        No pod ends when such a gang is preempted: it only releases its slots. Gangs with a member in ``ending`` (UIDs
        of pods that are about to end) are left out. ``limit`` counts the work, and raises TooLong if it takes too long.
        """
        units: list[EvictionUnit] = []
        for key, state in self._states.states.items():
            if key == preemptor or state.cycle is None:
                continue
            limit.spend(1 + len(state.cycle.reservation.slots))
            if ending.isdisjoint(state.cycle.reservation.slots) and (unit := self._find_planned(key)) is not None:
                units.append(unit)
        return units

    def is_current(self, unit: EvictionUnit) -> bool:
        """Return whether a unit can be evicted now just as when it was found: same pods, same nodes, no new protection.

        A unit has the pods that are evicted together. Used when a search has ended, as the cluster may have changed
        during the search.
        """
        if unit.planned:
            planned = self._find_planned(unit.gang)
            return planned is not None and _list_places(planned) == _list_places(unit)
        ending = self._pending_victims.uids
        now = [self._pods.get(pod.uid) for pod in unit.pods]
        if any(
            pod is None or not _is_candidate(pod, ending) or self.refused_evictions.find_reason(pod.uid) for pod in now
        ):
            return False
        if any(pod is not None and pod.node != was.node for pod, was in zip(now, unit.pods, strict=True)):
            return False
        disruption_group = self._disruption_groups.of_pod(unit.pods[0].uid)
        uids = {pod.uid for pod in unit.pods}
        together = (
            {pod.uid for pod in self._list_together(disruption_group, ending)} if disruption_group is not None else uids
        )
        return together == uids and not self._find_commit_protection(self._members.group_of(unit.pods[0].uid))

    def _find_planned(self, key: GroupKey | None) -> EvictionUnit | None:
        """Return the unit of a gang that is planned but not bound; None if its slots cannot be taken over.

        The slots can only be taken over if no member of the gang is bound, its cycle is not committed, and no pods were
        evicted for it.
        """
        state = self._states.states.get(key) if key is not None else None
        cycle = state.cycle if state is not None else None
        if key is None or cycle is None or cycle.stage not in _RELEASABLE_STAGES or cycle.preempted:
            return None
        slots = cycle.reservation.slots
        if cycle.reservation.committed or not cycle.reservation.need:
            return None
        if any(pod.bound for pod in self._members.iterate(key)) or not slots:
            return None
        pods = tuple(replace(self._pods[uid], node=slot.node) for uid, slot in slots.items() if uid in self._pods)
        own = self._priorities.find_object_priority(key)
        priority = max((pod.priority for pod in pods), default=0) if own is None else own
        return EvictionUnit(pods, priority, key, planned=True) if len(pods) == len(slots) else None

    def _list_together(self, disruption_group: DisruptionGroup, ending: AbstractSet[str]) -> tuple[Pod, ...]:
        return tuple(pod for pod in self._disruption_groups.list_running(disruption_group) if pod.uid not in ending)

    def _find_group(self, pod: Pod) -> PodGroup | None:
        key = self._members.group_of(pod.uid)
        return self._groups.get(key) if key is not None else None

    def _name_gang(self, group: PodGroup | None, pod: Pod, disruption_group: DisruptionGroup | None) -> GroupKey | None:
        if group is None or not group.policy.is_gang:
            return None
        part = self._members.leaf_of(pod.uid)
        whole = find_disruption_root(group.tree, part) if disruption_group is not None else None
        return group.key.leaf(part) if whole is None else group.key_of(whole)

    def _find_protection(self, pods: Iterable[Pod]) -> str:
        return next((found for pod in pods if (found := self._find_own_protection(pod))), "")

    def _find_own_protection(self, pod: Pod) -> str:
        if pod.owner is not None and pod.owner.kind in STAYING_OWNERS:
            return STAYING_OWNERS[pod.owner.kind]
        if pod.scheduler not in self._profiles:
            return _FOREIGN
        return self.refused_evictions.find_reason(pod.uid) or self._find_commit_protection(
            self._members.group_of(pod.uid)
        )

    def _find_commit_protection(self, key: GroupKey | None) -> str:
        state = self._states.states.get(key) if key is not None else None
        if state is None or state.cycle is None or not state.cycle.reservation.committed:
            return ""
        return "Serried is binding their gang"

    def find_contest(self, nodes: Iterable[str]) -> str:
        """Return why evictions on these nodes would be in vain, a phrase; "" if they would not.

        Evictions are in vain if another scheduler would take the freed resources: one of its waiting pods would fit on
        one of the nodes if that node were empty.
        """
        return _CONTESTED if any(self._is_contested(name, self._rivals) for name in nodes) else ""

    def _find_contest_of(self, listing: "_Listing", pods: Iterable[Pod]) -> str:
        """Return why evictions of these pods would be in vain, a phrase; "" if they would not.

        Evictions are in vain if another scheduler would take the freed resources (`find_contest`). The result of each
        node is cached in ``listing``, which holds what one call of `list_candidates` has collected.
        """
        for name in {pod.node for pod in pods} if listing.rivals else ():
            if name not in listing.contested:
                listing.limit.spend(min(len(listing.rivals), _MAX_RIVALS))
                listing.contested[name] = self._is_contested(name, listing.rivals)
            if listing.contested[name]:
                return _CONTESTED
        return ""

    def _is_contested(self, name: str, rivals: Collection[Shape]) -> bool:
        """Return whether a pod of one of the shapes ``rivals`` would fit on the node ``name`` if the node were empty.

        A shape stands for the pods with the same requests and constraints. Return True if there are too many shapes to
        check, False for an unknown node.
        """
        node = self._nodes.get(name)
        return node is not None and (
            len(rivals) > _MAX_RIVALS or any(count_fitting(shape, node, None) for shape in rivals)
        )

    # --- what gangs can lose -----------------------------------------------------------------------------------

    def list_spare_members(self, units: Iterable[EvictionUnit]) -> dict[GroupKey, SpareMembers]:
        """Return how many members the gangs of these units can lose without falling below their quorum.

        For a CompositePodGroup above a gang, the number of child groups that it can lose. Groups that are already below
        their quorum are left out.
        """
        keys = {self._members.group_of(unit.pods[0].uid) for unit in units if unit.gang is not None}
        found: dict[GroupKey, SpareMembers] = {}
        for group in [self._groups.get(key) for key in keys if key is not None]:
            if group is not None:
                found.update(self._list_spare_members(group, self._pending_victims.uids))
        return found

    def breaks_a_gang(self, victims: Iterable[str]) -> bool:
        """Return whether any gang falls below its quorum if these victims (UIDs) end.

        They must be registered as pending victims in the Store already.
        """
        for uid in victims:
            group = self._groups.get(key) if (key := self._members.group_of(uid)) is not None else None
            if group is not None and group.policy.is_gang:
                spares = dict(self._list_spare_members(group, self._pending_victims.uids))
                if group.key.leaf(self._members.leaf_of(uid)) not in spares:
                    return True
        return False

    def _list_spare_members(self, group: PodGroup, ending: AbstractSet[str]) -> Iterator[tuple[GroupKey, SpareMembers]]:
        if isinstance(group.tree, Branch) or group.policy.min_count is not None:
            placed = self._members.count_placed(group.key, ending)
            yield from _list_spare_of_tree(group.key, group.tree, placed, None)


@dataclass(slots=True, eq=False)
class _Listing:
    """The units collected so far, and caches, during one call of `Units.list_candidates`.

    ``alone_in`` is the topology key if the preemptor is an exclusive gang, i.e. wants a domain of that key for itself;
    else None. ``ending`` are the UIDs of pods that will end anyway. ``rivals`` are the shapes (requests and
    constraints) of waiting pods of other schedulers.
    """

    units: list[EvictionUnit]
    alone_in: str | None
    budgets: InitVar[Collection[DisruptionBudget]]
    ending: AbstractSet[str]
    rivals: Collection[Shape]
    limit: Limit

    contested: dict[str, bool] = field(default_factory=dict, init=False)
    """True for a node on which a pod of ``rivals`` would fit, by the node's name; only nodes that were checked."""

    gangs: dict[GroupKey, SpareMembers] = field(default_factory=dict, init=False)
    """The number of members that each gang met so far can lose; gangs below their quorum are left out."""

    priorities: dict[GroupKey, int | None] = field(default_factory=dict, init=False)
    """The priority of each group met so far; None for a group whose pods have their own priorities."""

    disruption_groups: set[DisruptionGroup] = field(default_factory=set, init=False)
    """The groups evicted as a whole whose units are in the list already."""

    allowed: dict[Budget, int] = field(default_factory=dict, init=False)
    """The evictions that each PodDisruptionBudget still allows, less those that are pending."""

    _budgets: dict[str, list[DisruptionBudget]] = field(default_factory=dict, init=False)

    def __post_init__(self, budgets: Collection[DisruptionBudget]) -> None:
        for budget in budgets:
            self.allowed[budget.key] = budget.allowed
            self._budgets.setdefault(budget.key.namespace, []).append(budget)

    def find_budgets(self, pods: Iterable[Pod]) -> tuple[tuple[Key, ...], bool]:
        """Return the PodDisruptionBudgets of these pods, and whether any pod has two of them.

        A budget is listed once for each pod whose eviction uses it up, so 3 pods of one budget give 3 equal entries.
        """
        found: list[Key] = []
        doubled = False
        for pod in pods if self._budgets else ():
            # Each budget of a namespace is compared with each pod of it, and any user may write thousands.
            here = self._budgets.get(pod.namespace, ())
            self.limit.spend(len(here))
            own = [budget for budget in here if limits_eviction(budget, pod)]
            doubled = doubled or len(own) > 1
            found += [budget.key for budget in own if uses_allowance(budget, pod)]
        return tuple(found), doubled

    def charge_budgets(self, pod: Pod) -> None:
        """Subtract the eviction of a pod that is about to end from what its budgets allow.

        Does nothing for a pod that is not bound or is already being deleted: budgets do not count those any more.
        """
        if pod.bound and not pod.deleting:
            budgets, _ = self.find_budgets((pod,))
            for key in budgets:
                self.allowed[key] = max(0, self.allowed[key] - 1)


def _is_candidate(pod: Pod, ending: AbstractSet[str]) -> bool:
    return pod.bound and not pod.deleting and pod.uid not in ending


def _list_places(unit: EvictionUnit) -> dict[str, str]:
    return {pod.uid: pod.node for pod in unit.pods}


def _list_spare_of_tree(
    root: GroupKey, tree: Tree, placed: Mapping[str, int], above: GroupKey | None
) -> Iterator[tuple[GroupKey, SpareMembers]]:
    if isinstance(tree, Leaf):
        spare = placed.get(tree.name, -1) - tree.need
        key = root.leaf(tree.name)
    else:
        spare = sum(_has_quorum(each, placed) for each in tree.below) - tree.need
        key = GroupKey(root.namespace, tree.name, GroupKind.COMPOSITE)
    if spare >= 0:
        yield key, SpareMembers(spare, above)
    for each in tree.below:
        yield from _list_spare_of_tree(root, each, placed, key)


def _has_quorum(tree: Tree, placed: Mapping[str, int]) -> bool:
    if isinstance(tree, Branch):
        return sum(_has_quorum(each, placed) for each in tree.below) >= tree.need
    return placed.get(tree.name, -1) >= tree.need


_YOUNG = "they have just started (--preemption-spare)"


def enforce_budgets(candidates: VictimCandidates) -> VictimCandidates:
    """Return the candidates with limits for the search: victims in sum must stay within their PodDisruptionBudgets.

    For instance, at most 2 of the victims may have a budget that allows 2 evictions. This is for preemption by the
    Eviction API, which enforces budgets. A unit with more pods under one budget than it allows is marked as protected,
    and so is a unit with a pod under two budgets: the API server never evicts such a pod.
    """
    allowed = candidates.allowances.budgets
    if not allowed:
        return candidates
    kept = _protect(candidates, TOO_MANY, lambda unit: _violates(unit, allowed))
    return VictimCandidates(kept.units, replace(kept.allowances, limits=allowed))


def enforce_quorums(candidates: VictimCandidates) -> VictimCandidates:
    """Return the candidates with limits for the search: no gang of the victims may fall below its quorum.

    For instance, a gang with 5 members and minCount 3 may lose 2. Units that are a whole gang, planned gangs, and
    members of a gang that is already below its quorum are marked as protected.
    """
    gangs = candidates.allowances.gangs
    kept = _protect(candidates, BREAKS, lambda unit: unit.gang is not None and not _can_spare(unit, gangs))
    units: list[EvictionUnit] = []
    for unit in kept.units:
        gang = unit.gang
        units.append(unit if gang is None else replace(unit, budgets=(*unit.budgets, *([gang] * len(unit.pods)))))
    limits: dict[Budget, int] = dict(candidates.allowances.limits)
    limits.update((gang, spare.count) for gang, spare in gangs.items())
    return VictimCandidates(tuple(units), replace(kept.allowances, limits=limits))


def _can_spare(unit: EvictionUnit, gangs: Mapping[GroupKey, SpareMembers]) -> bool:
    spare = gangs.get(unit.gang) if unit.gang is not None else None
    return spare is not None and len(unit.pods) <= spare.count


def protect_young(candidates: VictimCandidates, priority: int, latest: float) -> VictimCandidates:
    """Return the candidates with those units marked as protected that have just started.

    These are the units with exactly this ``priority`` and a pod that started after ``latest``, in seconds since 1970.
    """
    return _protect(candidates, _YOUNG, lambda unit: unit.priority == priority and _find_start(unit) > latest)


def _protect(candidates: VictimCandidates, why: str, concerns: Callable[[EvictionUnit], bool]) -> VictimCandidates:
    units = [
        replace(unit, protection=why) if not unit.protection and concerns(unit) else unit for unit in candidates.units
    ]
    return VictimCandidates(tuple(units), candidates.allowances)


def _violates(unit: EvictionUnit, allowed: Mapping[Budget, int]) -> bool:
    if not unit.budgets:
        return unit.doubly_guarded
    return unit.doubly_guarded or any(count > allowed.get(budget, 0) for budget, count in Counter(unit.budgets).items())


def _find_start(unit: EvictionUnit) -> float:
    return max((pod.started for pod in unit.pods if pod.started is not None), default=-math.inf)
