"""The planner's part of the rules about other pods: affinity, anti-affinity and topology spread (`InterPodPlanRule`).

The rules are those of kube-scheduler 1.37, which places one pod after another (interpodaffinity/filtering.go:
satisfyPodAffinity, satisfyPodAntiAffinity, satisfyExistingPodsAntiAffinity; podtopologyspread/filtering.go: Filter).
The pods on a node are known by their amounts in its usage (`serried.api.interpod`). So a plan that removes pods from
the usage removes their effect on rules as well.

What does not depend on members becomes a set of closed nodes per class. Only if members affect each other their order
matters, and they are placed one at a time (`serried.plan.coupled`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from serried.api.interpod import ABSENT, APART, COUNTS, UNSEEN, Beside, InterPodRules, Spread, read_apart
from serried.api.node import Node
from serried.api.resources import Resources
from serried.plan.capacity import MemberClass
from serried.plan.fit import Hurdle, HurdleKind, admits_labels, tolerates
from serried.plan.request import Snapshot
from serried.plan.rule import PlanRule, PlanRuleType

_NOTHING: Resources = {}
_NO_RULES = InterPodRules()


class Count:
    """The number of pods with an amount in each domain of a key."""

    def __init__(self, amount: str, key: str) -> None:
        self.amount = amount
        self.key = key
        self.by_domain: dict[str, int] = {}
        self.total = 0

    def add(self, node: Node, pods: int) -> None:
        """Add pods on a node. A negative number removes them."""
        domain = node.labels.get(self.key)
        if pods and domain is not None:
            self.by_domain[domain] = self.by_domain.get(domain, 0) + pods
            self.total += pods


class SpreadCount:
    """The number of pods in each domain for one constraint of one class.

    Only nodes that the constraint considers are counted, but also domains without pods.
    """

    def __init__(self, rule: Spread, kind: MemberClass) -> None:
        self.amount = rule.matching.amount
        self.key = rule.key
        self.rule = rule
        self.by_domain: dict[str, int] = {}
        self._shape = kind.shape
        self._keys = tuple([each.key for each in (kind.shape.neighbours or _NO_RULES).spread])
        self._is_choosy = rule.by_affinity and bool(kind.shape.node_selector or kind.shape.node_terms is not None)
        self._domains: Counter[int] = Counter()
        """The number of domains for each number of pods."""

        self._least = 0

    def add(self, node: Node, pods: int) -> None:
        """Add pods on a node, if the constraint considers it. A negative number removes them."""
        if not self._has(node):
            return
        domain = node.labels[self.key]
        before = self.by_domain.get(domain)
        if before is not None:
            self._domains[before] -= 1
        now = self.by_domain[domain] = (before or 0) + pods
        self._domains[now] += 1
        self._least = min(self._least, now)

    def find_least(self) -> int:
        """Return the number of pods in the domain with the fewest; 0 if there are less than ``minDomains``."""
        if len(self.by_domain) < self.rule.min_domains or not self.by_domain:
            return 0
        while not self._domains[self._least]:
            self._least += 1
        return self._least

    def _has(self, node: Node) -> bool:
        labels = node.labels
        for key in self._keys:
            if key not in labels:
                return False
        if self._is_choosy and not admits_labels(self._shape, node):
            return False
        return not self.rule.by_taints or tolerates(self._shape.tolerations, node.taints)


@dataclass(slots=True, eq=False)
class _Rules:
    """The rules of one class, with their counts."""

    excluding: list[Count] = field(default_factory=list)
    """The anti-affinity: no domain of these may have pods."""

    beside: Beside | None = None
    near: list[Count] = field(default_factory=list)
    """The affinity: each domain of these must have pods."""

    itself: bool = False
    """True if a member meets its own affinity when no other pod does."""

    leads: bool = False
    """True if a member may be the first in that case."""

    spread: list[SpreadCount] = field(default_factory=list)


_Place = tuple[SpreadCount, str]
"""A constraint, and a domain of it with members."""


@dataclass(slots=True, eq=False)
class _Wave:
    """The members of a class that were placed in this wave."""

    node: Node
    """The node of one of them."""

    places: set[_Place] = field(default_factory=set)


class InterPodPlanRule(PlanRule):
    """The rules of a gang's classes in one plan."""

    def __init__(self, snapshot: Snapshot, classes: Sequence[MemberClass]) -> None:
        self._snapshot = snapshot
        self._classes = classes
        self._counts: dict[tuple[str, str, bool], Count] = {}
        """The counts by amount and key, and by whether slots reserved for replacements are included."""

        self._rules: dict[MemberClass, _Rules] = {}
        self.closed: dict[MemberClass, frozenset[str]] = {}
        """The nodes that a class may not use, independent of other members."""

        self.couples = False
        """True if members affect each other."""

        self._near_at_begin: dict[Count, tuple[int, dict[str, int]]] = {}
        self._least_at_begin: dict[SpreadCount, int] = {}
        self._wave: dict[MemberClass, _Wave] = {}

    # --- the cluster as it is --------------------------------------------------------------------------------------

    def count(self) -> None:
        """Count the pods of the snapshot, and find the closed nodes."""
        apart = self._find_apart()
        for kind in self._classes:
            self._rules[kind] = self._read_rules(kind, apart)
        counts: list[tuple[Count | SpreadCount, str]] = [(each, each.amount) for each in self._counts.values()]
        counts += [(each, ABSENT + amount) for (amount, _, absent), each in self._counts.items() if absent]
        counts += [(each, each.amount) for rules in self._rules.values() for each in rules.spread]
        for name, node in self._snapshot.nodes.items():
            self._snapshot.limit.spend(len(counts))
            used = self._snapshot.used.get(name, _NOTHING)
            for count, counted in counts:
                count.add(node, used.get(counted, 0))
        for kind in self._classes:
            self._close(kind)
        self.couples = any(self._is_open(kind, rules) for kind, rules in self._rules.items())

    def _find_apart(self) -> dict[str, list[tuple[str, str]]]:
        """Return the anti-affinity amounts of running pods and members, with their keys, by the amount they exclude."""
        wanted = {name.removeprefix(COUNTS) for kind in self._classes for name in kind.request if _counts(name)}
        found: dict[str, list[tuple[str, str]]] = {}
        if not wanted:
            return found
        seen: set[str] = set()
        for kind in self._classes:
            seen.update(kind.request)
        for used in self._snapshot.used.values():
            self._snapshot.limit.spend()
            seen.update(used)
        for name in sorted(seen):
            if name.startswith(APART):
                key, matching = read_apart(name)
                if matching in wanted:
                    found.setdefault(COUNTS + matching, []).append((name, key))
        return found

    def _read_rules(self, kind: MemberClass, apart: Mapping[str, list[tuple[str, str]]]) -> _Rules:
        rules, own = _Rules(), kind.shape.neighbours
        for name in kind.request:
            for amount, key in apart.get(name, ()):
                rules.excluding.append(self._count(amount, key))
        if own is not None:
            unseen = UNSEEN in kind.request
            seen = [each for each in own.apart if not (unseen and each.matching.by_namespace_labels)]
            rules.excluding += [self._count(each.matching.amount, each.key) for each in seen]
            rules.spread = [SpreadCount(each, kind) for each in own.spread]
            if own.beside is not None and not (unseen and own.beside.matching.by_namespace_labels):
                amount = own.beside.matching.amount
                rules.near = [self._count(amount, key, absent=False) for key in own.beside.keys]
                rules.itself = amount in kind.request
                rules.leads = rules.itself and not own.beside.follows
        return rules

    def _count(self, amount: str, key: str, *, absent: bool = True) -> Count:
        found = self._counts.get((amount, key, absent))
        if found is None:
            found = self._counts[amount, key, absent] = Count(amount, key)
        return found

    def _close(self, kind: MemberClass) -> None:
        """Find the nodes that are closed to a class, wherever other members are placed."""
        rules = self._rules[kind]
        if not (rules.excluding or rules.near or rules.spread):
            self.closed[kind] = frozenset()
            return
        near = bool(rules.near) and not self._contributes(rules.near[0].amount)
        spread = [each for each in rules.spread if not each.rule.itself and not self._contributes(each.amount)]
        closed = []
        for name, node in self._snapshot.nodes.items():
            self._snapshot.limit.spend()
            if not self._may_be_feasible(rules, node, spread, near=near):
                closed.append(name)
        self.closed[kind] = frozenset(closed)

    def _may_be_feasible(self, rules: _Rules, node: Node, spread: Iterable[SpreadCount], *, near: bool) -> bool:
        labels = node.labels
        for count in rules.near:
            if count.key not in labels:
                return False
        for each in rules.spread:
            if each.key not in labels:
                return False
        if _is_excluded(rules, node) or (near and not _is_near(rules, node)):
            return False
        return not spread or all(_keeps_skew(each, node) for each in spread)

    def _contributes(self, amount: str) -> bool:
        """Return whether a member of the gang has this amount."""
        return any(amount in kind.request for kind in self._classes)

    def _is_open(self, kind: MemberClass, rules: _Rules) -> bool:
        """Return whether the placement of members affects a class."""
        moving = {*(each.amount for each in rules.near), *(each.amount for each in rules.spread)}
        if any(map(self._contributes, moving)) or any(each.rule.itself for each in rules.spread):
            return True
        return any(self._decides(kind, each) for each in rules.excluding)

    def _decides(self, kind: MemberClass, count: Count) -> bool:
        """Return whether members exclude a class beyond the node by an amount that they have in common."""
        name = count.amount.removeprefix(COUNTS)
        alike = APART + (read_apart(name)[1] if name.startswith(APART) else name)
        shared = alike in kind.request and count.key == read_apart(alike)[0]
        return any(count.amount in each.request and not (shared and alike in each.request) for each in self._classes)

    # --- members that are placed ----------------------------------------------------------------------------------

    def list_keys(self) -> list[str]:
        """Return the label keys by which members affect each other."""
        keys: dict[str, None] = {}
        for kind, rules in self._rules.items():
            off = [each for each in rules.excluding if self._decides(kind, each)]
            keys.update(dict.fromkeys(each.key for each in (*off, *rules.near)))
            keys.update(dict.fromkeys(each.key for each in rules.spread))
        return list(keys)

    def admits(self, kind: MemberClass, name: str) -> bool:
        """Return whether kube-scheduler would accept this node for the next member. Closed nodes are not checked."""
        rules, node = self._rules[kind], self._snapshot.nodes[name]
        if _is_excluded(rules, node):
            return False
        if rules.near and not _is_near(rules, node):
            return False
        return all(_keeps_skew(each, node) for each in rules.spread)

    def begin_wave(self) -> None:
        """Begin a wave: members may be tried in any order from now on."""
        rules = self._rules.values()
        self._near_at_begin = {count: (count.total, dict(count.by_domain)) for each in rules for count in each.near}
        self._least_at_begin = {count: count.find_least() for each in rules for count in each.spread}
        self._wave = {}

    def fits_wave(self, kind: MemberClass, name: str) -> bool:
        """Return whether one more member may join the wave, in whatever order its members are tried.

        Anti-affinity between members holds in any order.
        """
        if not self._wave:
            return True
        rules, node = self._rules[kind], self._snapshot.nodes[name]
        self.place(kind, name)
        fits = self._meets_affinity_in_any_order(rules, node) and all(
            map(self._keeps_skew_in_any_order, _list_places(rules, node))
        )
        fits = fits and self._leaves_others_feasible(kind, node)
        self.place(kind, name, -1)
        return fits

    def join_wave(self, kind: MemberClass, name: str) -> None:
        """Add a member of the wave to a node."""
        self.place(kind, name)
        rules, node = self._rules[kind], self._snapshot.nodes[name]
        self._wave.setdefault(kind, _Wave(node)).places.update(_list_places(rules, node))

    def _meets_affinity_in_any_order(self, rules: _Rules, node: Node) -> bool:
        """Return whether a placed member meets its affinity before and after any others of its wave."""
        domains = [(count, node.labels[count.key]) for count in rules.near]
        if all(self._near_at_begin[count][1].get(domain, 0) > 0 for count, domain in domains):
            return True
        if not rules.itself or any(self._near_at_begin[count][0] for count in rules.near):
            return False
        # Any member may be the first if all matching members of the wave are in the same domains.
        here = {count.by_domain.get(domain, 0) for count, domain in domains}
        return len(here | {count.total for count in rules.near}) == 1

    def _keeps_skew_in_any_order(self, place: _Place) -> bool:
        """Return whether the constraint holds for a member that is last in its domain, before members elsewhere."""
        count, domain = place
        return count.by_domain.get(domain, 0) - self._least_at_begin[count] <= count.rule.max_skew

    def _leaves_others_feasible(self, kind: MemberClass, node: Node) -> bool:
        """Return whether the other members of the wave are still feasible if this one is placed first."""
        for other, wave in self._wave.items():
            rules = self._rules[other]
            if (
                rules.near
                and rules.near[0].amount in kind.request
                and not self._meets_affinity_in_any_order(rules, wave.node)
            ):
                return False
            for count in rules.spread:
                if count.amount in kind.request:
                    place = count, node.labels.get(count.key, "")
                    if place in wave.places and not self._keeps_skew_in_any_order(place):
                        return False
        return True

    def place(self, kind: MemberClass, name: str, pods: int = 1) -> None:
        """Add members of a class to a node. A negative number removes them."""
        self.add_pods(kind.request, name, pods)

    def add_pods(self, amounts: Resources, name: str, pods: int) -> None:
        """Add pods with these amounts to a node, members or not. A negative number removes them."""
        node = self._snapshot.nodes[name]
        for count in self._counts.values():
            if count.amount in amounts:
                count.add(node, pods)
        for rules in self._rules.values():
            for each in rules.spread:
                if each.amount in amounts:
                    each.add(node, pods)

    def find_hurdle(self, kind: MemberClass, name: str) -> Hurdle | None:
        """Return the rule that excludes the next member of a class from a node; None if there is none.

        A member that follows another one is excluded by what excludes that one, so its own affinity is not a reason.
        """
        rules, own, node = self._rules[kind], kind.shape.neighbours, self._snapshot.nodes[name]
        beside = own.beside if own is not None and rules.near else None
        if beside is not None and not beside.follows and not _is_near(rules, node):
            return Hurdle(HurdleKind.BESIDE, str(beside.matching))
        for count in rules.excluding:
            if count.by_domain.get(node.labels.get(count.key, ""), 0) > 0:
                return Hurdle(HurdleKind.APART, self._describe_excluded(count))
        crowded = next((each for each in rules.spread if not _keeps_skew(each, node)), None)
        return Hurdle(HurdleKind.SPREAD, str(crowded.rule.matching)) if crowded is not None else None

    def _describe_excluded(self, count: Count) -> str:
        """Return the pods that an anti-affinity rule is about, for messages."""
        rules = (each for kind in self._classes if kind.shape.neighbours for each in kind.shape.neighbours.apart)
        found = next((str(each.matching) for each in rules if each.matching.amount == count.amount), "")
        return found or "of the pods there"

    def describe(self) -> str:
        """Return the rules of the gang with the number of nodes that each closes now; "" without rules."""
        said: dict[str, None] = {}
        for kind in self._classes:
            hurdles: Counter[Hurdle] = Counter()
            for name in self._snapshot.nodes:
                self._snapshot.limit.spend()
                hurdle = self.find_hurdle(kind, name)
                hurdles.update(() if hurdle is None else (hurdle,))
            said.update((f"{each} keeps members off {count} nodes", None) for each, count in sorted(hurdles.items()))
            said.update((rule, None) for rule in _describe_own(kind))
        return ", ".join(said)

    def crowding(self, kind: MemberClass, name: str) -> int:
        """Return the number of pods in a node's domains of the spread constraints; the lowest is tried first."""
        labels = self._snapshot.nodes[name].labels
        return sum(each.by_domain.get(labels.get(each.key, ""), 0) for each in self._rules[kind].spread)

    def find_first_key(self, kind: MemberClass) -> str | None:
        """Return the key of the domain that the first member fixes for its class; None if it is not free to choose."""
        rules = self._rules[kind]
        free = rules.leads and not any(count.total for count in rules.near)
        return rules.near[0].key if free and rules.near else None


def _list_places(rules: _Rules, node: Node) -> set[_Place]:
    return {(count, node.labels[count.key]) for count in rules.spread}


def concerns(classes: Iterable[MemberClass]) -> bool:
    """Return whether rules about other pods may concern any of the classes."""
    return any(kind.shape.neighbours is not None or any(map(_counts, kind.request)) for kind in classes)


def decides(amount: str, classes: Iterable[MemberClass]) -> bool:
    """Return whether a pod with this amount affects a rule of any of the classes, or excludes one."""
    if amount.startswith(APART):
        counted = COUNTS + read_apart(amount)[1]
        return any(counted in kind.request for kind in classes)
    return any(rule.amount == amount for kind in classes for rule in (kind.shape.neighbours or _NO_RULES).matchings)


INTERPOD = PlanRuleType("neighbours", (COUNTS,), concerns, InterPodPlanRule, decides)


def _describe_own(kind: MemberClass) -> Iterator[str]:
    """Yield phrases about rules between members of a class."""
    own = kind.shape.neighbours or _NO_RULES
    for apart in own.apart:
        if apart.matching.amount in kind.request:
            yield f"{HurdleKind.APART} {apart.matching} leaves room for one in each {apart.key}"
    for rule in own.spread:
        yield f"{HurdleKind.SPREAD} {rule.matching} by {rule.key} with maxSkew {rule.max_skew}"


def _counts(name: str) -> bool:
    return name.startswith(COUNTS)


def _is_excluded(rules: _Rules, node: Node) -> bool:
    for count in rules.excluding:
        domain = node.labels.get(count.key)
        if domain is not None and count.by_domain.get(domain, 0) > 0:
            return True
    return False


def _is_near(rules: _Rules, node: Node) -> bool:
    labels, there = node.labels, True
    for count in rules.near:
        domain = labels.get(count.key)
        if domain is None:
            return False
        there = there and count.by_domain.get(domain, 0) > 0
    return there or (rules.leads and not any(count.total for count in rules.near))


def _keeps_skew(count: SpreadCount, node: Node) -> bool:
    domain = node.labels.get(count.key)
    if domain is None:
        return False
    return count.by_domain.get(domain, 0) + count.rule.itself - count.find_least() <= count.rule.max_skew
