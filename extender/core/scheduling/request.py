"""Builds the planner's request for a gang: its members, how many must be placed, and where; or says why there is none.

`GroupScheduler` calls `find_shortage`, then `SchedulingCycle` calls `build_request`. `Reassignments` calls
`build_joining_request` for members that join an open binding cycle.

Some devices that pods claim, and resources that no node shows, can only be counted by kube-scheduler. A plan treats
them as unlimited, and kube-scheduler decides. A member that kube-scheduler has rejected on every node is not planned,
and loses its slot, until its condition changes. kube-scheduler tries such a pod again after changes that could help it,
at the latest after five minutes. A member that requests what no node has and no DeviceClass provides is not planned at
all, unless kube-scheduler offers it a node.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from extender.core.feature import NO_REPAIR, Repair
from extender.core.scheduling.binding_cycle import BindingCycle
from serried.api.group import Branch, Leaf, PodGroup, Tree, list_branches, list_groups, list_leaves
from serried.api.names import GroupKey, GroupKind, count_things, join_some
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.priority import HIGHEST_GROUP_PRIORITY
from serried.api.reservation import Reservation, name_victims
from serried.api.verdict import Reason, Verdict
from serried.cluster.cache import Store
from serried.cluster.members import Members
from serried.cluster.usage import PendingVictims
from serried.plan.quorum import GroupMembers, count_missing
from serried.plan.request import PlanRequest, find_allowed_levels

AssignedNodes = Mapping[str, Sequence[str]]
"""The names of the nodes of members, by the name of the members' PodGroup in its tree."""


def find_assigned_domain(group: PodGroup, group_members: GroupMembers, nodes: Mapping[str, Node]) -> str:
    """Return the domain in which a gang's members run; "" if none runs, or without a topology key.

    It is read from the first node that still exists, or else from what Serried wrote on the pods at their Bindings.
    """
    key = group.topology_key
    if key is None:
        return ""
    residents = group_members.find_residents(nodes)
    told = next((pod.domain for pod in residents if pod.domain), "")
    return next((nodes[pod.node].labels.get(key, "") for pod in residents if pod.node in nodes), told)


def list_assigned_nodes(group_members: GroupMembers, nodes: Mapping[str, Node]) -> AssignedNodes:
    """Return the nodes of the running members of each PodGroup."""
    return {name: [pod.node for pod in each.find_residents(nodes)] for name, each in group_members.leaves.items()}


def list_nodes_of_slots(reservation: Reservation, uids: Iterable[str]) -> dict[str, list[str]]:
    """Return the nodes of those slots of a reservation whose members are ``uids``, by PodGroup."""
    assigned_nodes: dict[str, list[str]] = {}
    for uid in uids:
        slot = reservation.slots[uid]
        assigned_nodes.setdefault(slot.part, []).append(slot.node)
    return assigned_nodes


_MAX_LETTERS = 200
"""The number of characters after which kube-scheduler's message is cut in a verdict."""


_MAX_GATES_NAMED = 3


def describe_gated(group_members: GroupMembers, need: int) -> Verdict:
    """Return the verdict MEMBER_GATED of a gang that waits for other components to remove scheduling gates.

    ``need`` is the number of members that it needs. The verdict names the gates.
    """
    gates = sorted({gate for pod in group_members.gated for gate in pod.foreign_gates})
    named = join_some(gates, _MAX_GATES_NAMED)
    return Verdict(Reason.MEMBER_GATED, have=len(group_members.gated), need=need, key=named)


def describe_refused(
    group_members: GroupMembers, need: int, dropped: Collection[Pod] = (), beside: str = ""
) -> Verdict:
    """Return the verdict of a gang that lacks members because kube-scheduler rejects them on every node.

    ``need`` is the number of members that it needs. ``dropped`` are members that had a slot when kube-scheduler
    rejected them. ``beside`` is a phrase for the verdict that says in which situation that was, such as "while other
    members of the gang have nodes"; "" for none.
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
    # kube-scheduler may later say the same about the pod. The text does not change then, so no second event is written.
    nowhere = [name for name in pod.missing if not pod.objection or f"Insufficient {name}" in pod.objection]
    if nowhere:
        names = " and ".join(nowhere)
        detail = f"{pod.name} asks for {names}, which no node has and no DeviceClass provides"
        return Verdict(Reason.NO_CAPACITY, have=have, need=need, detail=detail)
    missing, provided = _split_uncounted([pod])
    counted = [*provided, *(["the claimed devices"] if pod.device_claims else [])]
    said = [f"no node has {', '.join(missing)}"] if missing else []
    if counted and pod.only_scheduler_counts:
        said.append(f"only kube-scheduler can count {' and '.join(counted)}{_explain([pod])}")
    words = pod.objection if len(pod.objection) <= _MAX_LETTERS else pod.objection[:_MAX_LETTERS] + "..."
    said = [", ".join(said)] if said else []
    detail = "; ".join([*said, f"kube-scheduler rejects {pod.name} on every node{beside}: {words}"])
    return Verdict(Reason.NO_CAPACITY, have=have, need=need, detail=detail)


def describe_uncounted(members: Collection[Pod], store: Store) -> list[str]:
    """Return phrases for what these members request and only kube-scheduler can count.

    A plan treats these devices and resources as unlimited.
    """
    missing, provided = _split_uncounted(members)
    said = [f"{count_things(_count(members, name), 'member', 'ask')} for {name}, which no node has" for name in missing]
    said += [
        f"{count_things(_count(members, name), 'member', 'ask')} for {name}, which only kube-scheduler can count"
        for name in provided
    ]
    if claiming := [pod for pod in members if pod.device_claims and pod.only_scheduler_counts]:
        who = count_things(len(claiming), "member", "claim")
        said.append(f"{who} devices, which only kube-scheduler can count{_explain(claiming)}")
    said += [pod.uncountable for pod in members if pod.uncountable and not pod.claim_refs][:1]
    keys = {_pod_group_of(pod, store.members) for pod in members}
    groups = [store.groups.get(key) for key in keys if key is not None]
    if not any(pod.counted for pod in members) and any(group and group.device_claims for group in groups):
        said.append("the PodGroup claims devices, which only kube-scheduler can count")
    return said


def _explain(pods: Iterable[Pod]) -> str:
    """Return why only kube-scheduler can count what these pods request, in parentheses; "" if unknown."""
    why = next((pod.uncountable for pod in pods if pod.uncountable), "")
    return f" ({why})" if why else ""


def _pod_group_of(pod: Pod, members: Members) -> GroupKey | None:
    group = members.group_of(pod.uid)
    return group.leaf(members.leaf_of(pod.uid)) if group is not None else None


def _split_uncounted(pods: Iterable[Pod]) -> tuple[list[str], list[str]]:
    """Return the resources that pods request and no node has, in two lists.

    The first list has the resources that no DeviceClass provides, the second one those that a DeviceClass provides.
    """
    uncounted = [pod for pod in pods if pod.only_scheduler_counts]
    names = {name for pod in uncounted for name in pod.uncounted}
    provided = {name for pod in uncounted for name in pod.provided}
    return sorted(names - provided), sorted(names & provided)


def _count(pods: Iterable[Pod], name: str) -> int:
    return sum(name in pod.uncounted for pod in pods if pod.only_scheduler_counts)


def describe_preemption(reservation: Reservation, pending_victims: PendingVictims) -> Verdict:
    """Return the verdict PREEMPTING of a gang with the numbers of its victims, and of those that have ended."""
    victims = reservation.victims
    ended = len(victims) - pending_victims.count_left(reservation.group)
    return Verdict(Reason.PREEMPTING, have=ended, need=len(victims), detail=name_victims(victims.values()))


def find_shortage(
    group: PodGroup, group_members: GroupMembers, store: Store, repair: Repair = NO_REPAIR
) -> Verdict | None:
    """Return the verdict why a gang's quorum cannot be planned yet; None if it can, or if it runs already.

    For instance its PriorityClass does not exist, or members are missing, gated or rejected by kube-scheduler. If there
    are replacements in ``repair``, only the PriorityClass counts: they are planned without a quorum.
    """
    if store.priorities.lacks_class(group):
        return _describe_class(group, store)
    if repair.replacements or not _needs_members(group, group_members):
        return None
    leaves = group_members.leaves
    able = {leaf.name for leaf in list_leaves(group.tree) if can_reach_quorum(leaf, leaves[leaf.name])}
    waiting = {name: len(each.waiting) for name, each in leaves.items()}
    if any(waiting[name] for name in able) and _has_quorum_with(group, leaves, _select(able, waiting)):
        return None
    min_count = group.policy.min_count or 1
    # It is unknown how many more members will come once a gate is removed, so the gate is reported first.
    gated = {leaf.name: leaf.need for leaf in list_leaves(group.tree) if leaves[leaf.name].gated}
    if gated and _has_quorum_with(group, leaves, {**waiting, **gated}):
        return describe_gated(group_members, min_count)
    coming = {name: waiting[name] + len(each.refused) for name, each in leaves.items()}
    if group_members.refused and _has_quorum_with(group, leaves, coming):
        return describe_refused(group_members, min_count)
    return _describe_missing(group.tree, leaves, coming)


def _describe_class(group: PodGroup, store: Store) -> Verdict:
    exists = group.priority_class in store.priority_classes
    detail = f"the highest priority of a PodGroup is {HIGHEST_GROUP_PRIORITY}" if exists else ""
    return Verdict(Reason.PRIORITY_UNKNOWN, key=group.priority_class, detail=detail)


def _needs_members(group: PodGroup, group_members: GroupMembers) -> bool:
    """Return whether a gang has to gather the members of a quorum before it can be planned.

    True if its quorum does not run yet. True also if the quorum of its tree runs, but not that of a further PodGroup of
    the tree, which has members that wait or have scheduling gates.
    """
    if count_missing(group.tree, group_members.placed_by_leaf):
        return True
    below = ((leaf, group_members.leaves[leaf.name]) for leaf in list_leaves(group.tree))
    return any(each.need(leaf.need) and (each.waiting or each.gated) for leaf, each in below)


def _describe_missing(tree: Tree, leaves: Mapping[str, GroupMembers], coming: Mapping[str, int]) -> Verdict:
    """Return the verdict QUORUM_MISSING, with how many members a gang has and needs, and which PodGroups lack some.

    ``coming`` has by PodGroup the number of unplaced members that count: those that wait, and those that kube-scheduler
    has rejected on every node. Members with scheduling gates are not among them.
    """
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
    # A missing group counts as one member; nothing else is known of it.
    absent = sum(max(0, branch.need - len(branch.below)) for branch in branches)
    need = sum(leaf.need for leaf in groups) + absent
    detail = ", ".join([*few, *said[:_SHOWN], *more])
    return Verdict(Reason.QUORUM_MISSING, have=sum(have.values()), need=need, detail=detail)


def is_suspended(group: PodGroup, store: Store) -> bool:
    """Return whether the Job that owns the group, or its parent (such as a JobSet), is suspended."""
    owner = store.membership.job_of(group) or store.membership.parent_of(group)
    return owner is not None and owner.suspended


def is_foreign(group: PodGroup | None, members: Sequence[Pod], store: Store) -> bool:
    """Return whether other schedulers schedule all pods of a group, so that Serried does not report on it.

    A PodGroup of scheduler-plugins without pods counts as foreign, too. ``members`` are all pods of the group.
    """
    if not members:
        return group is not None and group.key.kind is GroupKind.COMPATIBLE
    return not any(pod.scheduler in store.schedulers for pod in members)


def find_conflict(group: PodGroup, group_members: GroupMembers, nodes: Mapping[str, Node]) -> Verdict | None:
    """Return the verdict DOMAIN_CONFLICT if bound members contradict the gang's topology keys; else None.

    So it is if they run in several domains, or on a node without the label. Serried never binds so: another
    scheduler has, or a node label was changed later.
    """
    split = find_split(list_groups(group.tree), list_assigned_nodes(group_members, nodes), nodes)
    if split is None:
        return None
    stray = f"a member runs on {split.stray}, which has no such label"
    said = stray if split.stray else ", ".join(split.domains)
    return Verdict(Reason.DOMAIN_CONFLICT, key=split.key, detail=f"{split.name}: {said}" if split.name else said)


def describe_caveats(members: Collection[Pod], store: Store) -> str:
    """Return what a plan cannot guarantee, as a phrase: unbound volumes, and what only kube-scheduler counts.

    "" if there is nothing.
    """
    waits = store.list_caveats(members) if any(pod.claims for pod in members) else []
    return ", ".join([*waits, *describe_uncounted(members, store)])


_SHOWN = 5


def can_reach_quorum(leaf: Leaf, group_members: GroupMembers) -> bool:
    """Return whether a PodGroup's quorum runs, or is complete with its waiting members.

    False while members have scheduling gates and the quorum does not run: they are to be planned with the others.
    """
    need = group_members.need(leaf.need)
    return need == 0 or (need <= len(group_members.waiting) and not group_members.gated)


def _select(names: Collection[str], counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if name in names}


def _has_quorum_with(group: PodGroup, leaves: Mapping[str, GroupMembers], more: Mapping[str, int]) -> bool:
    """Return whether the gang's quorum is complete once ``more`` members of each PodGroup are placed."""
    return count_missing(group.tree, {name: each.placed + more.get(name, 0) for name, each in leaves.items()}) == 0


class Split(NamedTuple):
    """A contradiction: the members of one group of a tree run in several domains, or on a node without the label."""

    name: str
    key: str

    domains: tuple[str, ...]
    """The domains in which the members run, sorted."""

    stray: str
    """The name of a member's node that lacks the label of the topology key; "" if there is none."""


def find_split(trees: Iterable[Tree], assigned_nodes: AssignedNodes, nodes: Mapping[str, Node]) -> Split | None:
    """Return the first group of ``trees`` whose members are not in one domain; None if there is none."""
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
"""The members by the name of their PodGroup in the tree."""

_Need: TypeAlias = Mapping[str, int]
"""The number of members that must be placed, by the name of their PodGroup."""


@dataclass(frozen=True, slots=True)
class _TreeInput:
    """The facts about a gang from which the planner's requests for all groups of its tree are built.

    For instance its waiting members, how many of them are needed, and the nodes of its running members. PodGroups
    without members are left out.
    """

    members: _Members
    need: _Need

    residents: AssignedNodes
    """The nodes of running members: these determine the domain in which the other members must be placed."""

    assigned_nodes: AssignedNodes
    """The nodes of members that have one already: the other members should be placed close to them."""

    nodes: Mapping[str, Node]

    waited: float
    """The seconds for which the gang has had its quorum. They decide which preferred levels it may use."""

    common: PlanRequest
    """A request with the fields that are equal in the requests of all groups."""


def build_request(
    group: PodGroup,
    group_members: GroupMembers,
    excluded: frozenset[tuple[str, str]],
    nodes: Mapping[str, Node],
    waited: float,
    repair: Repair = NO_REPAIR,
    assigned_domain: str = "",
) -> PlanRequest | Verdict:
    """Return the planner's request for all PodGroups of a gang that can reach their quorum.

    ``group`` is the PodGroup, or the tree of which all PodGroups are planned. If no PodGroup can reach its quorum, the
    request has no members. If ``repair`` has replacements of deleted members, the request is for these alone. Return
    the verdict DOMAIN_CONFLICT if bound members contradict the gang's topology keys. ``excluded`` are pairs of a
    member's UID and a node that it must not get. ``waited`` is for how many seconds the gang has had its quorum; it
    decides which preferred levels the gang may use. ``assigned_domain`` is the domain in which its bound members run:
    the others must be placed there. It is only used if none of their nodes exists any more.
    """
    conflict = find_conflict(group, group_members, nodes)
    if conflict is not None:
        return conflict
    leaves = group_members.leaves
    members, need = (
        _list_replacements(leaves, repair.replacements) if repair.replacements else _list_startable(group.tree, leaves)
    )
    common = PlanRequest((), 0, excluded=excluded, style=group.preference.style, own_slots=bool(repair.replacements))
    assigned_nodes = {name: [pod.node for pod in each.bound] for name, each in leaves.items()}
    tree_input = _TreeInput(
        members, need, list_assigned_nodes(group_members, nodes), assigned_nodes, nodes, waited, common
    )
    request = _build_root(group, tree_input)
    if group.topology_key is not None and group_members.bound and assigned_domain and not request.pinned:
        return replace(request, pinned=frozenset({assigned_domain}))
    return request


def _list_startable(tree: Tree, leaves: Mapping[str, GroupMembers]) -> tuple[_Members, _Need]:
    """Return the waiting members, and the number needed, of each PodGroup that can reach its quorum."""
    able = [leaf for leaf in list_leaves(tree) if can_reach_quorum(leaf, leaves[leaf.name])]
    need = {leaf.name: leaves[leaf.name].need(leaf.need) for leaf in able}
    return {name: leaves[name].waiting for name in need}, need


def _list_replacements(leaves: Mapping[str, GroupMembers], replacements: Iterable[Pod]) -> tuple[_Members, _Need]:
    """Return the replacements by PodGroup, and 0 as the number needed, because the quorum counts without them."""
    uids = {pod.uid for pod in replacements}
    members = {name: [pod for pod in each.waiting if pod.uid in uids] for name, each in leaves.items()}
    return members, dict.fromkeys(leaves, 0)


def find_next_level_wait(group: PodGroup, waited: float) -> float:
    """Return the seconds until a PodGroup of the tree may use a wider preferred level; infinite if there is none.

    ``waited`` is for how many seconds the gang has had its quorum.
    """
    openings = (find_allowed_levels(leaf.preference.levels, waited) for leaf in list_leaves(group.tree))
    return min((each.next_in for each in openings), default=math.inf)


def build_joining_request(
    cycle: BindingCycle, members: Sequence[Pod], need: int, excluded: frozenset[tuple[str, str]], store: Store
) -> PlanRequest:
    """Return the planner's request for members that join a binding cycle late, or need another node in it.

    They are placed in the domain of the cycle, and in a tree in the domain that their own PodGroup uses. ``need``
    is how many of them must be placed. ``excluded`` are pairs of a member's UID and a node that it must not get.
    """
    group, leaf_of = cycle.group, store.members.leaf_of
    assigned_nodes = list_nodes_of_slots(cycle.reservation, cycle.reservation.slots)
    for uid in cycle.bound:
        if uid in store.pods and store.pods[uid].node:
            assigned_nodes.setdefault(leaf_of(uid), []).append(store.pods[uid].node)
    # The root's domain is the cycle's; running members matter only for the domains of groups below it.
    residents = (
        list_assigned_nodes(store.members.classify(group.key), store.nodes) if isinstance(group.tree, Branch) else {}
    )
    joining: dict[str, list[Pod]] = {leaf.name: [] for leaf in list_leaves(group.tree)}
    for pod in members:
        joining.setdefault(leaf_of(pod.uid), []).append(pod)
    around = {name: [*assigned_nodes.get(name, ()), *residents.get(name, ())] for name in joining}
    common = PlanRequest((), 0, excluded=excluded, closed=cycle.closed, style=group.preference.style)
    tree_input = _TreeInput(joining, dict.fromkeys(joining, 0), around, around, store.nodes, math.inf, common)
    priority = store.priorities.find_object_priority(group.key)
    return replace(_build_root(group, tree_input), need=need, pinned=cycle.pinned, group_priority=priority)


def _build_root(group: PodGroup, tree_input: _TreeInput) -> PlanRequest:
    return _build_below(group.tree, tree_input) or replace(tree_input.common, topology_key=group.topology_key)


def _build_below(tree: Tree, tree_input: _TreeInput) -> PlanRequest | None:
    """Return the request for ``tree``, which is the whole tree or one group of it, with all groups below.

    ``tree_input`` has what is known of the whole tree: members, quorums, and the nodes of running members. Return None
    for a PodGroup that cannot reach its quorum, and for a CompositePodGroup with too few groups that can.
    """
    names = [leaf.name for leaf in list_leaves(tree)]
    assigned_nodes = frozenset(node for name in names for node in tree_input.assigned_nodes.get(name, ()))
    residents = {node for name in names for node in tree_input.residents.get(name, ())}
    key = tree.topology_key
    labels = (tree_input.nodes[node].labels for node in residents if node in tree_input.nodes)
    pinned = frozenset(each[key] for each in labels if key in each) if key is not None else frozenset[str]()
    base = replace(tree_input.common, topology_key=key, pinned=pinned, assigned_nodes=assigned_nodes)
    if isinstance(tree, Leaf):
        return _build_leaf(tree, base, tree_input) if tree.name in tree_input.need else None
    parts = tuple(part for each in tree.below if (part := _build_below(each, tree_input)) is not None)
    wanted = tree.need - sum(part.need == 0 for part in parts)
    open_ = sorted(part.need for part in parts if part.need)
    if wanted > len(open_):
        return None
    members = tuple(member for part in parts for member in part.members)
    wanted = max(0, wanted)
    name = GroupKey("", tree.name, GroupKind.COMPOSITE).encoded
    return replace(base, name=name, members=members, need=sum(open_[:wanted]), parts=parts, wanted=wanted)


def _build_leaf(leaf: Leaf, base: PlanRequest, tree_input: _TreeInput) -> PlanRequest:
    opening = find_allowed_levels(leaf.preference.levels, tree_input.waited)
    return replace(
        base,
        name=leaf.name,
        members=tuple(tree_input.members[leaf.name]),
        need=tree_input.need[leaf.name],
        levels=opening.keys,
        spills=opening.spills,
        style=leaf.preference.style,
    )


def subtract_placed(request: PlanRequest, kept_slots: Mapping[str, str], nodes: Mapping[str, Node]) -> PlanRequest:
    """Return what is left of a request when some of its members have their nodes already.

    ``kept_slots`` are these nodes by member UID. The request that is returned has only the other members, needs as many
    fewer, and is limited to the domain of these nodes.
    """
    assigned_nodes = [kept_slots[member.uid] for member in request.members if member.uid in kept_slots]
    key, pinned = request.topology_key, request.pinned
    if key is not None and assigned_nodes:
        pinned = frozenset(nodes[node].labels[key] for node in assigned_nodes)
    parts = tuple(subtract_placed(part, kept_slots, nodes) for part in request.parts)
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
