"""Why there is nobody to plan for: members are missing or gated, or those that run contradict the constraint."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from extender.scheduling.group_state import NO_REPAIR, Repair
from extender.scheduling.homes import Homes, find_homes
from extender.scheduling.objections import describe_refused, describe_uncounted
from serried.cluster.exclusives import find_exclusive_key
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.cluster.vacancies import Vacancy
from serried.model.group import GroupKey, GroupKind, PodGroup
from serried.model.node import Node
from serried.model.pod import Pod
from serried.model.priority import HIGHEST_GROUP_PRIORITY
from serried.model.tree import Leaf, Tree, list_branches, list_groups, list_leaves
from serried.model.verdict import Reason, Verdict
from serried.plan.quorum import GroupMembers, count_missing


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
        return Verdict(Reason.MEMBER_GATED, have=len(group_members.gated), need=min_count)
    coming = {name: waiting[name] + len(each.refused) for name, each in leaves.items()}
    if group_members.refused and _would_stand(group, leaves, coming):
        return describe_refused(group_members, min_count, store.uncounted)
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
    """How the bound members contradict the constraints of the group's tree, None if they do not.

    Only somebody else can have brought that about: another scheduler, or whoever changed a node's label.
    """
    split = find_split(list_groups(group.tree), find_homes(group_members, nodes), nodes)
    if split is None:
        return None
    stray = f"a member runs on {split.stray}, which has no such label"
    said = stray if split.stray else ", ".join(split.domains)
    return Verdict(Reason.DOMAIN_CONFLICT, key=split.key, detail=f"{split.name}: {said}" if split.name else said)


class Occupant(NamedTuple):
    """What makes a domain another exclusive gang's."""

    domain: str
    namespace: str

    pod: Pod | None
    """The pod that is there; None if it is a slot that is planned or kept."""


def find_taken(group: PodGroup, store: Store, ledger: Ledger, gone: Collection[str] = frozenset()) -> frozenset[str]:
    """The domains of the group's key in which other exclusive gangs are, or will be; none for one that is not.

    It is as if the pods with the UIDs ``gone`` were gone.
    """
    occupants = list_occupants(group, store, ledger)
    return frozenset(each.domain for each in occupants if each.pod is None or each.pod.uid not in gone)


def find_openable(group: PodGroup, store: Store, ledger: Ledger) -> frozenset[str]:
    """Those of the taken domains that evictions would open: nothing but pods holds them, and none of these ends yet."""
    occupants = list(list_occupants(group, store, ledger))
    stay = {each.domain for each in occupants if each.pod is None or each.pod.deleting or each.pod.uid in store.yields}
    return frozenset(each.domain for each in occupants if each.domain not in stay)


def list_occupants(group: PodGroup, store: Store, ledger: Ledger) -> Iterator[Occupant]:
    """What makes domains of the group's key those of other exclusive gangs; nothing for a group that is not one."""
    key = find_exclusive_key(group)
    if key is None:
        return

    def is_another(found: GroupKey) -> bool:
        return found != group.key and find_exclusive_key(store.groups.get(found)) == key

    for reservation in ledger:
        if reservation.domain and is_another(reservation.group):
            yield Occupant(reservation.domain, reservation.group.namespace, None)
    running = (pod for other, bound in store.exclusives.iterate(key) if other.key != group.key for pod in bound)
    kept = (vacancy.pod for vacancy in store.vacancies if is_another(vacancy.group))
    for pod, there in [*((pod, pod) for pod in running), *((pod, None) for pod in kept)]:
        domain = store.nodes[pod.node].labels.get(key, "") if pod.node in store.nodes else ""
        if domain:
            yield Occupant(domain, pod.namespace, there)


def describe_claims(members: Collection[Pod], store: Store) -> str:
    """What a plan cannot promise: volumes that are not bound yet, what only the scheduler counts; "" for nothing."""
    unbound = store.volumes.count_unbound(members)
    volumes = [f"{unbound} members mount volume claims that are not bound yet"] if unbound else []
    return ", ".join([*volumes, *describe_uncounted(members, store)])


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


def find_split(trees: Iterable[Tree], homes: Homes, nodes: Mapping[str, Node]) -> Split | None:
    """The first of these groups whose members are in more than one domain, or in none; None if there is no such."""
    for tree in trees:
        key = tree.topology_key
        if key is None:
            continue
        names = (home for leaf in list_leaves(tree) for home in homes.get(leaf.name, ()))
        found = [nodes[name] for name in names if name in nodes]
        stray = next((node.name for node in found if key not in node.labels), "")
        domains = {node.labels[key] for node in found if key in node.labels}
        if stray or len(domains) > 1:
            return Split(tree.name, key, tuple(sorted(domains)), stray)
    return None


def find_repairable(
    group: PodGroup, group_members: GroupMembers, vacancies: Iterable[Vacancy], stood: Tree | None
) -> frozenset[str]:
    """The PodGroups that run and that the kept slots make whole, by name; the others start anew.

    Whole is what ``stood`` when the quorum did last: a gang that is to grow lacks what it lost, not what it is to get.
    None is for a gang that ran before this process looked: then every PodGroup that runs is mended. Whoever is being
    deleted has a slot yet, which will be kept.
    """
    kept = Counter(vacancy.leaf for vacancy in vacancies)
    before = {leaf.name: leaf.need for leaf in list_leaves(stood)} if stood is not None else {}

    def is_mended(leaf: Leaf, each: GroupMembers) -> bool:
        need = min(leaf.need, before.get(leaf.name, leaf.need))
        return stood is None or each.need(need) <= kept[leaf.name] + len(each.terminating)

    below = ((leaf, group_members.leaves[leaf.name]) for leaf in list_leaves(group.tree))
    return frozenset(leaf.name for leaf, each in below if each.bound and is_mended(leaf, each))
