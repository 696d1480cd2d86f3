"""Why there is nobody to plan for: members are missing or gated, or those that run contradict the constraint."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from extender.scheduling.group_state import WHOLE, Mending
from extender.scheduling.homes import Homes, find_homes
from extender.scheduling.objections import describe_refused, describe_uncounted
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.model.group import GroupKind, PodGroup
from serried.model.node import Node
from serried.model.pod import Pod
from serried.model.priority import HIGHEST_GROUP_PRIORITY
from serried.model.tree import Leaf, Tree, list_branches, list_leaves
from serried.model.verdict import Reason, Verdict
from serried.plan.quorum import GroupMembers, count_missing, is_whole


def find_shortage(
    group: PodGroup, group_members: GroupMembers, store: Store, mending: Mending = WHOLE
) -> Verdict | None:
    """Why there is nobody to plan for yet; None if the quorum exists, or an heir can be placed without one."""
    if store.priorities.lacks_class(group):
        return _describe_class(group, store)
    min_count = group.policy.min_count or 1
    if mending.heirs:
        return None
    if group.tree is not None:
        return _find_tree_shortage(group, group_members, store)
    need = group_members.need(min_count)
    if need and group_members.gated:
        return Verdict(Reason.MEMBER_GATED, have=len(group_members.gated), need=min_count)
    return _find_missing(group_members, min_count, store) if need > len(group_members.waiting) else None


def _describe_class(group: PodGroup, store: Store) -> Verdict:
    exists = group.priority_class in store.priority_classes
    detail = f"no PodGroup may have more than {HIGHEST_GROUP_PRIORITY}" if exists else ""
    return Verdict(Reason.PRIORITY_UNKNOWN, key=group.priority_class, detail=detail)


def _find_missing(group_members: GroupMembers, min_count: int, store: Store) -> Verdict:
    have = group_members.placed + len(group_members.waiting) + len(group_members.refused)
    if group_members.refused and have >= min_count:
        return describe_refused(group_members, min_count, store.uncounted)
    return Verdict(Reason.QUORUM_MISSING, have=have, need=min_count)


def is_suspended(group: PodGroup, store: Store) -> bool:
    """Whether the group's Job is suspended."""
    job = store.membership.job_of(group)
    return job is not None and job.suspended


def is_foreign(group: PodGroup | None, members: Sequence[Pod], store: Store) -> bool:
    """Whether a group is another scheduler's, and so are its reasons.

    One of scheduler-plugins is nobody's before it has pods.
    """
    if not members:
        return group is not None and group.key.kind is GroupKind.COMPATIBLE
    return not any(pod.scheduler in store.schedulers for pod in members)


def find_conflict(group: PodGroup, group_members: GroupMembers, nodes: Mapping[str, Node]) -> Verdict | None:
    """How the bound members contradict the group's constraint, None if they do not.

    Only somebody else can have brought that about: another scheduler, or whoever changed a node's label.
    """
    if group.tree is not None:
        return find_tree_conflict(group, find_homes(group_members, nodes), nodes)
    key = group.topology_key
    if key is None:
        return None
    homes = [nodes[pod.node] for pod in group_members.find_residents(nodes) if pod.node in nodes]
    stray = next((node for node in homes if key not in node.labels), None)
    if stray is not None:
        return Verdict(
            Reason.DOMAIN_CONFLICT, key=key, detail=f"a member runs on {stray.name}, which has no such label"
        )
    domains = sorted({node.labels[key] for node in homes})
    return Verdict(Reason.DOMAIN_CONFLICT, key=key, detail=", ".join(domains)) if len(domains) > 1 else None


def find_taken(group: PodGroup, store: Store, ledger: Ledger) -> frozenset[str]:
    """The domains of the group's key in which other exclusive gangs are, or will be; none for one that is not."""
    key, taken = group.topology_key, set[str]()
    if key is None or not group.preference.exclusive:
        return frozenset()
    for other in store.groups.values():
        if not other.preference.exclusive or other.topology_key != key or other.key == group.key:
            continue
        reservation = ledger.of_group(other.key)
        if reservation is not None:
            taken.add(reservation.domain)
        homes = [pod.node for pod in store.members.of_group(other.key) if pod.bound]
        homes += [vacancy.pod.node for vacancy in store.vacancies.of_group(other.key)]
        taken.update(store.nodes[home].labels.get(key, "") for home in homes if home in store.nodes)
    return frozenset(taken - {""})


def describe_claims(members: Collection[Pod], store: Store) -> str:
    """What a plan cannot promise: volumes that are not bound yet, what only the scheduler counts; "" for nothing."""
    unbound = store.volumes.count_unbound(members)
    volumes = [f"{unbound} members mount volume claims that are not bound yet"] if unbound else []
    return ", ".join([*volumes, *describe_uncounted(members, store)])


def _find_tree_shortage(group: PodGroup, group_members: GroupMembers, store: Store) -> Verdict | None:
    """Why there is nobody to plan for in a tree; None if enough PodGroups have their quorum, or one more has."""
    if not (group_members.waiting or group_members.gated) and is_whole(group, group_members):
        return None
    leaves = group_members.leaves
    groups = list(list_leaves(group.tree))
    waiting = {name: each.waiting for name, each in leaves.items()}
    able = any(waiting[leaf.name] and is_able(leaf, leaves[leaf.name]) for leaf in groups)
    if able and _would_stand(group, leaves, {name: pods for name, pods in waiting.items() if not leaves[name].gated}):
        return None
    if group_members.gated and _would_stand(
        group, leaves, {n: (*pods, *leaves[n].gated) for n, pods in waiting.items()}
    ):
        return Verdict(Reason.MEMBER_GATED, have=len(group_members.gated), need=group.policy.min_count or 1)
    waiting = {name: (*pods, *leaves[name].refused) for name, pods in waiting.items()}
    if group_members.refused and _would_stand(group, leaves, waiting):
        return describe_refused(group_members, group.policy.min_count or 1, store.uncounted)
    short = [leaf for leaf in groups if leaves[leaf.name].need(leaf.need) > len(waiting[leaf.name])]
    have = {leaf.name: min(leaf.need, leaves[leaf.name].placed + len(waiting[leaf.name])) for leaf in groups}
    said = [f"{leaf.name} has {have[leaf.name]} of {leaf.need}" for leaf in short]
    few = [
        f"{branch.name} has {len(branch.below)} of {branch.need} groups"
        for branch in list_branches(group.tree)
        if len(branch.below) < branch.need
    ]
    more = [f"{len(said) - _SHOWN} more"] if len(said) > _SHOWN else []
    # Of a group that is missing nothing is known but that it has a member.
    absent = sum(max(0, branch.need - len(branch.below)) for branch in list_branches(group.tree))
    need = sum(leaf.need for leaf in groups) + absent
    return Verdict(
        Reason.QUORUM_MISSING, have=sum(have.values()), need=need, detail=", ".join([*few, *said[:_SHOWN], *more])
    )


_SHOWN = 5


def is_able(leaf: Leaf, group_members: GroupMembers) -> bool:
    """Whether a PodGroup stands, or can with those that wait; one with a gated member waits for that one."""
    need = group_members.need(leaf.need)
    return need == 0 or (need <= len(group_members.waiting) and not group_members.gated)


def _would_stand(group: PodGroup, leaves: Mapping[str, GroupMembers], more: Mapping[str, Sequence[Pod]]) -> bool:
    filled = {
        name: replace(each, placed=each.placed + len(more.get(name, ()))) if len(more.get(name, ())) else each
        for name, each in leaves.items()
    }
    return group.tree is not None and count_missing(group.tree, filled) == 0


def find_tree_conflict(group: PodGroup, homes: Homes, nodes: Mapping[str, Node]) -> Verdict | None:
    """Where members of one group of the tree are in more than one of its domains; None if nowhere."""
    trees: list[Tree] = [*list_branches(group.tree), *list_leaves(group.tree)]
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
