"""Placements: the sets of nodes that may hold a whole gang (GeneratePlacements of the native TopologyPlacement)."""

from collections.abc import Iterable
from dataclasses import dataclass

from serried.model.node import Node


@dataclass(frozen=True, slots=True)
class Placement:
    """A domain and its nodes. ``domain`` is the value of the topology key, "" without a key."""

    domain: str
    nodes: tuple[Node, ...]


def generate_placements(nodes: Iterable[Node], key: str | None, pinned: frozenset[str]) -> list[Placement]:
    """One placement per value of label ``key``, in name order; nodes without the label are in none.

    Without a key, one placement of all nodes. With ``pinned``, only those domains, also if no node is left in one.
    """
    if key is None:
        return [Placement("", tuple(nodes))]
    domains: dict[str, list[Node]] = {domain: [] for domain in pinned}
    for node in nodes:
        domain = node.labels.get(key)
        if domain is not None and (not pinned or domain in pinned):
            domains.setdefault(domain, []).append(node)
    return [Placement(domain, tuple(members)) for domain, members in sorted(domains.items())]
