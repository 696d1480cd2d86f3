"""Which of the units that have gone from the nodes of a domain need not go, as the gang's quorum fits all the same.

Priority by priority, the highest first, with everything lower still gone: first those come back whose evictions violate
budgets, then whole gangs, as far as they would break, then the rest. So what is kept of one priority never depends on
what could be kept of a lower one. Inside of each step those come back first that take least of the gang's room.
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
from serried.plan.eviction import Allowances, Losses, Unit, age
from serried.plan.fit import admits
from serried.plan.request import Overlay, Plan, PlanRequest, Snapshot
from serried.plan.rule import GangRules, is_about, read_rules
from serried.plan.tree import plan_group, plan_quorum

_MAX_PLANS = 64
"""How often a gang may be planned in one removal to find out who can come back."""

_NOTHING: Resources = {}


class Removal:
    """Some nodes, and what is used there without the units that have gone."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.nodes = snapshot.nodes
        self.limit = snapshot.limit
        self._snapshot = snapshot
        self._base = snapshot.used

        self._left: dict[str, dict[str, int]] = {}
        """What is used on each node from which units have gone: changed in place, for it changes very often."""

        self._owed: dict[tuple[str, str], int] = {}
        """By node and resource: how much more has gone than was counted there. A pod may ask for more than that."""

        self.used: Mapping[str, Resources] = Overlay(self._left, snapshot.used)

    def snapshot(self) -> Snapshot:
        """Return the cluster as it is without the units that have gone; it follows what goes and comes back."""
        return replace(self._snapshot, used=self.used, over=())

    def take(self, units: Iterable[Unit]) -> Iterable[str]:
        """Units go; the names of the nodes that they were on, as far as they are among these."""
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

    def give_back(self, units: Iterable[Unit]) -> Iterable[str]:
        """Units that had gone are there again."""
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
        """What is used on a node."""
        found = self._left.get(name)
        return self._base.get(name, _NOTHING) if found is None else found

    def _find_left(self, node: str) -> dict[str, int] | None:
        """What is used on a node, to be changed; None if it is not among these."""
        left = self._left.get(node)
        if left is None and node in self.nodes:
            left = self._left[node] = dict(self._base.get(node, _NOTHING))
        return left

    def _owe(self, node: str, name: str, rest: int) -> int:
        """Nothing is used where more has gone than was counted: what is more is owed by those that come back."""
        self._owed[node, name] = self._owed.get((node, name), 0) - rest
        return 0

    def _settle(self, node: str, name: str, amount: int) -> int:
        """How much of what comes back is used again once what is owed is settled."""
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
class Seated:
    """Places that the members of the quorum had in the last plan."""

    plan: Plan | None = None

    seats: Mapping[str, Resources] = field(default_factory=dict)
    """What they take of each node."""

    moves: Sequence[tuple[MemberClass, str]] = ()
    """Where they go, in an order in which they can come."""


class SlotRemoval:
    """A removal for members of one shape, of which any so many are the quorum: exact."""

    def __init__(self, removal: Removal, shape: Shape, need: int, *, banned: Collection[Unit] = ()) -> None:
        self.banned = banned
        """The units that do not come back whatever room there is."""

        self.removal = removal
        self.limit = removal.limit
        self.total = 0
        self.request = dict(shape.requests)
        self._shape = shape
        self._need = need
        self._slots: dict[str, int] = {}

        self._limits: dict[str, list[tuple[str, int, int]]] = {}
        """Of each node that takes members: what a member asks for, how much the node has of it, and how much it asks.

        Slots are counted for each pod that goes or comes back, ten thousands of times for one gang.
        """

        self._seated = Seated()

    @property
    def has_rules(self) -> bool:
        """Whether who else is where decides about members."""
        return False

    def count(self) -> None:
        """Count the slots of every node."""
        for node in self.removal.nodes.values():
            self.limit.spend()
            if admits(self._shape, node):
                asked = [(name, amount) for name, amount in self.request.items() if amount > 0]
                self._limits[node.name] = [(name, capacity(node.allocatable, name), amount) for name, amount in asked]
                self._slots[node.name] = 0
                self._recount(node.name)

    def take(self, units: Sequence[Unit]) -> None:
        """These units go."""
        self._move(units, self.removal.take)

    def give_back(self, units: Sequence[Unit]) -> None:
        """These units are there again, whether or not the quorum fits."""
        self._move(units, self.removal.give_back)

    def fits(self) -> bool:
        """Whether the quorum fits now."""
        return self.has_slots()

    def has_slots(self) -> bool:
        """Whether there are slots for the quorum: without them it does not fit."""
        return self.total >= self._need

    def trim(self, units: Sequence[Unit]) -> list[Unit]:
        """Let those of these units come back that take no slot, the last first; the others."""
        stay = []
        for unit in reversed(units):
            before = self.total
            self.give_back([unit])
            if self.total < before:
                self.take([unit])
                stay.append(unit)
        return stay

    def put_back(self, items: Sequence[Sequence[Unit]]) -> list[Sequence[Unit]]:
        """Let units come back, one item after the other, each as a whole where the quorum still fits; the others."""
        stay = []
        for item in items:
            self.give_back(item)
            if self.total < self._need:
                self.take(item)
                stay.append(item)
        return stay

    def save(self) -> Seated:
        """What is known of the members' places now."""
        return self._seated

    def restore(self, units: Sequence[Unit], seated: Seated) -> None:
        """Let units come back without asking: it is as it was when this was known."""
        self.give_back(units)
        self._seated = seated

    def count_lost(self, units: Sequence[Unit]) -> int:
        """How many slots are lost if these units come back; nothing changes."""
        before = self.total
        self.give_back(units)
        lost = before - self.total
        self.take(units)
        return lost

    def count_each_lost(self, units: Sequence[Unit]) -> list[int]:
        """How many are lost with each of these units, if they come back one after the other; nothing changes."""
        lost = []
        for unit in units:
            before = self.total
            self.give_back([unit])
            lost.append(before - self.total)
        self.take(units)
        return lost

    def plan(self, ask: PlanRequest) -> Plan:
        """The gang's plan as it is now."""
        answer = plan_group(self.snapshot(), ask)
        assert isinstance(answer, Plan), answer  # noqa: S101 - of members of one shape, slots are all there is to know
        return answer

    def snapshot(self) -> Snapshot:
        """The nodes as they are now."""
        return self.removal.snapshot()

    def _move(self, units: Sequence[Unit], move: Callable[[Iterable[Unit]], Iterable[str]]) -> None:
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
    """A removal for a tree, or for members of several shapes: the planner is asked whether the quorum fits.

    It is asked so many times and no more, and not after ``work`` (`Limit.spent`), nor once there is an answer and that
    is good enough. After that units come back only where they leave the members of the last plan their places.
    """

    def __init__(
        self,
        removal: Removal,
        shape: Shape,
        ask: PlanRequest,
        work: int,
        *,
        banned: Collection[Unit] = (),
    ) -> None:
        super().__init__(removal, shape, max(ask.need, 1), banned=banned)
        self._kinds = group_classes(ask.members)
        self._rules: GangRules | None = None
        self._deciding: dict[int, bool] = {}
        """By the shape's identity: whether pods of this shape matter to the rules of members."""

        self._ask = ask
        self._capacity = Capacity(removal.nodes, removal.used)
        self._plans_left = _MAX_PLANS
        self._work_left = work

    @property
    def has_rules(self) -> bool:
        """Whether who else is where decides about members, or which volumes are left."""
        return self._rules is not None

    def count(self) -> None:
        """As for members of one shape; and who is where, before anybody has gone."""
        super().count()
        self._rules = read_rules(self.snapshot(), self._kinds)

    def take(self, units: Sequence[Unit]) -> None:
        """These units go."""
        super().take(units)
        self._note(units, -1)

    def give_back(self, units: Sequence[Unit]) -> None:
        """These units are there again, whether or not the quorum fits."""
        super().give_back(units)
        self._note(units, 1)

    def _note(self, units: Iterable[Unit], pods: int) -> None:
        rules = self._rules
        if rules is None:
            return
        for pod in (pod for unit in units for pod in unit.pods):
            if pod.node in self.removal.nodes and self._decides(pod.shape):
                rules.note(dict(pod.shape.requests), pod.node, pods)

    def put_back(self, items: Sequence[Sequence[Unit]]) -> list[Sequence[Unit]]:
        """As for members of one shape, in growing bunches."""
        if self._seated.plan is None:
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
        """Whether the planner finds room for the quorum now."""
        if not self.has_slots():
            return False
        answer = plan_quorum(self.snapshot(), self._ask, self._capacity)
        return isinstance(answer, Plan)

    def trim(self, units: Sequence[Unit]) -> list[Unit]:
        """All of these units stay: what takes no slot may be in the way of a larger member."""
        return list(units)

    def plan(self, ask: PlanRequest) -> Plan:
        """The gang's plan as it is now, at least the last one that was found for the quorum."""
        answer = self._ask_planner(lambda: plan_group(self.snapshot(), ask, self._capacity))
        found = answer if isinstance(answer, Plan) else self._seated.plan
        assert found is not None  # noqa: S101 - without a plan nothing has come back, and it is found again
        return found

    def _try(self, units: Sequence[Unit]) -> bool:
        self.give_back(units)
        if self.total >= self._need and (self._is_seated(units) or self._plan()):
            return True
        self.take(units)
        return False

    def _is_seated(self, units: Sequence[Unit]) -> bool:
        """Whether the members of the last plan keep their places beside units that have come back."""
        if self._seated.plan is None:
            return False
        nodes = self.removal.nodes
        seats = self._seated.seats
        names = {pod.node for unit in units for pod in unit.pods if pod.node in seats}
        if not all(count_slots(nodes[name].allocatable, self.removal.left(name), seats[name]) for name in names):
            return False
        if self._rules is None or not any(self._decides(pod.shape) for unit in units for pod in unit.pods):
            return True
        self.limit.spend(len(self._seated.moves))
        return self._rules.holds(self._seated.moves)

    def _decides(self, shape: Shape) -> bool:
        """Whether a pod of this shape matters to the rules of members."""
        found = self._deciding.get(id(shape))
        if found is None:
            amounts, snapshot = (name for name, _ in shape.requests), self.snapshot()
            found = self._deciding[id(shape)] = any(is_about(snapshot, name, self._kinds) for name in amounts)
        return found

    def _plan(self) -> bool:
        if not self._plans_left or self._work_left <= 0:
            return False
        self._plans_left -= 1
        answer = self._ask_planner(lambda: plan_quorum(self.snapshot(), self._ask, self._capacity))
        if not isinstance(answer, Plan):
            return False
        kind_of = {member.uid: kind for kind in self._kinds for member in kind.members}
        seats: dict[str, Resources] = {}
        for uid, name in answer.nodes.items():
            seats[name] = add(seats.get(name, _NOTHING), kind_of[uid].request)
        moves = tuple([(kind_of[uid], name) for uid, name in answer.nodes.items()])
        self._seated = Seated(answer, seats, moves)
        return True

    def _ask_planner(self, plan: Callable[[], Plan | Verdict]) -> Plan | Verdict | None:
        """Return the planner's answer; None if there is an earlier plan, and that is good enough by now."""
        before = self.limit.spent
        answer = self.limit.attempt(plan, until_content=self._seated.plan is not None)
        self._work_left -= self.limit.spent - before
        return answer

    def _recount(self, name: str) -> None:
        super()._recount(name)
        self._capacity.note_used(name)


Bulk = Sequence[Unit]
"""Units that come back together or not at all."""


class _Turn(NamedTuple):
    """When a unit may come back: the smallest turn is the first."""

    price: float
    """How many slots it takes, for each pod of the bunch that comes back with it."""

    below: int
    """Less than 0: so many pods of lower priority have gone from its node, which need not all go if it stays."""

    age: float
    """Less than 0: how long the bunch has run in the mean, as in `plan.eviction.Cost`."""

    name: str
    """The node's, or the first pod's."""

    place: int
    """Among the units of its node."""


def reprieve(removal: SlotRemoval, gone: Sequence[Unit], allowances: Allowances, newest: int) -> list[Unit]:
    """Those of the units that have to stay gone; the others are there again.

    For members of one shape none of them is gone in vain: with it there, the quorum would not fit, or would not have
    the domain for itself. ``newest`` is when the newest of all pods began, in seconds since 1970.
    """
    by_priority: dict[int, list[Unit]] = {}
    below: Counter[str] = Counter()
    for unit in gone:
        by_priority.setdefault(unit.priority, []).append(unit)
        below.update([pod.node for pod in unit.pods])
    losses = Losses(allowances)
    victims: list[Unit] = []
    for priority in sorted(by_priority, reverse=True):
        order = _put_in_order(removal, by_priority[priority], below, newest)
        level = _Level(removal, losses)
        level.lose(order)
        level.keep_budgets()
        level.keep_gangs(allowances)
        level.keep_rest()
        victims += level.gone
    # By rules about others, who could not come back may do so beside those that have come back since.
    before = 0
    while removal.has_rules and len(victims) not in (1, before):
        before = len(victims)
        stay = removal.put_back([[unit] for unit in victims if unit not in removal.banned])
        left = {bulk[0] for bulk in stay}
        victims = [unit for unit in victims if unit in left or unit in removal.banned]
    return victims


class _Level:
    """The units of one priority that have gone, in the order in which they may come back."""

    def __init__(self, removal: SlotRemoval, losses: Losses) -> None:
        self.gone: dict[Unit, None] = {}
        self._removal = removal
        self._losses = losses
        self._doomed: set[Unit] = set()

    def lose(self, order: Iterable[Unit]) -> None:
        """Begin with all of them."""
        for unit in order:
            self.gone[unit] = None
            self._losses.add(unit)
            if unit in self._removal.banned:
                self._doomed.add(unit)  # there is room beside it, and the gang may not have it

    def keep_budgets(self) -> None:
        """Let units come back whose evictions violate budgets, and no more of them than do."""
        counted = [unit for unit in self.gone if unit.budgets]
        while picked := self._pick_violating(counted):
            self._put_back([unit] for unit in picked)

    def keep_gangs(self, allowances: Allowances) -> None:
        """Let gangs come back as far as they need it to stand, those first that take least room."""
        members: dict[GroupKey, list[Unit]] = {}
        for unit in self.gone:
            if unit.gang is not None and unit.gang in allowances.gangs and unit not in self._doomed:
                members.setdefault(unit.gang, []).append(unit)
        bulks: list[tuple[tuple[bool, int, int, GroupKey], Bulk]] = []
        for gang, units in members.items():
            bulk = self._pick_missing(gang, units)
            if bulk:
                room = self._removal.count_lost(bulk)
                pods = sum(len(unit.pods) for unit in bulk)
                bulks.append(((not self._losses.is_critical(gang), room, -pods, gang), bulk))
        order = sorted(bulks, key=lambda entry: entry[0])
        self._put_back(bulk for _, bulk in order)

    def keep_rest(self) -> None:
        """Let everything else come back that can."""
        self._put_back([unit] for unit in list(self.gone) if unit not in self._doomed)

    def _pick_violating(self, counted: Iterable[Unit]) -> list[Unit]:
        picked = []
        for unit in counted:
            if unit in self.gone and unit not in self._doomed and self._losses.violates(unit):
                self._losses.remove(unit)
                picked.append(unit)
        for unit in picked:
            self._losses.add(unit)
        return picked

    def _pick_missing(self, gang: GroupKey, units: Sequence[Unit]) -> Bulk:
        """As many of a gang's units as it needs to stand; none if it stands, or if these are not enough."""
        short = self._losses.shortage(gang)
        bulk = []
        for unit in units:
            if short <= 0:
                break
            bulk.append(unit)
            short -= len(unit.pods)
        return bulk if short <= 0 else []

    def _put_back(self, bulks: Iterable[Bulk]) -> None:
        bulks = list(bulks)
        stay = {id(bulk) for bulk in self._removal.put_back(bulks)}
        for bulk in bulks:
            if id(bulk) not in stay:
                for unit in bulk:
                    del self.gone[unit]
                    self._losses.remove(unit)
            elif len(bulk) == 1:
                self._doomed.add(bulk[0])


def _put_in_order(removal: SlotRemoval, units: Sequence[Unit], below: Counter[str], newest: int) -> list[Unit]:
    """Units in the order in which they may come back: those first that take fewest slots for each pod.

    ``below`` has the number of pods of this priority and lower ones by node, and then of lower ones only.
    """
    alone: dict[str, list[Unit]] = {}
    joined: list[Unit] = []
    sizes: dict[int, float] = {}
    for unit in units:
        below.subtract([pod.node for pod in unit.pods])
        shape = unit.pods[0].shape  # shared by many
        if id(shape) not in sizes:
            sizes[id(shape)] = measure(shape, removal.request)
        if len(unit.pods) == 1:
            alone.setdefault(unit.pods[0].node, []).append(unit)
        else:
            joined.append(unit)
    turns: dict[Unit, _Turn] = {}
    for unit in joined:
        room = removal.count_lost([unit])
        lower = -sum(below[pod.node] for pod in unit.pods)
        turns[unit] = _Turn(room / len(unit.pods), lower, -age(unit, newest), unit.pods[0].uid, 0)
    for node, here in alone.items():
        here.sort(key=lambda unit: (sizes[id(unit.pods[0].shape)], -age(unit, newest), unit.pods[0].uid))
        lost = removal.count_each_lost(here)
        turns.update(_take_turns(here, lost, node, below[node], newest))
    return sorted(units, key=turns.__getitem__)


def _take_turns(
    units: Sequence[Unit], lost: Sequence[int], node: str, below: int, newest: int
) -> Iterator[tuple[Unit, _Turn]]:
    """The turns of one node's units, of which each takes so many slots."""
    places = count()  # of the node: by those of each bunch, bunches worth the same would come back as units are listed
    for room, bunch in _bunch(units, lost):
        old = -sum(age(unit, newest) for unit in bunch) / len(bunch)
        for unit in bunch:
            yield unit, _Turn(room / len(bunch), -below, old, node, next(places))


def _bunch(units: Sequence[Unit], lost: Sequence[int]) -> Iterator[tuple[int, list[Unit]]]:
    """Units of one node in bunches, each with the slots that it takes; later ones take more for each unit.

    The units that come back after a slot has been lost, and take no other, come for the price of that one.
    """
    bunches: list[tuple[int, list[Unit]]] = []
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


def measure(shape: Shape, request: Resources) -> float:
    """How large a pod is, in members of the gang: by what it has most of that they ask for."""
    amounts = dict(shape.requests)
    return max((amounts.get(name, 0) / amount for name, amount in request.items() if amount > 0), default=0.0)
