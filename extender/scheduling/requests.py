"""The planner's request: who of a group is to be placed, how many at least, and where they may go."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from extender.scheduling.checks import find_conflict, is_able
from extender.scheduling.cycle import BindingCycle
from extender.scheduling.group_state import WHOLE, Mending
from extender.scheduling.homes import Homes, find_homes, homes_of
from serried.cluster.store import Store
from serried.model.group import GroupKey, GroupKind, PodGroup
from serried.model.node import Node
from serried.model.plan import PlanRequest
from serried.model.pod import Pod
from serried.model.tree import Leaf, Tree, list_leaves
from serried.model.verdict import Verdict
from serried.plan.levels import Opening, open_levels
from serried.plan.quorum import GroupMembers


def build_request(
    group: PodGroup,
    group_members: GroupMembers,
    excluded: frozenset[tuple[str, str]],
    nodes: Mapping[str, Node],
    opening: Opening,
    mending: Mending = WHOLE,
    home: str = "",
) -> PlanRequest | Verdict:
    """The planner's request for a whole group; a Verdict where its bound members contradict the constraint.

    ``opening`` are the levels that it may try by now. ``home`` is the domain of members whose nodes are gone: as long
    as they count, nobody goes elsewhere.
    """
    conflict = find_conflict(group, group_members, nodes)
    if conflict is not None:
        return conflict
    if group.tree is not None:
        return _build_tree_request(group, group_members, excluded, nodes, opening, mending.heirs)
    request = PlanRequest(
        group_members.waiting,
        group_members.need(group.policy.min_count or 1),
        group.topology_key,
        excluded=excluded,
        levels=opening.keys,
        spills=opening.spills,
        homes=frozenset(pod.node for pod in group_members.bound),
        style=group.preference.style,
    )
    if mending.heirs:
        request = replace(request, members=mending.heirs, need=0, own_slots=True)
    key = group.topology_key
    if key is None:
        return request
    domains = frozenset(nodes[pod.node].labels[key] for pod in group_members.find_residents(nodes) if pod.node in nodes)
    if not domains and group_members.bound and home:
        domains = frozenset({home})
    return replace(request, pinned=domains)


def find_opening(group: PodGroup, waited: float) -> Opening:
    """The preferred levels that a group may try when its quorum has stood for so many seconds."""
    return _open_tree(group, waited) if group.tree is not None else open_levels(group.preference.levels, waited)


def build_joining_request(
    cycle: BindingCycle, members: Sequence[Pod], need: int, excluded: frozenset[tuple[str, str]], store: Store
) -> PlanRequest:
    """The planner's request for members that join a cycle, or move in it: to where the others are, if they can."""
    group = cycle.group
    if group.tree is not None:
        return _build_joining_tree_request(cycle, members, need, excluded, store)
    bound = (store.pods[uid].node for uid in cycle.bound if uid in store.pods)
    return PlanRequest(
        members,
        need,
        group.topology_key,
        cycle.pinned,
        excluded,
        cycle.closed,
        levels=tuple(level.key for level in group.preference.levels),
        homes=frozenset(slot.node for slot in cycle.reservation.slots.values()) | frozenset(bound) - {""},
        style=group.preference.style,
        group_priority=store.priorities.find_own(group.key),
    )


@dataclass(frozen=True, slots=True)
class _Wish:
    """Who of each PodGroup waits, and how many of them must be placed; a PodGroup without entry takes no part.

    They have ``waited`` so many seconds for a domain of a preferred level.
    """

    members: Mapping[str, Sequence[Pod]]
    need: Mapping[str, int]
    homes: Homes
    nodes: Mapping[str, Node]
    waited: float
    common: PlanRequest


def _build_tree_request(
    group: PodGroup,
    group_members: GroupMembers,
    excluded: frozenset[tuple[str, str]],
    nodes: Mapping[str, Node],
    opening: Opening,
    heirs: Collection[Pod] = (),
) -> PlanRequest:
    """The planner's request for every PodGroup that has its quorum; for ``heirs`` alone if there are any."""
    leaves = group_members.leaves
    if heirs:
        uids = {pod.uid for pod in heirs}
        members = {name: tuple(pod for pod in each.waiting if pod.uid in uids) for name, each in leaves.items()}
        need = dict.fromkeys(leaves, 0)
    else:
        able = [leaf for leaf in list_leaves(group.tree) if is_able(leaf, leaves[leaf.name])]
        need = {leaf.name: leaves[leaf.name].need(leaf.need) for leaf in able}
        members = {name: leaves[name].waiting for name in need}
    homes = find_homes(group_members, nodes)
    common = PlanRequest((), 0, excluded=excluded, style=group.preference.style, own_slots=bool(heirs))
    return _build_root(group, _Wish(members, need, homes, nodes, opening.waited, common))


def _build_joining_tree_request(
    cycle: BindingCycle, members: Sequence[Pod], need: int, excluded: frozenset[tuple[str, str]], store: Store
) -> PlanRequest:
    """The same for members that join a cycle, or move in it: each to where its PodGroup is."""
    group, reservation = cycle.group, cycle.reservation
    homes = dict(find_homes(store.members.classify(group.key), store.nodes))
    for name, found in homes_of(reservation, reservation.slots).items():
        homes[name] = [*homes.get(name, ()), *found]
    joining: dict[str, list[Pod]] = {leaf.name: [] for leaf in list_leaves(group.tree)}
    for pod in members:
        joining.setdefault(store.members.leaf_of(pod.uid), []).append(pod)
    common = PlanRequest((), 0, excluded=excluded, closed=cycle.closed, style=group.preference.style)
    wish = _Wish(joining, dict.fromkeys(joining, 0), homes, store.nodes, math.inf, common)
    return replace(_build_root(group, wish), need=need, group_priority=store.priorities.find_own(group.key))


def _build_root(group: PodGroup, wish: _Wish) -> PlanRequest:
    assert group.tree is not None  # noqa: S101 - narrows for the type checker: only trees come here
    found = _build_below(group.tree, wish)
    return found or replace(wish.common, topology_key=group.topology_key)


def _build_below(tree: Tree, wish: _Wish) -> PlanRequest | None:
    """The request for one group of the tree; None if it cannot have its quorum."""
    names = [leaf.name for leaf in list_leaves(tree)]
    homes = frozenset(home for name in names for home in wish.homes.get(name, ()))
    key = tree.topology_key
    labels = (wish.nodes[home].labels for home in homes if home in wish.nodes)
    pinned = frozenset(each[key] for each in labels if key in each) if key is not None else frozenset[str]()
    base = replace(wish.common, topology_key=key, pinned=pinned, homes=homes)
    if isinstance(tree, Leaf):
        return _build_leaf(tree, base, wish) if tree.name in wish.need else None
    parts = tuple(part for each in tree.below if (part := _build_below(each, wish)) is not None)
    wanted = tree.need - sum(part.need == 0 for part in parts)
    open_ = sorted(part.need for part in parts if part.need)
    if wanted > len(open_):
        return None
    members = tuple(member for part in parts for member in part.members)
    wanted = max(0, wanted)
    name = GroupKey("", tree.name, GroupKind.COMPOSITE).encoded
    return replace(base, name=name, members=members, need=sum(open_[:wanted]), parts=parts, wanted=wanted)


def _build_leaf(leaf: Leaf, base: PlanRequest, wish: _Wish) -> PlanRequest:
    opening = open_levels(leaf.preference.levels, wish.waited)
    return replace(
        base,
        name=leaf.name,
        members=tuple(wish.members[leaf.name]),
        need=wish.need[leaf.name],
        levels=opening.keys,
        spills=opening.spills,
        style=leaf.preference.style,
    )


def _open_tree(group: PodGroup, waited: float) -> Opening:
    """When more levels are open to one of the PodGroups of a tree."""
    openings = [open_levels(leaf.preference.levels, waited) for leaf in list_leaves(group.tree)]
    return Opening((), min((each.next_in for each in openings), default=math.inf), waited)


def leave_out(request: PlanRequest, seats: Mapping[str, str], nodes: Mapping[str, Node]) -> PlanRequest:
    """The request for the others when these members have their nodes (UID to node): they join them there."""
    homes = [seats[member.uid] for member in request.members if member.uid in seats]
    key, pinned = request.topology_key, request.pinned
    if key is not None and homes:
        pinned = frozenset(nodes[home].labels[key] for home in homes)
    parts = tuple(leave_out(part, seats, nodes) for part in request.parts)
    whole = sum(now.need == 0 < before.need for now, before in zip(parts, request.parts, strict=True))
    return replace(
        request,
        members=tuple(member for member in request.members if member.uid not in seats),
        need=max(0, request.need - len(homes)),
        pinned=pinned,
        homes=request.homes | frozenset(homes),
        parts=parts,
        wanted=max(0, request.wanted - whole),
    )
