"""Gangs that do not exist yet, from manifests: each group, and its members as they would be."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from extender.whatif.manifests import READ, Manifests
from extender.whatif.owners import add_owners
from serried.cluster.forest import Forest
from serried.cluster.inline import build_groups
from serried.cluster.store import Store
from serried.model.group import BASIC, GroupKey, GroupKind, PodGroup
from serried.model.pod import Pod
from serried.model.tree import Leaf, list_leaves
from serried.plan.steps import Work

MOST_GANGS = 50

_UID = "whatif:"
"""Before the name of the group that a pod of no group is; no true one has a colon."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A gang, or a pod of none, for which a place is looked for."""

    source: str
    """What it comes from, for people: kind, namespace and name."""

    group: PodGroup

    members: tuple[Pod, ...]
    """Those that come, each with the PodGroup that it names; members that wait already are not among them."""


class Gathered(NamedTuple):
    """What some manifests are."""

    newcomers: list[Newcomer]

    refused: list[str]
    """What cannot be answered for, a sentence each: where it stands, what is wrong, and what to do."""


def gather(objects: Iterable[tuple[str, Any]], store: Store, namespace: str) -> Work[Gathered]:
    """The gangs of some objects, each with where it stands. Raises ValueError if there are none, or too many."""
    manifests = Manifests()
    for place, raw in objects:
        with manifests.judging():
            manifests.read(place, raw, namespace, store)
        yield
    _add_inline_groups(manifests)
    yield from add_owners(manifests, store)
    found = [*_list_groups(manifests, store), *(_make_single(pod) for pod in manifests.single)]
    if not found and not manifests.refused:
        raise ValueError(f"there is no object in the body; what is read: {READ}")
    if len(found) > MOST_GANGS:
        raise ValueError(f"there are {len(found)} gangs; ask for at most {MOST_GANGS} at a time")
    return Gathered(found, manifests.refused)


def find_existing(store: Store, key: GroupKey) -> Newcomer:
    """A group that exists, to be planned with the members that it has. Raises ValueError if it is not known."""
    group = store.groups.get(key)
    if group is None:
        raise ValueError(f"no group {key} is known; see /debug/groups")
    return Newcomer(f"{key.kind} {key}", group, ())


def _add_inline_groups(manifests: Manifests) -> None:
    """The groups that pods name as parts of a Workload (v1alpha1)."""
    for _, workload in manifests.workloads:
        for key, group in build_groups(workload, manifests.members).items():
            if workload.inline and key in manifests.members:
                manifests.groups[key] = (f"Workload {key}", group)


def _list_groups(manifests: Manifests, store: Store) -> Iterator[Newcomer]:
    forest = _plant(manifests)
    members: dict[GroupKey, list[Pod]] = {}
    for key in dict.fromkeys([*manifests.groups, *manifests.members]):
        found = forest.lift(key) if key in manifests.groups else store.forest.lift(key)
        members.setdefault(found, []).extend(manifests.members.get(key, ()))
    for composite in manifests.composites:
        members.setdefault(forest.lift_composite(composite.key), [])
    for key, pods in members.items():
        with manifests.judging():
            yield _make_newcomer(key, tuple(pods), manifests, store, forest)


def _plant(manifests: Manifests) -> Forest:
    """The trees of the manifests."""
    groups = {key: group for key, (_, group) in manifests.groups.items()}
    forest = Forest(groups)
    for composite in manifests.composites:
        forest.put_composite(composite)
    for group in groups.values():
        forest.index_group(None, group)
    return forest


def _make_newcomer(
    key: GroupKey, members: tuple[Pod, ...], manifests: Manifests, store: Store, forest: Forest
) -> Newcomer:
    source = f"{key.kind if key.kind is GroupKind.COMPOSITE else 'PodGroup'} {key.object_key}"
    source, group = manifests.groups.get(key, (source, forest.build(key)))
    known = store.groups.get(key)
    group = group or known
    if group is None and key.kind is GroupKind.COMPOSITE:
        raise ValueError(f"{forest.find_gap(key)}; send the whole tree")
    if group is None:
        raise ValueError(f"pod {members[0].name} names PodGroup {key}, which does not exist; send it, too")
    if not members and not store.members.of_group(key):
        raise ValueError(f"{source} has no pods here, and none exist; send its pods, or the Job that makes them")
    _check_leaves(group, members)
    return Newcomer(source, group, members)


def _check_leaves(group: PodGroup, members: Iterable[Pod]) -> None:
    if isinstance(group.tree, Leaf):
        return
    leaves = {leaf.name for leaf in list_leaves(group.tree)}
    stray = next((pod.group.name for pod in members if pod.group is not None and pod.group.name not in leaves), None)
    if stray is not None:
        raise ValueError(f"PodGroup {stray} is new in the tree of {group.key.object_key}; send the whole tree")


def _make_single(pod: Pod) -> Newcomer:
    key = GroupKey(pod.namespace, f"{_UID}{pod.name}")
    return Newcomer(f"Pod {pod.namespace}/{pod.name}", PodGroup(key, pod.uid, BASIC), (replace(pod, group=key),))
