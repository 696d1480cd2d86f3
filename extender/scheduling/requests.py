"""The planner's request: who of a group is to be placed, how many at least, and where they may go."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from extender.scheduling.checks import find_conflict, is_able
from extender.scheduling.cycle import BindingCycle
from extender.scheduling.group_state import NO_REPAIR, Repair
from extender.scheduling.homes import Homes, find_homes, homes_of
from serried.cluster.store import Store
from serried.model.group import GroupKey, GroupKind, PodGroup
from serried.model.node import Node
from serried.model.plan import PlanRequest
from serried.model.pod import Pod
from serried.model.tree import Branch, Leaf, Tree, list_leaves
from serried.model.verdict import Verdict
from serried.plan.levels import open_levels
from serried.plan.quorum import GroupMembers

_Members: TypeAlias = Mapping[str, Sequence[Pod]]
"""Members by the name of their PodGroup in the tree."""

_Need: TypeAlias = Mapping[str, int]
"""How many of them must be placed, by that name."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """Who of each PodGroup waits, and how many of them must be placed; a PodGroup without entry takes no part."""

    members: _Members
    need: _Need

    residents: Homes
    """The members whose nodes say in which domain each group is."""

    homes: Homes
    """The members beside whom the others are wanted."""

    nodes: Mapping[str, Node]

    waited: float
    """How many seconds they have waited for a domain of a preferred level."""

    common: PlanRequest
    """What the requests of all groups have in common."""


def build_request(
    group: PodGroup,
    group_members: GroupMembers,
    excluded: frozenset[tuple[str, str]],
    nodes: Mapping[str, Node],
    waited: float,
    repair: Repair = NO_REPAIR,
    home: str = "",
) -> PlanRequest | Verdict:
    """The planner's request for every PodGroup that has its quorum, or for replacements alone if there are any.

    A Verdict where the group's bound members contradict its constraints. ``waited`` is for how many seconds its quorum
    stands. ``home`` is the domain of members whose nodes are gone: as long as they count, nobody goes elsewhere.
    """
    conflict = find_conflict(group, group_members, nodes)
    if conflict is not None:
        return conflict
    leaves = group_members.leaves
    members, need = (
        _list_replacements(leaves, repair.replacements) if repair.replacements else _list_able(group.tree, leaves)
    )
    common = PlanRequest((), 0, excluded=excluded, style=group.preference.style, own_slots=bool(repair.replacements))
    homes = {name: [pod.node for pod in each.bound] for name, each in leaves.items()}
    wish = _Wish(members, need, find_homes(group_members, nodes), homes, nodes, waited, common)
    request = _build_root(group, wish)
    if group.topology_key is not None and group_members.bound and home and not request.pinned:
        return replace(request, pinned=frozenset({home}))
    return request


def _list_able(tree: Tree, leaves: Mapping[str, GroupMembers]) -> tuple[_Members, _Need]:
    """The PodGroups that stand, or can with those that wait."""
    able = [leaf for leaf in list_leaves(tree) if is_able(leaf, leaves[leaf.name])]
    need = {leaf.name: leaves[leaf.name].need(leaf.need) for leaf in able}
    return {name: leaves[name].waiting for name in need}, need


def _list_replacements(leaves: Mapping[str, GroupMembers], replacements: Iterable[Pod]) -> tuple[_Members, _Need]:
    """Replacements by PodGroup, none of which any quorum needs."""
    uids = {pod.uid for pod in replacements}
    members = {name: [pod for pod in each.waiting if pod.uid in uids] for name, each in leaves.items()}
    return members, dict.fromkeys(leaves, 0)


def find_next_opening(group: PodGroup, waited: float) -> float:
    """In how many seconds more levels are open to one of the PodGroups of a tree; infinite if all are."""
    openings = (open_levels(leaf.preference.levels, waited) for leaf in list_leaves(group.tree))
    return min((each.next_in for each in openings), default=math.inf)


def build_joining_request(
    cycle: BindingCycle, members: Sequence[Pod], need: int, excluded: frozenset[tuple[str, str]], store: Store
) -> PlanRequest:
    """The planner's request for members that join a cycle, or move in it: each to where its PodGroup is."""
    group, leaf_of = cycle.group, store.members.leaf_of
    homes = homes_of(cycle.reservation, cycle.reservation.slots)
    for uid in cycle.bound:
        if uid in store.pods and store.pods[uid].node:
            homes.setdefault(leaf_of(uid), []).append(store.pods[uid].node)
    # The root is in the cycle's domain; only what is below it has to be looked for.
    residents = find_homes(store.members.classify(group.key), store.nodes) if isinstance(group.tree, Branch) else {}
    joining: dict[str, list[Pod]] = {leaf.name: [] for leaf in list_leaves(group.tree)}
    for pod in members:
        joining.setdefault(leaf_of(pod.uid), []).append(pod)
    around = {name: [*homes.get(name, ()), *residents.get(name, ())] for name in joining}
    common = PlanRequest((), 0, excluded=excluded, closed=cycle.closed, style=group.preference.style)
    wish = _Wish(joining, dict.fromkeys(joining, 0), around, around, store.nodes, math.inf, common)
    priority = store.priorities.find_own(group.key)
    return replace(_build_root(group, wish), need=need, pinned=cycle.pinned, group_priority=priority)


def _build_root(group: PodGroup, wish: _Wish) -> PlanRequest:
    return _build_below(group.tree, wish) or replace(wish.common, topology_key=group.topology_key)


def _build_below(tree: Tree, wish: _Wish) -> PlanRequest | None:
    """The request for one group of the tree; None if it cannot have its quorum."""
    names = [leaf.name for leaf in list_leaves(tree)]
    homes = frozenset(home for name in names for home in wish.homes.get(name, ()))
    residents = {home for name in names for home in wish.residents.get(name, ())}
    key = tree.topology_key
    labels = (wish.nodes[home].labels for home in residents if home in wish.nodes)
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


def leave_out(request: PlanRequest, kept_slots: Mapping[str, str], nodes: Mapping[str, Node]) -> PlanRequest:
    """The request for the others when these members have their nodes (UID to node): they join them there."""
    homes = [kept_slots[member.uid] for member in request.members if member.uid in kept_slots]
    key, pinned = request.topology_key, request.pinned
    if key is not None and homes:
        pinned = frozenset(nodes[home].labels[key] for home in homes)
    parts = tuple(leave_out(part, kept_slots, nodes) for part in request.parts)
    whole = sum(now.need == 0 < before.need for now, before in zip(parts, request.parts, strict=True))
    return replace(
        request,
        members=tuple(member for member in request.members if member.uid not in kept_slots),
        need=max(0, request.need - len(homes)),
        pinned=pinned,
        homes=request.homes | frozenset(homes),
        parts=parts,
        wanted=max(0, request.wanted - whole),
    )
