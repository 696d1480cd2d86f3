"""The groups for which the planner found no nodes, and which of them freed resources could help.

`Queue` puts rejected groups in, and `UnschedulableGroups.wake` returns those to plan again. Groups whose members have
the same shapes and constraints share one `QueueingHint`. For each hint and domain there is an upper bound of the slots,
i.e. of the members that fit: those that the planner counted when it rejected the group last, plus those freed since.
Freed resources wake the groups whose need is within the bound. So the cost depends on the number of freed nodes and of
hints, and neither on the size of the cluster nor on the number of groups.
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
from serried.api.verdict import Mark, Verdict
from serried.cluster.usage import Freed
from serried.plan.fit import count_fitting
from serried.plan.request import PlanRequest


def count_share(share_percent: int, count: int) -> int:
    """Return how many of ``count`` nodes or domains one namespace may have: its share, rounded down, at least 1."""
    return max(1, count * share_percent // 100)


_MAX_UNPLANNED_OFFERS = 100
"""The most nodes in `QueueEntry.unplanned_offers`. Beyond that, new ones do not requeue the group."""


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
    """True if the next try is only because of `unplanned_offers`."""

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

        Return whether the group is to be planned once more: if a node is new since the planner rejected the
        group, and there are not too many of them.
        """
        if names <= self.unplanned_offers or len(self.unplanned_offers) >= _MAX_UNPLANNED_OFFERS:
            return False
        self.unplanned_offers |= names
        self.retries_for_offers = True
        return True

    def note_refusal(self) -> None:
        """Note that the planner has found no nodes. Drop `unplanned_offers`, as the cluster has changed since then.

        After a try that was made only because of them they are kept, so that they cause no further one.
        """
        self.unplanned_offers = self.unplanned_offers if self.retries_for_offers else frozenset()
        self.retries_for_offers = False

    def begin_try(self, planner_input: tuple[object, ...], now: float, *, waits: bool) -> bool:
        """Begin a try with this input of the planner, and end the backoff. Return whether the group has to be planned.

        It has not if it ``waits`` among the unschedulable groups, the input has not changed, and ``retry_at``
        has not come.
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
        """Return whether the retry time has come by ``now``, once per retry time. The next try is then not left out."""
        due = self.retry_at <= now
        if due:
            self.last_input, self.retry_at = (), math.inf
        return due

    def pop_unattended(self) -> bool:
        """Return `unattended` and reset it. If it was True, the next try is not left out."""
        was, self.unattended = self.unattended, False
        if was:
            self.last_input = ()
        return was


_MAX_SHAPES_COUNTED = 8
"""The number of a group's shapes above which no slots are counted on freed nodes: it is planned instead."""


_MAX_HINTS = 64
"""The number of hints per namespace. Slots on freed nodes are counted for each hint, so their number is limited."""

_MAX_WOKEN_OF_NAMESPACE = 4
"""The number of groups that `wake` returns at a time for a hint that all groups of a namespace share."""


@dataclass(frozen=True, slots=True)
class QueueingHint:
    """The properties of rejected groups that decide which nodes could help them, and how many members fit there.

    Groups with equal properties share one hint.
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
    """True if the planner's verdict has the number of slots per domain, so that bounds can be computed.

    Otherwise any slot on a freed node may be the one that was missing.
    """

    namespace: str = ""
    """The namespace of which all further groups share this hint, because it has `_MAX_HINTS` hints.

    "" for a hint that describes the groups themselves.
    """

    concerns: frozenset[str] = frozenset()
    """The names of the inter-pod rules by which other pods could help or hinder the members.

    The names are those of `serried.api.interpod.list_affected_names`.
    """


@dataclass(slots=True)
class _Waiters:
    """The groups with one hint, and the upper bounds of the slots for them."""

    bounds: dict[str, int] = field(default_factory=dict)
    """For each domain, the most members of one group that may fit there by now."""

    default_bound: int = 0
    """The most members of one group that may fit in a domain that is not in ``bounds``."""

    needs: dict[GroupKey, int] = field(default_factory=dict)
    """For each group, the number of members that must fit."""

    released: set[GroupKey] = field(default_factory=set)
    """The groups that have released their own slots. The removal of their own nominations must not wake them."""

    not_woken: dict[GroupKey, None] = field(default_factory=dict)
    """The groups of a namespace's hint that were not woken since resources were last freed, longest wait first."""

    namespace: str = ""
    """The namespace against whose `_MAX_HINTS` the hint counts: that of its first group."""


class UnschedulableGroups:
    """The groups that need not be planned before resources are freed that could help them.

    ``nodes`` and ``used`` are live: the nodes, and the used resources, by node name.
    """

    def __init__(self, nodes: Mapping[str, Node], used: Mapping[str, Resources]) -> None:
        self._nodes = nodes
        self._used = used
        self._by_hint: dict[QueueingHint, _Waiters] = {}
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
        """Add a group that the planner has just rejected.

        The slots that the verdict ``refusal`` has counted in each domain become the upper bounds of the group's
        hint.
        """
        hint, waiters = self._enlist_refused(group, request, refusal)
        self._set_bound(hint, waiters, refusal)

    def put_stale(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> None:
        """Add a group as `put` does, whose verdict is older than the last freed resources.

        Existing bounds of its hint are kept, because they count resources that the verdict does not. The caller
        has to see to it that the group is planned again soon.
        """
        hint, waiters = self._enlist_refused(group, request, refusal)
        if len(waiters.needs) == 1:
            self._set_bound(hint, waiters, refusal)

    def put_released(self, group: GroupKey, request: PlanRequest) -> None:
        """Add a group that has released its slots. Neither its slots nor its nominations wake the group itself."""
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
        waiters = self._by_hint[hint]
        del waiters.needs[group]
        waiters.released.discard(group)
        waiters.not_woken.pop(group, None)
        if not waiters.needs:
            del self._by_hint[hint]
            self._counts[waiters.namespace] -= 1

    def has_other_namespaces(self, namespace: str) -> bool:
        """Return whether any group of another namespace is unschedulable."""
        return len(self._hints) > self._waiting[namespace]

    def wake(self, freed: Freed | None, withdrawn: Freed | None, reached: Collection[str] = ()) -> set[GroupKey]:
        """Remove and return the groups that freed resources could help.

        ``freed`` are the nodes on which pods have ended or that have changed, with the used resources before;
        None stands for any node. ``withdrawn`` are those of which nominations were removed. ``reached`` are the
        names of rules that pods which came or ended may affect (`serried.api.interpod.find_affecting_names`): they wake
        all groups with such a rule.
        """
        woken: set[GroupKey] = set()
        for hint, waiters in self._by_hint.items():
            if hint.namespace:
                woken |= self._list_helped_in_namespace(hint, waiters, None if reached else freed, withdrawn)
            elif not hint.concerns.isdisjoint(reached):
                woken |= self._list_helped(hint, waiters, None)
            else:
                woken |= self._list_helped(hint, waiters, withdrawn) - waiters.released
                woken |= self._list_helped(hint, waiters, freed)
        for group in woken:
            self.leave(group)
        return woken

    def _choose_hint(self, group: GroupKey, hint: QueueingHint) -> QueueingHint:
        """Return the hint for a group: ``hint``, or that of its namespace if the namespace has too many hints."""
        self.leave(group)
        if hint in self._by_hint or self._counts[group.namespace] < _MAX_HINTS:
            return hint
        return QueueingHint(
            frozenset(), None, frozenset(), hint.closed, priority=0, counted=False, namespace=group.namespace
        )

    def _enlist(self, group: GroupKey, hint: QueueingHint, need: int) -> _Waiters:
        self._hints[group] = hint
        self._waiting[group.namespace] += 1
        waiters = self._by_hint.get(hint)
        if waiters is None:
            waiters = self._by_hint[hint] = _Waiters(namespace=group.namespace)
            self._counts[group.namespace] += 1
        waiters.needs[group] = need
        return waiters

    def _enlist_refused(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> tuple[QueueingHint, _Waiters]:
        counted = Mark.SHAPE in refusal.reason.marks and _is_decided_by_count(request)
        hint = self._choose_hint(group, _make_hint(request, counted=counted))
        return hint, self._enlist(group, hint, max(1, request.need) if counted else 1)

    def _set_bound(self, hint: QueueingHint, waiters: _Waiters, refusal: Verdict) -> None:
        """Set the bounds of a hint to the number of members that fit in each domain according to a verdict."""
        if not hint.counted:
            return
        named = {"": refusal.have} if hint.topology_key is None else {d.domain: d.slots for d in refusal.domains}
        waiters.bounds = named
        waiters.default_bound = min(named.values(), default=0) if refusal.domain_count > len(named) else 0

    def _list_helped_in_namespace(
        self, hint: QueueingHint, waiters: _Waiters, freed: Freed | None, withdrawn: Freed | None
    ) -> set[GroupKey]:
        """Return the next groups to wake that share the hint of their namespace, a few at a time.

        Each of them is returned once after resources were freed on any node that is open to them, as no slots
        are counted.
        """
        if _frees_any(hint, freed):
            waiters.not_woken.update(dict.fromkeys(waiters.needs))
        elif _frees_any(hint, withdrawn):
            waiters.not_woken.update(dict.fromkeys(each for each in waiters.needs if each not in waiters.released))
        return set(islice(waiters.not_woken, _MAX_WOKEN_OF_NAMESPACE))

    def _list_helped(self, hint: QueueingHint, waiters: _Waiters, freed: Freed | None) -> set[GroupKey]:
        """Return the groups of a hint that may fit in a domain with freed nodes; all of them if ``freed`` is None.

        The freed resources are added to the domains' bounds.
        """
        if freed is None:
            return set(waiters.needs)
        grown = {self._add_freed(hint, waiters, name, before) for name, before in freed.items()} - {None}
        most = max((waiters.bounds[domain] for domain in grown if domain is not None), default=0)
        return {group for group, need in waiters.needs.items() if need <= most}

    def _add_freed(self, hint: QueueingHint, waiters: _Waiters, name: str, before: Resources | None) -> str | None:
        """Add the slots freed on a node to the bound of its domain. Return the domain; None if no member fits there.

        ``before`` are the node's used resources before; None if the node itself has changed.
        """
        node = self._nodes.get(name)
        domain = _find_domain(hint, node)
        # A closed node that has changed (``before`` is None) may be open again.
        if node is None or domain is None or (before is not None and name in hint.closed):
            return None
        if not hint.counted:
            return domain if self._may_help(hint, waiters, node, before) else None
        free = self._count(hint, node, self._used.get(name, {}))
        # A verdict between the two counts includes some of these slots. The bound may be too high, but never too low.
        grown = free - (0 if before is None else self._count(hint, node, before))
        waiters.bounds[domain] = waiters.bounds.get(domain, waiters.default_bound) + max(0, grown)
        return domain if free else None

    def _may_help(self, hint: QueueingHint, waiters: _Waiters, node: Node, before: Resources | None) -> bool:
        """Return whether a member fits on a node. If more fit than before, set the bound of the node's domain to 1.

        True without counting if there are more than `_MAX_SHAPES_COUNTED` shapes. ``before`` are the used
        resources before; None if the node itself has changed.
        """
        used = self._used.get(node.name, {})
        domain = _find_domain(hint, node) or ""
        many = len(hint.shapes) > _MAX_SHAPES_COUNTED
        free = [shape for shape in hint.shapes if count_fitting(shape, node, used)] if not many else []
        if many or (free and (before is None or _has_more(hint, free, node, before, used))):
            waiters.bounds[domain] = 1
        waiters.bounds.setdefault(domain, 0)
        return many or bool(free)

    def _count(self, hint: QueueingHint, node: Node, used: Resources) -> int:
        return sum(count_fitting(shape, node, used) for shape in hint.shapes)


def _has_more(hint: QueueingHint, free: Collection[Shape], node: Node, before: Resources, used: Resources) -> bool:
    """Return whether more members fit on a node than when the resources ``before`` were used.

    ``free`` are the shapes of which at least one member fits now.
    """
    if len(hint.shapes) == 1:
        return any(count_fitting(shape, node, before) < count_fitting(shape, node, used) for shape in free)
    # Two shapes may fit together where neither has a slot more than before.
    wanted = {name for shape in hint.shapes for name, _ in shape.requests}
    return any(before.get(name, 0) > used.get(name, 0) for name in wanted)


def _frees_any(hint: QueueingHint, freed: Freed | None) -> bool:
    """Return whether any of the freed nodes may be used with this hint; True for None, which is any node."""
    return freed is None or any(name not in hint.closed for name in freed)


def _is_decided_by_count(request: PlanRequest) -> bool:
    """Return whether the number of slots per domain alone decides if a request can be planned.

    So it is if its members have one shape, and neither levels, excluded nodes nor other rules.
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
    """Return the domain of a node; None if it is unknown, has no such label, or the domain is not permitted."""
    if node is None:
        return None
    if hint.topology_key is None:
        return ""
    domain = node.labels.get(hint.topology_key)
    return domain if not hint.pinned or domain in hint.pinned else None
