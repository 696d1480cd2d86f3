"""The interface between the planner and the rules of `serried.rules` (`PlanRule`).

A rule restricts nodes beyond free resources, labels and taints. The planner only knows rules by this interface. For
each gang it creates the rules that may concern it, and reports each placed member to them:

    PlanRuleType.may_concern(classes)               none applies: the rule is not created for this gang
          │ one applies
    make(snapshot, classes) ── count() ──▶ closed     nodes on which no member of a class may be
                                           couples    members affect each other: they are placed one by one
          ┌──────────────────────────────────────────┐
          │ admits(kind, node)?  place(kind, node)   │  for each member; place(kind, node, -1) removes it again
          └──────────────────────────────────────────┘
    find_hurdle(kind, node), describe()                explanations for messages

kube-scheduler's Filter plugins work alike: PreFilter counts, AddPod and RemovePod follow simulated changes
(pkg/scheduler/framework/interface.go).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from serried.api.resources import Resources
from serried.plan.capacity import MemberClass
from serried.plan.fit import Hurdle
from serried.plan.limit import Limit
from serried.plan.request import Snapshot


class PlanRule(ABC):
    """One rule in one plan: its state includes the members that are placed so far."""

    closed: dict[MemberClass, frozenset[str]]
    """The names of the nodes that a class may not use, independent of other members. Set by `count`."""

    couples: bool
    """True if the placement of one member affects where others may go. Set by `count`."""

    @abstractmethod
    def count(self) -> None:
        """Read the snapshot. Must be called before any other method."""

    @abstractmethod
    def list_keys(self) -> list[str]:
        """Return the label keys by which members affect each other.

        Nodes with equal values for all are interchangeable.
        """

    @abstractmethod
    def admits(self, kind: MemberClass, name: str) -> bool:
        """Return whether the next member of a class may use a node that is not in ``closed``."""

    @abstractmethod
    def place(self, kind: MemberClass, name: str, pods: int = 1) -> None:
        """Add members of a class to a node. A negative number removes them, which must happen in reverse order."""

    @abstractmethod
    def find_hurdle(self, kind: MemberClass, name: str) -> Hurdle | None:
        """Return why the next member of a class may not use a node; None if it may."""

    @abstractmethod
    def describe(self) -> str:
        """Return a phrase for messages about the nodes that the rule excludes; "" if there are none."""

    def add_pods(self, amounts: Resources, name: str, pods: int) -> None:  # noqa: B027 - most rules do not count other pods
        """Add pods that are no members, with these amounts, to a node; a negative number removes them."""

    def crowding(self, kind: MemberClass, name: str) -> int:  # noqa: ARG002 - most rules prefer no node
        """Return how crowded a node is for a class. Nodes with lower values are tried first."""
        return 0

    def find_first_key(self, kind: MemberClass) -> str | None:  # noqa: ARG002 - most rules leave no choice
        """Return the topology key of which the first member of a class fixes the domain for all; None without one."""
        return None

    # --- waves: members that kube-scheduler may bring in any order (docs/contributing/scheduling.md) ------------------

    def begin_wave(self) -> None:  # noqa: B027 - most rules have no state for it
        """Begin a wave: later members may be tried in any order, after all members that are placed so far."""

    def fits_wave(self, kind: MemberClass, name: str) -> bool:
        """Return whether one more member may join the wave, in whatever order its members are tried. Places nothing."""
        return self.admits(kind, name)

    def join_wave(self, kind: MemberClass, name: str) -> None:
        """Add a member of the wave to a node."""
        self.place(kind, name)


@dataclass(frozen=True, slots=True)
class PlanRuleType:
    """The factory of one rule for the planner. `serried.rules.all` has one for each rule package."""

    shape_field: str
    """The name of the field of `Shape` that is not empty if a pod has such a rule."""

    amount_prefixes: tuple[str, ...]
    """The prefixes of amounts of pods that may be affected by such a rule of other pods."""

    concerns: Callable[[Collection[MemberClass]], bool]
    """Returns whether the rule concerns any of the classes. Only called if a class has the part or an amount."""

    make: Callable[[Snapshot, Sequence[MemberClass]], PlanRule]
    """Creates the rule for a plan."""

    is_affected_by: Callable[[str, Iterable[MemberClass]], bool] = lambda _amount, _classes: False
    """Returns whether a pod with this amount, on any node, affects the rule for any of the classes."""

    def may_concern(self, classes: Collection[MemberClass]) -> bool:
        """Return whether the rule may concern any of the classes. For most gangs the first check says no."""
        if not any(getattr(kind.shape, self.shape_field) or self._has_amount(kind) for kind in classes):
            return False
        return self.concerns(classes)

    def _has_amount(self, kind: MemberClass) -> bool:
        return any(name.startswith(self.amount_prefixes) for name in kind.request)


def has_rules(snapshot: Snapshot, classes: Collection[MemberClass]) -> bool:
    """Return whether any rule may concern these classes; if so, free resources alone do not decide where they fit."""
    return any(each.may_concern(classes) for each in snapshot.rules)


def is_affected_by(snapshot: Snapshot, amount: str, classes: Iterable[MemberClass]) -> bool:
    """Return whether a pod with this amount, on any node, affects a rule of these classes."""
    return any(each.is_affected_by(amount, classes) for each in snapshot.rules)


def read_rules(snapshot: Snapshot, classes: Sequence[MemberClass]) -> "GangRules | None":
    """Create and count the rules that concern these classes. Return None if there are none."""
    rules = [each.make(snapshot, classes) for each in snapshot.rules if each.may_concern(classes)]
    for rule in rules:
        rule.count()
    return GangRules(rules, snapshot.limit) if rules else None


class GangRules:
    """All rules that concern the members of one gang; at least one."""

    def __init__(self, rules: Sequence[PlanRule], limit: Limit) -> None:
        self.limit = limit
        self._rules = rules

    def list_closed(self, kind: MemberClass) -> frozenset[str]:
        """Return the nodes that any rule closes to a class, as `PlanRule.closed`."""
        return frozenset[str]().union(*(each.closed[kind] for each in self._rules))

    @property
    def couples(self) -> bool:
        """True if any rule couples members, as `PlanRule.couples`."""
        return any(each.couples for each in self._rules)

    def list_keys(self) -> list[str]:
        """Return the label keys of all rules, as `PlanRule.list_keys`."""
        return list(dict.fromkeys(key for each in self._rules for key in each.list_keys()))

    def admits(self, kind: MemberClass, name: str) -> bool:
        """Return whether all rules admit the next member, as `PlanRule.admits`."""
        for each in self._rules:  # noqa: SIM110 - a generator would take a third longer, for each member and cell
            if not each.admits(kind, name):
                return False
        return True

    def place(self, kind: MemberClass, name: str, pods: int = 1) -> None:
        """Add members to a node in all rules, as `PlanRule.place`."""
        for each in self._rules:
            each.place(kind, name, pods)

    def add_pods(self, amounts: Resources, name: str, pods: int) -> None:
        """Add pods that are no members in all rules, as `PlanRule.add_pods`."""
        for each in self._rules:
            each.add_pods(amounts, name, pods)

    def holds(self, moves: Sequence[tuple[MemberClass, str]]) -> bool:
        """Return whether members can be placed on these nodes in this order. Afterwards none of them is placed."""
        placed = 0
        for kind, name in moves:
            if not self.admits(kind, name):
                break
            self.place(kind, name)
            placed += 1
        for kind, name in reversed(moves[:placed]):
            self.place(kind, name, -1)
        return placed == len(moves)

    def find_order(self, moves: Mapping[str, tuple[MemberClass, str]]) -> dict[str, str] | None:
        """Return an order, as node name by member UID, in which members can be placed; None if none is found.

        ``moves`` has class and node by UID. Members that are not admitted are tried again after the others. Afterwards
        none of them is placed.
        """
        order: dict[str, str] = {}
        left, before = dict(moves), -1
        while left and len(order) > before:
            before = len(order)
            for uid, (kind, name) in list(left.items()):
                if self.admits(kind, name):
                    self.place(kind, name)
                    order[uid] = left.pop(uid)[1]
        for uid in reversed(order):
            self.place(*moves[uid], -1)
        return None if left else order

    def begin_wave(self) -> None:
        """Begin a wave in all rules, as `PlanRule.begin_wave`."""
        for each in self._rules:
            each.begin_wave()

    def join_wave(self, kind: MemberClass, name: str) -> bool:
        """Add a member to the wave if all rules allow it. Return whether it was added."""
        if not all(each.fits_wave(kind, name) for each in self._rules):
            return False
        for each in self._rules:
            each.join_wave(kind, name)
        return True

    def crowding(self, kind: MemberClass, name: str) -> int:
        """Return the sum over all rules, as `PlanRule.crowding`."""
        return sum(each.crowding(kind, name) for each in self._rules)

    def find_first_key(self, kind: MemberClass) -> str | None:
        """Return the first rule's key, as `PlanRule.find_first_key`; None if no rule has one."""
        return next((key for each in self._rules if (key := each.find_first_key(kind)) is not None), None)

    def find_hurdle(self, kind: MemberClass, name: str) -> Hurdle | None:
        """Return the first rule's hurdle, as `PlanRule.find_hurdle`; None if no rule has one."""
        return next((found for each in self._rules if (found := each.find_hurdle(kind, name)) is not None), None)

    def describe(self) -> str:
        """Return the phrases of all rules, as `PlanRule.describe`."""
        said = ""
        for each in self._rules:
            more = each.describe()
            said = f"{said}, {more}" if said and more else said or more
        return said
