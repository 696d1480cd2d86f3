"""The slots of a cycle: those of a plan, how many of them are bound together, and where one may move.

A cycle waits for every PodGroup that was planned (`Reservation.parts`), so none ever starts with less than its quorum.
If one of them does not come in time and the tree stands without it, the cycle goes on without it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain

from extender.scheduling.checks import find_split
from extender.scheduling.cycle import BindingCycle
from extender.scheduling.homes import Homes, homes_of
from serried.cluster.ledger import Ledger
from serried.cluster.members import Members
from serried.cluster.store import Store
from serried.model.group import PodGroup
from serried.model.plan import Plan, PlanRequest
from serried.model.pod import Pod
from serried.model.reservation import Reservation, Slot, Victim
from serried.model.tree import Leaf, Tree, list_groups, list_leaves
from serried.model.victim import Unit
from serried.plan.fit import slots
from serried.plan.quorum import Standing, count_missing


def make_reservation(
    group: PodGroup, request: PlanRequest, plan: Plan, store: Store, victims: Iterable[Unit] = ()
) -> Reservation:
    """The slots of a plan, with the PodGroup of each, and the pods that have to end before they hold."""
    names = {pod.uid: pod.name for pod in request.members}
    planned = {uid: Slot(uid, names[uid], node, store.members.leaf_of(uid)) for uid, node in plan.nodes.items()}
    parts = _find_parts(request, plan.nodes)
    need = sum(parts.values())
    return Reservation(group.key, group.uid, plan.domain, need, planned, parts=parts, victims=_list_victims(victims))


def _list_victims(units: Iterable[Unit]) -> Iterator[Victim]:
    for unit in units:
        whole = unit.gang.encoded if unit.gang is not None and unit.together else ""
        for pod in unit.pods:
            yield Victim(pod.uid, pod.namespace, pod.name, whole)


def _find_parts(request: PlanRequest, placed: Collection[str]) -> dict[str, int]:
    """The PodGroups that a plan places members of, and how many of each must be bound together."""
    if not request.parts:
        found = any(member.uid in placed for member in request.members)
        return {request.name: request.need} if found else {}
    return {name: need for part in request.parts for name, need in _find_parts(part, placed).items()}


def describe_standing(reservation: Reservation, group: PodGroup, members: Members) -> tuple[object, ...]:
    """All that a gang's members and its commit are to its repair, beside its vacancies. O(PodGroups of the tree)."""
    placed = members.count_placed(group.key)
    short = frozenset(leaf.name for leaf in list_leaves(group.tree) if count_missing(leaf, placed))
    kinds = [each for each in Standing if any(True for _ in members.iterate_standing(group.key, each))]
    return bool(reservation.committed), count_missing(group.tree, placed) == 0, short, *kinds


def adjust_quorum(cycle: BindingCycle, group: PodGroup, store: Store, ledger: Ledger) -> None:
    """Bring the quorum of a cycle that is not committed up to date.

    Members that ran when the plan was made may have ended since: the quorum must not count on them. A minCount that
    follows an elastic Job down lowers it, too.
    """
    placed = store.members.count_placed(group.key, without=cycle.bound)
    planned = {leaf.name: leaf.need for leaf in list_leaves(cycle.group.tree)}
    parts = dict(cycle.reservation.parts)
    for leaf in list_leaves(group.tree):
        if leaf.name in parts:
            floor = parts[leaf.name] if planned.get(leaf.name) == leaf.need else 0
            parts[leaf.name] = max(floor, leaf.need - placed[leaf.name])
    ledger.adjust_quorum(cycle.reservation, parts)


def find_parts_to_leave(cycle: BindingCycle, short: frozenset[str], store: Store) -> frozenset[str] | None:
    """The parts of a cycle that can be left out so that it goes on without the ``short`` ones; None if it cannot.

    With a group all that is in a group above it which does not stand without it is left out.
    """
    group, parts = store.groups.get(cycle.reservation.group), cycle.reservation.parts
    if group is None or parts.keys() <= short:
        return None
    leaves = store.members.classify(group.key, without=cycle.bound).leaves
    standing = {leaf.name for leaf in list_leaves(group.tree) if leaves[leaf.name].need(leaf.need) == 0}
    kept = _keep(group.tree, standing | (parts.keys() - short))
    if kept is None or not kept & parts.keys():
        return None
    return frozenset(parts.keys() - kept) or None


def _keep(tree: Tree, ready: Collection[str]) -> frozenset[str] | None:
    """The PodGroups that stand in a group of the tree; None if it does not stand itself."""
    if isinstance(tree, Leaf):
        return frozenset({tree.name}) if tree.name in ready else None
    kept = [found for each in tree.below if (found := _keep(each, ready)) is not None]
    return frozenset[str]().union(*kept) if len(kept) >= tree.need else None


def find_scattered(
    group: PodGroup, reservation: Reservation, uids: Iterable[str], store: Store, beside: Callable[[], Homes] = dict
) -> str | None:
    """Why slots cannot be bound as planned, ``beside`` those that run: nodes have other labels by now.

    None if they can. Only the groups below the root are looked at: the root's domain is the reservation's.
    """
    inner = [tree for each in group.tree.below for tree in list_groups(each) if tree.topology_key is not None]
    if not inner:
        return None
    homes = homes_of(reservation, uids)
    for name, found in beside().items():
        homes.setdefault(name, []).extend(found)
    split = find_split(inner, homes, store.nodes)
    if split is None:
        return None
    domains = sorted([*split.domains, *(["none"] if split.stray else [])])
    return f"the nodes of {split.name}: {', '.join(domains)} are not one domain any more"


def find_offered(
    reservation: Reservation, pod: Pod, names: Sequence[str], store: Store, closed: Collection[str] = ()
) -> str | None:
    """The offered node to which a member's slot can move without leaving its domain; None if none has room.

    It is none of ``closed``. Nodes of other members come first, so that a gang stays close together; then the
    scheduler's own order counts.
    """
    group = store.groups.get(reservation.group)
    key = group.topology_key if group is not None else None
    offered, mates = set(names), {slot.node for slot in reservation.slots.values()}
    for name in chain(sorted(mates & offered), names):
        node = store.nodes.get(name)
        if node is None or name in closed or (key is not None and node.labels.get(key) != reservation.domain):
            continue
        if slots(pod.shape, node, store.occupancy.used.get(name)) > 0:
            return name
    return None
