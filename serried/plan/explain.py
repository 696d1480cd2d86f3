"""Explains why a gang does not fit (`diagnose`), and what would make it fit (`find_advice`).

Both are only called when a user asks for an explanation, by `extender.look.explain`. A diagnosis says how many members
fit in each domain, and why they do not fit on the nodes (`plan.fit.Hurdle`, for instance a taint). For advice the gang
is planned with one constraint relaxed at a time, so each advice is proved by a plan. Changes are tried in the order of
their cost: changes of nodes by an administrator, of the gang's own request, of other gangs.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from serried.api.names import count_things, join_some
from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.api.resources import DEVICES, PODS, PROVIDED, Resources, add, capacity, count_slots, subtract
from serried.plan.capacity import Capacity, CapacityFork, MemberClass, group_classes
from serried.plan.fit import UNSCHEDULABLE, Hurdle, HurdleKind, admits, find_rejection
from serried.plan.gang import Candidate, estimate_each, measure
from serried.plan.placement import PlanState, SearchLevel, generate_placements
from serried.plan.request import Overlay, Plan, PlanRequest, Snapshot
from serried.plan.tree import plan_group


@dataclass(frozen=True, slots=True)
class HurdleCount:
    """A hurdle (the reason for which a node is not feasible, for instance a taint), and on how many nodes it is found.

    As text it reads ``taint gpu 4 nodes``.
    """

    hurdle: Hurdle
    nodes: int

    def __str__(self) -> str:
        return f"{self.hurdle} {count_things(self.nodes, 'node')}"


@dataclass(frozen=True, slots=True)
class DomainDiagnosis:
    """The shortage of a gang in one domain: how many members fit there, and why not more."""

    domain: str

    slots: int
    """The number of members that fit; if they have several shapes, at most so many."""

    nodes: int
    """The number of nodes in the domain."""
    hurdles: tuple[HurdleCount, ...]
    """The reasons why no member fits on a node, with the number of nodes, the most frequent reason first."""

    taken: bool = False
    """True if another gang uses the domain exclusively, so that nodes and members were not counted."""

    empty: int | None = None
    """The number of members that would fit at most if no pods were running in the domain; None if that is unknown."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer of `diagnose`: how many members of a gang fit in each domain, and why not more."""

    key: str
    """The topology key of the domains; "" if the whole cluster is the only domain."""

    need: int
    """The number of members that have to fit in one domain."""

    domains: tuple[DomainDiagnosis, ...]
    """The domains, in the order of how many members fit, the most first."""

    domain_count: int
    """The number of all domains of the topology key."""

    hurdles: tuple[HurdleCount, ...]
    """The reasons why no member fits on a node, with the number of nodes in all domains, the most frequent first."""


def describe_domain(found: DomainDiagnosis, need: int) -> str:
    """Return one line for users about a domain, like ``rack-7: 3 of 8; cpu 4 nodes, taint gpu 1 node``.

    ``need`` is the number of members that have to fit.
    """
    name = found.domain or "the cluster"
    why = ", ".join(map(str, found.hurdles))
    taken = "used exclusively by another gang" if found.taken else ""
    never = f"{found.empty} even if nothing ran there" if found.empty is not None and found.empty < need else ""
    rest = "; ".join(part for part in (taken, never, why) if part)
    return f"{name}: {found.slots} of {need}{f'; {rest}' if rest else ''}"


class Change(StrEnum):
    """The kinds of changes that may make a gang fit, the cheapest first."""

    LABEL = "label"
    """Label nodes with the required topology key, which no node has."""

    UNCORDON = "uncordon"
    """Uncordon nodes."""
    SMALLER = "smallerRequest"
    """Let members request less of a resource."""
    WIDER = "widerLevel"
    """Require one domain of a wider topology level."""
    PREFERRED = "preferred"
    """Make the required topology key a preferred one."""

    FEWER = "fewerMembers"
    """Lower minCount."""
    MOVE = "moveGang"
    """Move another running gang to other nodes."""
    RELEASE = "releaseKept"
    """Let the gang use nodes that Serried keeps for the head of the queue."""

    END = "endGang"
    """End another running gang."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A change with which the gang fits, and the plan that proves it."""

    change: Change
    plan: Plan
    """The plan for the gang after the change."""

    nodes: tuple[str, ...] = ()
    """The nodes to uncordon for UNCORDON, the new nodes of the other gang for MOVE; otherwise ()."""

    name: str = ""
    """The resource, topology key or other gang that the change is about; "" if it is about none."""

    before: int = 0
    """The largest request of a member at present for SMALLER, the required members for FEWER; otherwise 0."""

    after: int = 0
    """The value that ``before`` has to be lowered to; 0 if ``before`` is."""

    domain: str = ""
    """The domain that the other gang would move to for MOVE; "" if that gang requires no topology key."""

    pods: int = 0
    """The number of pods of the other gang for MOVE and END; otherwise 0."""


@dataclass(frozen=True, slots=True)
class RunningGang:
    """Another gang that runs, and could be ended or moved to make place."""

    name: str
    pods: Sequence[Pod]
    topology_key: str | None = None
    """The topology key of which the gang requires one domain; None if it requires none."""

    movable: bool = True
    """False if the planner does not know all constraints of the gang, for instance those of a tree."""


_UNITS = {"cpu": (1000, ""), "memory": (1 << 30, "Gi"), "ephemeral-storage": (1 << 30, "Gi")}


def describe_amount(resource: str, amount: int) -> str:
    """Return an amount of a resource as a Kubernetes quantity with the name, such as ``1500m cpu`` or ``2Gi memory``.

    CPU is given in thousandths, memory and ephemeral storage in bytes.
    """
    unit, suffix = _UNITS.get(resource, (1, ""))
    if amount % unit == 0:
        return f"{amount // unit}{suffix} {resource}"
    return f"{amount}m {resource}" if resource == "cpu" else f"{amount / unit:.2f}{suffix} {resource}"


_MAX_NODES_NAMED = 5


def describe_advice(advice: Advice) -> str:
    """Return a sentence for users that says what to change, such as ``uncordon n1; the gang would run in rack-7``."""
    where = f"; the gang would run in {advice.plan.domain}" if advice.plan.domain else ""
    match advice.change:
        case Change.LABEL:
            return (
                f"label the nodes with {advice.name}: no node has this label, and nodes with the same value form "
                "one domain"
            )
        case Change.UNCORDON:
            text = f"uncordon {join_some(advice.nodes, _MAX_NODES_NAMED)}"
        case Change.SMALLER:
            before = describe_amount(advice.name, advice.before).removesuffix(f" {advice.name}")
            text = f"ask for {describe_amount(advice.name, advice.after)} instead of {before}"
        case Change.WIDER:
            text = f"require one domain of {advice.name}, the next wider level"
        case Change.PREFERRED:
            text = f"prefer {advice.name} instead of requiring it"
        case Change.FEWER:
            text = f"let {count_things(advice.after, 'member')} be enough instead of {advice.before}"
        case Change.MOVE:
            target = advice.domain or join_some(advice.nodes, _MAX_NODES_NAMED)
            text = f"move gang {advice.name} ({count_things(advice.pods, 'pod')}) to {target}"
        case Change.RELEASE:
            text = "let the gang pass the first gang in the queue, for which nodes are kept"
        case Change.END:
            text = f"end gang {advice.name} ({count_things(advice.pods, 'pod')}), or wait for its end"
    return text + where


_MAX_MEASURED = 10
"""The maximum number of domains in which members with rules about each other (e.g. anti-affinity) are placed as a test.

The test gives the exact number that fits. With more domains only an upper bound is given for each.
"""

_NOTHING: Resources = {}


def diagnose(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> Diagnosis:
    """Return how many members fit in each domain of the gang's topology key, and why they do not fit on the nodes.

    If members have several shapes, the reasons are those of the shape that fits least often. A tree is examined as if
    all its members were one gang. ``capacity`` has counts of earlier plans, i.e. how many pods of a shape fit on each
    node. If it is None, all nodes are counted.
    """
    state = PlanState(snapshot, ask, capacity)
    state.count()
    key = ask.topology_key
    search_level = SearchLevel((key,) if key is not None else (), ())
    placements = generate_placements(state.census, search_level, ask)
    best_cases = estimate_each(state, search_level, placements)
    if state.couples and len(best_cases) <= _MAX_MEASURED:
        for place, each in enumerate(best_cases):
            best_cases[place] = measure(state, search_level, each.placement)
    hardest = min(state.classes, key=state.census.total)
    empty = state.count_empty(search_level.key)
    found = []
    total: Counter[Hurdle] = Counter()
    for each in sorted(best_cases, key=lambda best_case: (-best_case.room, best_case.placement.domain)):
        diagnosis, counts = _diagnose_domain(state, snapshot, hardest, each)
        found.append(replace(diagnosis, empty=None if empty is None else empty.get(each.placement.domain, 0)))
        total.update(counts)
    if key is not None and not ask.pinned:
        found += [DomainDiagnosis(name, 0, 0, (), taken=True) for name in sorted(ask.taken)]
    return Diagnosis(key or "", max(1, ask.need), tuple(found), len(found), _rank(total))


def _diagnose_domain(
    state: PlanState, snapshot: Snapshot, kind: MemberClass, best_case: Candidate
) -> tuple[DomainDiagnosis, Counter[Hurdle]]:
    names = snapshot.nodes if best_case.placement.names is None else best_case.placement.names
    counts: Counter[Hurdle] = Counter()
    for name in names:
        state.limit.spend(2)
        hurdle = _find_hurdle(state, kind, snapshot.nodes[name])
        if hurdle is not None:
            counts[hurdle] += 1
    return DomainDiagnosis(best_case.placement.name, best_case.room, len(names), _rank(counts)), counts


def _find_hurdle(state: PlanState, kind: MemberClass, node: Node) -> Hurdle | None:
    """Return why none of the equal members ``kind`` fits on a node; None if one fits."""
    if node.name in state.ask.closed:
        return Hurdle(HurdleKind.KEPT)
    rejection = find_rejection(kind.shape, node)
    if rejection is not None:
        return rejection
    if state.rules is not None and (hurdle := state.rules.find_hurdle(kind, node.name)) is not None:
        return hurdle
    lacking = list(_list_lacking(kind.request, node, state.census.used(node.name)))
    return Hurdle(HurdleKind.RESOURCE, max(lacking)[1]) if lacking else None


def _list_lacking(request: Resources, node: Node, used: Resources) -> Iterable[tuple[float, str]]:
    """Yield each resource of which too little is free: the missing part of the request (0 to 1), and the name.

    ``used`` are the amounts in use on the node.
    """
    for name, amount in request.items():
        free = capacity(node.allocatable, name) - used.get(name, 0)
        if amount > 0 and free < amount:
            yield (amount - max(0, free)) / amount, name.removeprefix(PROVIDED).removeprefix(DEVICES)


def _rank(counts: Counter[Hurdle]) -> tuple[HurdleCount, ...]:
    return tuple(HurdleCount(hurdle, nodes) for hurdle, nodes in sorted(counts.items(), key=lambda one: (-one[1], one)))


_MAX_DROPS = 8
"""The maximum number of cordoned nodes for which it is tried whether the gang fits without uncordoning them."""

_MAX_SMALLER = 1_000
"""The number of steps into which a request is divided when smaller requests are tried."""

_MAX_RESIDENTS = 12
"""The maximum number of other running gangs for which it is tried whether the gang would fit after their end."""


def find_advice(
    snapshot: Snapshot,
    ask: PlanRequest,
    gangs: Iterable[RunningGang] = (),
    capacity: Capacity | None = None,
    *,
    keys: Collection[str] = (),
    found: list[Advice] | None = None,
) -> list[Advice]:
    """Return the changes with which the gang would fit, the cheapest change first.

    ``gangs`` are the running gangs that could be ended or moved. ``keys`` are the label keys of topology levels
    that could be required instead; label keys that contain the word topology are tried, too. ``found`` is filled and
    returned: if the snapshot's limit ends the work by TooLong, the caller still has the advice found so far.
    ``capacity`` is as for `diagnose`.
    """
    found = [] if found is None else found
    search = _AdviceSearch(snapshot, ask, capacity, keys)
    for way in (
        search.try_labelling,
        search.try_uncordoning,
        search.try_smaller_requests,
        search.try_wider_level,
        search.try_preferring,
        search.try_smaller_quorum,
    ):
        advice = way()
        if advice is not None:
            found.append(advice)
    ended: list[Advice] = []
    found += search.try_moving_gangs(gangs, ended)
    released = search.try_releasing_nodes()
    found += [*([released] if released is not None else ()), *ended]
    return found


class _AdviceSearch:
    """Tries for one gang which single change would make it fit. Each ``try_`` method tries one kind of change."""

    def __init__(self, snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None, keys: Collection[str]) -> None:
        self._snapshot = snapshot
        self._ask = ask
        self._capacity = capacity or Capacity(snapshot.nodes, snapshot.used)
        self._keys = keys

    def _plan(
        self, ask: PlanRequest, nodes: Mapping[str, Node] | None = None, used: Mapping[str, Resources] | None = None
    ) -> Plan | None:
        """Return the plan for a request, with some nodes or usages replaced by others.

        Return None if it does not fit.
        """
        all_nodes = {**self._snapshot.nodes, **nodes} if nodes else self._snapshot.nodes
        all_used = Overlay(used, self._snapshot.used) if used else self._snapshot.used
        others = {*(nodes or ()), *(used or ()), *self._snapshot.over}
        fork = CapacityFork(self._capacity, all_nodes, all_used, others)
        answer = plan_group(replace(self._snapshot, nodes=all_nodes, used=all_used), ask, fork)
        return answer if isinstance(answer, Plan) and len(answer.nodes) >= max(1, ask.need) else None

    # --- nodes -----------------------------------------------------------------------------------------------------

    def try_labelling(self) -> Advice | None:
        """Return the advice to label nodes with the gang's required topology key.

        Return None if some node has the label already, or if the gang would not fit even without a topology key.
        """
        ask, key = self._ask, self._ask.topology_key
        if key is None or ask.parts or ask.pinned or any(key in node.labels for node in self._snapshot.nodes.values()):
            return None
        plan = self._plan(replace(ask, topology_key=None))
        return Advice(Change.LABEL, plan, name=key) if plan is not None else None

    def try_uncordoning(self) -> Advice | None:
        """Return the advice to uncordon the nodes without which the gang does not fit.

        All cordoned nodes that a plan uses are candidates; some of them are left out if a plan without them is found.
        Return None if the gang does not fit even on all cordoned nodes, or fits without them.
        """
        closed = {}
        for name, node in self._snapshot.nodes.items():
            self._snapshot.limit.spend()
            if node.unschedulable or any(taint.key == UNSCHEDULABLE.key for taint in node.taints):
                closed[name] = _uncordon(node)
        plan = self._plan(self._ask, closed) if closed else None
        if plan is None:
            return None
        chosen = _count_members(plan, closed)
        if not chosen:
            return None  # the gang fits without uncordoning
        for name in sorted(chosen, key=lambda each: (chosen[each], each))[:_MAX_DROPS]:
            fewer = {each: closed[each] for each in chosen if each != name}
            without = self._plan(self._ask, fewer) if fewer else None
            if without is not None:
                plan = without
                chosen = _count_members(plan, fewer)
                if not chosen:
                    return None
        return Advice(Change.UNCORDON, plan, nodes=tuple(sorted(chosen)))

    # --- the gang's request ----------------------------------------------------------------------------------------

    def try_smaller_requests(self) -> Advice | None:
        """Return the advice to request less of one resource: the one of which the smallest part has to be cut off.

        At most half of the request is cut off. Return None if the gang does not fit even then, whatever the resource.
        """
        best: tuple[float, Advice] | None = None
        for resource in _list_resources(self._ask.members):
            advice = self._find_smaller_request(resource)
            if advice is not None:
                share = advice.after / advice.before
                best = (share, advice) if best is None or share > best[0] else best
        return best[1] if best is not None else None

    def _find_smaller_request(self, resource: str) -> Advice | None:
        most = max(dict(member.shape.requests).get(resource, 0) for member in self._ask.members)
        amounts = _list_smaller(resource, most)
        best: tuple[int, Plan] | None = None
        low = 0
        high = len(amounts)
        while low < high:
            # The smallest amount comes first, so that one plan is enough if even half of the request does not fit.
            middle = (low + high) // 2 if best is not None else low
            smaller = _cap_request(self._ask, resource, amounts[middle])
            plan = self._plan(smaller)
            if plan is None:
                high = middle
            else:
                best = (amounts[middle], plan)
                low = middle + 1
        return Advice(Change.SMALLER, best[1], name=resource, before=most, after=best[0]) if best is not None else None

    def try_wider_level(self) -> Advice | None:
        """Return the advice to require one domain of the next wider level.

        Return None if the gang does not fit there either.
        """
        for key in _list_keys(self._ask):
            for wider in self._find_wider(key):
                wider_domains = {
                    node.labels[key]: node.labels[wider]
                    for node in self._snapshot.nodes.values()
                    if key in node.labels and wider in node.labels
                }
                plan = self._plan(_replace_key(self._ask, key, wider, wider_domains))
                if plan is not None:
                    return Advice(Change.WIDER, plan, name=wider)
        return None

    def try_preferring(self) -> Advice | None:
        """Return the advice to prefer a topology key instead of requiring it.

        Return None if the gang does not fit then.
        """
        for key in _list_keys(self._ask):
            plan = self._plan(_make_preferred(self._ask, key))
            if plan is not None:
                return Advice(Change.PREFERRED, plan, name=key)
        return None

    def try_smaller_quorum(self) -> Advice | None:
        """Return the advice to lower minCount to the number of members that fit in the best domain.

        Return None if no member fits anywhere, if the quorum is a single member, or if the request is for a tree.
        """
        ask = self._ask
        if ask.parts or ask.need < 2:
            return None
        answer = self._plan(replace(ask, need=1))
        enough = 0 if answer is None else len(answer.nodes)
        if answer is None or enough >= ask.need:
            return None
        return Advice(Change.FEWER, answer, before=ask.need, after=enough)

    def _find_wider(self, key: str) -> list[str]:
        """Return the topology label keys whose domains consist of whole domains of ``key``, the narrowest first."""
        shared: dict[str, dict[str, str]] = {}
        for node in self._snapshot.nodes.values():
            self._snapshot.limit.spend()
            home = node.labels.get(key)
            if home is None:
                continue
            labels = shared.get(home)
            if labels is None:
                shared[home] = {name: value for name, value in node.labels.items() if self._is_level(name)}
            else:
                for name in [name for name, value in labels.items() if node.labels.get(name) != value]:
                    del labels[name]
        common = set.intersection(*(set(labels) for labels in shared.values())) if shared else set()
        sizes = {name: len({labels[name] for labels in shared.values()}) for name in common - {key}}
        return sorted((name for name, size in sizes.items() if 1 < size < len(shared)), key=lambda n: (-sizes[n], n))

    def _is_level(self, label: str) -> bool:
        return "topology" in label or label in self._keys or label in self._ask.levels

    # --- other gangs -----------------------------------------------------------------------------------------------

    def try_releasing_nodes(self) -> Advice | None:
        """Return the advice to let the gang use nodes that are closed to it, such as those kept for the queue's head.

        Return None if no node is closed to it, or if it would not fit with them either.
        """
        if not self._ask.closed:
            return None
        plan = self._plan(_without_closed(self._ask))
        return Advice(Change.RELEASE, plan) if plan is not None else None

    def try_moving_gangs(self, gangs: Iterable[RunningGang], ended: list[Advice]) -> list[Advice]:
        """Return the advice to move the smallest running gang for which there is another place; [] if there is none.

        The advice to end the smallest running gang without which this one fits is added to ``ended``.
        """
        helpful = self._list_helpful_gangs(gangs)
        for gang in helpful[:_MAX_RESIDENTS]:
            left = self._usage_without(gang)
            plan = self._plan(self._ask, used=left)
            if plan is None:
                continue
            if not ended:
                ended.append(Advice(Change.END, plan, name=gang.name, pods=len(gang.pods)))
            moved = self._replan(gang, left, plan) if gang.movable else None
            if moved is not None:
                nodes = tuple(sorted(set(moved.nodes.values())))
                size = len(gang.pods)
                return [Advice(Change.MOVE, plan, nodes, gang.name, domain=moved.domain, pods=size)]
        return []

    def _list_helpful_gangs(self, gangs: Iterable[RunningGang]) -> list[RunningGang]:
        """Return the running gangs whose end would let more members of this gang fit, the smallest gang first."""
        classes = group_classes(self._ask.members)
        helpful = []
        for gang in gangs:
            self._snapshot.limit.spend(len(gang.pods))
            left = self._usage_without(gang)
            if any(self._frees_resources(kind, left) for kind in classes[:4]):
                helpful.append(gang)
        return sorted(helpful, key=lambda each: (len(each.pods), each.name))

    def _frees_resources(self, kind: MemberClass, left: Mapping[str, Resources]) -> bool:
        for name, used in left.items():
            node = self._snapshot.nodes[name]
            before = self._snapshot.used.get(name, _NOTHING)
            if admits(kind.shape, node) and name not in self._ask.closed:
                more = count_slots(node.allocatable, used, kind.request)
                if more > count_slots(node.allocatable, before, kind.request):
                    return True
        return False

    def _usage_without(self, gang: RunningGang) -> dict[str, Resources]:
        """Return the amounts in use, without the pods of a running gang, on each of its nodes."""
        left: dict[str, Resources] = {}
        for pod in gang.pods:
            if pod.node in self._snapshot.nodes:
                base = left.get(pod.node) or self._snapshot.used.get(pod.node, _NOTHING)
                left[pod.node] = subtract(base, dict(pod.shape.requests))
        return left

    def _replan(self, gang: RunningGang, left: Mapping[str, Resources], plan: Plan) -> Plan | None:
        """Return a new plan for the pods of a running gang, besides ``plan``; None if they do not fit.

        ``plan`` is the one for the gang that gets advice. ``left`` has the usage of the running gang's nodes without
        it.
        """
        used = dict(left)
        shapes = {member.uid: member.shape for member in self._ask.members}
        for uid, name in plan.nodes.items():
            base = used.get(name) or self._snapshot.used.get(name, _NOTHING)
            used[name] = add(base, dict(shapes[uid].requests))
        ask = PlanRequest(tuple(gang.pods), len(gang.pods), topology_key=gang.topology_key)
        return self._plan(ask, used=used)


def _uncordon(node: Node) -> Node:
    taints = tuple(taint for taint in node.taints if taint.key != UNSCHEDULABLE.key)
    return replace(node, unschedulable=False, taints=taints)


def _count_members(plan: Plan, names: Collection[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in plan.nodes.values():
        if name in names:
            counts[name] = counts.get(name, 0) + 1
    return counts


def _list_resources(members: Sequence[Pod]) -> list[str]:
    """Return the names of the resources of which members could request less.

    Left out are the resource ``pods``, resources of which no member requests more than 1, and pseudo resources: entries
    in a pod's requests by which Serried counts e.g. host ports.
    """
    shapes = {id(member.shape): member.shape for member in members}
    names = {name for shape in shapes.values() for name, amount in shape.requests if amount > 1}
    return sorted(name for name in names if name != PODS and ":" not in name)


def _list_smaller(resource: str, most: int) -> list[int]:
    """Return round amounts of a resource to try as a smaller request: from half of ``most`` to below it, ascending."""
    unit = _find_step(resource, most)
    return [each for each in range(-(-most // (2 * unit)) * unit, most, unit) if each > 0]


def _find_step(resource: str, most: int) -> int:
    """Return the difference between two amounts of `_list_smaller`, e.g. 1Gi. There are some hundred at most."""
    rounds = {"cpu": (1000, 500, 100, 10)}.get(resource, (1 << 30, 1 << 26, 1 << 20, 1 << 10))
    found = next((unit for unit in rounds if most >= 4 * unit), 1)
    return max(found, most // _MAX_SMALLER // found * found)


def _cap_request(ask: PlanRequest, resource: str, amount: int) -> PlanRequest:
    """Return the request in which each member requests at most ``amount`` of the resource."""
    shapes: dict[int, Shape] = {}
    members: dict[str, Pod] = {}
    for member in ask.members:
        known = shapes.get(id(member.shape))
        if known is None:
            requests = tuple((n, min(a, amount) if n == resource else a) for n, a in member.shape.requests)
            known = shapes[id(member.shape)] = replace(member.shape, requests=requests)
        members[member.uid] = replace(member, shape=known)
    return _with_members(ask, members)


def _with_members(ask: PlanRequest, members: Mapping[str, Pod]) -> PlanRequest:
    parts = tuple(_with_members(part, members) for part in ask.parts)
    return replace(ask, members=tuple(members[member.uid] for member in ask.members), parts=parts)


def _list_keys(ask: PlanRequest) -> list[str]:
    """Return the required topology keys of a gang, or of all groups of a tree, that of the root first."""
    own = [ask.topology_key] if ask.topology_key is not None else []
    return list(dict.fromkeys([*own, *(key for part in ask.parts for key in _list_keys(part))]))


def _replace_key(ask: PlanRequest, key: str, wider: str, wider_domains: Mapping[str, str]) -> PlanRequest:
    """Return the request in which the topology key ``wider`` is required instead of ``key``.

    ``wider_domains`` has the wider domain that contains each domain of ``key``.
    """
    parts = tuple(_replace_key(part, key, wider, wider_domains) for part in ask.parts)
    if ask.topology_key != key:
        return replace(ask, parts=parts)
    levels = tuple(level for level in ask.levels if level != wider)
    pinned = frozenset(wider_domains[domain] for domain in ask.pinned if domain in wider_domains)
    return replace(ask, topology_key=wider, levels=levels, pinned=pinned, taken=frozenset(), parts=parts)


def _make_preferred(ask: PlanRequest, key: str) -> PlanRequest:
    """Return the request in which the topology key ``key`` is preferred instead of required."""
    parts = tuple(_make_preferred(part, key) for part in ask.parts)
    if ask.topology_key != key:
        return replace(ask, parts=parts)
    levels = (*(level for level in ask.levels if level != key), key)
    return replace(
        ask, topology_key=None, levels=levels, spills=True, pinned=frozenset(), taken=frozenset(), parts=parts
    )


def _without_closed(ask: PlanRequest) -> PlanRequest:
    return replace(ask, closed=frozenset(), parts=tuple(_without_closed(part) for part in ask.parts))
