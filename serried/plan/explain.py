"""Explains why a gang does not fit (`diagnose`), and what would make it fit (`find_advice`).

A diagnosis has the room in each domain, and the hurdles on its nodes. For advice the gang is planned with one
constraint relaxed at a time, so each advice is proved by a plan. Changes are tried in the order of their cost: changes
of nodes by an administrator, of the gang's own request, of other gangs.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

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
    """The number of nodes on which one hurdle excludes all members."""

    hurdle: Hurdle
    nodes: int

    def __str__(self) -> str:
        return f"{self.hurdle} {count_things(self.nodes, 'node')}"


@dataclass(frozen=True, slots=True)
class DomainDiagnosis:
    """The shortage of a gang in one domain."""

    domain: str

    slots: int
    """The number of members that fit; an upper bound if they have several shapes."""

    nodes: int
    hurdles: tuple[HurdleCount, ...]
    """The hurdles of its nodes without room, the most frequent first."""

    taken: bool = False
    """True if another gang uses the domain exclusively."""

    empty: int | None = None
    """The upper bound of members if no pods were running there; None if unknown."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The shortage of a gang in all domains."""

    key: str
    """The topology key; "" for the cluster as one domain."""

    need: int

    domains: tuple[DomainDiagnosis, ...]
    """The domains, those with the most room first."""

    domain_count: int
    """The number of all domains."""

    hurdles: tuple[HurdleCount, ...]
    """The hurdles of all nodes in all domains, the most frequent first."""


def count_things(count: int, word: str) -> str:
    """Return count and word with plural, like ``1 node``, ``4 nodes``."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def describe_domain(found: DomainDiagnosis, need: int) -> str:
    """Return one line for users, like ``rack-7: 3 of 8; cpu 4 nodes, taint gpu 1 node``."""
    name = found.domain or "the cluster"
    why = ", ".join(map(str, found.hurdles))
    taken = "exclusively another gang's" if found.taken else ""
    never = f"{found.empty} even if nothing ran there" if found.empty is not None and found.empty < need else ""
    rest = "; ".join(part for part in (taken, never, why) if part)
    return f"{name}: {found.slots} of {need}{f'; {rest}' if rest else ''}"


class Change(StrEnum):
    """The kinds of changes that may make a gang fit, the cheapest first."""

    LABEL = "label"
    """Label nodes: none has the topology key."""

    UNCORDON = "uncordon"
    SMALLER = "smallerRequest"
    WIDER = "widerLevel"
    PREFERRED = "preferred"
    """Make the required topology key a preferred one."""

    FEWER = "fewerMembers"
    MOVE = "moveGang"
    RELEASE = "releaseKept"
    """Give the gang the nodes that are kept for the head of the queue."""

    END = "endGang"


@dataclass(frozen=True, slots=True)
class Advice:
    """A change with which the gang fits, and the plan that proves it."""

    change: Change
    plan: Plan

    nodes: tuple[str, ...] = ()
    """For UNCORDON the cordoned nodes; for MOVE the new nodes of the other gang."""

    name: str = ""
    """The resource, the topology key, or the other gang."""

    before: int = 0
    """The largest request of a member, or the number of required members."""

    after: int = 0
    """The value to which it may be reduced."""

    domain: str = ""
    """For MOVE, the new domain of the other gang."""

    pods: int = 0
    """The number of pods of the other gang."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A running gang that could be ended or moved."""

    name: str
    pods: Sequence[Pod]
    topology_key: str | None = None

    movable: bool = True
    """False if its constraints are not fully known, as for a tree."""


_UNITS = {"cpu": (1000, ""), "memory": (1 << 30, "Gi"), "ephemeral-storage": (1 << 30, "Gi")}


def describe_amount(resource: str, amount: int) -> str:
    """Return an amount with its resource, as Kubernetes writes quantities."""
    unit, suffix = _UNITS.get(resource, (1, ""))
    if amount % unit == 0:
        return f"{amount // unit}{suffix} {resource}"
    return f"{amount}m {resource}" if resource == "cpu" else f"{amount / unit:.2f}{suffix} {resource}"


_MAX_NODES_NAMED = 5


def describe_advice(advice: Advice) -> str:
    """Return the sentence for users about the change."""
    where = f"; it would go to {advice.plan.domain}" if advice.plan.domain else ""
    match advice.change:
        case Change.LABEL:
            return f"label the nodes with {advice.name}, which none has: those of one value are one domain"
        case Change.UNCORDON:
            text = f"uncordon {_name_some(advice.nodes)}"
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
            target = advice.domain or _name_some(advice.nodes)
            text = f"move gang {advice.name} ({count_things(advice.pods, 'pod')}) to {target}"
        case Change.RELEASE:
            text = "let it pass the head of the queue, for which nodes are kept"
        case Change.END:
            text = f"end gang {advice.name} ({count_things(advice.pods, 'pod')}), or wait for its end"
    return text + where


def _name_some(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NODES_NAMED
    return ", ".join(names[:_MAX_NODES_NAMED]) + (f" and {more} more" if more > 0 else "")


_MAX_MEASURED = 10
"""The maximum number of domains that are packed to diagnose members that affect each other."""

_NOTHING: Resources = {}


def diagnose(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> Diagnosis:
    """Return what each domain of the gang's topology key lacks.

    For members of several shapes the hurdles are those of the shape with the fewest slots. A tree is examined as if its
    members were one gang of the root group.
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
    """Return what excludes a member from a node; None if one fits."""
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
    """Yield the missing part of the request and the name of each resource of which too little is free."""
    for name, amount in request.items():
        free = capacity(node.allocatable, name) - used.get(name, 0)
        if amount > 0 and free < amount:
            yield (amount - max(0, free)) / amount, name.removeprefix(PROVIDED).removeprefix(DEVICES)


def _rank(counts: Counter[Hurdle]) -> tuple[HurdleCount, ...]:
    return tuple(HurdleCount(hurdle, nodes) for hurdle, nodes in sorted(counts.items(), key=lambda one: (-one[1], one)))


_MAX_DROPS = 8
"""The maximum number of nodes for which it is tried to leave them cordoned."""

_MAX_SMALLER = 1_000
"""The number of steps into which a request is divided. At most half of them are cut off."""

_MAX_RESIDENTS = 12
"""The maximum number of other gangs for which a plan without them is made."""


def find_advice(
    snapshot: Snapshot,
    ask: PlanRequest,
    residents: Iterable[Resident] = (),
    capacity: Capacity | None = None,
    *,
    keys: Collection[str] = (),
    found: list[Advice] | None = None,
) -> list[Advice]:
    """Return each change with which the gang fits, the cheapest first.

    ``keys`` are labels of topology levels; labels that contain the word topology count, too. ``found`` is filled and
    returned: if the snapshot's limit ends the work, the caller still has the results so far.
    """
    found = [] if found is None else found
    search = _AdviceSearch(snapshot, ask, capacity, keys)
    for way in (search.label, search.uncordon, search.shrink, search.widen, search.prefer, search.lower_quorum):
        advice = way()
        if advice is not None:
            found.append(advice)
    ended: list[Advice] = []
    found += search.move_residents(residents, ended)
    released = search.release()
    found += [*([released] if released is not None else ()), *ended]
    return found


class _AdviceSearch:
    """The planner's input for one gang, which each method plans with one constraint relaxed."""

    def __init__(self, snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None, keys: Collection[str]) -> None:
        self._snapshot = snapshot
        self._ask = ask
        self._capacity = capacity or Capacity(snapshot.nodes, snapshot.used)
        self._keys = keys

    def _plan(
        self, ask: PlanRequest, nodes: Mapping[str, Node] | None = None, used: Mapping[str, Resources] | None = None
    ) -> Plan | None:
        """Return the gang's plan with some nodes or usages replaced; None without one."""
        all_nodes = {**self._snapshot.nodes, **nodes} if nodes else self._snapshot.nodes
        all_used = Overlay(used, self._snapshot.used) if used else self._snapshot.used
        others = {*(nodes or ()), *(used or ()), *self._snapshot.over}
        fork = CapacityFork(self._capacity, all_nodes, all_used, others)
        answer = plan_group(replace(self._snapshot, nodes=all_nodes, used=all_used), ask, fork)
        return answer if isinstance(answer, Plan) and len(answer.nodes) >= max(1, ask.need) else None

    # --- nodes -------------------------------------------------------------------------------------------------

    def label(self) -> Advice | None:
        """Return the advice to label nodes, if no node has the topology key and the gang would fit in one domain."""
        ask, key = self._ask, self._ask.topology_key
        if key is None or ask.parts or ask.pinned or any(key in node.labels for node in self._snapshot.nodes.values()):
            return None
        plan = self._plan(replace(ask, topology_key=None))
        return Advice(Change.LABEL, plan, name=key) if plan is not None else None

    def uncordon(self) -> Advice | None:
        """Return the advice to uncordon nodes, as few as a few tries find; None if that does not help."""
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
            return None  # it fits without them
        for name in sorted(chosen, key=lambda each: (chosen[each], each))[:_MAX_DROPS]:
            fewer = {each: closed[each] for each in chosen if each != name}
            without = self._plan(self._ask, fewer) if fewer else None
            if without is not None:
                plan = without
                chosen = _count_members(plan, fewer)
                if not chosen:
                    return None
        return Advice(Change.UNCORDON, plan, nodes=tuple(sorted(chosen)))

    # --- what the gang asks for --------------------------------------------------------------------------------

    def shrink(self) -> Advice | None:
        """Return the advice for the resource whose requests have to shrink the least; None if none helps."""
        best: tuple[float, Advice] | None = None
        for resource in _list_resources(self._ask.members):
            advice = self._shrink(resource)
            if advice is not None:
                share = advice.after / advice.before
                best = (share, advice) if best is None or share > best[0] else best
        return best[1] if best is not None else None

    def _shrink(self, resource: str) -> Advice | None:
        most = max(dict(member.shape.requests).get(resource, 0) for member in self._ask.members)
        amounts = _list_smaller(resource, most)
        best: tuple[int, Plan] | None = None
        low = 0
        high = len(amounts)
        while low < high:
            # The smallest amount first. If even half of the request does not help, one plan is enough.
            middle = (low + high) // 2 if best is not None else low
            smaller = _limit_request(self._ask, resource, amounts[middle])
            plan = self._plan(smaller)
            if plan is None:
                high = middle
            else:
                best = (amounts[middle], plan)
                low = middle + 1
        return Advice(Change.SMALLER, best[1], name=resource, before=most, after=best[0]) if best is not None else None

    def widen(self) -> Advice | None:
        """Return the advice to require the next wider level instead of a required one; None if none helps."""
        for key in _list_keys(self._ask):
            for wider in self._find_wider(key):
                wider_domains = {
                    node.labels[key]: node.labels[wider]
                    for node in self._snapshot.nodes.values()
                    if key in node.labels and wider in node.labels
                }
                plan = self._plan(_rekey(self._ask, key, wider, wider_domains))
                if plan is not None:
                    return Advice(Change.WIDER, plan, name=wider)
        return None

    def prefer(self) -> Advice | None:
        """Return the advice to prefer a required key instead; None if that does not help."""
        for key in _list_keys(self._ask):
            plan = self._plan(_prefer(self._ask, key))
            if plan is not None:
                return Advice(Change.PREFERRED, plan, name=key)
        return None

    def lower_quorum(self) -> Advice | None:
        """Return the advice to require only as many members as the best domain holds; None without one."""
        ask = self._ask
        if ask.parts or ask.need < 2:
            return None
        answer = self._plan(replace(ask, need=1))
        enough = 0 if answer is None else len(answer.nodes)
        if answer is None or enough >= ask.need:
            return None
        return Advice(Change.FEWER, answer, before=ask.need, after=enough)

    def _find_wider(self, key: str) -> list[str]:
        """Return the topology labels whose domains contain whole domains of ``key``, the narrowest first."""
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

    # --- others ------------------------------------------------------------------------------------------------

    def release(self) -> Advice | None:
        """Return the advice to release the nodes that are kept from the gang; None if that does not help."""
        if not self._ask.closed:
            return None
        plan = self._plan(_without_closed(self._ask))
        return Advice(Change.RELEASE, plan) if plan is not None else None

    def move_residents(self, residents: Iterable[Resident], ended: list[Advice]) -> list[Advice]:
        """Return the advice to move the smallest gang for which that works; [] without one.

        The advice to end the smallest gang whose end helps is added to ``ended``.
        """
        helpful = self._find_helpful(residents)
        for resident in helpful[:_MAX_RESIDENTS]:
            left = self._usage_without(resident)
            plan = self._plan(self._ask, used=left)
            if plan is None:
                continue
            if not ended:
                ended.append(Advice(Change.END, plan, name=resident.name, pods=len(resident.pods)))
            moved = self._replan(resident, left, plan) if resident.movable else None
            if moved is not None:
                nodes = tuple(sorted(set(moved.nodes.values())))
                size = len(resident.pods)
                return [Advice(Change.MOVE, plan, nodes, resident.name, domain=moved.domain, pods=size)]
        return []

    def _find_helpful(self, residents: Iterable[Resident]) -> list[Resident]:
        """Return the gangs without which more members would fit on their nodes, the smallest first."""
        classes = group_classes(self._ask.members)
        helpful = []
        for resident in residents:
            self._snapshot.limit.spend(len(resident.pods))
            left = self._usage_without(resident)
            if any(self._gains_slots(kind, left) for kind in classes[:4]):
                helpful.append(resident)
        return sorted(helpful, key=lambda each: (len(each.pods), each.name))

    def _gains_slots(self, kind: MemberClass, left: Mapping[str, Resources]) -> bool:
        for name, used in left.items():
            node = self._snapshot.nodes[name]
            before = self._snapshot.used.get(name, _NOTHING)
            if admits(kind.shape, node) and name not in self._ask.closed:
                more = count_slots(node.allocatable, used, kind.request)
                if more > count_slots(node.allocatable, before, kind.request):
                    return True
        return False

    def _usage_without(self, resident: Resident) -> dict[str, Resources]:
        """Return the usage of a gang's nodes without it."""
        left: dict[str, Resources] = {}
        for pod in resident.pods:
            if pod.node in self._snapshot.nodes:
                base = left.get(pod.node) or self._snapshot.used.get(pod.node, _NOTHING)
                left[pod.node] = subtract(base, dict(pod.shape.requests))
        return left

    def _replan(self, resident: Resident, left: Mapping[str, Resources], plan: Plan) -> Plan | None:
        """Return a new plan for a resident, with ``plan`` carried out."""
        used = dict(left)
        shapes = {member.uid: member.shape for member in self._ask.members}
        for uid, name in plan.nodes.items():
            base = used.get(name) or self._snapshot.used.get(name, _NOTHING)
            used[name] = add(base, dict(shapes[uid].requests))
        ask = PlanRequest(tuple(resident.pods), len(resident.pods), topology_key=resident.topology_key)
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
    """Return the resources of which members might request less."""
    shapes = {id(member.shape): member.shape for member in members}
    names = {name for shape in shapes.values() for name, amount in shape.requests if amount > 1}
    return sorted(name for name in names if name != PODS and ":" not in name)


def _list_smaller(resource: str, most: int) -> list[int]:
    """Return smaller round amounts down to a half, ascending."""
    unit = _find_unit(resource, most)
    return [each for each in range(-(-most // (2 * unit)) * unit, most, unit) if each > 0]


def _find_unit(resource: str, most: int) -> int:
    """Return the step by which an amount is reduced: there are at most some hundred steps."""
    rounds = {"cpu": (1000, 500, 100, 10)}.get(resource, (1 << 30, 1 << 26, 1 << 20, 1 << 10))
    found = next((unit for unit in rounds if most >= 4 * unit), 1)
    return max(found, most // _MAX_SMALLER // found * found)


def _limit_request(ask: PlanRequest, resource: str, amount: int) -> PlanRequest:
    """Return the request with an upper limit for what each member requests of a resource."""
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
    """Return the required keys of a gang or of a tree, that of the root first."""
    own = [ask.topology_key] if ask.topology_key is not None else []
    return list(dict.fromkeys([*own, *(key for part in ask.parts for key in _list_keys(part))]))


def _rekey(ask: PlanRequest, key: str, wider: str, wider_domains: Mapping[str, str]) -> PlanRequest:
    """Return the request with ``wider`` required instead of ``key``.

    ``wider_domains`` has the parent of each domain.
    """
    parts = tuple(_rekey(part, key, wider, wider_domains) for part in ask.parts)
    if ask.topology_key != key:
        return replace(ask, parts=parts)
    levels = tuple(level for level in ask.levels if level != wider)
    pinned = frozenset(wider_domains[domain] for domain in ask.pinned if domain in wider_domains)
    return replace(ask, topology_key=wider, levels=levels, pinned=pinned, taken=frozenset(), parts=parts)


def _prefer(ask: PlanRequest, key: str) -> PlanRequest:
    """Return the request with ``key`` preferred instead of required."""
    parts = tuple(_prefer(part, key) for part in ask.parts)
    if ask.topology_key != key:
        return replace(ask, parts=parts)
    levels = (*(level for level in ask.levels if level != key), key)
    return replace(
        ask, topology_key=None, levels=levels, spills=True, pinned=frozenset(), taken=frozenset(), parts=parts
    )


def _without_closed(ask: PlanRequest) -> PlanRequest:
    return replace(ask, closed=frozenset(), parts=tuple(_without_closed(part) for part in ask.parts))
