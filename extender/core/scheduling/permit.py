"""Decides whether a member may be bound: the only place for this, asked before every Binding.

`Permit.refuse` or `Permit.refuse_all` is asked before each Binding: of a commit, of members beyond the quorum, of
replacements of deleted members, and of cycles of an earlier leader. The progress of a cycle (`CycleStage`) is no
permission: even when a cycle is committed, each of its Bindings is checked here.

A cycle waits for every PodGroup of the tree that was planned (`Reservation.parts`), so no PodGroup starts with less
than its own quorum. If the members of one do not arrive in time and the tree is complete without that PodGroup, the
cycle continues without it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import chain

from extender.core.feature import Feature
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.effects import Context
from extender.core.scheduling.request import (
    AssignedNodes,
    find_split,
    list_assigned_nodes,
    list_nodes_of_slots,
)
from serried.api.group import Leaf, PodGroup, Tree, list_groups, list_leaves
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.reservation import Reservation
from serried.api.resources import capacity, subtract
from serried.cluster.cache import Store
from serried.cluster.ledger import Ledger
from serried.plan.fit import admits, count_fitting
from serried.plan.quorum import MemberState, count_missing
from serried.plan.revalidate import keeps_rules


def adjust_quorum(cycle: BindingCycle, group: PodGroup, store: Store, ledger: Ledger) -> None:
    """Update the number of members that a cycle needs for its quorum, before it is committed.

    It needs more if members that ran when the plan was made have ended since. It needs fewer if the minCount of a
    PodGroup is lowered, as for an elastic Job. ``group`` is the PodGroup as it is now.
    """
    placed = store.members.count_placed(group.key, without=cycle.bound)
    planned = {leaf.name: leaf.need for leaf in list_leaves(cycle.group.tree)}
    parts = dict(cycle.reservation.parts)
    for leaf in list_leaves(group.tree):
        if leaf.name in parts:
            floor = parts[leaf.name] if planned.get(leaf.name) == leaf.need else 0
            parts[leaf.name] = max(floor, leaf.need - placed[leaf.name])
    ledger.adjust_quorum(cycle.reservation, parts)


def find_parts_to_drop(cycle: BindingCycle, short: frozenset[str], store: Store) -> frozenset[str] | None:
    """Return the PodGroups that a tree's cycle can drop to continue without the ``short`` ones; None if it cannot.

    None also if there is nothing to drop. ``short`` are names of PodGroups that lack members. If a CompositePodGroup is
    not complete without them, all PodGroups below it are dropped, too.
    """
    group, parts = store.groups.get(cycle.reservation.group), cycle.reservation.parts
    if group is None or parts.keys() <= short:
        return None
    leaves = store.members.classify(group.key, without=cycle.bound).leaves
    whole = {leaf.name for leaf in list_leaves(group.tree) if leaves[leaf.name].need(leaf.need) == 0}
    kept = _list_complete(group.tree, whole | (parts.keys() - short))
    if kept is None or not kept & parts.keys():
        return None
    return frozenset(parts.keys() - kept) or None


def _list_complete(tree: Tree, ready: Collection[str]) -> frozenset[str] | None:
    """Return the PodGroups to keep below a group of the tree; None if the group itself is not complete.

    ``ready`` are the names of PodGroups with their quorum. A CompositePodGroup is complete if enough of its children
    are.
    """
    if isinstance(tree, Leaf):
        return frozenset({tree.name}) if tree.name in ready else None
    kept = [found for each in tree.below if (found := _list_complete(each, ready)) is not None]
    return frozenset[str]().union(*kept) if len(kept) >= tree.need else None


def find_scattered(
    group: PodGroup,
    reservation: Reservation,
    uids: Iterable[str],
    store: Store,
    beside: Callable[[], AssignedNodes] = dict,
) -> str | None:
    """Return a phrase if slots cannot be bound as planned, because node labels have changed; else None.

    Within a tree, each group with a topology key must still have all its nodes in one domain. ``uids`` are the members
    whose slots are checked. Nodes of running members count, too: ``beside`` returns them by PodGroup name. The root of
    the tree is not checked here: its domain is that of the reservation.
    """
    inner = [tree for each in group.tree.below for tree in list_groups(each) if tree.topology_key is not None]
    if not inner:
        return None
    assigned_nodes = list_nodes_of_slots(reservation, uids)
    for name, found in beside().items():
        assigned_nodes.setdefault(name, []).extend(found)
    split = find_split(inner, assigned_nodes, store.nodes)
    if split is None:
        return None
    domains = sorted([*split.domains, *(["none"] if split.stray else [])])
    return f"the nodes of {split.name}: {', '.join(domains)} are more than one domain now"


def find_offered_node(
    reservation: Reservation, pod: Pod, names: Sequence[str], store: Store, closed: Collection[str] = ()
) -> str | None:
    """Return a node of ``names`` to which a member's slot can move within its domain; None if there is none.

    The node needs free resources for the pod, and must not be one of ``closed``. Nodes with slots of the gang come
    first, so that it stays close together; then the order of ``names`` counts.
    """
    group = store.groups.get(reservation.group)
    key = group.topology_key if group is not None else None
    offered, mates = set(names), {slot.node for slot in reservation.slots.values()}
    for name in chain(sorted(mates & offered), names):
        node = store.nodes.get(name)
        if node is None or name in closed or (key is not None and node.labels.get(key) != reservation.domain):
            continue
        if count_fitting(pod.shape, node, store.occupancy.used.get(name)) > 0:
            return name
    return None


class Obstacle(StrEnum):
    """A kind of reason why a Binding is impossible now.

    TERM: this instance does not lead. GROUP: the PodGroup is gone. QUORUM: members are missing. SLOT: the slot is not
    valid.
    """

    TERM = "term"
    GROUP = "group"
    QUORUM = "quorum"
    SLOT = "slot"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a member must not be bound now. ``text`` is a phrase for people."""

    obstacle: Obstacle
    text: str


NOT_LEADING = Refusal(Obstacle.TERM, "this instance no longer leads")


class Permit:
    """Decides about Bindings from the Store, the ledger and the term.

    Every method is synchronous: its answer holds until the caller awaits.
    """

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._features = context.features
        self._leads = context.term.leads

    def refuse(self, cycle: BindingCycle, uid: str, node: str) -> Refusal | None:
        """Return why a member must not be bound to this node; None if it may be.

        After the first Binding of a commit, committed members only need a valid slot: all of them are bound in the end,
        and the gang would be incomplete without this one.
        """
        if not self._leads():
            return NOT_LEADING
        if cycle.over:
            return Refusal(Obstacle.SLOT, "the binding cycle of the gang has ended")
        slot = cycle.reservation.slots.get(uid)
        if slot is None or slot.node != node:
            return Refusal(Obstacle.SLOT, "the member is planned on another node now")
        pod = self._store.pods.get(uid)
        if pod is not None and pod.node == node:
            return None  # the pod is bound there already, which the API server's answer will say
        committed = uid in cycle.reservation.committed
        void = None if committed and cycle.binding_sent else self._find_missing_gang(cycle, [uid])
        return (
            void or self._find_misfit(cycle, [uid]) or (None if committed else self._find_outside_domain(cycle, [uid]))
        )

    def refuse_all(self, cycle: BindingCycle, uids: Collection[str]) -> Refusal | None:
        """Return why these members must not be bound together; None if they may be.

        ``uids`` are the members of one commit. None of them is bound.
        """
        if not self._leads():
            return NOT_LEADING
        return (
            self._find_missing_gang(cycle, uids)
            or self._find_misfit(cycle, uids)
            or self._find_outside_domain(cycle, uids)
        )

    # --- the gang ----------------------------------------------------------------------------------------------

    def _group_of(self, cycle: BindingCycle) -> PodGroup:
        """Return the cycle's PodGroup as it is now; as it was planned if it is deleted or was created again.

        So a commit keeps its topology constraint.
        """
        found = self._store.groups.get(cycle.reservation.group)
        return found if found is not None and found.uid == cycle.group.uid else cycle.group

    def find_group(self, cycle: BindingCycle) -> PodGroup | None:
        """Return the PodGroup for which the cycle was planned, as it is now.

        None if it is deleted, even if another PodGroup has its name by now.
        """
        found = self._store.groups.get(cycle.reservation.group)
        return found if found is not None and found.uid == cycle.group.uid else None

    def _find_missing_gang(self, cycle: BindingCycle, uids: Collection[str]) -> Refusal | None:
        """Return a refusal if the gang as a whole forbids to bind these members (UIDs); None if it does not.

        That is so if the PodGroup is not the one that was planned, if a kind of objects that every plan needs cannot be
        read, or if its quorum is missing. Replacements that may be bound to the slots kept for them need no quorum.
        """
        if self._store.obstacles.needed:
            return Refusal(Obstacle.GROUP, self._store.obstacles.needed)
        group = self.find_group(cycle)
        if group is None:
            return Refusal(Obstacle.GROUP, "the PodGroup was deleted or recreated")
        missing = self.count_missing(cycle, group, uids)
        if not missing or all(self.has_own_slot(cycle, uid) for uid in uids):
            return None
        return Refusal(Obstacle.QUORUM, f"{missing:g} members of the quorum are missing")

    def count_missing(self, cycle: BindingCycle, group: PodGroup, uids: Collection[str] = ()) -> float:
        """Return how many members the quorum lacks if these members (``uids``) and the committed ones are bound.

        Infinite if the quorum cannot be reached. In a tree, the PodGroups of ``uids`` need their own quorums even if
        the tree is complete without them, so the result is at least what these PodGroups lack.
        """
        return self._count_missing(group, self._iterate_unplaced(uids, cycle.reservation.committed, cycle.bound), uids)

    def is_complete_without(self, cycle: BindingCycle, uid: str, spares: Collection[str] = ()) -> bool:
        """Return whether the quorum is complete without a member, counting bound members and ``spares``.

        ``spares`` are UIDs of members that can be bound instead. In a tree, the quorum of the member's own PodGroup has
        to be complete, too.
        """
        group = self.find_group(cycle)
        coming = self._iterate_unplaced(spares, cycle.bound)
        return group is not None and not self._count_missing(group, coming, [uid])

    def _count_missing(self, group: PodGroup, coming: Iterator[str], uids: Collection[str]) -> float:
        if not group.policy.is_gang:
            return 0
        members = self._store.members
        placed = Counter(members.count_placed(group.key))
        short = {leaf.name: lacks for leaf in list_leaves(group.tree) if (lacks := count_missing(leaf, placed))}
        # Each of thousands of members may ask for the permit, so counting stops once nothing is short.
        while short and (uid := next(coming, None)) is not None:
            part = members.leaf_of(uid)
            placed[part] += 1
            if short.get(part, 0) > 1:
                short[part] -= 1
            else:
                short.pop(part, None)
        # The tree may be complete without the members' own PodGroups, but these also start whole or not at all.
        own = {members.leaf_of(uid) for uid in uids} if short else set[str]()
        return max(count_missing(group.tree, placed), sum(short[name] for name in own & short.keys()))

    def _iterate_unplaced(self, *coming: Iterable[str]) -> Iterator[str]:
        """Iterate over those of these members (UIDs) that are not bound yet, each once."""
        seen: set[str] = set()
        for uid in chain(*coming):
            pod = self._store.pods.get(uid)
            if pod is not None and pod.pending and uid not in seen:
                seen.add(uid)
                yield uid

    def has_own_slot(self, cycle: BindingCycle, uid: str) -> bool:
        """Return whether a replacement may be bound to the slot kept for it although the quorum is missing.

        It may if its planned node is that of the kept slot, and if the members that run and the slots kept for
        replacements together are a quorum. The feature that repairs running gangs checks this (`Feature.permit`).
        False also if no slot is kept for the member ``uid``.
        """
        if self._store.vacancies.of_replacement(uid) is None:
            return False
        return any(feature.permit(cycle, uid) for feature in self._features[Feature.permit])

    # --- the slot ----------------------------------------------------------------------------------------------

    def find_misfit(self, cycle: BindingCycle, uid: str) -> str | None:
        """Return a phrase that says why a member's slot is not valid any more; None if it is."""
        return find_misfit(self.find_group(cycle), cycle.reservation, [uid], self._store, beside=self._ledger)

    def _find_misfit(self, cycle: BindingCycle, uids: Collection[str]) -> Refusal | None:
        misfit = find_misfit(self._group_of(cycle), cycle.reservation, uids, self._store, beside=self._ledger)
        return None if misfit is None else Refusal(Obstacle.SLOT, misfit)

    def breaks_rules(self, cycle: BindingCycle) -> bool:
        """Return whether rules of members (affinity, spread, volumes, devices) forbid some of the cycle's slots.

        The victims of the cycle are treated as ended.
        """
        reservation = cycle.reservation
        pods = (self._store.pods.get(uid) for uid in reservation.slots)
        members = [pod for pod in pods if pod is not None and pod.pending]
        nodes = {member.uid: reservation.slots[member.uid].node for member in members}
        leaving = [pod for uid in reservation.victims if (pod := self._store.pods.get(uid)) is not None and pod.bound]
        priority = self._store.priorities.of_group(reservation.group)
        now = self._store.snapshots.take(priority, members)
        return not keeps_rules(members, nodes, leaving, now)

    def _find_resident(self, cycle: BindingCycle) -> Pod | None:
        return next(self._store.members.iterate_in_state(cycle.reservation.group, MemberState.BOUND), None)

    def _find_outside_domain(self, cycle: BindingCycle, uids: Iterable[str]) -> Refusal | None:
        """Return a refusal if node labels have changed so that these members (UIDs) would not be in the gang's domain.

        Both the nodes of running members and the nodes of the slots are checked.
        """
        group = self._group_of(cycle)
        resident = self._find_resident(cycle) if group.topology_key is not None else None
        node = self._store.nodes.get(resident.node) if resident is not None else None
        if node is not None and group.topology_key is not None:
            domain = node.labels.get(group.topology_key, "")
            if domain != cycle.reservation.domain:
                return Refusal(Obstacle.SLOT, f"the gang runs in {domain or 'no domain'} now")
        found = find_scattered(group, cycle.reservation, uids, self._store, partial(self._list_assigned_nodes, group))
        return None if found is None else Refusal(Obstacle.SLOT, found)

    def _list_assigned_nodes(self, group: PodGroup) -> AssignedNodes:
        return list_assigned_nodes(self._store.members.classify(group.key), self._store.nodes)


def find_misfit(
    group: PodGroup | None,
    reservation: Reservation,
    uids: Collection[str],
    store: Store,
    *,
    beside: Iterable[Reservation],
) -> str | None:
    """Return a phrase with the first reason why these slots cannot be bound as planned; None if all of them can.

    A slot is valid if its pod still waits, its node exists, is in the planned domain, admits the pod (taints,
    selectors), and is not over-committed. The usage of a node includes the slots on it, except for those of
    uncommitted gangs of lower priority. ``beside`` are all reservations, in which these gangs are looked up.
    """
    key = group.topology_key if group is not None else None
    for uid in uids:
        slot, pod = reservation.slots.get(uid), store.pods.get(uid)
        if slot is None or pod is None or not pod.pending:
            return f"member {uid} does not exist any more"
        node = store.nodes.get(slot.node)
        if node is None:
            return f"node {slot.node} does not exist any more"
        if key is not None and node.labels.get(key) != reservation.domain:
            return f"node {slot.node} is not in {reservation.domain} any more"
        if not admits(pod.shape, node):
            return f"node {slot.node} does not admit {pod.name} any more"
        if not _holds(node, pod, reservation, store, beside):
            return f"node {slot.node} has too few free resources"
    return find_scattered(group, reservation, uids, store) if group is not None else None


def _holds(node: Node, pod: Pod, reservation: Reservation, store: Store, beside: Iterable[Reservation]) -> bool:
    """Return whether a node has enough of each resource that a pod requests; the pod's own slot is in the usage.

    Victims do not count as usage, as slots that wait for them over-commit nodes on purpose (`Ledger`). Nor do slots in
    ``beside`` of uncommitted gangs of lower priority: when such a gang is checked here later, the node is full for it.
    """
    used = store.occupancy.used.get(node.name, {})
    requests = [name for name, amount in pod.shape.requests if amount > 0]

    def fits() -> bool:
        return all(used.get(name, 0) <= capacity(node.allocatable, name) for name in requests)

    if fits():
        return True
    for victim in (store.pods.get(uid) for uid in store.pending_victims.list_on(node.name)):
        if victim is not None:
            used = subtract(used, dict(victim.shape.requests))
    if fits():
        return True
    for lower in _iterate_lower_priority(node.name, reservation, store, beside):
        used = subtract(used, dict(lower.shape.requests))
    return fits()


def _iterate_lower_priority(
    node: str, reservation: Reservation, store: Store, beside: Iterable[Reservation]
) -> Iterator[Pod]:
    """Iterate over pending pods with a slot on a node whose gangs have a lower priority than this reservation's.

    Only uncommitted gangs count, because they may still be planned elsewhere. ``beside`` are the reservations in which
    to look for such slots.
    """
    priority = store.priorities.of_group(reservation.group)
    for other in beside:
        if other.committed or not other.need or other is reservation:
            continue
        here = [uid for uid, slot in other.slots.items() if slot.node == node]
        if here and store.priorities.of_group(other.group) < priority:
            yield from (pod for uid in here if (pod := store.pods.get(uid)) is not None and pod.pending)
