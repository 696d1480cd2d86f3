"""Full search for the best placement of a small gang by kube-scheduler's rules: every order and every node is tried.

The result of the filters depends only on the number of members of each class on each node, so each such state is
searched once.
"""

import json
from collections.abc import Collection, Sequence

from tests.support.truth.rules import Cluster, Raw, list_feasible

State = tuple[tuple[int, str], ...]
"""The class and node of each placed member, sorted."""


def find_most(cluster: Cluster, members: Sequence[Raw], inside: Collection[str], enough: int | None = None) -> int:
    """Return the most members that can be placed one by one on the nodes of ``inside``, each passing all filters.

    Other nodes count for the rules as in kube-scheduler. The search ends at ``enough`` members, or at all. It takes
    exponential time, so it is meant for about five members of two or three classes on six nodes.
    """
    return len(find_placement(cluster, members, inside, enough))


def find_placement(
    cluster: Cluster, members: Sequence[Raw], inside: Collection[str], enough: int | None = None
) -> list[tuple[Raw, str]]:
    """Return the best placement as in `find_most`: members and nodes, in the order of placing."""
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
    """Return whether the members can be placed on their nodes in some order, each passing all filters."""
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
    """Group members by equal namespace, labels and spec, which alone decide where they fit."""
    classes: dict[str, list[Raw]] = {}
    for member in members:
        facts = [member["metadata"]["namespace"], member["metadata"].get("labels", {}), member["spec"]]
        classes.setdefault(json.dumps(facts, sort_keys=True), []).append(member)
    return list(classes.values())
