"""The planner's request: who of a group is to be placed, how many at least, and where; or why there is none.

kube-scheduler alone can count devices that pods claim, and resources that nodes do not show: a plan takes them for
unlimited. What the scheduler says decides. A member that it has refused on every node is not planned, and leaves the
cycle that it is in, until the scheduler says something else of it. It tries such a pod again by itself whenever
something changes that could help it, and at the latest after five minutes. A member that asks for what no node has and
no DeviceClass provides is refused from the start, unless the scheduler offers it a node.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from extender.core.feature import NO_REPAIR, Repair
from extender.core.scheduling.binding_cycle import BindingCycle
from serried.api.group import Branch, Leaf, PodGroup, Tree, list_branches, list_groups, list_leaves
from serried.api.names import GroupKey, GroupKind
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.priority import HIGHEST_GROUP_PRIORITY
from serried.api.reservation import Reservation, name_some
from serried.api.verdict import Reason, Verdict
from serried.cluster.cache import Store
from serried.cluster.members import Members
from serried.cluster.usage import PendingVictims
from serried.plan.quorum import GroupMembers, count_missing
from serried.plan.request import PlanRequest, open_levels

AssignedNodes = Mapping[str, Sequence[str]]
"""PodGroup in the tree to the nodes of its members."""


def find_assigned_domain(group: PodGroup, group_members: GroupMembers, nodes: Mapping[str, Node]) -> str:
    """The domain of the first resident whose node is there; "" if no key is asked for.

    If the nodes of all of them are gone it is what their Bindings have told them, "" for nothing.
    """
    key = group.topology_key
    if key is None:
        return ""
    residents = group_members.find_residents(nodes)
    told = next((pod.domain for pod in residents if pod.domain), "")
    return next((nodes[pod.node].labels.get(key, "") for pod in residents if pod.node in nodes), told)


def list_assigned_nodes(group_members: GroupMembers, nodes: Mapping[str, Node]) -> AssignedNodes:
    """The nodes of the residents of each PodGroup."""
    return {name: [pod.node for pod in each.find_residents(nodes)] for name, each in group_members.leaves.items()}


def assigned_nodes_of(reservation: Reservation, uids: Iterable[str]) -> dict[str, list[str]]:
    """The nodes of these slots by the PodGroup of each."""
    assigned_nodes: dict[str, list[str]] = {}
    for uid in uids:
        slot = reservation.slots[uid]
        assigned_nodes.setdefault(slot.part, []).append(slot.node)
    return assigned_nodes


_MAX_LETTERS = 200
"""How much of the scheduler's reason is told."""


_MAX_GATES_NAMED = 3


def describe_gated(group_members: GroupMembers, need: int) -> Verdict:
    """The verdict of a group that waits for the scheduling gates of some members; they are named."""
    gates = sorted({gate for pod in group_members.gated for gate in pod.foreign_gates})
    more = len(gates) - _MAX_GATES_NAMED
    named = ", ".join(gates[:_MAX_GATES_NAMED]) + (f" and {more} more" if more > 0 else "")
    return Verdict(Reason.MEMBER_GATED, have=len(group_members.gated), need=need, key=named)


def describe_refused(
    group_members: GroupMembers, need: int, dropped: Collection[Pod] = (), beside: str = ""
) -> Verdict:
    """The verdict of a gang that would have ``need`` members if the scheduler did not refuse some of them.

    ``dropped`` are members that it has refused though they may be tried again, ``beside`` a phrase that says when.
    """
    unclaimed = next((pod for pod in group_members.refused if pod.unclaimed), None)
    if unclaimed is not None:
        exist = group_members.placed + len(group_members.waiting) + len(group_members.refused)
        detail = f"{unclaimed.name} has no ResourceClaim from template {unclaimed.unclaimed} yet"
        return Verdict(Reason.QUORUM_MISSING, have=exist, need=need, detail=detail)
    pod = next(iter((*dropped, *group_members.refused)))
    lost = {each.uid for each in dropped}
    have = group_members.placed + sum(each.uid not in lost for each in group_members.waiting)
    if pod.awaits:
        return Verdict(Reason.PLANNING, have=have, need=need, detail=pod.awaits)
    if pod.obstacle:
        return Verdict(Reason.NO_CAPACITY, have=have, need=need, detail=f"{pod.name} can run nowhere: {pod.obstacle}")
    # The same before and after the scheduler has said it, too: nobody is told twice.
    nowhere = [name for name in pod.missing if not pod.objection or f"Insufficient {name}" in pod.objection]
    if nowhere:
        names = " and ".join(nowhere)
        detail = f"{pod.name} asks for {names}, which no node has and no DeviceClass provides"
        return Verdict(Reason.NO_CAPACITY, have=have, need=need, detail=detail)
    missing, provided = _sort_uncounted([pod])
    counted = [*provided, *(["the devices that are claimed"] if pod.device_claims else [])]
    said = [f"no node has {', '.join(missing)}"] if missing else []
    if counted and pod.counted_elsewhere:
        said.append(f"only the scheduler can count {' and '.join(counted)}{_explain([pod])}")
    words = pod.objection if len(pod.objection) <= _MAX_LETTERS else pod.objection[:_MAX_LETTERS] + "..."
    said = [", ".join(said)] if said else []
    detail = "; ".join([*said, f"the scheduler refuses {pod.name} on every node{beside}: {words}"])
    return Verdict(Reason.NO_CAPACITY, have=have, need=need, detail=detail)


def describe_uncounted(members: Collection[Pod], store: Store) -> list[str]:
    """What a plan for these members takes for unlimited, a phrase for each kind."""
    missing, provided = _sort_uncounted(members)
    said = [f"{_count(members, name)} members ask for {name}, which no node has" for name in missing]
    said += [f"{_count(members, name)} members ask for {name}, which only the scheduler can count" for name in provided]
    if claiming := [pod for pod in members if pod.device_claims and pod.counted_elsewhere]:
        said.append(f"{len(claiming)} members claim devices, which only the scheduler can count{_explain(claiming)}")
    said += [pod.uncountable for pod in members if pod.uncountable and not pod.claim_refs][:1]
    keys = {_pod_group_of(pod, store.members) for pod in members}
    groups = [store.groups.get(key) for key in keys if key is not None]
    if not any(pod.counted for pod in members) and any(group and group.device_claims for group in groups):
        said.append("the PodGroup claims devices, which only the scheduler can count")
    return said


def _explain(pods: Iterable[Pod]) -> str:
    """Why only the scheduler can count what these ask for, in brackets; "" if nothing more is known."""
    why = next((pod.uncountable for pod in pods if pod.uncountable), "")
    return f" ({why})" if why else ""


def _pod_group_of(pod: Pod, members: Members) -> GroupKey | None:
    """The PodGroup of a member."""
    group = members.group_of(pod.uid)
    return group.leaf(members.leaf_of(pod.uid)) if group is not None else None


def _sort_uncounted(pods: Iterable[Pod]) -> tuple[list[str], list[str]]:
    """The resources that no node has and no DeviceClass provides, and those that one provides."""
    uncounted = [pod for pod in pods if pod.counted_elsewhere]
    names = {name for pod in uncounted for name in pod.uncounted}
    provided = {name for pod in uncounted for name in pod.provided}
    return sorted(names - provided), sorted(names & provided)


def _count(pods: Iterable[Pod], name: str) -> int:
    return sum(name in pod.uncounted for pod in pods if pod.counted_elsewhere)


def describe_wait(reservation: Reservation, pending_victims: PendingVictims) -> Verdict:
    """How a gang stands whose victims are to end."""
    victims = reservation.victims
    ended = len(victims) - pending_victims.count_left(reservation.group)
    return Verdict(Reason.PREEMPTING, have=ended, need=len(victims), detail=name_some(victims.values()))


def find_shortage(
    group: PodGroup, group_members: GroupMembers, store: Store, repair: Repair = NO_REPAIR
) -> Verdict | None:
    """Why there is nobody to plan for yet; None if the quorum exists, or a replacement can be placed without one."""
    if store.priorities.lacks_class(group):
        return _describe_class(group, store)
    if repair.replacements or not _has_task(group, group_members):
        return None
    leaves = group_members.leaves
    able = {leaf.name for leaf in list_leaves(group.tree) if is_able(leaf, leaves[leaf.name])}
    waiting = {name: len(each.waiting) for name, each in leaves.items()}
    if any(waiting[name] for name in able) and _would_stand(group, leaves, _only(able, waiting)):
        return None
    min_count = group.policy.min_count or 1
    # Nobody knows how many more come with a member that is gated: its PodGroup waits for the gate first of all.
    gated = {leaf.name: leaf.need for leaf in list_leaves(group.tree) if leaves[leaf.name].gated}
    if gated and _would_stand(group, leaves, {**waiting, **gated}):
        return describe_gated(group_members, min_count)
    coming = {name: waiting[name] + len(each.refused) for name, each in leaves.items()}
    if group_members.refused and _would_stand(group, leaves, coming):
        return describe_refused(group_members, min_count)
    return _describe_missing(group.tree, leaves, coming)


def _describe_class(group: PodGroup, store: Store) -> Verdict:
    exists = group.priority_class in store.priority_classes
    detail = f"no PodGroup may have more than {HIGHEST_GROUP_PRIORITY}" if exists else ""
    return Verdict(Reason.PRIORITY_UNKNOWN, key=group.priority_class, detail=detail)


def _has_task(group: PodGroup, group_members: GroupMembers) -> bool:
    """Whether the quorum does not stand, or a PodGroup beyond it has a member that would be the first of its own."""
    if count_missing(group.tree, group_members.placed_by_leaf):
        return True
    below = ((leaf, group_members.leaves[leaf.name]) for leaf in list_leaves(group.tree))
    return any(each.need(leaf.need) and (each.waiting or each.gated) for leaf, each in below)


def _describe_missing(tree: Tree, leaves: Mapping[str, GroupMembers], coming: Mapping[str, int]) -> Verdict:
    """What a group lacks with those that are ``coming`` to each PodGroup."""
    groups, branches = list(list_leaves(tree)), list(list_branches(tree))
    have = {leaf.name: min(leaf.need, leaves[leaf.name].placed + coming[leaf.name]) for leaf in groups}
    few = [
        f"{branch.name} has {len(branch.below)} of {branch.need} groups"
        for branch in branches
        if len(branch.below) < branch.need
    ]
    short = [leaf for leaf in groups if leaves[leaf.name].need(leaf.need) > coming[leaf.name]]
    said = [f"{leaf.name} has {have[leaf.name]} of {leaf.need}" for leaf in short if leaf.name]
    more = [f"{len(said) - _SHOWN} more"] if len(said) > _SHOWN else []
    # Of a group that is missing nothing is known but that it has a member.
    absent = sum(max(0, branch.need - len(branch.below)) for branch in branches)
    need = sum(leaf.need for leaf in groups) + absent
    detail = ", ".join([*few, *said[:_SHOWN], *more])
    return Verdict(Reason.QUORUM_MISSING, have=sum(have.values()), need=need, detail=detail)


def is_suspended(group: PodGroup, store: Store) -> bool:
    """Return whether the owner of a group, a Job or a parent, is suspended."""
    owner = store.membership.job_of(group) or store.membership.parent_of(group)
    return owner is not None and owner.suspended


def is_foreign(group: PodGroup | None, members: Sequence[Pod], store: Store) -> bool:
    """Whether a group is another scheduler's, and so are its reasons.

    One of scheduler-plugins is nobody's before it has pods.
    """
    if not members:
        return group is not None and group.key.kind is GroupKind.COMPATIBLE
    return not any(pod.scheduler in store.schedulers for pod in members)


def find_conflict(group: PodGroup, group_members: GroupMembers, nodes: Mapping[str, Node]) -> Verdict | None:
    """How the bound members contradict the constraints of the group's tree, None if they do not.

    Only somebody else can have brought that about: another scheduler, or whoever changed a node's label.
    """
    split = find_split(list_groups(group.tree), list_assigned_nodes(group_members, nodes), nodes)
    if split is None:
        return None
    stray = f"a member runs on {split.stray}, which has no such label"
    said = stray if split.stray else ", ".join(split.domains)
    return Verdict(Reason.DOMAIN_CONFLICT, key=split.key, detail=f"{split.name}: {said}" if split.name else said)


def describe_claims(members: Collection[Pod], store: Store) -> str:
    """What a plan cannot promise: volumes that are not bound yet, what only the scheduler counts; "" for nothing."""
    waits = store.list_caveats(members) if any(pod.claims for pod in members) else []
    return ", ".join([*waits, *describe_uncounted(members, store)])


_SHOWN = 5


def is_able(leaf: Leaf, group_members: GroupMembers) -> bool:
    """Whether a PodGroup stands, or can with those that wait; one with a gated member waits for that one."""
    need = group_members.need(leaf.need)
    return need == 0 or (need <= len(group_members.waiting) and not group_members.gated)


def _only(names: Collection[str], counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if name in names}


def _would_stand(group: PodGroup, leaves: Mapping[str, GroupMembers], more: Mapping[str, int]) -> bool:
    """Whether the quorum stands when so many more members of each PodGroup are placed."""
    return count_missing(group.tree, {name: each.placed + more.get(name, 0) for name, each in leaves.items()}) == 0


class Split(NamedTuple):
    """A group of a tree whose members are not in one domain."""

    name: str
    key: str

    domains: tuple[str, ...]
    """The values of the topology key that their nodes have, sorted."""

    stray: str
    """A node of theirs that has no such label, "" if there is none."""


def find_split(trees: Iterable[Tree], assigned_nodes: AssignedNodes, nodes: Mapping[str, Node]) -> Split | None:
    """The first of these groups whose members are in more than one domain, or in none; None if there is no such."""
    for tree in trees:
        key = tree.topology_key
        if key is None:
            continue
        names = (node for leaf in list_leaves(tree) for node in assigned_nodes.get(leaf.name, ()))
        found = [nodes[name] for name in names if name in nodes]
        stray = next((node.name for node in found if key not in node.labels), "")
        domains = {node.labels[key] for node in found if key in node.labels}
        if stray or len(domains) > 1:
            return Split(tree.name, key, tuple(sorted(domains)), stray)
    return None


_Members: TypeAlias = Mapping[str, Sequence[Pod]]
"""Members by the name of their PodGroup in the tree."""

_Need: TypeAlias = Mapping[str, int]
"""How many of them must be placed, by that name."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """Who of each PodGroup waits, and how many of them must be placed; a PodGroup without entry takes no part."""

    members: _Members
    need: _Need

    residents: AssignedNodes
    """The members whose nodes say in which domain each group is."""

    assigned_nodes: AssignedNodes
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
    assigned_domain: str = "",
) -> PlanRequest | Verdict:
    """The planner's request for every PodGroup that has its quorum, or for replacements alone if there are any.

    A Verdict where the group's bound members contradict its constraints. ``waited`` is for how many seconds its quorum
    stands. ``assigned_domain`` is that of members whose nodes are gone: as long as they count, nobody goes elsewhere.
    """
    conflict = find_conflict(group, group_members, nodes)
    if conflict is not None:
        return conflict
    leaves = group_members.leaves
    members, need = (
        _list_replacements(leaves, repair.replacements) if repair.replacements else _list_able(group.tree, leaves)
    )
    common = PlanRequest((), 0, excluded=excluded, style=group.preference.style, own_slots=bool(repair.replacements))
    assigned_nodes = {name: [pod.node for pod in each.bound] for name, each in leaves.items()}
    wish = _Wish(members, need, list_assigned_nodes(group_members, nodes), assigned_nodes, nodes, waited, common)
    request = _build_root(group, wish)
    if group.topology_key is not None and group_members.bound and assigned_domain and not request.pinned:
        return replace(request, pinned=frozenset({assigned_domain}))
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
    assigned_nodes = assigned_nodes_of(cycle.reservation, cycle.reservation.slots)
    for uid in cycle.bound:
        if uid in store.pods and store.pods[uid].node:
            assigned_nodes.setdefault(leaf_of(uid), []).append(store.pods[uid].node)
    # The root is in the cycle's domain; only what is below it has to be looked for.
    residents = (
        list_assigned_nodes(store.members.classify(group.key), store.nodes) if isinstance(group.tree, Branch) else {}
    )
    joining: dict[str, list[Pod]] = {leaf.name: [] for leaf in list_leaves(group.tree)}
    for pod in members:
        joining.setdefault(leaf_of(pod.uid), []).append(pod)
    around = {name: [*assigned_nodes.get(name, ()), *residents.get(name, ())] for name in joining}
    common = PlanRequest((), 0, excluded=excluded, closed=cycle.closed, style=group.preference.style)
    wish = _Wish(joining, dict.fromkeys(joining, 0), around, around, store.nodes, math.inf, common)
    priority = store.priorities.find_own(group.key)
    return replace(_build_root(group, wish), need=need, pinned=cycle.pinned, group_priority=priority)


def _build_root(group: PodGroup, wish: _Wish) -> PlanRequest:
    return _build_below(group.tree, wish) or replace(wish.common, topology_key=group.topology_key)


def _build_below(tree: Tree, wish: _Wish) -> PlanRequest | None:
    """The request for one group of the tree; None if it cannot have its quorum."""
    names = [leaf.name for leaf in list_leaves(tree)]
    assigned_nodes = frozenset(node for name in names for node in wish.assigned_nodes.get(name, ()))
    residents = {node for name in names for node in wish.residents.get(name, ())}
    key = tree.topology_key
    labels = (wish.nodes[node].labels for node in residents if node in wish.nodes)
    pinned = frozenset(each[key] for each in labels if key in each) if key is not None else frozenset[str]()
    base = replace(wish.common, topology_key=key, pinned=pinned, assigned_nodes=assigned_nodes)
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
    assigned_nodes = [kept_slots[member.uid] for member in request.members if member.uid in kept_slots]
    key, pinned = request.topology_key, request.pinned
    if key is not None and assigned_nodes:
        pinned = frozenset(nodes[node].labels[key] for node in assigned_nodes)
    parts = tuple(leave_out(part, kept_slots, nodes) for part in request.parts)
    whole = sum(now.need == 0 < before.need for now, before in zip(parts, request.parts, strict=True))
    return replace(
        request,
        members=tuple(member for member in request.members if member.uid not in kept_slots),
        need=max(0, request.need - len(assigned_nodes)),
        pinned=pinned,
        assigned_nodes=request.assigned_nodes | frozenset(assigned_nodes),
        parts=parts,
        wanted=max(0, request.wanted - whole),
    )
