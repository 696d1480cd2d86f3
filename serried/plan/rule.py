"""The interface between the planner and the rules of `serried.rules` (`PlanRule`).

A rule restricts nodes beyond free resources, labels and taints, for instance by anti-affinity between pods. The planner
only knows rules by this interface. Members of equal shape form a class (`MemberClass`, the parameter ``kind``). For
each gang the planner creates the rules that may concern it, and reports each placed member to them:

    PlanRuleType.may_concern(classes)                 False: the rule is not created for this gang
          │ True
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
    """One rule, such as anti-affinity, during one plan. It knows the members that the plan has placed so far.

    `GangRules` creates it by `PlanRuleType.make` and calls it. A member is given by its class ``kind`` (members of
    equal shape), its node by name.
    """

    closed: dict[MemberClass, frozenset[str]]
    """The names of the nodes that a class of equal members may not use, wherever other members are. Set by `count`."""

    couples: bool
    """True if where one member is placed affects where other members may be placed. Set by `count`."""

    @abstractmethod
    def count(self) -> None:
        """Read the running pods and nodes of the snapshot. Must be called before any other method."""

    @abstractmethod
    def list_keys(self) -> list[str]:
        """Return the label keys that decide how members affect each other, e.g. the topology keys of anti-affinity.

        Nodes with equal values for all these keys are interchangeable for the rule.
        """

    @abstractmethod
    def admits(self, kind: MemberClass, name: str) -> bool:
        """Return whether one more of the equal members ``kind`` may be placed on a node besides those placed so far.

        The caller must have checked ``closed``, the nodes that the members may not use wherever other members are.
        """

    @abstractmethod
    def place(self, kind: MemberClass, name: str, pods: int = 1) -> None:
        """Record that ``pods`` of the equal members ``kind`` are placed on a node.

        A negative number undoes that, in reverse order only.
        """

    @abstractmethod
    def find_hurdle(self, kind: MemberClass, name: str) -> Hurdle | None:
        """Return why one more of the equal members ``kind`` may not be placed on a node; None if it may."""

    @abstractmethod
    def describe(self) -> str:
        """Return a phrase for messages to users about the nodes that the rule excludes; "" if it excludes none."""

    def add_pods(self, amounts: Resources, name: str, pods: int) -> None:  # noqa: B027 - most rules do not count other pods
        """Record that ``pods`` pods outside of the gang are added to a node. A negative number removes them.

        ``amounts`` are the requests of each such pod. Among them are pseudo resources, e.g. one for each affinity term
        that the pod matches; by them the rule recognizes the pods that it counts.
        """

    def crowding(self, kind: MemberClass, name: str) -> int:  # noqa: ARG002 - most rules prefer no node
        """Return how many pods in the node's domains are counted by the topology spread constraints of ``kind``.

        The members ``kind`` have equal shapes. Nodes with the lowest number are tried first. It is 0 for rules other
        than topology spread.
        """
        return 0

    def find_first_key(self, kind: MemberClass) -> str | None:  # noqa: ARG002 - most rules leave no choice
        """Return the topology key by which the first of the equal members ``kind`` fixes the domain for all of them.

        That is so for members with affinity to each other, while no matching pod runs. Return None if there is no such
        key.
        """
        return None

    # --- waves: members that kube-scheduler may try in any order (docs/contributing/scheduling.md) ------------------

    def begin_wave(self) -> None:  # noqa: B027 - most rules have no state for it
        """Begin a wave: members that kube-scheduler may try in any order when all members placed so far are assumed."""

    def fits_wave(self, kind: MemberClass, name: str) -> bool:
        """Return whether one more of the equal members ``kind`` can join the wave on a node. The member is not placed.

        A wave has members that kube-scheduler may try in any order. So the member can join if all nodes of the wave's
        members are feasible in whatever order they are tried.
        """
        return self.admits(kind, name)

    def join_wave(self, kind: MemberClass, name: str) -> None:
        """Place one of the equal members ``kind`` on a node, as part of the wave that `begin_wave` began.

        A wave has members that kube-scheduler may try in any order.
        """
        self.place(kind, name)


@dataclass(frozen=True, slots=True)
class PlanRuleType:
    """A kind of rule that the planner knows, e.g. anti-affinity. `serried.rules.all` has one for each rule package.

    It creates a `PlanRule` for each plan that the rule may concern.
    """

    shape_field: str
    """The name of the field of `Shape` that is set for pods with such a rule, e.g. ``volumes``."""

    amount_prefixes: tuple[str, ...]
    """The prefixes of the names of pseudo resources that mark pods for the rule.

    The rule may concern a pod that requests one, even if the ``shape_field`` of its shape is empty.

    A pseudo resource is an entry in a pod's requests by which Serried counts pods, e.g. those that another pod's
    anti-affinity term matches.
    """

    concerns: Callable[[Collection[MemberClass]], bool]
    """Returns whether the rule concerns any of these members, which are grouped by shape.

    It is called only if a member has the ``shape_field`` or a request with one of the ``amount_prefixes``.
    """

    make: Callable[[Snapshot, Sequence[MemberClass]], PlanRule]
    """Creates the rule for one plan."""

    is_affected_by: Callable[[str, Iterable[MemberClass]], bool] = lambda _amount, _classes: False
    """Returns whether pods that request a resource of this name affect where the rule allows these members.

    The resource may be a pseudo resource: an entry in the requests of each pod that e.g. an affinity term matches, so
    that Serried can count these pods.
    """

    def may_concern(self, classes: Collection[MemberClass]) -> bool:
        """Return whether this kind of rule, e.g. anti-affinity, may concern any of these members, grouped by shape.

        If not, the plan does not need a rule of this kind.
        """
        if not any(getattr(kind.shape, self.shape_field) or self._has_amount(kind) for kind in classes):
            return False
        return self.concerns(classes)

    def _has_amount(self, kind: MemberClass) -> bool:
        return any(name.startswith(self.amount_prefixes) for name in kind.request)


def has_rules(snapshot: Snapshot, classes: Collection[MemberClass]) -> bool:
    """Return whether any rule, e.g. anti-affinity or topology spread, may concern these members, grouped by shape.

    If so, free resources alone do not decide where the members fit.
    """
    return any(each.may_concern(classes) for each in snapshot.rules)


def is_affected_by(snapshot: Snapshot, amount: str, classes: Iterable[MemberClass]) -> bool:
    """Return whether pods that request the resource ``amount`` affect where rules allow these members.

    The resource may be a pseudo resource: an entry in the requests of each pod that e.g. an affinity term matches, so
    that Serried can count these pods. ``classes`` are the members, grouped by shape.
    """
    return any(each.is_affected_by(amount, classes) for each in snapshot.rules)


def read_rules(snapshot: Snapshot, classes: Sequence[MemberClass]) -> "GangRules | None":
    """Create the rules that concern these members, which are grouped by shape. Return None if there are none.

    Such a rule restricts nodes e.g. by anti-affinity or topology spread. The rules are ready to use: the function has
    called `PlanRule.count` of each.
    """
    rules = [each.make(snapshot, classes) for each in snapshot.rules if each.may_concern(classes)]
    for rule in rules:
        rule.count()
    return GangRules(rules, snapshot.limit) if rules else None


class GangRules:
    """The rules that concern the members of one gang during one plan, used like one rule. There is at least one.

    A rule restricts nodes beyond free resources, e.g. by anti-affinity or topology spread.
    `read_rules` creates them for each plan.
    """

    def __init__(self, rules: Sequence[PlanRule], limit: Limit) -> None:
        self.limit = limit
        self._rules = rules

    def list_closed(self, kind: MemberClass) -> frozenset[str]:
        """Return the names of the nodes that any rule forbids to the equal members ``kind``, see `PlanRule.closed`."""
        return frozenset[str]().union(*(each.closed[kind] for each in self._rules))

    @property
    def couples(self) -> bool:
        """True if for any rule, where one member is placed affects where other members may be placed."""
        return any(each.couples for each in self._rules)

    def list_keys(self) -> list[str]:
        """Return the label keys of all rules, see `PlanRule.list_keys`.

        Nodes with equal values for all are interchangeable.
        """
        return list(dict.fromkeys(key for each in self._rules for key in each.list_keys()))

    def admits(self, kind: MemberClass, name: str) -> bool:
        """Return whether all rules allow one more of the equal members ``kind`` on a node besides those placed."""
        for each in self._rules:  # noqa: SIM110 - a generator would take a third longer, for each member and cell
            if not each.admits(kind, name):
                return False
        return True

    def place(self, kind: MemberClass, name: str, pods: int = 1) -> None:
        """Record in all rules that ``pods`` of the equal members ``kind`` are placed on a node.

        A negative number undoes that, in reverse order only.
        """
        for each in self._rules:
            each.place(kind, name, pods)

    def add_pods(self, amounts: Resources, name: str, pods: int) -> None:
        """Record in all rules that pods outside of the gang are added to a node, see `PlanRule.add_pods`."""
        for each in self._rules:
            each.add_pods(amounts, name, pods)

    def holds(self, moves: Sequence[tuple[MemberClass, str]]) -> bool:
        """Return whether the rules allow the members, each a class and node name, if they are placed in this order.

        Members placed before stay; those of ``moves`` are removed again.
        """
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
        """Return the members in an order in which the rules allow them on their nodes; None if no such order is found.

        ``moves`` has class and node name by member UID, the result the node name by member UID. Members that are not
        allowed yet are tried again after the other ones. Afterwards the members are removed again.
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
        """Begin a wave in all rules: members that kube-scheduler may try in any order, see `PlanRule.begin_wave`."""
        for each in self._rules:
            each.begin_wave()

    def join_wave(self, kind: MemberClass, name: str) -> bool:
        """Place one of the equal members ``kind`` on a node as a member of the wave, if all rules allow that.

        A wave has members that kube-scheduler may try in any order. Return whether the member was placed.
        """
        if not all(each.fits_wave(kind, name) for each in self._rules):
            return False
        for each in self._rules:
            each.join_wave(kind, name)
        return True

    def crowding(self, kind: MemberClass, name: str) -> int:
        """Return how many pods in the node's domains are counted by the topology spread constraints of ``kind``.

        It is the sum of `PlanRule.crowding` over all rules. The members ``kind`` have equal shapes; the node with the
        lowest number is tried first for them.
        """
        return sum(each.crowding(kind, name) for each in self._rules)

    def find_first_key(self, kind: MemberClass) -> str | None:
        """Return the topology key by which the first of the equal members ``kind`` fixes the domain for all of them.

        The key is that of the first rule that has one, see `PlanRule.find_first_key`; None if no rule has one.
        """
        return next((key for each in self._rules if (key := each.find_first_key(kind)) is not None), None)

    def find_hurdle(self, kind: MemberClass, name: str) -> Hurdle | None:
        """Return the first rule's reason why one more of the equal members ``kind`` may not be on a node.

        Return None if it may.
        """
        return next((found for each in self._rules if (found := each.find_hurdle(kind, name)) is not None), None)

    def describe(self) -> str:
        """Return the phrases of all rules about the nodes that they exclude, with commas; "" if they exclude none."""
        said = ""
        for each in self._rules:
            more = each.describe()
            said = f"{said}, {more}" if said and more else said or more
        return said
