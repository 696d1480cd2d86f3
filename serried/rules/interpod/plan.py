"""The planner's part of the rules about other pods: affinity, anti-affinity and topology spread (`InterPodPlanRule`).

`serried.plan.rule` creates an `InterPodPlanRule` for each plan that the rules may concern, and `serried.plan.coupled`
asks it for each node and member.

The rules are those of kube-scheduler 1.37, which places one pod after another (interpodaffinity/filtering.go:
satisfyPodAffinity, satisfyPodAntiAffinity, satisfyExistingPodsAntiAffinity; podtopologyspread/filtering.go: Filter).
The pods on a node are known by pseudo resources: requests that Serried adds to its own copies of pods, so that rules
count like resources (`serried.api.interpod`). A pod that a rule selects requests 1 of the rule's pseudo resource, so
the sum of these requests on a node is the number of selected pods there. A plan that removes a pod from a node's usage
removes its effect on rules as well.

For each class (members of equal shape) the nodes are computed that the rules exclude wherever other members are placed.
Only if members affect each other their order matters, and they are placed one at a time.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from serried.api.interpod import (
    ABSENT,
    APART,
    COUNTS,
    NAMESPACES_UNREADABLE,
    AffinityRule,
    InterPodRules,
    Spread,
    read_apart,
)
from serried.api.node import Node
from serried.api.resources import Resources
from serried.plan.capacity import MemberClass
from serried.plan.fit import Hurdle, HurdleKind, admits_labels, tolerates
from serried.plan.request import Snapshot
from serried.plan.rule import PlanRule, PlanRuleType

_NOTHING: Resources = {}
_NO_RULES = InterPodRules()


class Count:
    """The number of pods that a rule selects, or that have an anti-affinity term, in each domain of a topology key.

    ``key`` is the topology key. ``amount`` is the name of a pseudo resource: a request that Serried adds to its own
    copy of each such pod, so that these pods are counted like a resource.
    """

    def __init__(self, amount: str, key: str) -> None:
        self.amount = amount
        self.key = key
        self.by_domain: dict[str, int] = {}
        self.total = 0

    def add(self, node: Node, pods: int) -> None:
        """Count ``pods`` more selected pods on a node. A negative number removes them."""
        domain = node.labels.get(self.key)
        if pods and domain is not None:
            self.by_domain[domain] = self.by_domain.get(domain, 0) + pods
            self.total += pods


class SpreadCount:
    """The number of pods in each domain for one topology spread constraint of members with equal shape.

    Pods on nodes that the constraint ignores are not counted, for example by nodeTaintsPolicy. A domain without pods
    counts as well, with 0.
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
        """Count ``pods`` more selected pods on a node, unless the constraint ignores it.

        A negative number removes them.
        """
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
        """Return the number of pods in the domain with the fewest; 0 if there are fewer domains than minDomains."""
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
    """The rules about other pods that apply to one class (members of equal shape), with the pods counted so far."""

    anti_affinity: list[Count] = field(default_factory=list)
    """Pods that exclude members of the class: a member fits only in domains in which each of these counts is 0.

    They are the pods that the anti-affinity of the class selects, and the pods whose own anti-affinity selects the
    class.
    """

    beside: AffinityRule | None = None
    affinity: list[Count] = field(default_factory=list)
    """The pods that the affinity of the class selects, counted for each of its topology keys.

    A member fits only in domains in which each of these counts is at least 1.
    """

    matches_itself: bool = False
    """True if the affinity selects members of the class themselves."""

    may_be_first: bool = False
    """True if a member may be on any node while the affinity selects no pod in the cluster, as in kube-scheduler."""

    spread: list[SpreadCount] = field(default_factory=list)


_Place = tuple[SpreadCount, str]
"""A topology spread constraint, and one of its domains."""


@dataclass(slots=True, eq=False)
class _Wave:
    """The members of one class (equal shape) in the current wave: members that kube-scheduler may try in any order."""

    node: Node
    """The node of one of these members."""

    places: set[_Place] = field(default_factory=set)
    """The domains in which these members are, for each topology spread constraint that they have."""


class InterPodPlanRule(PlanRule):
    """The rules about other pods in one plan of a gang. An instance knows the members placed so far.

    ``classes`` are the gang's members, grouped by equal shape.
    """

    def __init__(self, snapshot: Snapshot, classes: Sequence[MemberClass]) -> None:
        self._snapshot = snapshot
        self._classes = classes
        self._counts: dict[tuple[str, str, bool], Count] = {}
        """The counts by pseudo resource of the selected pods, topology key, and True if kept slots count.

        Such a slot is kept for a replacement: anti-affinity counts it like a pod, affinity does not.
        """

        self._rules: dict[MemberClass, _Rules] = {}
        self.closed: dict[MemberClass, frozenset[str]] = {}
        """The nodes that no member of a class (equal members) may use, wherever other members are placed."""

        self.couples = False
        """True if the placement of one member affects where other members may be placed."""

        self._near_at_begin: dict[Count, tuple[int, dict[str, int]]] = {}
        """The pods that affinity selects when the current wave began: their total, and their number by domain."""

        self._least_at_begin: dict[SpreadCount, int] = {}
        """The number of pods in the domain with the fewest, when the current wave began."""

        self._wave: dict[MemberClass, _Wave] = {}

    # --- the cluster as it is --------------------------------------------------------------------------------------

    def count(self) -> None:
        """Count the pods of the snapshot that each rule selects. Call it before other methods.

        It sets ``closed``, the nodes that members may not use wherever other members are placed, and ``couples``, which
        is True if members affect each other.
        """
        apart = self._find_anti_affinity()
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
            self._find_closed(kind)
        self.couples = any(self._depends_on_members(kind, rules) for kind, rules in self._rules.items())

    def _find_anti_affinity(self) -> dict[str, list[tuple[str, str]]]:
        """Return the anti-affinity terms of running pods and members that exclude members of this gang.

        Pods are known by pseudo resources: requests that Serried adds to each pod that a term selects, and another one
        to each pod that has the term. The key of the result is the name of the first, which the excluded members
        request. Its values are the name of the second and the term's topology key, for each such term.
        """
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
                rules.anti_affinity.append(self._count(amount, key))
        if own is not None:
            unseen = NAMESPACES_UNREADABLE in kind.request
            seen = [each for each in own.apart if not (unseen and each.matching.by_namespace_labels)]
            rules.anti_affinity += [self._count(each.matching.amount, each.key) for each in seen]
            rules.spread = [SpreadCount(each, kind) for each in own.spread]
            if own.beside is not None and not (unseen and own.beside.matching.by_namespace_labels):
                amount = own.beside.matching.amount
                rules.affinity = [self._count(amount, key, absent=False) for key in own.beside.keys]
                rules.matches_itself = amount in kind.request
                rules.may_be_first = rules.matches_itself and not own.beside.follows
        return rules

    def _count(self, amount: str, key: str, *, absent: bool = True) -> Count:
        found = self._counts.get((amount, key, absent))
        if found is None:
            found = self._counts[amount, key, absent] = Count(amount, key)
        return found

    def _find_closed(self, kind: MemberClass) -> None:
        """Set ``closed`` for equal members: the nodes that none of them may use, wherever other members are placed."""
        rules = self._rules[kind]
        if not (rules.anti_affinity or rules.affinity or rules.spread):
            self.closed[kind] = frozenset()
            return
        near = bool(rules.affinity) and not self._has_member_with(rules.affinity[0].amount)
        spread = [each for each in rules.spread if not each.rule.itself and not self._has_member_with(each.amount)]
        closed = []
        for name, node in self._snapshot.nodes.items():
            self._snapshot.limit.spend()
            if not self._may_be_feasible(rules, node, spread, near=near):
                closed.append(name)
        self.closed[kind] = frozenset(closed)

    def _may_be_feasible(self, rules: _Rules, node: Node, spread: Iterable[SpreadCount], *, near: bool) -> bool:
        labels = node.labels
        for count in rules.affinity:
            if count.key not in labels:
                return False
        for each in rules.spread:
            if each.key not in labels:
                return False
        if _is_excluded(rules, node) or (near and not _is_near(rules, node)):
            return False
        return not spread or all(_keeps_skew(each, node) for each in spread)

    def _has_member_with(self, amount: str) -> bool:
        """Return whether a rule selects at least one member of the gang.

        ``amount`` is the rule's pseudo resource: a request that Serried adds to each pod that the rule selects.
        """
        return any(amount in kind.request for kind in self._classes)

    def _depends_on_members(self, kind: MemberClass, rules: _Rules) -> bool:
        """Return whether the feasible nodes of the equal members ``kind`` depend on where other members are placed.

        ``rules`` are the rules of these members.
        """
        moving = {*(each.amount for each in rules.affinity), *(each.amount for each in rules.spread)}
        if any(map(self._has_member_with, moving)) or any(each.rule.itself for each in rules.spread):
            return True
        return any(self._is_excluded_by_members(kind, each) for each in rules.anti_affinity)

    def _is_excluded_by_members(self, kind: MemberClass, count: Count) -> bool:
        """Return whether anti-affinity excludes the equal members ``kind`` from the domains of other members.

        ``count`` is the count for the anti-affinity term. Members that have the same term by host name as ``kind`` do
        not matter here: to the requests of each, Serried adds all that a node has of a made-up resource. So the check
        of free resources allows only one of them per node already.
        """
        name = count.amount.removeprefix(COUNTS)
        alike = APART + (read_apart(name)[1] if name.startswith(APART) else name)
        shared = alike in kind.request and count.key == read_apart(alike)[0]
        return any(count.amount in each.request and not (shared and alike in each.request) for each in self._classes)

    # --- members that are placed ----------------------------------------------------------------------------------

    def list_keys(self) -> list[str]:
        """Return the label keys that decide how members affect each other, such as the topology keys of their rules."""
        keys: dict[str, None] = {}
        for kind, rules in self._rules.items():
            off = [each for each in rules.anti_affinity if self._is_excluded_by_members(kind, each)]
            keys.update(dict.fromkeys(each.key for each in (*off, *rules.affinity)))
            keys.update(dict.fromkeys(each.key for each in rules.spread))
        return list(keys)

    def admits(self, kind: MemberClass, name: str) -> bool:
        """Return whether one more of the equal members ``kind`` may be on a node, given the members placed so far.

        The node must not be in ``closed`` (excluded wherever other members are), which is not checked again.
        """
        rules, node = self._rules[kind], self._snapshot.nodes[name]
        if _is_excluded(rules, node):
            return False
        if rules.affinity and not _is_near(rules, node):
            return False
        return all(_keeps_skew(each, node) for each in rules.spread)

    def begin_wave(self) -> None:
        """Begin a wave: members that kube-scheduler may try in any order when all members placed so far are assumed.

        `join_wave` adds members to it.
        """
        rules = self._rules.values()
        self._near_at_begin = {count: (count.total, dict(count.by_domain)) for each in rules for count in each.affinity}
        self._least_at_begin = {count: count.find_least() for each in rules for count in each.spread}
        self._wave = {}

    def fits_wave(self, kind: MemberClass, name: str) -> bool:
        """Return whether one more of the equal members ``kind`` can join the wave on a node. The member is not placed.

        A wave has members that kube-scheduler may try in any order. So the member can join if all nodes of the wave's
        members are feasible in whatever order they are tried. Anti-affinity between members needs no check, because it
        holds in any order if it holds in one. Members must come in an order that the rules allow.
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
        """Place one of the equal members ``kind`` on a node, as part of the wave that `begin_wave` began."""
        self.place(kind, name)
        rules, node = self._rules[kind], self._snapshot.nodes[name]
        self._wave.setdefault(kind, _Wave(node)).places.update(_list_places(rules, node))

    def _meets_affinity_in_any_order(self, rules: _Rules, node: Node) -> bool:
        """Return whether a placed member on a node meets its affinity whichever members kube-scheduler tries before.

        The other members are those of the current wave, which kube-scheduler may try in any order. ``rules`` are the
        rules of the member.
        """
        domains = [(count, node.labels[count.key]) for count in rules.affinity]
        if all(self._near_at_begin[count][1].get(domain, 0) > 0 for count, domain in domains):
            return True
        if not rules.matches_itself or any(self._near_at_begin[count][0] for count in rules.affinity):
            return False
        # Any member may be the first if all matching members of the wave are in the same domains.
        here = {count.by_domain.get(domain, 0) for count, domain in domains}
        return len(here | {count.total for count in rules.affinity}) == 1

    def _keeps_skew_in_any_order(self, place: _Place) -> bool:
        """Return whether a topology spread constraint holds in a domain in any order of the wave's members.

        ``place`` is the constraint and the domain. In the worst order all members of the wave (which may be tried in
        any order) that are in this domain come before those in other domains.
        """
        count, domain = place
        return count.by_domain.get(domain, 0) - self._least_at_begin[count] <= count.rule.max_skew

    def _leaves_others_feasible(self, kind: MemberClass, node: Node) -> bool:
        """Return whether the nodes of the wave's members stay feasible if another member comes to ``node`` before them.

        The wave has members that kube-scheduler may try in any order. The other member is one of the equal members
        ``kind``.
        """
        for other, wave in self._wave.items():
            rules = self._rules[other]
            if (
                rules.affinity
                and rules.affinity[0].amount in kind.request
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
        """Record that ``pods`` of the equal members ``kind`` are placed on a node. A negative number removes them."""
        self.add_pods(kind.request, name, pods)

    def add_pods(self, amounts: Resources, name: str, pods: int) -> None:
        """Record that ``pods`` pods are placed on a node, members or not. A negative number removes them.

        ``amounts`` are the requests of each pod. They contain what Serried adds for each rule that selects the pod (1
        of the rule's pseudo resource), so they show which counts change.
        """
        node = self._snapshot.nodes[name]
        for count in self._counts.values():
            if count.amount in amounts:
                count.add(node, pods)
        for rules in self._rules.values():
            for each in rules.spread:
                if each.amount in amounts:
                    each.add(node, pods)

    def find_hurdle(self, kind: MemberClass, name: str) -> Hurdle | None:
        """Return the rule that excludes the next of the equal members ``kind`` from a node; None if none does.

        If members share a device claim, only the first of them counts as requesting its devices; the others have an
        affinity to the first, made by Serried (`AffinityRule.follows`). This affinity is never returned: it would only
        tell users that the first member is not placed on the node, but not why.
        """
        rules, own, node = self._rules[kind], kind.shape.neighbours, self._snapshot.nodes[name]
        beside = own.beside if own is not None and rules.affinity else None
        if beside is not None and not beside.follows and not _is_near(rules, node):
            return Hurdle(HurdleKind.BESIDE, str(beside.matching))
        for count in rules.anti_affinity:
            if count.by_domain.get(node.labels.get(count.key, ""), 0) > 0:
                return Hurdle(HurdleKind.APART, self._describe_excluded(count))
        crowded = next((each for each in rules.spread if not _keeps_skew(each, node)), None)
        return Hurdle(HurdleKind.SPREAD, str(crowded.rule.matching)) if crowded is not None else None

    def _describe_excluded(self, count: Count) -> str:
        """Return which pods keep members off a node by an anti-affinity term, as a phrase for messages.

        ``count`` counts pods for the term. If a member of the gang has the term, the phrase has the labels that the
        term selects. If other pods have it, the phrase is "of the pods there".
        """
        rules = (each for kind in self._classes if kind.shape.neighbours for each in kind.shape.neighbours.apart)
        found = next((str(each.matching) for each in rules if each.matching.amount == count.amount), "")
        return found or "of the pods there"

    def describe(self) -> str:
        """Return phrases for messages: how many nodes each rule of the gang excludes, and which rules part its members.

        The latter are anti-affinity between equal members, and topology spread. "" if there is nothing to say.
        """
        said: dict[str, None] = {}
        for kind in self._classes:
            hurdles: Counter[Hurdle] = Counter()
            for name in self._snapshot.nodes:
                self._snapshot.limit.spend()
                hurdle = self.find_hurdle(kind, name)
                hurdles.update(() if hurdle is None else (hurdle,))
            said.update((f"{each} excludes {count} nodes", None) for each, count in sorted(hurdles.items()))
            said.update((rule, None) for rule in _describe_own(kind))
        return ", ".join(said)

    def crowding(self, kind: MemberClass, name: str) -> int:
        """Return how many pods are in the node's domains that the members' topology spread constraints count there.

        The members are the equal members ``kind``; the numbers of all their constraints are added up. The planner tries
        nodes with the lowest number first.
        """
        labels = self._snapshot.nodes[name].labels
        return sum(each.by_domain.get(labels.get(each.key, ""), 0) for each in self._rules[kind].spread)

    def find_first_key(self, kind: MemberClass) -> str | None:
        """Return the topology key by which all the equal members ``kind`` must be in the domain of the first of them.

        There is such a key if the members have affinity to each other, while the affinity selects no pod in the cluster
        yet: then the first one may be anywhere, and the others must follow into its domain. Otherwise return None.
        """
        rules = self._rules[kind]
        free = rules.may_be_first and not any(count.total for count in rules.affinity)
        return rules.affinity[0].key if free and rules.affinity else None


def _list_places(rules: _Rules, node: Node) -> set[_Place]:
    return {(count, node.labels[count.key]) for count in rules.spread}


def concerns(classes: Iterable[MemberClass]) -> bool:
    """Return whether a plan needs the rules about other pods for any of these members, which are grouped by shape.

    It does if a member has such a rule, or if a rule of another pod selects a member.
    """
    return any(kind.shape.neighbours is not None or any(map(_counts, kind.request)) for kind in classes)


def decides(amount: str, classes: Iterable[MemberClass]) -> bool:
    """Return whether pods that request ``amount`` affect on which nodes these members fit.

    ``amount`` is the name of a pseudo resource: a request that Serried adds to pods that a rule selects, or to pods
    that have an anti-affinity term. Such pods affect the members if a member has the rule, or if the term excludes
    members. ``classes`` are the members, grouped by shape.
    """
    if amount.startswith(APART):
        counted = COUNTS + read_apart(amount)[1]
        return any(counted in kind.request for kind in classes)
    return any(rule.amount == amount for kind in classes for rule in (kind.shape.neighbours or _NO_RULES).matchings)


INTERPOD = PlanRuleType("neighbours", (COUNTS,), concerns, InterPodPlanRule, decides)


def _describe_own(kind: MemberClass) -> Iterator[str]:
    """Yield phrases for messages about rules by which equal members (``kind``) exclude each other or must spread."""
    own = kind.shape.neighbours or _NO_RULES
    for apart in own.apart:
        if apart.matching.amount in kind.request:
            yield f"{HurdleKind.APART} {apart.matching} allows one member in each {apart.key}"
    for rule in own.spread:
        yield f"{HurdleKind.SPREAD} {rule.matching} by {rule.key} with maxSkew {rule.max_skew}"


def _counts(name: str) -> bool:
    return name.startswith(COUNTS)


def _is_excluded(rules: _Rules, node: Node) -> bool:
    for count in rules.anti_affinity:
        domain = node.labels.get(count.key)
        if domain is not None and count.by_domain.get(domain, 0) > 0:
            return True
    return False


def _is_near(rules: _Rules, node: Node) -> bool:
    labels, there = node.labels, True
    for count in rules.affinity:
        domain = labels.get(count.key)
        if domain is None:
            return False
        there = there and count.by_domain.get(domain, 0) > 0
    return there or (rules.may_be_first and not any(count.total for count in rules.affinity))


def _keeps_skew(count: SpreadCount, node: Node) -> bool:
    domain = node.labels.get(count.key)
    if domain is None:
        return False
    return count.by_domain.get(domain, 0) + count.rule.itself - count.find_least() <= count.rule.max_skew
