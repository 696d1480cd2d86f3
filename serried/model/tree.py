"""The trees that CompositePodGroups make of PodGroups (KEP-6012)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from serried.model.disruption import Disruption
from serried.model.preference import NO_PREFERENCE, Preference


@dataclass(frozen=True, slots=True)
class Leaf:
    """A PodGroup in a tree, or one that is a tree by itself."""

    name: str
    """"" where it is the whole tree."""

    need: int
    """How many members must be placed before it stands; one for policy basic."""

    topology_key: str | None = None
    preference: Preference = NO_PREFERENCE
    disruption: Disruption = Disruption.SINGLE
    below: ClassVar[tuple["Tree", ...]] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """A CompositePodGroup in a tree."""

    name: str

    need: int
    """How many of the groups below must stand before it does; one for policy basic."""

    topology_key: str | None
    below: tuple["Tree", ...]
    disruption: Disruption = Disruption.SINGLE


Tree: TypeAlias = Branch | Leaf


def list_leaves(tree: Tree) -> Iterator[Leaf]:
    """The PodGroups of a tree, in its order."""
    if isinstance(tree, Leaf):
        yield tree
    else:
        for each in tree.below:
            yield from list_leaves(each)


def list_branches(tree: Tree) -> Iterator[Branch]:
    """The CompositePodGroups of a tree, the root first."""
    if isinstance(tree, Branch):
        yield tree
        for each in tree.below:
            yield from list_branches(each)


def find_disrupted(tree: Tree, leaf: str) -> frozenset[str]:
    """The PodGroups below the highest group of disruption mode ``all`` that has this one below it, or is it.

    Empty if there is no such group. Upstream's getHighestAllAncestor (pkg/scheduler/framework/preemption/types.go).
    """
    whole = find_whole(tree, leaf)
    return frozenset() if whole is None else frozenset(each.name for each in list_leaves(whole))


def find_whole(tree: Tree, leaf: str) -> Tree | None:
    """The highest group of disruption mode ``all`` that has this PodGroup below it, or is it; None if there is none."""
    return next((each for each in find_path(tree, leaf) if each.disruption is Disruption.ALL), None)


def find_path(tree: Tree, leaf: str) -> tuple[Tree, ...]:
    """The groups from the root to a PodGroup, itself the last one; empty if the tree does not have it."""
    if isinstance(tree, Leaf):
        return (tree,) if tree.name == leaf else ()
    return next(((tree, *path) for each in tree.below if (path := find_path(each, leaf))), ())


def list_groups(tree: Tree) -> Iterator[Tree]:
    """All groups of a tree: its CompositePodGroups, the root first, then its PodGroups."""
    yield from list_branches(tree)
    yield from list_leaves(tree)
