"""The planner's side of a rule: what decides where a member may go beside amounts, labels and taints of its node.

Each rule is a room of its own in `serried.rules`; the planner knows them by this interface only. Those that may decide
about a gang are made for its plan, with the cluster as the plan sees it, and told of each member that is placed:

    PlanRuleType.part, .amounts, .concerns(classes)   none: the plan of this gang never enters the room
          │ yes
    make(snapshot, classes) ── count() ──▶ closed     nodes that are no use to a class, whoever else is placed
                                           couples    members decide about each other: they are placed one by one
          ┌──────────────────────────────────────────┐
          │ admits(kind, node)?  place(kind, node)   │  for each member; place(kind, node, -1) takes it off again
          └──────────────────────────────────────────┘
    find_hurdle(kind, node), describe()                which rule keeps members off, for people

So do kube-scheduler's Filter plugins: PreFilter counts, AddPod and RemovePod follow what is tried
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
    """One rule about the classes of one gang in one cluster, and the members of it that are placed by now."""

    closed: dict[MemberClass, frozenset[str]]
    """The names of the nodes that a class may not use, whoever else of the gang is placed. Known after ``count``."""

    couples: bool
    """Whether members decide about each other. Known after ``count``."""

    @abstractmethod
    def count(self) -> None:
        """Read the snapshot; before it nothing else may be asked."""

    @abstractmethod
    def list_keys(self) -> list[str]:
        """Return the label keys by which members decide about each other: nodes that agree in all are alike."""

    @abstractmethod
    def admits(self, kind: MemberClass, name: str) -> bool:
        """Return whether the next member of a class may go to a node that is not closed to it."""

    @abstractmethod
    def place(self, kind: MemberClass, name: str, pods: int = 1) -> None:
        """Count so many members of a class on a node; a negative number takes them off again, the last ones first."""

    @abstractmethod
    def find_hurdle(self, kind: MemberClass, name: str) -> Hurdle | None:
        """Return why the rule keeps the next member of a class off a node, None if it does not."""

    @abstractmethod
    def describe(self) -> str:
        """Return what the rule keeps members off, a phrase; "" if nothing."""

    def note(self, amounts: Resources, name: str, pods: int) -> None:  # noqa: B027 - most rules need not know
        """Count so many pods that are no members, with these amounts, on a node; a negative number takes them off."""

    def crowd(self, kind: MemberClass, name: str) -> int:  # noqa: ARG002 - most rules prefer no node
        """Return how crowded a node is for a class: of several, the emptiest are taken first."""
        return 0

    def find_first_key(self, kind: MemberClass) -> str | None:  # noqa: ARG002 - most rules leave no choice
        """Return the key of the domain that the first member of a class chooses for all, None if it may not choose."""
        return None

    # --- waves: members that kube-scheduler may bring in any order (docs/contributing/scheduling.md) ------------------

    def begin_wave(self) -> None:  # noqa: B027 - a rule may have nothing to remember
        """Begin a wave with what is placed by now: nobody knows in which order its members will come."""

    def fits_wave(self, kind: MemberClass, name: str) -> bool:
        """Return whether one more member may join the wave, whichever of its members come first; nobody is placed."""
        return self.admits(kind, name)

    def join_wave(self, kind: MemberClass, name: str) -> None:
        """Place one more member in the wave."""
        self.place(kind, name)


@dataclass(frozen=True, slots=True)
class PlanRuleType:
    """How the planner comes to the rules of one room. One value for each room, in `serried.rules.all`."""

    part: str
    """The field of `Shape` that is not empty if a pod has such a rule itself."""

    amounts: tuple[str, ...]
    """How the amounts begin by which a pod may meet such a rule of others."""

    concerns: Callable[[Collection[MemberClass]], bool]
    """Returns whether the rule may decide about any of these classes; asked only if one has the part or an amount."""

    make: Callable[[Snapshot, Sequence[MemberClass]], PlanRule]
    """Makes the rule for a plan."""

    is_about: Callable[[str, Iterable[MemberClass]], bool] = lambda _amount, _classes: False
    """Returns whether a pod with this amount, anywhere, decides about any of these classes."""

    def may_concern(self, classes: Collection[MemberClass]) -> bool:
        """Return whether the rule decides about any of these classes; most gangs are done with here."""
        if not any(getattr(kind.shape, self.part) or self._has_amount(kind) for kind in classes):
            return False
        return self.concerns(classes)

    def _has_amount(self, kind: MemberClass) -> bool:
        return any(name.startswith(self.amounts) for name in kind.request)


def has_rules(snapshot: Snapshot, classes: Collection[MemberClass]) -> bool:
    """Return whether any rule may decide about these classes, so that free amounts of a node say too little."""
    return any(each.may_concern(classes) for each in snapshot.rules)


def is_about(snapshot: Snapshot, amount: str, classes: Iterable[MemberClass]) -> bool:
    """Return whether a pod with this amount, anywhere, matters to a rule of these classes."""
    return any(each.is_about(amount, classes) for each in snapshot.rules)


def read_rules(snapshot: Snapshot, classes: Sequence[MemberClass]) -> "GangRules | None":
    """Return the rules that decide about these classes, None without any."""
    rules = [each.make(snapshot, classes) for each in snapshot.rules if each.may_concern(classes)]
    for rule in rules:
        rule.count()
    return GangRules(rules, snapshot.limit) if rules else None


class GangRules:
    """All rules that decide about the members of one gang; at least one."""

    def __init__(self, rules: Sequence[PlanRule], limit: Limit) -> None:
        self.limit = limit
        self._rules = rules

    def list_closed(self, kind: MemberClass) -> frozenset[str]:
        """As `PlanRule.closed`."""
        return frozenset[str]().union(*(each.closed[kind] for each in self._rules))

    @property
    def couples(self) -> bool:
        """As `PlanRule.couples`."""
        return any(each.couples for each in self._rules)

    def list_keys(self) -> list[str]:
        """As `PlanRule.list_keys`."""
        return list(dict.fromkeys(key for each in self._rules for key in each.list_keys()))

    def admits(self, kind: MemberClass, name: str) -> bool:
        """As `PlanRule.admits`."""
        for each in self._rules:  # noqa: SIM110 - asked for each member and cell: a generator costs a third more
            if not each.admits(kind, name):
                return False
        return True

    def place(self, kind: MemberClass, name: str, pods: int = 1) -> None:
        """As `PlanRule.place`."""
        for each in self._rules:
            each.place(kind, name, pods)

    def note(self, amounts: Resources, name: str, pods: int) -> None:
        """As `PlanRule.note`."""
        for each in self._rules:
            each.note(amounts, name, pods)

    def holds(self, moves: Sequence[tuple[MemberClass, str]]) -> bool:
        """Return whether members could come to these nodes one after the other; nobody is placed afterwards."""
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
        """Return members (UIDs) with their nodes in an order in which they could come; None if none is found.

        ``moves`` is the class and node of each. After each pass those that were kept off are tried again. Nobody is
        placed afterwards.
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
        """As `PlanRule.begin_wave`."""
        for each in self._rules:
            each.begin_wave()

    def join_wave(self, kind: MemberClass, name: str) -> bool:
        """Place one more member in the wave if every rule lets it; return whether it is placed."""
        if not all(each.fits_wave(kind, name) for each in self._rules):
            return False
        for each in self._rules:
            each.join_wave(kind, name)
        return True

    def crowd(self, kind: MemberClass, name: str) -> int:
        """As `PlanRule.crowd`, of all rules together."""
        return sum(each.crowd(kind, name) for each in self._rules)

    def find_first_key(self, kind: MemberClass) -> str | None:
        """As `PlanRule.find_first_key`, of the first rule that leaves a choice."""
        return next((key for each in self._rules if (key := each.find_first_key(kind)) is not None), None)

    def find_hurdle(self, kind: MemberClass, name: str) -> Hurdle | None:
        """As `PlanRule.find_hurdle`, of the first rule that has one."""
        return next((found for each in self._rules if (found := each.find_hurdle(kind, name)) is not None), None)

    def describe(self) -> str:
        """As `PlanRule.describe`, of all rules."""
        said = ""
        for each in self._rules:
            more = each.describe()
            said = f"{said}, {more}" if said and more else said or more
        return said
