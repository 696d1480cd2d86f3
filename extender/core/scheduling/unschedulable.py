"""The groups for which the planner found no nodes, and which of them freed resources could help.

`Queue` puts rejected groups in, and `UnschedulableGroups.wake` returns those to plan again. Groups whose members have
equal shapes (requests and constraints) share one `QueueingHint`. For each hint and domain there is a bound: the most
members of one group that may fit there by now. It is the number that the planner counted when it rejected a group last,
plus the members that fit additionally on nodes with freed resources. Freed resources wake the groups that need no more
members than the bound. For instance 5 members fitted and a gang of 8 was rejected: it is woken when 3 more fit. So the
cost depends on the number of freed nodes and of hints, and neither on the size of the cluster nor on the number of
groups.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from serried.api.interpod import list_affected_names
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.pod import Shape
from serried.api.resources import Resources
from serried.api.verdict import Trait, Verdict
from serried.cluster.usage import Freed
from serried.plan.fit import count_fitting
from serried.plan.request import PlanRequest


def count_share(share_percent: int, count: int) -> int:
    """Return how many of ``count`` nodes or domains may be kept at a time for the gangs of one namespace.

    That is ``share_percent`` percent of them, rounded down, but at least 1.
    """
    return max(1, count * share_percent // 100)


_MAX_UNPLANNED_OFFERS = 100
"""The most nodes offered by kube-scheduler that each requeue a group for which the planner found no node at all.

These nodes are in `QueueEntry.unplanned_offers`. Beyond that number, further ones do not requeue the group.
"""


@dataclass(slots=True)
class QueueEntry:
    """The queueing state of one group: when it is planned again. Times are in loop seconds.

            unschedulable -- woken, changed, or ``retry_at`` has come --> active: it is planned
            backoff       -- ``backoff_until`` has come ----------------> active

    `UnschedulableGroups` decides which freed resources wake it.
    """

    last_input: tuple[object, ...] = ()
    """The planner's input at the last try.

    A try with the same input is left out while the group is unschedulable. () if the next try must not be left out.
    """

    backoff_until: float = 0.0
    """The end of the backoff. Before it the group is not planned, whatever changes. 0 without a backoff."""

    retry_at: float = math.inf
    """The time at which the group is planned again even if nothing has changed; infinite for none."""

    attempts: int = 0
    """The number of the group's binding cycles in a row that ended before it was bound."""

    unattended: bool = False
    """True if the last cycle timed out and kube-scheduler had tried none of its members, as if it were down.

    The group is then requeued when kube-scheduler tries one of its pods.
    """

    unplanned_offers: frozenset[str] = frozenset()
    """The nodes that kube-scheduler offers to a member though the planner found no node for any member.

    Each of them has the group planned again once, as the planner may be wrong.
    """

    retries_for_offers: bool = False
    """True if the next try is made only because kube-scheduler offers nodes that the planner did not find."""

    def backs_off(self, now: float) -> bool:
        """Return whether the group must not be planned yet, because of its backoff."""
        return now < self.backoff_until

    def back_off(self, until: float) -> None:
        """Do not plan the group before ``until`` (loop time). This replaces an earlier backoff."""
        self.backoff_until = until

    def end_backoff(self) -> None:
        """End the backoff now."""
        self.backoff_until = 0.0

    def retry_by(self, at: float) -> None:
        """Plan the group again at the loop time ``at``, or earlier if an earlier retry was requested already."""
        self.retry_at = min(self.retry_at, at)

    def force_retry(self) -> None:
        """Let the next try plan the group even if the planner's input has not changed."""
        self.last_input = ()

    def add_unplanned_offers(self, names: frozenset[str]) -> bool:
        """Add nodes that kube-scheduler offers though the planner found no node for any member.

        Return whether the group is to be planned once more. So it is if one of ``names`` was not added before, and
        fewer than `_MAX_UNPLANNED_OFFERS` nodes were.
        """
        if names <= self.unplanned_offers or len(self.unplanned_offers) >= _MAX_UNPLANNED_OFFERS:
            return False
        self.unplanned_offers |= names
        self.retries_for_offers = True
        return True

    def note_refusal(self) -> None:
        """Note that the planner has found no nodes, and forget the nodes in ``unplanned_offers``.

        If kube-scheduler offers a forgotten node again, the group is planned once more, as the cluster has changed. But
        if the planner was called only because of such an offer, the nodes are not forgotten: so offers of the same
        nodes do not cause one plan after another.
        """
        self.unplanned_offers = self.unplanned_offers if self.retries_for_offers else frozenset()
        self.retries_for_offers = False

    def begin_try(self, planner_input: tuple[object, ...], now: float, *, waits: bool) -> bool:
        """Begin a try with this input of the planner, and end the backoff. Return whether the group has to be planned.

        Return False if the group is among the unschedulable ones (``waits``), its input is that of the last try,
        and ``retry_at`` has not come.
        """
        self.backoff_until = 0.0
        if waits and planner_input == self.last_input and now < self.retry_at:
            return False
        self.last_input, self.retry_at, self.unattended = planner_input, math.inf, False
        return True

    def pop_backoff(self, now: float) -> bool:
        """Return whether a backoff has ended by ``now``, once per backoff."""
        over = 0 < self.backoff_until <= now
        if over:
            self.backoff_until = 0.0
        return over

    def pop_retry(self, now: float) -> bool:
        """Return whether the retry time has come by ``now``, once per retry time.

        If it has, the next try plans the group even if its input has not changed.
        """
        due = self.retry_at <= now
        if due:
            self.last_input, self.retry_at = (), math.inf
        return due

    def pop_unattended(self) -> bool:
        """Return whether kube-scheduler tried no member in the last cycle (`unattended`), once per such cycle.

        If so, the next try plans the group even if its input has not changed.
        """
        was, self.unattended = self.unattended, False
        if was:
            self.last_input = ()
        return was


_MAX_SHAPES_COUNTED = 8
"""The number of shapes (requests and constraints) of a group's members up to which freed nodes are examined for it.

If its members have more, counting how many of them fit on each freed node costs too much: the group is planned anew.
"""


_MAX_HINTS = 64
"""The maximum number of `QueueingHint` objects per namespace: each of them costs time for each freed node.

Further groups of the namespace all share one more, by which any freed node may help.
"""

_MAX_WOKEN_OF_NAMESPACE = 4
"""The number of a namespace's groups that are planned again at a time if it is unknown which freed nodes help them.

That is so for the groups of a namespace that has `_MAX_HINTS` hints already. Most of these plans find no nodes.
"""


@dataclass(frozen=True, slots=True)
class QueueingHint:
    """The properties of rejected groups that decide which freed nodes could help them, and how many members fit there.

    Groups with equal properties share one hint. It is like kube-scheduler's QueueingHintFn, but a value.
    """

    shapes: frozenset[Shape]
    """The shapes of the members: requests, selectors, tolerations and so on."""

    topology_key: str | None

    pinned: frozenset[str]
    """The domains in which the groups must be placed; empty if any will do."""

    closed: frozenset[str]
    """The nodes that the groups must not use."""

    priority: int
    """The priority of the groups. It decides which nominated pods count as using resources."""

    counted: bool
    """True if the planner's verdict says how many members fit in each domain.

    Then a group is woken once enough members fit. If False, it is woken as soon as one more member fits on a freed
    node, since that may be the one that was missing.
    """

    namespace: str = ""
    """The namespace whose groups share this hint although they differ, as the namespace has `_MAX_HINTS` other hints.

    "" for a usual hint, whose groups have the properties that it says.
    """

    concerns: frozenset[str] = frozenset()
    """The names of the inter-pod rules by which other pods could help or hinder the members.

    The names are those of `serried.api.interpod.list_affected_names`.
    """


@dataclass(slots=True)
class _GroupsOfHint:
    """The unschedulable groups that share one `QueueingHint`, and how many of their members may fit in each domain."""

    bounds: dict[str, int] = field(default_factory=dict)
    """By domain, the most members of one group that may fit there by now: maybe too high, never too low."""

    default_bound: int = 0
    """The most members of one group that may fit in a domain that is not in ``bounds``."""

    needs: dict[GroupKey, int] = field(default_factory=dict)
    """For each group, the number of its members that must fit in one domain before it is planned again."""

    released: set[GroupKey] = field(default_factory=set)
    """The groups that have released their own slots. The removal of their own nominations must not wake them."""

    not_woken: dict[GroupKey, None] = field(default_factory=dict)
    """The groups still to be planned again since resources were last freed, the longest wait first; used as a set.

    Only for the hint that a namespace's further groups share (`QueueingHint.namespace`): they are woken few at a time.
    """

    namespace: str = ""
    """The namespace of the first group with this hint. The hint counts towards the `_MAX_HINTS` of this namespace."""


class UnschedulableGroups:
    """The groups that need not be planned before resources are freed that could help them.

    ``nodes`` and ``used`` are live: the nodes, and the used resources, by node name.
    """

    def __init__(self, nodes: Mapping[str, Node], used: Mapping[str, Resources]) -> None:
        self._nodes = nodes
        self._used = used
        self._by_hint: dict[QueueingHint, _GroupsOfHint] = {}
        self._hints: dict[GroupKey, QueueingHint] = {}
        self._counts: Counter[str] = Counter()
        """The number of hints by namespace."""
        self._waiting: Counter[str] = Counter()
        """The number of groups by namespace."""

    def __contains__(self, group: GroupKey) -> bool:
        return group in self._hints

    def __iter__(self) -> Iterator[GroupKey]:
        return iter(list(self._hints))

    def __len__(self) -> int:
        return len(self._hints)

    def put(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> None:
        """Add a group that the planner has just rejected with the verdict ``refusal``.

        If the verdict says how many members fit in each domain, freed resources are added to these numbers, and
        the group is woken once as many members may fit as it needs.
        """
        hint, waiting = self._enlist_refused(group, request, refusal)
        self._set_bound(hint, waiting, refusal)

    def put_stale(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> None:
        """Add a group as `put` does, though resources were freed since the planner began to make its verdict.

        If other groups with equal properties wait, the numbers of members that fit in each domain are kept: they
        count the freed resources, the verdict does not. The caller has to have the group planned again soon.
        """
        hint, waiting = self._enlist_refused(group, request, refusal)
        if len(waiting.needs) == 1:
            self._set_bound(hint, waiting, refusal)

    def put_released(self, group: GroupKey, request: PlanRequest) -> None:
        """Add a group that has released its slots.

        The group is not woken by the resources of these slots, nor by the removal of its own nominations.
        """
        hint = self._choose_hint(group, _make_hint(request, counted=False))
        self._enlist(group, hint, 1).released.add(group)

    def leave(self, group: GroupKey) -> None:
        """Remove a group. Ignored if it is not among the unschedulable ones."""
        hint = self._hints.pop(group, None)
        if hint is None:
            return
        self._waiting[group.namespace] -= 1
        if not self._waiting[group.namespace]:
            del self._waiting[group.namespace]
        waiting = self._by_hint[hint]
        del waiting.needs[group]
        waiting.released.discard(group)
        waiting.not_woken.pop(group, None)
        if not waiting.needs:
            del self._by_hint[hint]
            self._counts[waiting.namespace] -= 1

    def has_other_namespaces(self, namespace: str) -> bool:
        """Return whether any group of another namespace is unschedulable."""
        return len(self._hints) > self._waiting[namespace]

    def wake(self, freed: Freed | None, withdrawn: Freed | None, reached: Collection[str] = ()) -> set[GroupKey]:
        """Remove and return the groups that freed resources could help.

        ``freed`` are the nodes on which pods have ended or that have changed, by name, with the resources that
        were used on them before; None stands for any node. ``withdrawn`` are the nodes of which nominations were
        removed. ``reached`` are the names of inter-pod rules (affinity, spread) that created or ended pods may
        affect (`serried.api.interpod.find_affecting_names`): all groups with such a rule are returned, too.
        """
        woken: set[GroupKey] = set()
        for hint, waiting in self._by_hint.items():
            if hint.namespace:
                woken |= self._list_helped_in_namespace(hint, waiting, None if reached else freed, withdrawn)
            elif not hint.concerns.isdisjoint(reached):
                woken |= self._list_helped(hint, waiting, None)
            else:
                woken |= self._list_helped(hint, waiting, withdrawn) - waiting.released
                woken |= self._list_helped(hint, waiting, freed)
        for group in woken:
            self.leave(group)
        return woken

    def _choose_hint(self, group: GroupKey, hint: QueueingHint) -> QueueingHint:
        """Return the hint with which a group waits, i.e. the properties that decide which freed nodes could help it.

        That is ``hint``, which describes the group. But if no group waits with it yet, and the group's namespace has
        too many hints already, return the one that its further groups share (one for each set of closed nodes).
        """
        self.leave(group)
        if hint in self._by_hint or self._counts[group.namespace] < _MAX_HINTS:
            return hint
        return QueueingHint(
            frozenset(), None, frozenset(), hint.closed, priority=0, counted=False, namespace=group.namespace
        )

    def _enlist(self, group: GroupKey, hint: QueueingHint, need: int) -> _GroupsOfHint:
        self._hints[group] = hint
        self._waiting[group.namespace] += 1
        waiting = self._by_hint.get(hint)
        if waiting is None:
            waiting = self._by_hint[hint] = _GroupsOfHint(namespace=group.namespace)
            self._counts[group.namespace] += 1
        waiting.needs[group] = need
        return waiting

    def _enlist_refused(
        self, group: GroupKey, request: PlanRequest, refusal: Verdict
    ) -> tuple[QueueingHint, _GroupsOfHint]:
        counted = Trait.SAME_FOR_SHAPE in refusal.reason.traits and _is_decided_by_count(request)
        hint = self._choose_hint(group, _make_hint(request, counted=counted))
        return hint, self._enlist(group, hint, max(1, request.need) if counted else 1)

    def _set_bound(self, hint: QueueingHint, waiting: _GroupsOfHint, refusal: Verdict) -> None:
        """Set how many members fit in each domain to the numbers in the verdict ``refusal``, if it has any."""
        if not hint.counted:
            return
        named = {"": refusal.have} if hint.topology_key is None else {d.domain: d.slots for d in refusal.domains}
        waiting.bounds = named
        waiting.default_bound = min(named.values(), default=0) if refusal.domain_count > len(named) else 0

    def _list_helped_in_namespace(
        self, hint: QueueingHint, waiting: _GroupsOfHint, freed: Freed | None, withdrawn: Freed | None
    ) -> set[GroupKey]:
        """Return the next groups to wake, a few at a time, of a namespace that has too many hints.

        The groups ``waiting`` share one ``hint`` though they differ, so it is unknown which nodes help them. Each group
        is returned once after resources were freed on any node that they may use. ``freed`` and ``withdrawn`` are those
        of `wake`.
        """
        if _frees_any(hint, freed):
            waiting.not_woken.update(dict.fromkeys(waiting.needs))
        elif _frees_any(hint, withdrawn):
            waiting.not_woken.update(dict.fromkeys(each for each in waiting.needs if each not in waiting.released))
        return set(islice(waiting.not_woken, _MAX_WOKEN_OF_NAMESPACE))

    def _list_helped(self, hint: QueueingHint, waiting: _GroupsOfHint, freed: Freed | None) -> set[GroupKey]:
        """Return those of the groups ``waiting`` that may fit in a domain with freed nodes.

        These groups share the ``hint``, which says what they need. First count how many more of their members now fit
        on each freed node, and add this to the number that may fit in its domain. ``freed`` has the freed nodes; None
        stands for any node, and then all the groups are returned.
        """
        if freed is None:
            return set(waiting.needs)
        grown = {self._add_freed(hint, waiting, name, before) for name, before in freed.items()} - {None}
        most = max((waiting.bounds[domain] for domain in grown if domain is not None), default=0)
        return {group for group, need in waiting.needs.items() if need <= most}

    def _add_freed(self, hint: QueueingHint, waiting: _GroupsOfHint, name: str, before: Resources | None) -> str | None:
        """Add how many more members fit on the freed node ``name`` to the number that may fit in its domain.

        Return the domain; None if no member fits on the node, or it is gone, in no domain, or closed and not changed.
        Without counts of members (``hint.counted``) `_may_help` sets the number instead. ``before`` are the resources
        that were used on the node before; None if the node itself has changed.
        """
        node = self._nodes.get(name)
        domain = _find_domain(hint, node)
        # A closed node that has changed (``before`` is None) may be open again.
        if node is None or domain is None or (before is not None and name in hint.closed):
            return None
        if not hint.counted:
            return domain if self._may_help(hint, waiting, node, before) else None
        free = self._count(hint, node, self._used.get(name, {}))
        # If the planner has counted between the two counts, some members are counted twice: too many, never too few.
        grown = free - (0 if before is None else self._count(hint, node, before))
        waiting.bounds[domain] = waiting.bounds.get(domain, waiting.default_bound) + max(0, grown)
        return domain if free else None

    def _may_help(self, hint: QueueingHint, waiting: _GroupsOfHint, node: Node, before: Resources | None) -> bool:
        """Return whether any member fits on a freed node. Called for groups of which no members were counted.

        The planner's verdict about these groups did not say how many members fit (``hint.counted`` is False), so they
        are woken as soon as one more member may fit in a domain. ``waiting`` has the groups and the bounds by domain.
        If this node may hold one more, set the bound of its domain (how many members may fit there) to 1. If the
        members have more than `_MAX_SHAPES_COUNTED` different shapes (requests and constraints), nothing is counted,
        and one more is taken to fit. ``before`` are the resources that were
        used on the node before; None if the node itself has changed.
        """
        used = self._used.get(node.name, {})
        domain = _find_domain(hint, node) or ""
        many = len(hint.shapes) > _MAX_SHAPES_COUNTED
        free = [shape for shape in hint.shapes if count_fitting(shape, node, used)] if not many else []
        if many or (free and (before is None or _has_more(hint, free, node, before, used))):
            waiting.bounds[domain] = 1
        waiting.bounds.setdefault(domain, 0)
        return many or bool(free)

    def _count(self, hint: QueueingHint, node: Node, used: Resources) -> int:
        return sum(count_fitting(shape, node, used) for shape in hint.shapes)


def _has_more(hint: QueueingHint, free: Collection[Shape], node: Node, before: Resources, used: Resources) -> bool:
    """Return whether more members of groups with this hint may fit on a node with the usage ``used`` than ``before``.

    ``free`` are the shapes (requests and constraints) of which at least one member fits now.
    """
    if len(hint.shapes) == 1:
        return any(count_fitting(shape, node, before) < count_fitting(shape, node, used) for shape in free)
    # One member of each of two shapes may fit together now, though of each shape no more members fit than before.
    wanted = {name for shape in hint.shapes for name, _ in shape.requests}
    return any(before.get(name, 0) > used.get(name, 0) for name in wanted)


def _frees_any(hint: QueueingHint, freed: Freed | None) -> bool:
    """Return whether the groups that share this hint may use any of the freed nodes; True for None (unknown nodes)."""
    return freed is None or any(name not in hint.closed for name in freed)


def _is_decided_by_count(request: PlanRequest) -> bool:
    """Return whether a request can be planned as soon as enough of its members fit in a domain, whatever else.

    That is so if its members have equal requests and constraints, and there are neither levels, excluded nodes nor
    other rules.
    """
    apart = (
        request.own_slots
        or request.excluded
        or request.parts
        or request.taken
        or (request.levels and not request.spills)
    )
    return not apart and len({member.shape for member in request.members}) == 1


def _make_hint(request: PlanRequest, *, counted: bool) -> QueueingHint:
    shapes = frozenset(member.shape for member in request.members)
    return QueueingHint(
        shapes,
        request.topology_key,
        request.pinned,
        request.closed,
        priority=request.yielding_priority,
        counted=counted,
        concerns=frozenset(name for shape in shapes for name in list_affected_names(shape.requests, shape.neighbours)),
    )


def _find_domain(hint: QueueingHint, node: Node | None) -> str | None:
    """Return the domain of a node by the topology key of the groups that share this hint; "" without a key.

    None if the node does not exist or has no such label, or if the groups must be placed in other domains.
    """
    if node is None:
        return None
    if hint.topology_key is None:
        return ""
    domain = node.labels.get(hint.topology_key)
    return domain if not hint.pinned or domain in hint.pinned else None
