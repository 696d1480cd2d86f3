"""The units of the search for victims: pods that are evicted together, with their priority and protection.

`Units.list_running` reads them off the Store; `keep_budgets`, `keep_gangs` and `spare_young` protect some of them. A
large cluster has one unit for almost every pod.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, dataclass, field, replace

from extender.core.scheduling.binding_cycle import CycleStage
from extender.core.scheduling.effects import Context
from serried.api.budget import DisruptionBudget, counts, is_asked
from serried.api.group import Branch, Leaf, PodGroup, Tree, find_whole
from serried.api.names import GroupKey, GroupKind, Key
from serried.api.pod import Pod, Shape
from serried.cluster.priorities import DisruptionGroup, find_exclusive_key
from serried.plan.eviction import BREAKS, STAYING_OWNERS, TOO_MANY, Allowances, Budget, EvictionUnit, SpareMembers
from serried.plan.fit import count_fitting
from serried.plan.limit import Limit

_YIELDING = (CycleStage.RECORDING, CycleStage.GATHERING)
"""The stages of a binding cycle in which a gang may lose its slots to a gang of higher priority."""

_MAX_RIVALS = 64
"""With more shapes than this, every node counts as contested: any user can create any number of shapes."""

_FOREIGN = "another scheduler serves them, and would take the room"
"""The reason for pods of other schedulers: kube-scheduler keeps nominated room from pods of its own profiles only."""

_CONTESTED = "pods of another scheduler wait for room, and would take theirs"


REFUSAL_SECONDS = 60.0
"""The time for which a pod is no victim after its eviction was refused, in seconds."""


@dataclass(slots=True)
class _Series:
    """The evictions that were refused for one gang, over several searches in a row."""

    until: float = -math.inf
    """The loop time until which they count."""

    whys: dict[str, str] = field(default_factory=dict)
    """The reason of each refusal, a phrase, by the pod's UID."""


class Refusals:
    """Evictions that were refused lately, by the gang for which they were rehearsed. ``clock`` gives loop seconds.

    Each new refusal for a gang prolongs all refusals for it. So each search leaves out more pods than the last, and the
    searches come to an end.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._series: dict[GroupKey, _Series] = {}
        self._by_uid: dict[str, _Series] = {}

    def add(self, group: GroupKey, refused: Mapping[str, str]) -> None:
        """Remember refused evictions: a phrase why, by the pod's UID."""
        now = self._clock()
        for key in [key for key, series in self._series.items() if now >= series.until]:
            self._drop(key)
        series = self._series.setdefault(group, _Series())
        series.until = now + REFUSAL_SECONDS
        series.whys.update(refused)
        self._by_uid.update(dict.fromkeys(refused, series))

    def find(self, uid: str) -> str:
        """Return why the eviction of a pod was refused lately, a phrase; "" if it was not."""
        series = self._by_uid.get(uid)
        return series.whys[uid] if series is not None and self._clock() < series.until else ""

    def _drop(self, group: GroupKey) -> None:
        series = self._series.pop(group)
        for uid in series.whys:
            if self._by_uid.get(uid) is series:
                del self._by_uid[uid]


@dataclass(frozen=True, slots=True)
class Running:
    """All units of the cluster, and what their budgets and gangs allow."""

    units: tuple[EvictionUnit, ...]
    allowances: Allowances


class Units:
    """Makes units of the pods in the Store."""

    def __init__(self, context: Context) -> None:
        self.refusals = Refusals(context.clock)
        """The pods that the API server would not evict."""

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

    def list_running(
        self, preemptor: GroupKey, gone: AbstractSet[str] = frozenset(), limit: Limit | None = None
    ) -> Running:
        """Return all units except those of the gang ``preemptor``.

        Pods that are being deleted are left out, as they free their room anyway. Victims of other gangs, and the pods
        with the UIDs ``gone``, are left out, too; their evictions are subtracted from what budgets and gangs allow.
        """
        limit = limit or Limit()
        away = self._pending_victims.uids | gone if gone else self._pending_victims.uids
        units = self._list_planned(preemptor, away, limit)
        alone_in = find_exclusive_key(self._groups.get(preemptor))
        listing = _Listing(units, alone_in, self._budgets.values(), away, tuple(self._rivals), limit)
        for pod in self._pods.values():
            limit.spend()
            if not _counts(pod, away):
                listing.charge_budgets(pod)
                continue
            group = self._find_group(pod)
            if group is None or group.key != preemptor:
                self._add(listing, pod, group)
        return Running(tuple(units), Allowances(listing.gangs, listing.allowed))

    def _add(self, listing: "_Listing", pod: Pod, group: PodGroup | None) -> None:
        """Add the unit of a pod, unless it was added with another pod of the unit."""
        if group is not None and group.key not in listing.priorities:
            listing.priorities[group.key] = self._priorities.find_own(group.key)
            listing.gangs.update(self._list_spares(group, listing.away))
        disruption_group = self._disruption_groups.of_pod(pod.uid)
        together: tuple[Pod, ...] = (pod,)
        if disruption_group is not None:
            if disruption_group in listing.disruption_groups:
                return
            listing.disruption_groups.add(disruption_group)
            together = self._list_together(disruption_group, listing.away)
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

    def _list_planned(self, preemptor: GroupKey, away: AbstractSet[str], limit: Limit) -> list[EvictionUnit]:
        """Return a unit for each planned gang that has no bound members: its slots can be released at no cost."""
        units: list[EvictionUnit] = []
        for key, state in self._states.states.items():
            if key == preemptor or state.cycle is None:
                continue
            limit.spend(1 + len(state.cycle.reservation.slots))
            if away.isdisjoint(state.cycle.reservation.slots) and (unit := self._find_planned(key)) is not None:
                units.append(unit)
        return units

    def is_current(self, unit: EvictionUnit) -> bool:
        """Return whether a unit can still be evicted as it was found: same nodes, and the same pods."""
        if unit.planned:
            planned = self._find_planned(unit.gang)
            return planned is not None and _list_places(planned) == _list_places(unit)
        away = self._pending_victims.uids
        now = [self._pods.get(pod.uid) for pod in unit.pods]
        if any(pod is None or not _counts(pod, away) or self.refusals.find(pod.uid) for pod in now):
            return False
        if any(pod is not None and pod.node != was.node for pod, was in zip(now, unit.pods, strict=True)):
            return False
        disruption_group = self._disruption_groups.of_pod(unit.pods[0].uid)
        uids = {pod.uid for pod in unit.pods}
        together = (
            {pod.uid for pod in self._list_together(disruption_group, away)} if disruption_group is not None else uids
        )
        return together == uids and not self._find_commit(self._members.group_of(unit.pods[0].uid))

    def _find_planned(self, key: GroupKey | None) -> EvictionUnit | None:
        """Return a planned gang as a unit; None if it is bound in part, committed, or has victims of its own."""
        state = self._states.states.get(key) if key is not None else None
        cycle = state.cycle if state is not None else None
        if key is None or cycle is None or cycle.stage not in _YIELDING or cycle.preempted:
            return None
        slots = cycle.reservation.slots
        if cycle.reservation.committed or not cycle.reservation.need:
            return None
        if any(pod.bound for pod in self._members.iterate(key)) or not slots:
            return None
        pods = tuple(replace(self._pods[uid], node=slot.node) for uid, slot in slots.items() if uid in self._pods)
        own = self._priorities.find_own(key)
        priority = max((pod.priority for pod in pods), default=0) if own is None else own
        return EvictionUnit(pods, priority, key, planned=True) if len(pods) == len(slots) else None

    def _list_together(self, disruption_group: DisruptionGroup, away: AbstractSet[str]) -> tuple[Pod, ...]:
        return tuple(pod for pod in self._disruption_groups.list_running(disruption_group) if pod.uid not in away)

    def _find_group(self, pod: Pod) -> PodGroup | None:
        key = self._members.group_of(pod.uid)
        return self._groups.get(key) if key is not None else None

    def _name_gang(self, group: PodGroup | None, pod: Pod, disruption_group: DisruptionGroup | None) -> GroupKey | None:
        if group is None or not group.policy.is_gang:
            return None
        part = self._members.leaf_of(pod.uid)
        whole = find_whole(group.tree, part) if disruption_group is not None else None
        return group.key.leaf(part) if whole is None else group.key_of(whole)

    def _find_protection(self, pods: Iterable[Pod]) -> str:
        return next((found for pod in pods if (found := self._find_own_protection(pod))), "")

    def _find_own_protection(self, pod: Pod) -> str:
        if pod.owner is not None and pod.owner.kind in STAYING_OWNERS:
            return STAYING_OWNERS[pod.owner.kind]
        if pod.scheduler not in self._profiles:
            return _FOREIGN
        return self.refusals.find(pod.uid) or self._find_commit(self._members.group_of(pod.uid))

    def _find_commit(self, key: GroupKey | None) -> str:
        state = self._states.states.get(key) if key is not None else None
        if state is None or state.cycle is None or not state.cycle.reservation.committed:
            return ""
        return "its gang is just being bound"

    def find_contest(self, nodes: Iterable[str]) -> str:
        """Return why another scheduler would take the room freed on one of these nodes, a phrase; "" if none would."""
        return _CONTESTED if any(self._is_contested(name, self._rivals) for name in nodes) else ""

    def _find_contest_of(self, listing: "_Listing", pods: Iterable[Pod]) -> str:
        """Return the same for the nodes of pods; the listing remembers the result of each node."""
        for name in {pod.node for pod in pods} if listing.rivals else ():
            if name not in listing.contested:
                listing.limit.spend(min(len(listing.rivals), _MAX_RIVALS))
                listing.contested[name] = self._is_contested(name, listing.rivals)
            if listing.contested[name]:
                return _CONTESTED
        return ""

    def _is_contested(self, name: str, rivals: Collection[Shape]) -> bool:
        """Return whether a pod of one of these shapes would fit on the node if it were empty."""
        node = self._nodes.get(name)
        return node is not None and (
            len(rivals) > _MAX_RIVALS or any(count_fitting(shape, node, None) for shape in rivals)
        )

    # --- what gangs can lose -----------------------------------------------------------------------------------

    def list_spares(self, units: Iterable[EvictionUnit]) -> dict[GroupKey, SpareMembers]:
        """Return how many members the gangs of these units, and the groups above them, can lose now."""
        keys = {self._members.group_of(unit.pods[0].uid) for unit in units if unit.gang is not None}
        found: dict[GroupKey, SpareMembers] = {}
        for group in [self._groups.get(key) for key in keys if key is not None]:
            if group is not None:
                found.update(self._list_spares(group, self._pending_victims.uids))
        return found

    def breaks(self, victims: Iterable[str]) -> bool:
        """Return whether a gang falls below its quorum without these victims (UIDs), which are pending already."""
        for uid in victims:
            group = self._groups.get(key) if (key := self._members.group_of(uid)) is not None else None
            if group is not None and group.policy.is_gang:
                spares = dict(self._list_spares(group, self._pending_victims.uids))
                if group.key.leaf(self._members.leaf_of(uid)) not in spares:
                    return True
        return False

    def _list_spares(self, group: PodGroup, away: AbstractSet[str]) -> Iterator[tuple[GroupKey, SpareMembers]]:
        if isinstance(group.tree, Branch) or group.policy.min_count is not None:
            placed = self._members.count_placed(group.key, away)
            yield from _list_tree_spares(group.key, group.tree, placed, None)


@dataclass(slots=True, eq=False)
class _Listing:
    """The state of one `Units.list_running`.

    ``alone_in`` is the topology key in whose domains the preemptor wants to be alone, None if it does not. ``away`` are
    the UIDs of pods that will end anyway; ``rivals`` are the shapes of waiting pods of other schedulers.
    """

    units: list[EvictionUnit]
    alone_in: str | None
    budgets: InitVar[Collection[DisruptionBudget]]
    away: AbstractSet[str]
    rivals: Collection[Shape]
    limit: Limit

    contested: dict[str, bool] = field(default_factory=dict, init=False)
    """True for a node on which a rival fits, by the node's name; only nodes that were checked."""

    gangs: dict[GroupKey, SpareMembers] = field(default_factory=dict, init=False)

    priorities: dict[GroupKey, int | None] = field(default_factory=dict, init=False)
    """The priority of each group met so far; None for a group whose pods have their own priorities."""

    disruption_groups: set[DisruptionGroup] = field(default_factory=set, init=False)
    """The disruption groups whose units are in the list."""

    allowed: dict[Budget, int] = field(default_factory=dict, init=False)
    _budgets: dict[str, list[DisruptionBudget]] = field(default_factory=dict, init=False)

    def __post_init__(self, budgets: Collection[DisruptionBudget]) -> None:
        for budget in budgets:
            self.allowed[budget.key] = budget.allowed
            self._budgets.setdefault(budget.key.namespace, []).append(budget)

    def find_budgets(self, pods: Iterable[Pod]) -> tuple[tuple[Key, ...], bool]:
        """Return the budgets of these pods, one entry per pod; and whether two budgets select the same pod."""
        found: list[Key] = []
        doubled = False
        for pod in pods if self._budgets else ():
            # Each budget of a namespace is compared with each pod of it, and any user may write thousands.
            here = self._budgets.get(pod.namespace, ())
            self.limit.spend(len(here))
            own = [budget for budget in here if is_asked(budget, pod)]
            doubled = doubled or len(own) > 1
            found += [budget.key for budget in own if counts(budget, pod)]
        return tuple(found), doubled

    def charge_budgets(self, pod: Pod) -> None:
        """Subtract the coming eviction of a running pod from what its budgets allow."""
        if pod.bound and not pod.deleting:
            budgets, _ = self.find_budgets((pod,))
            for key in budgets:
                self.allowed[key] = max(0, self.allowed[key] - 1)


def _counts(pod: Pod, away: AbstractSet[str]) -> bool:
    return pod.bound and not pod.deleting and pod.uid not in away


def _list_places(unit: EvictionUnit) -> dict[str, str]:
    return {pod.uid: pod.node for pod in unit.pods}


def _list_tree_spares(
    root: GroupKey, tree: Tree, placed: Mapping[str, int], above: GroupKey | None
) -> Iterator[tuple[GroupKey, SpareMembers]]:
    if isinstance(tree, Leaf):
        spare = placed.get(tree.name, -1) - tree.need
        key = root.leaf(tree.name)
    else:
        spare = sum(_stands(each, placed) for each in tree.below) - tree.need
        key = GroupKey(root.namespace, tree.name, GroupKind.COMPOSITE)
    if spare >= 0:
        yield key, SpareMembers(spare, above)
    for each in tree.below:
        yield from _list_tree_spares(root, each, placed, key)


def _stands(tree: Tree, placed: Mapping[str, int]) -> bool:
    if isinstance(tree, Branch):
        return sum(_stands(each, placed) for each in tree.below) >= tree.need
    return placed.get(tree.name, -1) >= tree.need


_YOUNG = "they have just started"


def keep_budgets(running: Running) -> Running:
    """Limit the victims to what budgets allow in sum (Eviction of policy/v1).

    A unit with more pods under one budget than it allows is protected, and so is a unit with a pod under two budgets:
    the API server never evicts such a pod.
    """
    allowed = running.allowances.budgets
    if not allowed:
        return running
    kept = _protect(running, TOO_MANY, lambda unit: _violates(unit, allowed))
    return Running(kept.units, replace(kept.allowances, limits=allowed))


def keep_gangs(running: Running) -> Running:
    """Limit the victims to members that their gangs can spare: no gang is broken, whole or planned gangs stay.

    A gang below its quorum is protected, too, as it is being repaired.
    """
    gangs = running.allowances.gangs
    kept = _protect(running, BREAKS, lambda unit: unit.gang is not None and not _can_spare(unit, gangs))
    units: list[EvictionUnit] = []
    for unit in kept.units:
        gang = unit.gang
        units.append(unit if gang is None else replace(unit, budgets=(*unit.budgets, *([gang] * len(unit.pods)))))
    limits: dict[Budget, int] = dict(running.allowances.limits)
    limits.update((gang, spare.count) for gang, spare in gangs.items())
    return Running(tuple(units), replace(kept.allowances, limits=limits))


def _can_spare(unit: EvictionUnit, gangs: Mapping[GroupKey, SpareMembers]) -> bool:
    spare = gangs.get(unit.gang) if unit.gang is not None else None
    return spare is not None and len(unit.pods) <= spare.count


def spare_young(running: Running, priority: int, latest: float) -> Running:
    """Protect units of this priority with a pod that started after ``latest``, in seconds since 1970."""
    return _protect(running, _YOUNG, lambda unit: unit.priority == priority and _find_start(unit) > latest)


def _protect(running: Running, why: str, concerns: Callable[[EvictionUnit], bool]) -> Running:
    units = [
        replace(unit, protection=why) if not unit.protection and concerns(unit) else unit for unit in running.units
    ]
    return Running(tuple(units), running.allowances)


def _violates(unit: EvictionUnit, allowed: Mapping[Budget, int]) -> bool:
    if not unit.budgets:
        return unit.doubly_guarded
    return unit.doubly_guarded or any(count > allowed.get(budget, 0) for budget, count in Counter(unit.budgets).items())


def _find_start(unit: EvictionUnit) -> float:
    return max((pod.started for pod in unit.pods if pod.started is not None), default=-math.inf)
