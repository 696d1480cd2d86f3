"""Restores removed units that need not be evicted, because the quorum fits without their resources (`reprieve`).

kube-scheduler's reprieve of victims works alike. Here it goes priority by priority from the highest, while all lower
ones are still removed, so what is kept of one priority never depends on lower ones. In each priority first units are
restored whose eviction would violate budgets, then units of gangs that would break, then the rest. In each of these
steps the units that take the fewest slots come first.
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
"""The maximum number of plans for one domain."""

_NOTHING: Resources = {}


class Removal:
    """The nodes of a snapshot, and their usage without the removed units."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.nodes = snapshot.nodes
        self.limit = snapshot.limit
        self._snapshot = snapshot
        self._base = snapshot.used

        self._left: dict[str, dict[str, int]] = {}
        """The usage of each node with removed units.

        The mappings are modified in place, because they change very often.
        """

        self._owed: dict[tuple[str, str], int] = {}
        """By node and resource: the part of removed requests that exceeds the usage.

        A pod may request more than is counted.
        """

        self.used: Mapping[str, Resources] = Overlay(self._left, snapshot.used)

    def snapshot(self) -> Snapshot:
        """Return the cluster without the removed units. It is live: it follows later changes."""
        return replace(self._snapshot, used=self.used, over=())

    def remove(self, units: Iterable[EvictionUnit]) -> Iterable[str]:
        """Remove units. Return the names of the nodes of this removal that have changed."""
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
        """Restore removed units. Return the names of the nodes of this removal that have changed."""
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
        """Return the usage of a node."""
        found = self._left.get(name)
        return self._base.get(name, _NOTHING) if found is None else found

    def _find_left(self, node: str) -> dict[str, int] | None:
        """Return the modifiable usage of a node; None if it is not in this removal."""
        left = self._left.get(node)
        if left is None and node in self.nodes:
            left = self._left[node] = dict(self._base.get(node, _NOTHING))
        return left

    def _owe(self, node: str, name: str, rest: int) -> int:
        """Record that more was removed than was used. Return 0, the new usage."""
        self._owed[node, name] = self._owed.get((node, name), 0) - rest
        return 0

    def _settle(self, node: str, name: str, amount: int) -> int:
        """Return the amount that is used again after a roll_back, less what was removed in excess."""
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
    """The nodes of the quorum in the last plan."""

    plan: Plan | None = None

    requests: Mapping[str, Resources] = field(default_factory=dict)
    """The resources of the members by node name."""

    moves: Sequence[tuple[MemberClass, str]] = ()
    """Class and node of each member, in an order in which they can be placed."""


class SlotRemoval:
    """A simulated removal for members of one shape, where any ``need`` slots hold the quorum. Its answers are exact."""

    def __init__(self, removal: Removal, shape: Shape, need: int, *, banned: Collection[EvictionUnit] = ()) -> None:
        self.banned = banned
        """The units that must not be restored, even if there is room."""

        self.removal = removal
        self.limit = removal.limit
        self.total = 0
        self.request = dict(shape.requests)
        self._shape = shape
        self._need = need
        self._slots: dict[str, int] = {}

        self._limits: dict[str, list[tuple[str, int, int]]] = {}
        """For each feasible node the requested resources: name, allocatable amount, and request per member.

        Slots are counted for each removed or restored pod, ten thousands of times for one gang.
        """

        self._quorum_nodes = QuorumNodes()

    @property
    def has_rules(self) -> bool:
        """True if rules restrict members, so that slots are not enough to know whether they fit."""
        return False

    def count(self) -> None:
        """Count the slots of all nodes."""
        for node in self.removal.nodes.values():
            self.limit.spend()
            if admits(self._shape, node):
                asked = [(name, amount) for name, amount in self.request.items() if amount > 0]
                self._limits[node.name] = [(name, capacity(node.allocatable, name), amount) for name, amount in asked]
                self._slots[node.name] = 0
                self._recount(node.name)

    def remove(self, units: Sequence[EvictionUnit]) -> None:
        """Remove units."""
        self._move(units, self.removal.remove)

    def restore(self, units: Sequence[EvictionUnit]) -> None:
        """Restore units, even if the quorum does not fit afterwards."""
        self._move(units, self.removal.restore)

    def fits(self) -> bool:
        """Return whether the quorum fits now."""
        return self.has_slots()

    def has_slots(self) -> bool:
        """Return whether there are enough slots for the quorum. Without them it does not fit."""
        return self.total >= self._need

    def restore_unneeded(self, units: Sequence[EvictionUnit]) -> list[EvictionUnit]:
        """Restore those of the units that take no slot, the last first. Return the others."""
        stay = []
        for unit in reversed(units):
            before = self.total
            self.restore([unit])
            if self.total < before:
                self.remove([unit])
                stay.append(unit)
        return stay

    def restore_fitting(self, items: Sequence[Sequence[EvictionUnit]]) -> list[Sequence[EvictionUnit]]:
        """Restore the items one by one, each as a whole, where the quorum still fits. Return the other items."""
        stay = []
        for item in items:
            self.restore(item)
            if self.total < self._need:
                self.remove(item)
                stay.append(item)
        return stay

    def save(self) -> QuorumNodes:
        """Return what `roll_back` needs to return to this state."""
        return self._quorum_nodes

    def roll_back(self, units: Sequence[EvictionUnit], quorum_nodes: QuorumNodes) -> None:
        """Restore units without checks, and return to a state from `save`."""
        self.restore(units)
        self._quorum_nodes = quorum_nodes

    def count_lost(self, units: Sequence[EvictionUnit]) -> int:
        """Return the number of slots that restoring all these units would take. Changes nothing."""
        before = self.total
        self.restore(units)
        lost = before - self.total
        self.remove(units)
        return lost

    def count_each_lost(self, units: Sequence[EvictionUnit]) -> list[int]:
        """Return the number of slots that each unit would take if they were restored in this order. Changes nothing."""
        lost = []
        for unit in units:
            before = self.total
            self.restore([unit])
            lost.append(before - self.total)
        self.remove(units)
        return lost

    def plan(self, ask: PlanRequest) -> Plan:
        """Return the gang's plan in the present state."""
        answer = plan_group(self.snapshot(), ask)
        assert isinstance(answer, Plan), answer  # noqa: S101 - for members of one shape slots decide
        return answer

    def snapshot(self) -> Snapshot:
        """Return the nodes in the present state."""
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


class PlanRemoval(SlotRemoval):
    """A simulated removal for a tree, for several shapes, or with rules: the planner decides whether the quorum fits.

    Plans are limited by `_MAX_PLANS`, by ``work`` (`Limit.spent`), and by a limit that is content. Beyond that, units
    are only restored if the members of the last plan keep their nodes.
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
        """By identity of a shape: True if pods of the shape affect the rules of members."""

        self._ask = ask
        self._capacity = Capacity(removal.nodes, removal.used)
        self._plans_left = _MAX_PLANS
        self._work_left = work

    @property
    def has_rules(self) -> bool:
        """True if rules restrict members, so that slots are not enough to know whether they fit."""
        return self._rules is not None

    def count(self) -> None:
        """Count the slots of all nodes, and create the rules before anything is removed."""
        super().count()
        self._rules = read_rules(self.snapshot(), self._kinds)

    def remove(self, units: Sequence[EvictionUnit]) -> None:
        """Remove units."""
        super().remove(units)
        self._note(units, -1)

    def restore(self, units: Sequence[EvictionUnit]) -> None:
        """Restore units, even if the quorum does not fit afterwards."""
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
        """Restore items as the base class does, but in growing bunches to save plans."""
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
        """Return whether the planner finds room for the quorum now."""
        if not self.has_slots():
            return False
        answer = plan_quorum(self.snapshot(), self._ask, self._capacity)
        return isinstance(answer, Plan)

    def restore_unneeded(self, units: Sequence[EvictionUnit]) -> list[EvictionUnit]:
        """Return all units: one that takes no slot may still be in the way of a larger member."""
        return list(units)

    def plan(self, ask: PlanRequest) -> Plan:
        """Return the gang's plan in the present state; without one, the last plan of the quorum."""
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
        """Return whether the last plan still holds with these units restored."""
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
        """Return whether a pod of this shape affects the rules of members."""
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
        """Return the planner's answer; None if it was cut short because an earlier plan is good enough."""
        before = self.limit.spent
        answer = self.limit.attempt(plan, until_content=self._quorum_nodes.plan is not None)
        self._work_left -= self.limit.spent - before
        return answer

    def _recount(self, name: str) -> None:
        super()._recount(name)
        self._capacity.note_used(name)


UnitBundle = Sequence[EvictionUnit]
"""Units that are restored together or not at all."""


class _SortKey(NamedTuple):
    """The sort key of a unit: the smallest is restored first."""

    price: float
    """The slots that the unit's bunch takes, per unit of the bunch."""

    below: int
    """The negative number of removed pods of lower priority on its node, some of which might be restored then."""

    age: float
    """The negative mean age of the bunch, see `sum_ages`."""

    name: str
    """The name of the node, or the UID of the first pod."""

    place: int
    """The position among the units of its node."""


def reprieve(
    removal: SlotRemoval, gone: Sequence[EvictionUnit], allowances: Allowances, newest: int
) -> list[EvictionUnit]:
    """Restore as many of the removed units as possible. Return the units that have to be evicted.

    For members of one shape each of them is needed: without its eviction the quorum would not fit, or would not have
    the domain exclusively. ``newest`` is the start time of the newest pod, in seconds since 1970.
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
    # With rules between pods, restoring one unit can make it possible to roll_back another one.
    before = 0
    while removal.has_rules and len(victims) not in (1, before):
        before = len(victims)
        stay = removal.restore_fitting([[unit] for unit in victims if unit not in removal.banned])
        left = {bundle[0] for bundle in stay}
        victims = [unit for unit in victims if unit in left or unit in removal.banned]
    return victims


class _PriorityLevel:
    """The removed units of one priority, in the order in which they are restored."""

    def __init__(self, removal: SlotRemoval, losses: Losses) -> None:
        self.gone: dict[EvictionUnit, None] = {}
        self._removal = removal
        self._losses = losses
        self._final: set[EvictionUnit] = set()

    def start(self, order: Iterable[EvictionUnit]) -> None:
        """Add all units of the priority."""
        for unit in order:
            self.gone[unit] = None
            self._losses.add(unit)
            if unit in self._removal.banned:
                self._final.add(unit)  # Its resources are not needed, but the gang wants the domain exclusively.

    def restore_for_budgets(self) -> None:
        """Restore units while their evictions violate budgets."""
        counted = [unit for unit in self.gone if unit.budgets]
        while picked := self._pick_violating(counted):
            self._put_back([unit] for unit in picked)

    def restore_for_gangs(self, allowances: Allowances) -> None:
        """Restore as many units of each gang as it needs for its quorum; gangs that take the least room come first."""
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
        """Restore all other units that can be restored."""
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
        """Return the fewest units that keep a gang's quorum; none if it is not endangered or cannot be kept."""
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
    removal: SlotRemoval, units: Sequence[EvictionUnit], below: Counter[str], newest: int
) -> list[EvictionUnit]:
    """Return units in the order in which they are restored: those that take fewest slots per pod come first.

    ``below`` has the number of pods of this and lower priorities by node. This priority is subtracted from it.
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
    """Yield the sort keys of one node's units; ``lost`` are the slots that each unit takes."""
    # Counted per node, not per bunch. Otherwise the order of equal bunches would depend on the order of the units.
    places = count()
    for room, bunch in _group_by_price(units, lost):
        old = -sum(sum_ages(unit, newest) for unit in bunch) / len(bunch)
        for unit in bunch:
            yield unit, _SortKey(room / len(bunch), -below, old, node, next(places))


def _group_by_price(units: Sequence[EvictionUnit], lost: Sequence[int]) -> Iterator[tuple[int, list[EvictionUnit]]]:
    """Group one node's units into bunches with a growing number of slots per unit.

    A unit that takes no slot itself belongs to the bunch of the unit before it, because that one paid for its
    resources.
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
    """Return the size of a pod in members of the gang, by the resource of which it has most."""
    amounts = dict(shape.requests)
    return max((amounts.get(name, 0) / amount for name, amount in request.items() if amount > 0), default=0.0)
