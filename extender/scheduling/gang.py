"""What the group scheduler remembers of one group between looks at it, and the pure steps of its decisions."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from extender.scheduling.cycle import BindingCycle
from extender.scheduling.objections import describe_refused, describe_uncounted
from extender.scheduling.trees import (
    adjust_parts,
    ask_for_more_of_tree,
    ask_for_tree,
    find_homes,
    find_parts,
    find_tree_conflict,
    find_tree_shortage,
    open_tree,
)
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.model.group import GroupKind, PodGroup
from serried.model.node import Node
from serried.model.plan import Plan, PlanRequest
from serried.model.pod import Pod, Shape
from serried.model.reservation import Reservation, Slot
from serried.model.verdict import Reason, Verdict
from serried.plan.fit import slots
from serried.plan.levels import Opening, open_levels
from serried.plan.quorum import Standing

EXCLUSION_SECONDS = 30.0

KUBELET_EXCLUSION_SECONDS = 300.0
"""Longer, because each further try costs a pod, and a Job has only so many of them to lose (backoffLimit)."""


@dataclass(slots=True)
class GroupState:
    """The memory of one group. Times are loop seconds.

    ``tried`` is what it was planned with last: while the queue's backlog has it, it is not planned again before that
    changes, or ``retry_at``. ``not_before`` is the end of a rest after failures. ``refusals`` are the nodes that the
    scheduler, or a kubelet, has truly refused, by class; one is void as soon as the node changes or its time is over.
    ``offers`` are the nodes that the scheduler has offered last, by class of those that it alone can count.

    ``started`` is whether its quorum has ever stood, as far as can be told; ``stood`` its minCount when we saw that.
    ``home`` is the domain in which its members run: it outlasts nodes that are gone. ``broken_since`` is when it fell
    below its quorum, ``reported`` whether that was told, ``evicting`` whether what is left of it is being evicted.
    """

    first_seen: float
    verdict: Verdict | None = None
    quorum_since: float | None = None
    cycle: BindingCycle | None = None
    tried: tuple[object, ...] = ()
    not_before: float = 0.0
    retry_at: float = float("inf")
    attempts: int = 0
    passed: bool = False
    refusals: dict[tuple[Shape, str], tuple[float, Node | None]] = field(default_factory=dict)
    offers: dict[Shape, tuple[float, frozenset[str]]] = field(default_factory=dict)
    started: bool = False
    stood: int = 0
    home: str = ""
    broken_since: float | None = None
    reported: bool = False
    evicting: bool = False

    def refuse(
        self, shape: Shape, node: str, now: float, nodes: Mapping[str, Node], seconds: float = EXCLUSION_SECONDS
    ) -> None:
        """The scheduler, or the node's kubelet, has refused this node for this class."""
        self.refusals[shape, node] = (now + seconds, nodes.get(node))

    def exclusions(self, pods: Iterable[Pod], now: float, nodes: Mapping[str, Node]) -> frozenset[tuple[str, str]]:
        """The (member uid, node) pairs that are out for now; drops what is void."""
        self.refusals = {
            key: (until, seen)
            for key, (until, seen) in self.refusals.items()
            if now < until and nodes.get(key[1]) is seen
        }
        return frozenset((pod.uid, node) for pod in pods for shape, node in self.refusals if pod.shape == shape)

    def learn_offer(self, shape: Shape, names: Iterable[str], now: float) -> bool:
        """The scheduler takes these nodes, and no others, for a class; whether there is one that was not known."""
        known, offered = self.offers.get(shape), frozenset(names)
        self.offers[shape] = (now + EXCLUSION_SECONDS, offered)
        return known is not None and not offered <= known[1]

    def unoffered(self, pods: Iterable[Pod], now: float, nodes: Mapping[str, Node]) -> frozenset[str]:
        """The nodes that are out for all these members by what was offered to them; none while it is not known."""
        self.offers = {shape: offer for shape, offer in self.offers.items() if now < offer[0]}
        if not self.offers:
            return frozenset()
        offers = [self.offers.get(shape) for shape in {pod.shape for pod in pods}]
        known = [names for offer in offers if offer is not None for names in [offer[1]]]
        return frozenset(nodes.keys() - frozenset().union(*known)) if len(known) == len(offers) else frozenset()


@dataclass(frozen=True, slots=True)
class Mending:
    """What of a gang is being repaired: ``seated`` are the members whose own kept slot takes them now (UIDs).

    Nobody frees it for them, so the queue cannot wake them for it. ``heirs`` are those of them that are bound to it
    alone, because members of the gang run and with the kept slots they are its quorum. Whoever finds no room in its own
    slot is a member like any other.
    """

    heirs: tuple[Pod, ...] = ()
    seated: frozenset[str] = frozenset()


WHOLE = Mending()
"""Nothing is to be mended."""


def find_shortage(group: PodGroup, standing: Standing, store: Store, mending: Mending = WHOLE) -> Verdict | None:
    """Why there is nobody to plan for yet; None if the quorum exists, or an heir can be placed without one."""
    if group.priority_class and group.priority is None:
        return Verdict(Reason.PRIORITY_UNKNOWN, key=group.priority_class)
    min_count = group.policy.min_count or 1
    if mending.heirs:
        return None
    if group.tree is not None:
        return find_tree_shortage(group, standing, store)
    need = standing.need(min_count)
    if need and standing.gated:
        return Verdict(Reason.MEMBER_GATED, have=len(standing.gated), need=min_count)
    return _find_missing(standing, min_count, store) if need > len(standing.waiting) else None


def _find_missing(standing: Standing, min_count: int, store: Store) -> Verdict:
    have = standing.placed + len(standing.waiting) + len(standing.refused)
    if standing.refused and have >= min_count:
        return describe_refused(standing, min_count, store)
    return Verdict(Reason.QUORUM_MISSING, have=have, need=min_count)


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


def find_home(group: PodGroup, standing: Standing, nodes: Mapping[str, Node]) -> str:
    """The domain of the first resident whose node is there, "" if none is or no key is asked for."""
    key = group.topology_key
    if key is None:
        return ""
    residents = standing.find_residents(nodes)
    return next((nodes[pod.node].labels.get(key, "") for pod in residents if pod.node in nodes), "")


def find_conflict(group: PodGroup, standing: Standing, nodes: Mapping[str, Node]) -> Verdict | None:
    """How the bound members contradict the group's constraint, None if they do not.

    Only somebody else can have brought that about: another scheduler, or whoever changed a node's label.
    """
    if group.tree is not None:
        return find_tree_conflict(group, find_homes(standing, nodes), nodes)
    key = group.topology_key
    if key is None:
        return None
    homes = [nodes[pod.node] for pod in standing.find_residents(nodes) if pod.node in nodes]
    stray = next((node for node in homes if key not in node.labels), None)
    if stray is not None:
        return Verdict(
            Reason.DOMAIN_CONFLICT, key=key, detail=f"a member runs on {stray.name}, which has no such label"
        )
    domains = sorted({node.labels[key] for node in homes})
    return Verdict(Reason.DOMAIN_CONFLICT, key=key, detail=", ".join(domains)) if len(domains) > 1 else None


def ask_for(
    group: PodGroup,
    standing: Standing,
    excluded: frozenset[tuple[str, str]],
    nodes: Mapping[str, Node],
    opening: Opening,
    mending: Mending = WHOLE,
    home: str = "",
) -> PlanRequest | Verdict:
    """The planner's question for a whole group; a Verdict where its bound members contradict the constraint.

    ``opening`` are the levels that it may try by now. ``home`` is the domain of members whose nodes are gone: as long
    as they count, nobody goes elsewhere.
    """
    conflict = find_conflict(group, standing, nodes)
    if conflict is not None:
        return conflict
    if group.tree is not None:
        return ask_for_tree(group, standing, excluded, nodes, opening, mending.heirs)
    ask = PlanRequest(
        standing.waiting,
        standing.need(group.policy.min_count or 1),
        group.topology_key,
        excluded=excluded,
        levels=opening.keys,
        spills=opening.spills,
        homes=frozenset(pod.node for pod in standing.bound),
        style=group.preference.style,
    )
    if mending.heirs:
        ask = replace(ask, members=mending.heirs, need=0, own_slots=True)
    key = group.topology_key
    if key is None:
        return ask
    domains = frozenset(nodes[pod.node].labels[key] for pod in standing.find_residents(nodes) if pod.node in nodes)
    if not domains and standing.bound and home:
        domains = frozenset({home})
    return replace(ask, pinned=domains)


def find_opening(group: PodGroup, waited: float) -> Opening:
    """The preferred levels that a group may try when its quorum has stood for so many seconds."""
    return open_tree(group, waited) if group.tree is not None else open_levels(group.preference.levels, waited)


def find_taken(group: PodGroup, store: Store, ledger: Ledger) -> frozenset[str]:
    """The domains of the group's key in which other exclusive gangs are, or will be; none for one that is not."""
    key, taken = group.topology_key, set[str]()
    if key is None or not group.preference.exclusive:
        return frozenset()
    for other in store.groups.values():
        if not other.preference.exclusive or other.topology_key != key or other.key == group.key:
            continue
        reservation = ledger.of_group(other.key)
        if reservation is not None:
            taken.add(reservation.domain)
        homes = [pod.node for pod in store.members(other.key) if pod.bound]
        homes += [vacancy.pod.node for vacancy in store.vacancies.of_group(other.key)]
        taken.update(store.nodes[home].labels.get(key, "") for home in homes if home in store.nodes)
    return frozenset(taken - {""})


def ask_for_more(
    cycle: BindingCycle, members: Sequence[Pod], need: int, excluded: frozenset[tuple[str, str]], store: Store
) -> PlanRequest:
    """The planner's question for members that join a cycle, or move in it: to where the others are, if they can."""
    group = cycle.group
    if group.tree is not None:
        return ask_for_more_of_tree(cycle, members, need, excluded, store)
    bound = (store.pods[uid].node for uid in cycle.bound if uid in store.pods)
    return PlanRequest(
        members,
        need,
        group.topology_key,
        cycle.pinned,
        excluded,
        cycle.closed,
        levels=tuple(level.key for level in group.preference.levels),
        homes=frozenset(slot.node for slot in cycle.reservation.slots.values()) | frozenset(bound) - {""},
        style=group.preference.style,
    )


def make_reservation(group: PodGroup, ask: PlanRequest, plan: Plan, store: Store) -> Reservation:
    """The slots of a plan; of a tree, with the PodGroup of each."""
    names = {pod.uid: pod.name for pod in ask.members}
    slots = {uid: Slot(uid, names[uid], node, store.leaf_of(uid)) for uid, node in plan.nodes.items()}
    parts = find_parts(ask, plan.nodes)
    need = sum(parts.values()) if ask.parts else ask.need
    return Reservation(group.key, group.uid, plan.domain, need, slots, parts=parts)


def adjust_need(cycle: BindingCycle, group: PodGroup, store: Store) -> None:
    """Bring the quorum of a cycle that is not committed up to date.

    Members that ran when the plan was made may have ended since: the quorum must not count on them. A minCount that
    follows an elastic Job down lowers it, too.
    """
    if group.tree is not None:
        adjust_parts(cycle, group, store)
        return
    placed = store.stand(group.key, without=cycle.bound).placed
    floor = cycle.reservation.need if group.policy == cycle.group.policy else 0
    cycle.reservation.need = max(floor, (group.policy.min_count or 1) - placed)


def describe_claims(members: Collection[Pod], store: Store) -> str:
    """What a plan cannot promise: volumes that are not bound yet, what only the scheduler counts; "" for nothing."""
    unbound = store.volumes.count_unbound(members)
    volumes = [f"{unbound} members mount volume claims that are not bound yet"] if unbound else []
    return ", ".join([*volumes, *describe_uncounted(members, store)])


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
