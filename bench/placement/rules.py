"""Rules that place one gang of equal members: Serried's planner, and the plain ones that it has to be better than.

A plain rule is two orders: of the domains that hold the whole gang, the first one is taken, and in it the nodes are
filled one after the other. Where no domain of a preferred level holds the gang, all nodes are one domain.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from serried.api.resources import count_slots
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest, Snapshot

Rule = Callable[[Snapshot, PlanRequest], Mapping[str, str] | None]
"""Member uid to node name for all members, or None."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node with free slots, or a domain with the sum of its nodes'. ``place`` is where it stands in the list."""

    place: int
    slots: int


Order = Callable[[Candidate], int]


def by_place(room: Candidate) -> int:
    """As they come."""
    return room.place


def tightest(room: Candidate) -> int:
    """Least room first."""
    return room.slots


def roomiest(room: Candidate) -> int:
    """Most room first."""
    return -room.slots


def plan(snapshot: Snapshot, ask: PlanRequest) -> Mapping[str, str] | None:
    """Serried's own planner."""
    result = plan_gang(snapshot, ask)
    return result.nodes if isinstance(result, Plan) else None


def combine(domain: Order, node: Order) -> Rule:
    """The plain rule of these two orders."""

    def place(snapshot: Snapshot, ask: PlanRequest) -> Mapping[str, str] | None:
        keys = [ask.topology_key] if ask.topology_key else [*ask.levels, None]
        return next((nodes for key in keys if (nodes := place_by(snapshot, ask, key)) is not None), None)

    def place_by(snapshot: Snapshot, ask: PlanRequest, key: str | None) -> Mapping[str, str] | None:
        domains = [rooms for rooms in _find_domains(snapshot, ask, key) if sum(rooms.values()) >= ask.need]
        if not domains:
            return None
        ranked = sorted(enumerate(domains), key=lambda each: domain(Candidate(each[0], sum(each[1].values()))))
        rooms = list(enumerate(ranked[0][1].items()))
        rooms.sort(key=lambda each: node(Candidate(each[0], each[1][1])))
        order = (name for _, (name, free) in rooms for _ in range(free))
        return {member.uid: name for member, name in zip(ask.members, order, strict=False)}

    return place


def _find_domains(snapshot: Snapshot, ask: PlanRequest, key: str | None) -> list[dict[str, int]]:
    """Free slots by node, domain by domain, in the order of the snapshot."""
    request = dict(ask.members[0].shape.requests)
    domains: dict[str, dict[str, int]] = {}
    for name, node in snapshot.nodes.items():
        domain = "" if key is None else node.labels.get(key)
        free = count_slots(node.allocatable, snapshot.used.get(name, {}), request)
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
"""Who plays offline. The last three take one of the planner's two choices away, or only its last node."""
