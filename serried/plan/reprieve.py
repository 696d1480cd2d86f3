"""Finds out which pods a preemptor does not need as victims (`reprieve`), as kube-scheduler's reprieve of victims does.

In a simulation all pods that may be victims are removed from the nodes. Then each is put back ("restored") if the
preemptor's quorum still fits. The pods that cannot be put back are the victims. The simulation is a `CountedRemoval` if
counting tells whether the quorum fits, otherwise a `PlannedRemoval`. Pods are removed and put back in units
(`EvictionUnit`), i.e. with the pods that are evicted together.

Units are put back priority by priority from the highest, while all lower ones are still removed. So which units of one
priority are put back never depends on lower priorities. Within a priority, the first units are those whose eviction
would violate PodDisruptionBudgets, then units of gangs that would lose their quorum, then the other ones; among these
first the units that take the least capacity from the preemptor.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

from serried.api.names import GroupKey
from serried.api.pod import Shape
from serried.api.resources import Resources, add, capacity, count_slots
from serried.api.verdict import Verdict
from serried.plan.capacity import Capacity, MemberClass, group_classes
from serried.plan.eviction import Allowances, EvictionUnit, Losses, sum_ages
from serried.plan.fit import admits
from serried.plan.request import Overlay, Plan, PlanRequest, Snapshot
from serried.plan.rule import GangRules, is_affected_by, read_rules
from serried.plan.tree import plan_group, plan_quorum

_MAX_PLANS = 64
"""The maximum number of plans that are made for one domain to find out which victims are not needed."""

_NOTHING: Resources = {}


class Removal:
    """The usage of each node without the running pods that a simulation of evictions has removed.

    Pods are removed and put back ("restored") in units, the pods that are evicted together. `CountedRemoval` and
    `PlannedRemoval` own one, and add whether the preemptor's quorum fits.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.nodes = snapshot.nodes
        self.limit = snapshot.limit
        self._snapshot = snapshot
        self._base = snapshot.used

        self._left: dict[str, dict[str, int]] = {}
        """The usage of each node from which pods were removed, by node name and resource.

        The mappings are modified in place, because they change very often.
        """

        self._owed: dict[tuple[str, str], int] = {}
        """The amount of removed requests that exceeds the usage, by node name and resource.

        Usage may be less than the sum of the pods' requests, because some pods request more than the snapshot counts.
        """

        self.used: Mapping[str, Resources] = Overlay(self._left, snapshot.used)

    def snapshot(self) -> Snapshot:
        """Return the snapshot of the cluster as it would be if the removed pods were gone.

        Later calls of `remove` and `restore` change it.
        """
        return replace(self._snapshot, used=self.used, over=())

    def remove(self, units: Iterable[EvictionUnit]) -> Iterable[str]:
        """Remove the pods of these units from the simulated usage.

        Return the names of the nodes whose usage has changed.
        """
        names: dict[str, None] = {}
        for unit in units:
            self.limit.spend(len(unit.pods))
            for pod in unit.pods:
                left = self._find_left(pod.node)
                if left is None:
                    continue
                names[pod.node] = None
                for name, amount in pod.shape.requests:
                    if name in left:
                        rest = left[name] - amount
                        left[name] = rest if rest >= 0 else self._owe(pod.node, name, rest)
        return names

    def restore(self, units: Iterable[EvictionUnit]) -> Iterable[str]:
        """Put the pods of these units back into the simulated usage.

        Return the names of the nodes whose usage has changed.
        """
        names: dict[str, None] = {}
        for unit in units:
            self.limit.spend(len(unit.pods))
            for pod in unit.pods:
                left = self._find_left(pod.node)
                if left is None:
                    continue
                names[pod.node] = None
                for name, amount in pod.shape.requests:
                    if name in left:
                        left[name] += self._settle(pod.node, name, amount) if self._owed else amount
        return names

    def left(self, name: str) -> Resources:
        """Return the amounts that are used on the node ``name`` by the pods that are not removed."""
        found = self._left.get(name)
        return self._base.get(name, _NOTHING) if found is None else found

    def _find_left(self, node: str) -> dict[str, int] | None:
        """Return the usage of a node as a mapping to modify; None if the snapshot does not have the node."""
        left = self._left.get(node)
        if left is None and node in self.nodes:
            left = self._left[node] = dict(self._base.get(node, _NOTHING))
        return left

    def _owe(self, node: str, name: str, rest: int) -> int:
        """Record that more of a resource was removed from a node than was used; ``rest`` is minus the difference.

        Some pods request more than the snapshot counts for them, so their removal can leave a negative usage, ``rest``.
        Return 0, which is to be taken as the usage instead.
        """
        self._owed[node, name] = self._owed.get((node, name), 0) - rest
        return 0

    def _settle(self, node: str, name: str, amount: int) -> int:
        """Return by how much the usage of a resource grows when a pod that requests ``amount`` is restored.

        That is ``amount``, minus what `_owe` has recorded: what was removed from the node beyond its usage.
        """
        owed = self._owed.get((node, name), 0)
        if not owed:
            return amount
        settled = min(owed, amount)
        if settled == owed:
            del self._owed[node, name]
        else:
            self._owed[node, name] = owed - settled
        return amount - settled


@dataclass(frozen=True, slots=True)
class QuorumNodes:
    """The nodes that the last plan in a simulated domain gave to the preemptor's quorum; empty without a plan."""

    plan: Plan | None = None

    requests: Mapping[str, Resources] = field(default_factory=dict)
    """The summed requests of the quorum's members on each node, by node name."""

    moves: Sequence[tuple[MemberClass, str]] = ()
    """The class (`MemberClass`) and node name of each member, in an order that the rules between pods allow."""


class CountedRemoval:
    """A simulated domain from which running pods are removed, for a gang whose members all have the same shape.

    Pods are removed in units, the pods that are evicted together. The quorum of ``need`` members fits if that many
    members of ``shape`` fit on the nodes of ``removal``, so counting is enough, and the answers are exact. Call `count`
    first.
    """

    def __init__(self, removal: Removal, shape: Shape, need: int, *, banned: Collection[EvictionUnit] = ()) -> None:
        self.banned = banned
        """The units that must not be restored even if the quorum fits with them.

        They use the domain exclusively, and so does the preemptor.
        """

        self.removal = removal
        self.limit = removal.limit
        self.total = 0
        self.request = dict(shape.requests)
        self._shape = shape
        self._need = need
        self._slots: dict[str, int] = {}

        self._limits: dict[str, list[tuple[str, int, int]]] = {}
        """The name, allocatable amount and request per member of each requested resource, by feasible node.

        They are kept because members are counted again for each removed or restored pod, ten thousands of times for a
        gang.
        """

        self._quorum_nodes = QuorumNodes()

    @property
    def has_rules(self) -> bool:
        """False: the members have no rules such as anti-affinity. Free resources decide where they fit."""
        return False

    def count(self) -> None:
        """Count how many members of the preemptor fit on each node. Must be called before any unit is removed."""
        for node in self.removal.nodes.values():
            self.limit.spend()
            if admits(self._shape, node):
                asked = [(name, amount) for name, amount in self.request.items() if amount > 0]
                self._limits[node.name] = [(name, capacity(node.allocatable, name), amount) for name, amount in asked]
                self._slots[node.name] = 0
                self._recount(node.name)

    def remove(self, units: Sequence[EvictionUnit]) -> None:
        """Remove the pods of these units from the simulated nodes.

        Count again how many of the preemptor's members fit.
        """
        self._move(units, self.removal.remove)

    def restore(self, units: Sequence[EvictionUnit]) -> None:
        """Put removed units back on their simulated nodes, even if the quorum does not fit any more."""
        self._move(units, self.removal.restore)

    def fits(self) -> bool:
        """Return whether the preemptor's quorum fits on the nodes as they are simulated now.

        That is, after some units were removed from them.
        """
        return self.has_capacity()

    def has_capacity(self) -> bool:
        """Return whether by free resources at least ``need`` members of the preemptor fit: the size of its quorum.

        If not, `fits` is False, too. Rules such as anti-affinity are not checked here.
        """
        return self.total >= self._need

    def restore_unneeded(self, units: Sequence[EvictionUnit]) -> list[EvictionUnit]:
        """Put each unit back that takes no place from a member of the preemptor, trying the last unit first.

        Such a unit leaves the number of members that fit as it was. Return the other units, which stay removed from
        the simulated nodes.
        """
        stay = []
        for unit in reversed(units):
            before = self.total
            self.restore([unit])
            if self.total < before:
                self.remove([unit])
                stay.append(unit)
        return stay

    def restore_fitting(self, items: Sequence[Sequence[EvictionUnit]]) -> list[Sequence[EvictionUnit]]:
        """Put each item back with which the preemptor's quorum still fits. An item is one or more removed units.

        Items are tried one by one in this order. Return the items that stay removed from the simulated nodes.
        """
        stay = []
        for item in items:
            self.restore(item)
            if self.total < self._need:
                self.remove(item)
                stay.append(item)
        return stay

    def save(self) -> QuorumNodes:
        """Return the state of the last plan, to be passed to `roll_back` later."""
        return self._quorum_nodes

    def roll_back(self, units: Sequence[EvictionUnit], quorum_nodes: QuorumNodes) -> None:
        """Put ``units``, which were removed since `save`, back.

        Set the last plan to the one that `save` has returned.
        """
        self.restore(units)
        self._quorum_nodes = quorum_nodes

    def count_lost(self, units: Sequence[EvictionUnit]) -> int:
        """Return how many fewer members of the preemptor would fit if all these removed units were put back.

        The simulation is left as it was.
        """
        before = self.total
        self.restore(units)
        lost = before - self.total
        self.remove(units)
        return lost

    def count_each_lost(self, units: Sequence[EvictionUnit]) -> list[int]:
        """Return for each removed unit how many members of the preemptor lose their node when it is put back.

        The units are put back one after the other in this order, and stay until the last one is counted. Then all are
        removed again.
        """
        lost = []
        for unit in units:
            before = self.total
            self.restore([unit])
            lost.append(before - self.total)
        self.remove(units)
        return lost

    def plan(self, ask: PlanRequest) -> Plan:
        """Return the plan for the whole preemptor on the simulated nodes, from which units are removed."""
        answer = plan_group(self.snapshot(), ask)
        assert isinstance(answer, Plan), answer  # noqa: S101 - for members of one shape counts decide
        return answer

    def snapshot(self) -> Snapshot:
        """Return the simulated nodes and their usage by the pods that are not removed.

        The result is a live view: later calls of `remove` and `restore` change it.
        """
        return self.removal.snapshot()

    def _move(self, units: Sequence[EvictionUnit], move: Callable[[Iterable[EvictionUnit]], Iterable[str]]) -> None:
        for name in move(units):
            self._recount(name)

    def _recount(self, name: str) -> None:
        before = self._slots.get(name)
        if before is None:
            return
        left = self.removal.left(name)
        now = max(
            0, min([(limit - left.get(each, 0)) // amount for each, limit, amount in self._limits[name]], default=0)
        )
        self._slots[name] = now
        self.total += now - before


class PlannedRemoval(CountedRemoval):
    """A simulated domain from which units are removed, for gangs for which counting members is not enough.

    These are trees, gangs with members of several shapes, and gangs with rules such as anti-affinity. For them the
    planner has to make a plan to know whether the quorum fits. No further plan is made after `_MAX_PLANS` plans,
    after ``work`` examined nodes, pods and classes of members (the unit of `Limit.spent`), or, if there is a plan,
    after the time in which the planner may improve it (`Limit.content`). From then on, a unit is only put back if the
    members can keep the nodes of the last plan. So a few units may stay removed although the quorum fits with them.
    """

    def __init__(
        self,
        removal: Removal,
        shape: Shape,
        ask: PlanRequest,
        work: int,
        *,
        banned: Collection[EvictionUnit] = (),
    ) -> None:
        super().__init__(removal, shape, max(ask.need, 1), banned=banned)
        self._kinds = group_classes(ask.members)
        self._rules: GangRules | None = None
        self._deciding: dict[int, bool] = {}
        """True for a shape whose pods affect the members' rules, by ``id()`` of the shape."""

        self._ask = ask
        self._capacity = Capacity(removal.nodes, removal.used)
        self._plans_left = _MAX_PLANS
        self._work_left = work

    @property
    def has_rules(self) -> bool:
        """True if rules such as anti-affinity restrict members.

        Then free resources alone do not decide where they fit.
        """
        return self._rules is not None

    def count(self) -> None:
        """Count how many members of the preemptor fit on each simulated node, and create the members' rules.

        Must be called before any unit is removed.
        """
        super().count()
        self._rules = read_rules(self.snapshot(), self._kinds)

    def remove(self, units: Sequence[EvictionUnit]) -> None:
        """Remove the pods of these units from the simulated nodes, in the counts and in the rules."""
        super().remove(units)
        self._note(units, -1)

    def restore(self, units: Sequence[EvictionUnit]) -> None:
        """Put removed units back on their simulated nodes, even if the quorum does not fit any more.

        The counts of members that fit and the members' rules follow.
        """
        super().restore(units)
        self._note(units, 1)

    def _note(self, units: Iterable[EvictionUnit], pods: int) -> None:
        rules = self._rules
        if rules is None:
            return
        for pod in (pod for unit in units for pod in unit.pods):
            if pod.node in self.removal.nodes and self._decides(pod.shape):
                rules.add_pods(dict(pod.shape.requests), pod.node, pods)

    def restore_fitting(self, items: Sequence[Sequence[EvictionUnit]]) -> list[Sequence[EvictionUnit]]:
        """Put each item back with which the preemptor's quorum still fits. An item is one or more removed units.

        To save plans, several items are tried together, more and more of them while that succeeds. Return the items
        that stay removed from the simulated nodes.
        """
        if self._quorum_nodes.plan is None:
            self._plan()
        stay = []
        place = 0
        size = 1
        while place < len(items):
            bunch = items[place : place + size]
            if self._try([unit for item in bunch for unit in item]):
                place += len(bunch)
                size *= 2
            elif len(bunch) == 1:
                stay.append(bunch[0])
                place += 1
            else:
                size = len(bunch) // 2
        return stay

    def fits(self) -> bool:
        """Return whether the planner finds a plan for the preemptor's quorum on the nodes as they are simulated now.

        That is, after some units were removed from them.
        """
        if not self.has_capacity():
            return False
        answer = plan_quorum(self.snapshot(), self._ask, self._capacity)
        return isinstance(answer, Plan)

    def restore_unneeded(self, units: Sequence[EvictionUnit]) -> list[EvictionUnit]:
        """Put no unit back, and return all. Counts do not show whether a unit is in the way of a larger member."""
        return list(units)

    def plan(self, ask: PlanRequest) -> Plan:
        """Return the plan for the whole preemptor on the simulated nodes, from which units are removed.

        If none is found in time, return the last plan, which is for the quorum.
        """
        answer = self._ask_planner(lambda: plan_group(self.snapshot(), ask, self._capacity))
        found = answer if isinstance(answer, Plan) else self._quorum_nodes.plan
        assert found is not None  # noqa: S101 - nothing is restored before a plan was found
        return found

    def _try(self, units: Sequence[EvictionUnit]) -> bool:
        self.restore(units)
        if self.total >= self._need and (self._keeps_quorum_nodes(units) or self._plan()):
            return True
        self.remove(units)
        return False

    def _keeps_quorum_nodes(self, units: Sequence[EvictionUnit]) -> bool:
        """Return whether the preemptor can keep the nodes of the last plan, after these units were put back."""
        if self._quorum_nodes.plan is None:
            return False
        nodes = self.removal.nodes
        requests = self._quorum_nodes.requests
        names = {pod.node for unit in units for pod in unit.pods if pod.node in requests}
        if not all(count_slots(nodes[name].allocatable, self.removal.left(name), requests[name]) for name in names):
            return False
        if self._rules is None or not any(self._decides(pod.shape) for unit in units for pod in unit.pods):
            return True
        self.limit.spend(len(self._quorum_nodes.moves))
        return self._rules.holds(self._quorum_nodes.moves)

    def _decides(self, shape: Shape) -> bool:
        """Return whether pods of this shape affect on which nodes rules allow members of the preemptor."""
        found = self._deciding.get(id(shape))
        if found is None:
            amounts, snapshot = (name for name, _ in shape.requests), self.snapshot()
            found = self._deciding[id(shape)] = any(is_affected_by(snapshot, name, self._kinds) for name in amounts)
        return found

    def _plan(self) -> bool:
        if not self._plans_left or self._work_left <= 0:
            return False
        self._plans_left -= 1
        answer = self._ask_planner(lambda: plan_quorum(self.snapshot(), self._ask, self._capacity))
        if not isinstance(answer, Plan):
            return False
        kind_of = {member.uid: kind for kind in self._kinds for member in kind.members}
        requests: dict[str, Resources] = {}
        for uid, name in answer.nodes.items():
            requests[name] = add(requests.get(name, _NOTHING), kind_of[uid].request)
        moves = tuple([(kind_of[uid], name) for uid, name in answer.nodes.items()])
        self._quorum_nodes = QuorumNodes(answer, requests, moves)
        return True

    def _ask_planner(self, plan: Callable[[], Plan | Verdict]) -> Plan | Verdict | None:
        """Call ``plan``, and subtract its work from the work that is left for this domain.

        Return what it returns, or None if it is ended early: for instance a plan is known already, and the time to
        improve it is over (`Limit.content`).
        """
        before = self.limit.spent
        answer = self.limit.attempt(plan, until_content=self._quorum_nodes.plan is not None)
        self._work_left -= self.limit.spent - before
        return answer

    def _recount(self, name: str) -> None:
        super()._recount(name)
        self._capacity.note_used(name)


UnitBundle = Sequence[EvictionUnit]
"""Units that are put back together or not at all, for example the pods of one gang.

A unit has pods evicted together.
"""


class _SortKey(NamedTuple):
    """The sort key by which units are put back on their simulated nodes; the unit with the smallest key is first.

    A unit has the pods that are evicted together.
    """

    price: float
    """The number of members of the preemptor that no longer fit if the unit is put back, per pod.

    Units of one node are grouped (`_group_by_price`), and each unit gets the mean of its group.
    """

    below: int
    """The number of removed pods of lower priority on its node, times -1.

    The more there are, the earlier it is put back.
    """

    age: float
    """The mean age in seconds of the units in its group, times -1, see `sum_ages`: old units come first."""

    name: str
    """The name of the node, or the UID of the first pod if the unit has several pods."""

    place: int
    """The position in the order of its node; 0 if the unit has several pods."""


def reprieve(
    removal: CountedRemoval, gone: Sequence[EvictionUnit], allowances: Allowances, newest: int
) -> list[EvictionUnit]:
    """Put the removed units back that the preemptor does not need as victims. Return the units that have to be evicted.

    A unit has the pods that are evicted together. ``removal`` is the simulation of one domain, from which the units
    ``gone`` are removed. ``allowances`` say how many victims gangs and PodDisruptionBudgets allow. ``newest`` is the
    start time of the newest running pod, in seconds since 1970. The ages of pods are measured at that time, and among
    units that are alike otherwise the old ones are put back first. For a preemptor with members of one shape, each
    returned unit is needed: without its eviction the quorum would not fit, or would not have the domain exclusively.
    """
    by_priority: dict[int, list[EvictionUnit]] = {}
    below: Counter[str] = Counter()
    for unit in gone:
        by_priority.setdefault(unit.priority, []).append(unit)
        below.update([pod.node for pod in unit.pods])
    losses = Losses(allowances)
    victims: list[EvictionUnit] = []
    for priority in sorted(by_priority, reverse=True):
        order = _sort_units(removal, by_priority[priority], below, newest)
        level = _PriorityLevel(removal, losses)
        level.start(order)
        level.restore_for_budgets()
        level.restore_for_gangs(allowances)
        level.restore_others()
        victims += level.gone
    # With rules between pods, putting one unit back can make it possible to put another one back.
    before = 0
    while removal.has_rules and len(victims) not in (1, before):
        before = len(victims)
        stay = removal.restore_fitting([[unit] for unit in victims if unit not in removal.banned])
        left = {bundle[0] for bundle in stay}
        victims = [unit for unit in victims if unit in left or unit in removal.banned]
    return victims


class _PriorityLevel:
    """The removed units of one priority while the preemptor's simulation puts them back. ``gone`` are still removed.

    Call `start`, then `restore_for_budgets`, `restore_for_gangs` and `restore_others` in this order.
    """

    def __init__(self, removal: CountedRemoval, losses: Losses) -> None:
        self.gone: dict[EvictionUnit, None] = {}
        self._removal = removal
        self._losses = losses
        self._final: set[EvictionUnit] = set()

    def start(self, order: Iterable[EvictionUnit]) -> None:
        """Begin with all units of the priority as ``gone``.

        ``order`` has them in the order in which to try to put them back.
        """
        for unit in order:
            self.gone[unit] = None
            self._losses.add(unit)
            if unit in self._removal.banned:
                self._final.add(unit)  # Its resources are not needed, but the gang wants the domain exclusively.

    def restore_for_budgets(self) -> None:
        """Put units back whose eviction would violate PodDisruptionBudgets, as far as the preemptor still fits."""
        counted = [unit for unit in self.gone if unit.budgets]
        while picked := self._pick_violating(counted):
            self._put_back([unit] for unit in picked)

    def restore_for_gangs(self, allowances: Allowances) -> None:
        """Put back as many units of each running gang as its quorum needs, or none if the preemptor does not fit then.

        ``allowances`` say how many members each running gang can lose. Gangs are tried one by one: first those without
        which their parent group in a tree would lose its quorum, too, then those whose units take the least capacity
        from the preemptor.
        """
        members: dict[GroupKey, list[EvictionUnit]] = {}
        for unit in self.gone:
            if unit.gang is not None and unit.gang in allowances.gangs and unit not in self._final:
                members.setdefault(unit.gang, []).append(unit)
        bundles: list[tuple[tuple[bool, int, int, GroupKey], UnitBundle]] = []
        for gang, units in members.items():
            bundle = self._pick_missing(gang, units)
            if bundle:
                room = self._removal.count_lost(bundle)
                pods = sum(len(unit.pods) for unit in bundle)
                bundles.append(((not self._losses.is_critical(gang), room, -pods, gang), bundle))
        order = sorted(bundles, key=lambda entry: entry[0])
        self._put_back(bundle for _, bundle in order)

    def restore_others(self) -> None:
        """Put back each of the units that are left, if the preemptor still fits with it."""
        self._put_back([unit] for unit in list(self.gone) if unit not in self._final)

    def _pick_violating(self, counted: Iterable[EvictionUnit]) -> list[EvictionUnit]:
        picked = []
        for unit in counted:
            if unit in self.gone and unit not in self._final and self._losses.violates(unit):
                self._losses.remove(unit)
                picked.append(unit)
        for unit in picked:
            self._losses.add(unit)
        return picked

    def _pick_missing(self, gang: GroupKey, units: Sequence[EvictionUnit]) -> UnitBundle:
        """Return the first of these units of a gang, as many as have to be put back so that it keeps its quorum.

        Return [] if it keeps its quorum anyway, or would not even with all of the units.
        """
        short = self._losses.shortage(gang)
        bundle = []
        for unit in units:
            if short <= 0:
                break
            bundle.append(unit)
            short -= len(unit.pods)
        return bundle if short <= 0 else []

    def _put_back(self, bundles: Iterable[UnitBundle]) -> None:
        bundles = list(bundles)
        stay = {id(bundle) for bundle in self._removal.restore_fitting(bundles)}
        for bundle in bundles:
            if id(bundle) not in stay:
                for unit in bundle:
                    del self.gone[unit]
                    self._losses.remove(unit)
            elif len(bundle) == 1:
                self._final.add(bundle[0])


def _sort_units(
    removal: CountedRemoval, units: Sequence[EvictionUnit], below: Counter[str], newest: int
) -> list[EvictionUnit]:
    """Return units of one priority in the order in which to put them back: the lowest price per pod first (`_SortKey`).

    The price is how many members of the preemptor no longer fit then. ``below`` has the number of pods of this and
    lower priorities by node name; the pods of these units are subtracted from it. ``newest`` is the start time of the
    newest running pod, in seconds since 1970, at which ages of pods are measured.
    """
    alone: dict[str, list[EvictionUnit]] = {}
    joined: list[EvictionUnit] = []
    sizes: dict[int, float] = {}
    for unit in units:
        below.subtract([pod.node for pod in unit.pods])
        shape = unit.pods[0].shape  # many units share one
        if id(shape) not in sizes:
            sizes[id(shape)] = relative_size(shape, removal.request)
        if len(unit.pods) == 1:
            alone.setdefault(unit.pods[0].node, []).append(unit)
        else:
            joined.append(unit)
    keys: dict[EvictionUnit, _SortKey] = {}
    for unit in joined:
        room = removal.count_lost([unit])
        lower = -sum(below[pod.node] for pod in unit.pods)
        keys[unit] = _SortKey(room / len(unit.pods), lower, -sum_ages(unit, newest), unit.pods[0].uid, 0)
    for node, here in alone.items():
        here.sort(key=lambda unit: (sizes[id(unit.pods[0].shape)], -sum_ages(unit, newest), unit.pods[0].uid))
        lost = removal.count_each_lost(here)
        keys.update(_make_sort_keys(here, lost, node, below[node], newest))
    return sorted(units, key=keys.__getitem__)


def _make_sort_keys(
    units: Sequence[EvictionUnit], lost: Sequence[int], node: str, below: int, newest: int
) -> Iterator[tuple[EvictionUnit, _SortKey]]:
    """Yield each unit of one node with its sort key, in the order of ``units``.

    ``lost`` has for each unit how many fewer members of the preemptor fit when it is put back after the units before
    it. ``below`` is the number of removed pods of lower priority on the node. ``newest`` is the start time of the
    newest running pod, in seconds since 1970, at which ages of pods are measured.
    """
    # Counted per node, not per group. Otherwise the order of equal groups would depend on the order of the units.
    places = count()
    for room, bunch in _group_by_price(units, lost):
        old = -sum(sum_ages(unit, newest) for unit in bunch) / len(bunch)
        for unit in bunch:
            yield unit, _SortKey(room / len(bunch), -below, old, node, next(places))


def _group_by_price(units: Sequence[EvictionUnit], lost: Sequence[int]) -> Iterator[tuple[int, list[EvictionUnit]]]:
    """Group the units of one node such that no group costs fewer members per unit than the group before it.

    ``lost`` has for each unit how many fewer members fit when it is put back after the units before it. Yield the sum
    of ``lost`` and the units of each group. A unit with 0 joins the group before it, because the resources it uses were
    lost with that group.
    """
    bunches: list[tuple[int, list[EvictionUnit]]] = []
    for unit, room in zip(units, lost, strict=True):
        if room or not bunches:
            bunches.append((room, [unit]))
        else:
            bunches[-1][1].append(unit)
        while len(bunches) > 1 and bunches[-1][0] * len(bunches[-2][1]) < bunches[-2][0] * len(bunches[-1][1]):
            price, last = bunches.pop()
            before, first = bunches.pop()
            bunches.append((before + price, first + last))
    yield from bunches


def relative_size(shape: Shape, request: Resources) -> float:
    """Return how large a pod is compared with a member of the preemptor: 2.0 if it requests twice as much.

    ``request`` is what the member requests. The resource with the largest ratio counts.
    """
    amounts = dict(shape.requests)
    return max((amounts.get(name, 0) / amount for name, amount in request.items() if amount > 0), default=0.0)
