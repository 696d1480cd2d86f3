"""Rules that place one gang of equal members: Serried's planner, and simple rules to compare it with.

A simple rule is an order of domains and an order of nodes. The gang gets the first domain that holds all of its
members, and fills that domain's nodes one after the other. If no domain of a preferred level holds the gang, all nodes
count as one domain.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from serried.api.resources import count_slots
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest, Snapshot

Rule = Callable[[Snapshot, PlanRequest], Mapping[str, str] | None]
"""Returns the node of each member by UID, or None if the gang does not fit."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node or a domain with free slots."""

    place: int
    """Index in the list of candidates."""

    slots: int
    """Number of free slots."""


Order = Callable[[Candidate], int]
"""Returns the sort key of a candidate."""


def by_place(candidate: Candidate) -> int:
    """Keep the order of the list."""
    return candidate.place


def tightest(candidate: Candidate) -> int:
    """Order by free slots, fewest first."""
    return candidate.slots


def roomiest(candidate: Candidate) -> int:
    """Order by free slots, most first."""
    return -candidate.slots


def plan(snapshot: Snapshot, request: PlanRequest) -> Mapping[str, str] | None:
    """Place the gang by Serried's planner."""
    result = plan_gang(snapshot, request)
    return result.nodes if isinstance(result, Plan) else None


def combine(domain: Order, node: Order) -> Rule:
    """Return the simple rule with these orders of domains and of nodes."""

    def place(snapshot: Snapshot, request: PlanRequest) -> Mapping[str, str] | None:
        keys = [request.topology_key] if request.topology_key else [*request.levels, None]
        return next((nodes for key in keys if (nodes := place_by(snapshot, request, key)) is not None), None)

    def place_by(snapshot: Snapshot, request: PlanRequest, key: str | None) -> Mapping[str, str] | None:
        domains = [rooms for rooms in _find_domains(snapshot, request, key) if sum(rooms.values()) >= request.need]
        if not domains:
            return None
        ranked = sorted(enumerate(domains), key=lambda each: domain(Candidate(each[0], sum(each[1].values()))))
        rooms = list(enumerate(ranked[0][1].items()))
        rooms.sort(key=lambda each: node(Candidate(each[0], each[1][1])))
        order = (name for _, (name, free) in rooms for _ in range(free))
        return {member.uid: name for member, name in zip(request.members, order, strict=False)}

    return place


def _find_domains(snapshot: Snapshot, request: PlanRequest, key: str | None) -> list[dict[str, int]]:
    """Return for each domain the free slots by node, in the order of the snapshot."""
    requests = dict(request.members[0].shape.requests)
    domains: dict[str, dict[str, int]] = {}
    for name, node in snapshot.nodes.items():
        domain = "" if key is None else node.labels.get(key)
        free = count_slots(node.allocatable, snapshot.used.get(name, {}), requests)
        if domain is not None and free:
            domains.setdefault(domain, {})[name] = free
    return list(domains.values())


first_fit = combine(by_place, by_place)
best_fit = combine(tightest, tightest)

CLASSICS = ("first fit", "best fit")
PLAN = "Serried's planner"

RULES: Mapping[str, Rule] = {
    PLAN: plan,
    "first fit": first_fit,
    "best fit": best_fit,
    "worst fit": combine(roomiest, roomiest),
    "tightest rack, nodes as they come": combine(tightest, by_place),
    "tightest rack, roomiest nodes": combine(tightest, roomiest),
    "first rack, roomiest nodes": combine(by_place, roomiest),
}
"""The rules of the offline part, by name. Each of the last three differs from best fit in one order at least."""
