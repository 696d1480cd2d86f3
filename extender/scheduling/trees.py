"""Trees of groups in a cycle: the planner's question for one, and what follows when a group below does not come.

A cycle waits for every PodGroup that was planned (`Reservation.parts`), so none ever starts with less than its quorum.
If one of them does not come in time and the tree stands without it, the cycle goes on without it.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from extender.scheduling.cycle import BindingCycle
from extender.scheduling.objections import describe_refused
from serried.cluster.store import Store
from serried.model.group import GroupKey, GroupKind, PodGroup
from serried.model.node import Node
from serried.model.plan import PlanRequest
from serried.model.pod import Pod
from serried.model.reservation import Reservation
from serried.model.tree import Branch, Leaf, Tree, list_branches, list_leaves
from serried.model.verdict import Reason, Verdict
from serried.plan.levels import Opening, open_levels
from serried.plan.quorum import Standing, count_missing, is_whole

Homes = Mapping[str, Sequence[str]]
"""PodGroup in the tree to the nodes of its members."""


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


# --- questions -----------------------------------------------------------------------------------------------------


def ask_for_tree(
    group: PodGroup,
    standing: Standing,
    excluded: frozenset[tuple[str, str]],
    nodes: Mapping[str, Node],
    opening: Opening,
    heirs: Collection[Pod] = (),
) -> PlanRequest:
    """The planner's question for every PodGroup that has its quorum; for ``heirs`` alone if there are any."""
    leaves = standing.leaves
    if heirs:
        uids = {pod.uid for pod in heirs}
        members = {name: tuple(pod for pod in each.waiting if pod.uid in uids) for name, each in leaves.items()}
        need = dict.fromkeys(leaves, 0)
    else:
        able = [leaf for leaf in _leaves(group) if is_able(leaf, leaves[leaf.name])]
        need = {leaf.name: leaves[leaf.name].need(leaf.need) for leaf in able}
        members = {name: leaves[name].waiting for name in need}
    homes = find_homes(standing, nodes)
    common = PlanRequest((), 0, excluded=excluded, style=group.preference.style, own_slots=bool(heirs))
    return _ask(group, _Wish(members, need, homes, nodes, opening.waited, common))


def ask_for_more_of_tree(
    cycle: BindingCycle, members: Sequence[Pod], need: int, excluded: frozenset[tuple[str, str]], store: Store
) -> PlanRequest:
    """The same for members that join a cycle, or move in it: each to where its PodGroup is."""
    group, reservation = cycle.group, cycle.reservation
    homes = dict(find_homes(store.stand(group.key), store.nodes))
    for name, found in _homes_of(reservation, reservation.slots).items():
        homes[name] = [*homes.get(name, ()), *found]
    joining: dict[str, list[Pod]] = {leaf.name: [] for leaf in _leaves(group)}
    for pod in members:
        joining.setdefault(store.leaf_of(pod.uid), []).append(pod)
    common = PlanRequest((), 0, excluded=excluded, closed=cycle.closed, style=group.preference.style)
    wish = _Wish(joining, dict.fromkeys(joining, 0), homes, store.nodes, math.inf, common)
    return replace(_ask(group, wish), need=need)


def _ask(group: PodGroup, wish: _Wish) -> PlanRequest:
    assert group.tree is not None  # noqa: S101 - narrows for the type checker: only trees are asked for here
    found = _ask_below(group.tree, wish)
    return found or replace(wish.common, topology_key=group.topology_key)


def _ask_below(tree: Tree, wish: _Wish) -> PlanRequest | None:
    """The question for one group of the tree; None if it cannot have its quorum."""
    names = [leaf.name for leaf in list_leaves(tree)]
    homes = frozenset(home for name in names for home in wish.homes.get(name, ()))
    key = tree.topology_key
    labels = (wish.nodes[home].labels for home in homes if home in wish.nodes)
    pinned = frozenset(each[key] for each in labels if key in each) if key is not None else frozenset[str]()
    base = replace(wish.common, topology_key=key, pinned=pinned, homes=homes)
    if isinstance(tree, Leaf):
        return _ask_leaf(tree, base, wish) if tree.name in wish.need else None
    parts = tuple(part for each in tree.below if (part := _ask_below(each, wish)) is not None)
    wanted = tree.need - sum(part.need == 0 for part in parts)
    open_ = sorted(part.need for part in parts if part.need)
    if wanted > len(open_):
        return None
    members = tuple(member for part in parts for member in part.members)
    wanted = max(0, wanted)
    name = GroupKey("", tree.name, GroupKind.COMPOSITE).encoded
    return replace(base, name=name, members=members, need=sum(open_[:wanted]), parts=parts, wanted=wanted)


def _ask_leaf(leaf: Leaf, base: PlanRequest, wish: _Wish) -> PlanRequest:
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


def open_tree(group: PodGroup, waited: float) -> Opening:
    """When more levels are open to one of the PodGroups of a tree."""
    openings = [open_levels(leaf.preference.levels, waited) for leaf in _leaves(group)]
    return Opening((), min((each.next_in for each in openings), default=math.inf), waited)


def _leaves(group: PodGroup) -> list[Leaf]:
    return [] if group.tree is None else list(list_leaves(group.tree))


def _branches(group: PodGroup) -> list[Branch]:
    return [] if group.tree is None else list(list_branches(group.tree))


def leave_out(ask: PlanRequest, seats: Mapping[str, str], nodes: Mapping[str, Node]) -> PlanRequest:
    """The question for the others when these members have their nodes (UID to node): they join them there."""
    homes = [seats[member.uid] for member in ask.members if member.uid in seats]
    key, pinned = ask.topology_key, ask.pinned
    if key is not None and homes:
        pinned = frozenset(nodes[home].labels[key] for home in homes)
    parts = tuple(leave_out(part, seats, nodes) for part in ask.parts)
    whole = sum(now.need == 0 < before.need for now, before in zip(parts, ask.parts, strict=True))
    return replace(
        ask,
        members=tuple(member for member in ask.members if member.uid not in seats),
        need=max(0, ask.need - len(homes)),
        pinned=pinned,
        homes=ask.homes | frozenset(homes),
        parts=parts,
        wanted=max(0, ask.wanted - whole),
    )


def find_parts(ask: PlanRequest, placed: Collection[str]) -> dict[str, int]:
    """The PodGroups that a plan places members of, and how many of each must be bound together."""
    if not ask.parts:
        found = ask.name and any(member.uid in placed for member in ask.members)
        return {ask.name: ask.need} if found else {}
    return {name: need for part in ask.parts for name, need in find_parts(part, placed).items()}


# --- what is missing, what contradicts -------------------------------------------------------------------------------


def find_tree_shortage(group: PodGroup, standing: Standing, store: Store) -> Verdict | None:
    """Why there is nobody to plan for in a tree; None if enough PodGroups have their quorum, or one more has."""
    if not (standing.waiting or standing.gated) and is_whole(group, standing):
        return None
    leaves = standing.leaves
    waiting = {name: each.waiting for name, each in leaves.items()}
    able = any(waiting[leaf.name] and is_able(leaf, leaves[leaf.name]) for leaf in _leaves(group))
    if able and _would_stand(group, leaves, {name: pods for name, pods in waiting.items() if not leaves[name].gated}):
        return None
    if standing.gated and _would_stand(group, leaves, {n: (*pods, *leaves[n].gated) for n, pods in waiting.items()}):
        return Verdict(Reason.MEMBER_GATED, have=len(standing.gated), need=group.policy.min_count or 1)
    waiting = {name: (*pods, *leaves[name].refused) for name, pods in waiting.items()}
    if standing.refused and _would_stand(group, leaves, waiting):
        return describe_refused(standing, group.policy.min_count or 1, store)
    short = [leaf for leaf in _leaves(group) if leaves[leaf.name].need(leaf.need) > len(waiting[leaf.name])]
    have = {leaf.name: min(leaf.need, leaves[leaf.name].placed + len(waiting[leaf.name])) for leaf in _leaves(group)}
    said = [f"{leaf.name} has {have[leaf.name]} of {leaf.need}" for leaf in short]
    few = [
        f"{branch.name} has {len(branch.below)} of {branch.need} groups"
        for branch in _branches(group)
        if len(branch.below) < branch.need
    ]
    more = [f"{len(said) - _SHOWN} more"] if len(said) > _SHOWN else []
    # Of a group that is missing nothing is known but that it has a member.
    absent = sum(max(0, branch.need - len(branch.below)) for branch in _branches(group))
    need = sum(leaf.need for leaf in _leaves(group)) + absent
    return Verdict(
        Reason.QUORUM_MISSING, have=sum(have.values()), need=need, detail=", ".join([*few, *said[:_SHOWN], *more])
    )


_SHOWN = 5


def is_able(leaf: Leaf, standing: Standing) -> bool:
    """Whether a PodGroup stands, or can with those that wait; one with a gated member waits for that one."""
    need = standing.need(leaf.need)
    return need == 0 or (need <= len(standing.waiting) and not standing.gated)


def _would_stand(group: PodGroup, leaves: Mapping[str, Standing], more: Mapping[str, Sequence[Pod]]) -> bool:
    filled = {
        name: replace(each, placed=each.placed + len(more.get(name, ()))) if len(more.get(name, ())) else each
        for name, each in leaves.items()
    }
    return group.tree is not None and count_missing(group.tree, filled) == 0


def find_tree_conflict(group: PodGroup, homes: Homes, nodes: Mapping[str, Node]) -> Verdict | None:
    """Where members of one group of the tree are in more than one of its domains; None if nowhere."""
    trees: list[Tree] = [*_branches(group), *_leaves(group)]
    for tree in trees:
        if tree.topology_key is None:
            continue
        found = {
            nodes[home].labels.get(tree.topology_key, "")
            for leaf in list_leaves(tree)
            for home in homes.get(leaf.name, ())
            if home in nodes
        }
        if len(found) > 1 or "" in found:
            said = ", ".join(sorted(each or "none" for each in found))
            return Verdict(Reason.DOMAIN_CONFLICT, key=tree.topology_key, detail=f"{tree.name}: {said}")
    return None


def find_homes(standing: Standing, nodes: Mapping[str, Node]) -> Homes:
    """The nodes of the residents of each PodGroup of a tree."""
    return {name: [pod.node for pod in each.find_residents(nodes)] for name, each in standing.leaves.items()}


def find_split(
    group: PodGroup | None,
    reservation: Reservation,
    uids: Iterable[str],
    store: Store,
    beside: Standing | None = None,
) -> str | None:
    """Why slots of a tree cannot be bound as planned, ``beside`` those that run: nodes have other labels by now.

    None if they can.
    """
    if group is None or group.tree is None:
        return None
    homes = _homes_of(reservation, uids)
    for name, found in find_homes(beside, store.nodes).items() if beside is not None else ():
        homes.setdefault(name, []).extend(found)
    conflict = find_tree_conflict(group, homes, store.nodes)
    return None if conflict is None else f"the nodes of {conflict.detail} are not one domain any more"


def _homes_of(reservation: Reservation, uids: Iterable[str]) -> dict[str, list[str]]:
    homes: dict[str, list[str]] = {}
    for uid in uids:
        slot = reservation.slots[uid]
        homes.setdefault(slot.part, []).append(slot.node)
    return homes


# --- a cycle's parts -------------------------------------------------------------------------------------------------


def adjust_parts(cycle: BindingCycle, group: PodGroup, store: Store) -> None:
    """Bring the quorums of a cycle that is not committed up to date: placed members may have ended since the plan."""
    reservation, leaves = cycle.reservation, store.stand(group.key, without=cycle.bound).leaves
    same = group.tree == cycle.group.tree
    for leaf in _leaves(group):
        if leaf.name in reservation.parts:
            floor = reservation.parts[leaf.name] if same else 0
            reservation.parts[leaf.name] = max(floor, leaves[leaf.name].need(leaf.need))
    reservation.need = sum(reservation.parts.values())


def find_parts_to_leave(cycle: BindingCycle, short: frozenset[str], store: Store) -> frozenset[str] | None:
    """The parts of a cycle that can be left out so that it goes on without the ``short`` ones; None if it cannot.

    With a group all that is in a group above it which does not stand without it is left out.
    """
    group, parts = store.groups.get(cycle.reservation.group), cycle.reservation.parts
    if group is None or group.tree is None or not short:
        return None
    leaves = store.stand(group.key, without=cycle.bound).leaves
    ready = {leaf.name for leaf in _leaves(group) if leaves[leaf.name].need(leaf.need) == 0} | (parts.keys() - short)
    kept = _keep(group.tree, ready)
    if kept is None or not kept & parts.keys():
        return None
    return frozenset(parts.keys() - kept)


def _keep(tree: Tree, ready: Collection[str]) -> frozenset[str] | None:
    """The PodGroups that stand in a group of the tree; None if it does not stand itself."""
    if isinstance(tree, Leaf):
        return frozenset({tree.name}) if tree.name in ready else None
    kept = [found for each in tree.below if (found := _keep(each, ready)) is not None]
    return frozenset[str]().union(*kept) if len(kept) >= tree.need else None
