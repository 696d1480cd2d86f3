"""Find the best placement of a small gang by brute force, to check the planner. Shares no code with it."""

from collections.abc import Iterable, Sequence
from itertools import combinations

from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.resources import Resources
from serried.plan.request import PlanRequest, Snapshot


def find_most(snapshot: Snapshot, ask: PlanRequest) -> int:
    """Return the largest number of members that any one domain of the request can hold; 0 without a domain."""
    return max((count_most(snapshot, ask, inside) for inside in find_domains(snapshot, ask).values()), default=0)


def find_domains(snapshot: Snapshot, ask: PlanRequest) -> dict[str, list[Node]]:
    """Return the nodes of each domain that the request allows; all nodes under "" without a topology key."""
    found: dict[str, list[Node]] = {domain: [] for domain in ask.pinned} if ask.topology_key else {}
    for node in snapshot.nodes.values():
        domain = "" if ask.topology_key is None else node.labels.get(ask.topology_key)
        allowed = domain in ask.pinned if ask.pinned else domain not in ask.taken
        if domain is not None and (allowed or ask.topology_key is None):
            found.setdefault(domain, []).append(node)
    return found


def count_most(snapshot: Snapshot, ask: PlanRequest, inside: Sequence[Node]) -> int:
    """Return the largest number of members that the nodes ``inside`` can hold.

    The search takes exponential time, so it is meant for about five members and nodes.
    """
    members = list(ask.members)
    free = {node.name: _subtract(node.allocatable, snapshot.used.get(node.name, {})) for node in inside}
    best = 0

    def attempt(position: int, placed: int) -> None:
        nonlocal best
        best = max(best, placed)
        if placed + len(members) - position <= best:
            return
        member = members[position]
        for node in inside:
            room = free[node.name]
            if (member.uid, node.name) not in ask.excluded and _takes(node, room, member):
                free[node.name] = _subtract(room, dict(member.shape.requests))
                attempt(position + 1, placed + 1)
                free[node.name] = room
        attempt(position + 1, placed)

    attempt(0, 0)
    return best


def find_fewest(snapshot: Snapshot, ask: PlanRequest, levels: Sequence[str]) -> tuple[int, ...] | None:
    """Return the best packing of all members: the fewest domains of the first level, then of the next, and so on.

    None if the cluster does not hold them. All nodes carry all the levels, the widest of which comes first.
    """
    if count_most(snapshot, ask, list(snapshot.nodes.values())) < len(ask.members):
        return None
    inside: dict[tuple[str, ...], list[Node]] = {}
    for node in snapshot.nodes.values():
        inside.setdefault(tuple(node.labels[level] for level in levels), []).append(node)
    sets = [each for size in range(1, len(inside) + 1) for each in combinations(inside, size)]
    costs = {each: tuple(len({path[: depth + 1] for path in each}) for depth in range(len(levels))) for each in sets}
    for each in sorted(sets, key=costs.__getitem__):
        among = [node for path in each for node in inside[path]]
        if _may_hold(snapshot, ask, among) and count_most(snapshot, ask, among) == len(ask.members):
            return costs[each]
    return None


def count_domains(snapshot: Snapshot, names: Iterable[str], levels: Sequence[str]) -> tuple[int, ...]:
    """Count the domains of each level in which these nodes are, the widest level first."""
    paths = {tuple(snapshot.nodes[name].labels[level] for level in levels) for name in names}
    return tuple(len({path[: depth + 1] for path in paths}) for depth in range(len(levels)))


def _may_hold(snapshot: Snapshot, ask: PlanRequest, inside: Sequence[Node]) -> bool:
    """Return whether the total free resources cover all members' requests; if not, no search is needed."""
    free = [_subtract(node.allocatable, snapshot.used.get(node.name, {})) for node in inside]
    asked = [amount for member in ask.members for amount in member.shape.requests]
    return all(
        sum(max(0, room.get(name, 0)) for room in free) >= sum(amount for other, amount in asked if other == name)
        for name in {name for name, _ in asked}
    )


def is_sound(snapshot: Snapshot, ask: PlanRequest, nodes: dict[str, str]) -> bool:
    """Return whether all members (uid to node) fit on their nodes at the same time."""
    members = {member.uid: member for member in ask.members}
    if not nodes.keys() <= members.keys():
        return False
    free = {name: _subtract(node.allocatable, snapshot.used.get(name, {})) for name, node in snapshot.nodes.items()}
    for uid, name in nodes.items():
        if (
            name not in free
            or (uid, name) in ask.excluded
            or not _takes(snapshot.nodes[name], free[name], members[uid])
        ):
            return False
        free[name] = _subtract(free[name], dict(members[uid].shape.requests))
    return True


def _takes(node: Node, room: Resources, member: Pod) -> bool:
    """Return whether one more such member fits on a node: resources, selector, taints, cordon."""
    shape = member.shape
    fits = all(room.get(name, 0) >= amount for name, amount in shape.requests if amount > 0)
    chosen = all(node.labels.get(key) == value for key, value in shape.node_selector)
    tolerated = {(each.key, each.operator) for each in shape.tolerations}
    repelled = any((taint.key, "Exists") not in tolerated for taint in node.taints)
    return fits and chosen and not repelled and not node.unschedulable


def _subtract(amounts: Resources, taken: Resources) -> dict[str, int]:
    return {name: amounts.get(name, 0) - taken.get(name, 0) for name in amounts.keys() | taken.keys()}
