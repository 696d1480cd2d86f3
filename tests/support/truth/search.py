"""How many members of a small gang kube-scheduler could place one after the other: every order and every node is tried.

What passes depends only on how many members of each class are on each node, so each such state is looked at once.
"""

import json
from collections.abc import Collection, Sequence

from tests.support.truth.rules import Cluster, Raw, list_feasible

State = tuple[tuple[int, str], ...]
"""The class and node of each placed member, sorted."""


def find_most(cluster: Cluster, members: Sequence[Raw], inside: Collection[str], enough: int | None = None) -> int:
    """The most members that come onto nodes of ``inside``, each passing all filters when its turn comes.

    Nodes elsewhere count as kube-scheduler counts them. The search ends with ``enough`` members, or all.
    Exponential in classes: for some five members of two or three of them on six nodes.
    """
    return len(find_placement(cluster, members, inside, enough))


def find_placement(
    cluster: Cluster, members: Sequence[Raw], inside: Collection[str], enough: int | None = None
) -> list[tuple[Raw, str]]:
    """The same with the members in the order in which they come, and their nodes."""
    classes = _sort_into_classes(members)
    goal = len(members) if enough is None else min(enough, len(members))
    seen: set[State] = set()
    path: list[tuple[int, str]] = []
    best: list[tuple[int, str]] = []

    def extend(ground: Cluster) -> None:
        nonlocal best
        if len(path) > len(best):
            best = path.copy()
        for kind, alike in enumerate(classes):
            if sum(placed == kind for placed, _ in path) == len(alike):
                continue
            for node in sorted(list_feasible(ground, alike[0]) & set(inside)):
                if len(best) >= goal:
                    return
                path.append((kind, node))
                state = tuple(sorted(path))
                if state not in seen:
                    seen.add(state)
                    extend(ground.joined_by(alike[0], node))
                path.pop()

    extend(cluster)
    rest = [list(alike) for alike in classes]
    return [(rest[kind].pop(0), node) for kind, node in best]


def is_sound(cluster: Cluster, members: Sequence[Raw], nodes: Sequence[str]) -> bool:
    """Whether the members can come in some order onto these nodes, each its own, passing all filters in turn."""
    seen: set[frozenset[int]] = set()

    def extend(ground: Cluster, placed: frozenset[int]) -> bool:
        if len(placed) == len(members):
            return True
        if placed in seen:
            return False
        seen.add(placed)
        return any(
            nodes[each] in list_feasible(ground, members[each])
            and extend(ground.joined_by(members[each], nodes[each]), placed | {each})
            for each in range(len(members))
            if each not in placed
        )

    return extend(cluster, frozenset())


def _sort_into_classes(members: Sequence[Raw]) -> list[list[Raw]]:
    """Those that differ in nothing that decides where they fit are one class."""
    classes: dict[str, list[Raw]] = {}
    for member in members:
        facts = [member["metadata"]["namespace"], member["metadata"].get("labels", {}), member["spec"]]
        classes.setdefault(json.dumps(facts, sort_keys=True), []).append(member)
    return list(classes.values())
