"""Decisions without effects: `decide` repeats one from a capture of the planner's input, `Hypothesis` answers what-if.

For a replay, `find_recorded` returns the decision on a group that a capture records, `decide` makes it again, and
`compare` compares the two.

`Hypothesis` plans gangs that do not exist yet, in a cluster with some changes. The gangs are planned one after the
other, the highest priority first, each on a copy of the nodes and their usage to which the gangs before it are added.
Victims are searched as for existing gangs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from extender.core.scheduling.group import GroupState
from extender.core.scheduling.request import build_request, find_shortage
from extender.features.exclusive import ExclusiveShares, exclude_occupied
from extender.features.preemption.search import Search
from extender.look.cluster import restore
from extender.look.owners import AskedGang
from extender.look.snapshot import Capture
from extender.options import PreemptionMode
from extender.wiring import Core
from serried.api.group import Leaf, PodGroup, list_leaves
from serried.api.interpod import HOSTNAME
from serried.api.names import GroupKey, count_things
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.priority import resolve_priority
from serried.api.reservation import Slot, Victim
from serried.api.resources import Resources, add, subtract
from serried.api.verdict import Reason, Verdict, render
from serried.plan.capacity import Capacity
from serried.plan.eviction import NoVictims, Preemption
from serried.plan.limit import Limit
from serried.plan.quorum import GroupMembers, classify, sum_members
from serried.plan.request import Plan, PlanRequest, Snapshot, Waiting
from serried.plan.tree import plan_group


@dataclass(frozen=True, slots=True)
class Decision:
    """The planner's decision on a group: a plan, or the verdict that explains why there is none."""

    domain: str = ""

    nodes: Mapping[str, str] = field(default_factory=dict)
    """The node of each placed member by the member's name; empty without a plan."""

    victims: tuple[str, ...] = ()
    """The pods to evict before the plan can be carried out, as ``namespace/name``, sorted."""

    verdict: Verdict | None = None
    """The reason why there is no plan; None if there is one."""

    def describe(self) -> str:
        """Return the decision as one sentence."""
        if self.verdict is not None:
            return render(self.verdict)
        place = f" in {self.domain}" if self.domain else ""
        cost = (
            f", once {count_things(len(self.victims), 'pod', 'have')} ended: {', '.join(self.victims)}"
            if self.victims
            else ""
        )
        members, nodes = count_things(len(self.nodes), "member"), count_things(len(set(self.nodes.values())), "node")
        return f"{Reason.PLANNED}: {members} on {nodes}{place}{cost}"


class Match(StrEnum):
    """The result of comparing a repeated decision with the recorded one."""

    EQUAL = "equal"

    OTHER_NUMBERS = "other numbers"
    """Both found no plan, for the same reason but with different numbers, such as that of free resources."""

    DIFFERENT = "different"

    UNRECORDED = "unrecorded"
    """The capture records no decision on the group."""


def find_recorded(capture: Capture, group: GroupKey) -> Decision | None:
    """Return the decision on a group that the capture records: the reservation or the last verdict; None if neither."""
    bound = {pod.uid for pod in capture.pods if pod.bound}
    for reserved in capture.reservations:
        if reserved.group == group:
            return _describe_plan(reserved.domain, [s for s in reserved.slots if s.uid not in bound], reserved.victims)
    for memory in capture.memories:
        if memory.group == group:
            return None if memory.verdict is None else Decision(verdict=memory.verdict)
    return None


def decide(capture: Capture, group: GroupKey) -> Decision:
    """Plan a group with the input in the capture, as if it had no reservation yet, and return the decision.

    Raises ValueError if the group is not in the capture, or if the capture contradicts itself.
    """
    core = restore(capture)
    if group not in core.store.groups and not core.store.members.of_group(group):
        raise ValueError(f"group {group} is not in the snapshot")
    _drop_plan(core, capture, group)
    known = core.groups.states.setdefault(group, GroupState(capture.clock))
    known.cycle = None
    known.verdict = None
    core.group_scheduler.consider(group)
    reservation = core.ledger.of_group(group)
    if reservation is not None:
        return _describe_plan(reservation.domain, reservation.slots.values(), reservation.victims.values())
    state = core.groups.states.get(group)
    return Decision(verdict=state.verdict if state is not None else None)


def _drop_plan(core: Core, capture: Capture, group: GroupKey) -> None:
    """Release the reservation of a group, so that it can be planned again.

    If the head of the queue was chosen after the group was planned, the restored core has no head from now on, as at
    the time of that plan.
    """
    core.ledger.unreserve(group)
    head = core.backfill.head
    since = next((each.since for each in capture.reservations if each.group == group), None)
    if head is not None and since is not None and head.made >= since:
        core.backfill.head = None


def compare(recorded: Decision | None, found: Decision) -> Match:
    """Compare a repeated decision (``found``) with the recorded one. The ``detail`` texts of verdicts do not count."""
    if recorded is None:
        return Match.UNRECORDED
    if _without_detail(recorded) == _without_detail(found):
        return Match.EQUAL
    if recorded.verdict is not None and found.verdict is not None and recorded.verdict.reason is found.verdict.reason:
        return Match.OTHER_NUMBERS
    return Match.DIFFERENT


def list_waiting(capture: Capture) -> list[GroupKey]:
    """Return the groups of the capture that waited or had a reservation, sorted."""
    reserved = {each.group for each in capture.reservations}
    known = [(each.group, each.verdict) for each in capture.memories if each.verdict is not None]
    waiting = {group for group, verdict in known if verdict.reason is not Reason.SCHEDULED}
    return sorted(waiting | reserved)


def _describe_plan(domain: str, slots: Iterable[Slot], victims: Iterable[Victim]) -> Decision:
    return Decision(
        domain,
        {slot.name: slot.node for slot in sorted(slots, key=lambda slot: slot.name)},
        tuple(sorted(f"{victim.namespace}/{victim.name}" for victim in victims)),
    )


def _without_detail(decision: Decision) -> Decision:
    verdict = decision.verdict
    return decision if verdict is None else replace(decision, verdict=replace(verdict, detail=""))


_MAX_ADDED_NODES = 1000


@dataclass(frozen=True, slots=True)
class Changes:
    """The hypothetical changes of the cluster in one what-if question."""

    drained: tuple[str, ...] = ()
    """The nodes to leave out, with the pods that run on them."""

    added: tuple[tuple[str, int], ...] = ()
    """The names of nodes to copy, each with the number of copies. A copy is empty except for its DaemonSet pods."""

    removed: tuple[GroupKey, ...] = ()
    """The groups to leave out, with their pods."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer to a what-if question about one gang."""

    gang: AskedGang
    priority: int

    members: int
    """The number of members that would wait for a node when the gang is planned."""

    need: int
    """The number of waiting members that must be placed together to reach the quorum; 0 if the gang was not planned."""

    plan: Plan | None
    """The plan; None if the gang does not fit without evictions."""

    verdict: Verdict | None
    """The reason why there is no plan without evictions, or Scheduled if the gang runs already; None with a plan."""

    preemption: Preemption | NoVictims | None = None
    """The victims and the plan after their eviction, or why evictions do not help; None if no victims were searched."""

    names: Mapping[str, str] = field(default_factory=dict)
    """The names of the members that the plan is for, by UID."""


@dataclass(slots=True)
class _ClusterCopy:
    """A copy of the nodes and of the resources used on each. `Hypothesis` applies the changes of its question to it."""

    nodes: dict[str, Node]
    used: dict[str, Resources]

    def add(self, node: str, requests: Resources) -> None:
        self.used[node] = add(self.used.get(node, {}), requests)

    def subtract(self, node: str, requests: Resources) -> None:
        self.used[node] = subtract(self.used.get(node, {}), requests)


class Hypothesis:
    """One what-if question. Call `check`, then `solve`.

    The core must not change meanwhile, so both run in a forked child of the extender. ``limit`` says how many seconds
    they may work; after that `solve` raises TooLong.
    """

    def __init__(self, core: Core, changes: Changes, limit: Limit) -> None:
        self.displaced = 0
        """The number of pods on the drained nodes that would need another node, without DaemonSet pods.

        `solve` counts them.
        """

        self._core = core
        self._store = core.store
        self._changes = changes
        self._limit = limit
        self._placed: list[tuple[str, Resources]] = []
        """The node and the resource requests of each member that was placed for this question so far."""

        self._removed_pods: dict[str, Pod] = {}
        """The existing pods that count as gone, by UID: those of removed groups, and victims of gangs placed so far."""

        self._copied_nodes: dict[str, Node] = {}
        """The nodes of which copies are added, by name, as they were at `check`."""

        self._daemons: dict[str, Resources] = {}
        """The resource requests of the DaemonSet pods on each node that is copied, by its name."""

        self._sent_priorities: dict[GroupKey, int] = {}
        """The priorities of the gangs whose PriorityClass was sent with the question."""

        self._occupied: list[tuple[PodGroup, str]] = []
        """The gangs placed so far that need a domain exclusively, each with this domain."""

    def check(self) -> None:
        """Raise ValueError if a change is impossible. Its text is for the user: which change it is, and what to do.

        Otherwise remember the nodes to copy and the pods of the removed groups for `solve`.
        """
        store = self._store
        names = [*self._changes.drained, *(like for like, _ in self._changes.added)]
        unknown = sorted({name for name in names if name not in store.nodes})
        if unknown:
            raise ValueError(f"there is no node {', '.join(unknown[:5])}; see /debug/nodes")
        if any(not 0 < count <= _MAX_ADDED_NODES for _, count in self._changes.added):
            raise ValueError(f"add is NUMBER*NODE, with a number from 1 to {_MAX_ADDED_NODES}")
        missing = [key for key in self._changes.removed if key not in store.groups and key not in store.members]
        if missing:
            raise ValueError(f"there is no group {missing[0]}; see /debug/groups")
        self._copied_nodes = {like: store.nodes[like] for like, _ in self._changes.added}
        for key in self._changes.removed:
            self._removed_pods.update((pod.uid, pod) for pod in store.members.of_group(key))

    def solve(self, gangs: Iterable[AskedGang]) -> list[Prediction]:
        """Return the predictions about the what-if question's gangs, in the order in which they would be planned."""
        self._count_pods()
        gangs = list(gangs)
        self._sent_priorities = {each.group.key: each.priority for each in gangs if each.priority is not None}
        order = sorted(gangs, key=lambda each: -self._find_priority(each, self._list_members(each)))
        return [self._predict(gang) for gang in order]

    def _count_pods(self) -> None:
        """Set ``displaced`` to the number of pods that need another node when the question's nodes are drained.

        Also add up, in ``_daemons``, the requests of the DaemonSet pods on each node of which the question adds copies,
        because the copies get such pods, too.
        """
        drained = frozenset(self._changes.drained)
        patterns = {like for like, _ in self._changes.added}
        for pod in self._store.pods.values() if drained or patterns else ():
            self._limit.spend()
            if not pod.bound:
                continue
            if _is_daemon(pod) and pod.node in patterns:
                self._daemons[pod.node] = add(self._daemons.get(pod.node, {}), dict(pod.shape.requests))
            self.displaced += pod.node in drained and pod.uid not in self._removed_pods and not _is_daemon(pod)

    # --- one gang ----------------------------------------------------------------------------------------------

    def _predict(self, gang: AskedGang) -> Prediction:
        """Return the answer about one gang.

        If it fits, if need be after preemption, its resources count as used for the gangs after it. The victims count
        as removed then.
        """
        group = gang.group
        members = self._list_members(gang)
        priority = self._find_priority(gang, members)
        group_members = self._classify(gang)
        said = Prediction(gang, priority, len(group_members.waiting), 0, None, None)
        waiting = self._describe_waiting(gang, priority)
        request = self._build_request(group, group_members, waiting)
        if isinstance(request, Verdict):
            return replace(said, verdict=request)
        said = replace(said, need=request.need, names={pod.uid: pod.name for pod in request.members})
        cluster = self._copy_cluster(group, request)
        answer = self._plan(cluster, waiting, request)
        if isinstance(answer, Plan):
            self._add_placed(group, request, answer)
            return replace(said, plan=answer)
        preemption = self._find_victims(gang, waiting, request, answer)
        if isinstance(preemption, Preemption):
            self._removed_pods.update((pod.uid, pod) for unit in preemption.victims for pod in unit.pods)
            self._add_placed(group, request, preemption.plan)
        return replace(said, verdict=answer, preemption=preemption)

    def _list_members(self, gang: AskedGang) -> Sequence[Pod]:
        return [*self._store.members.of_group(gang.group.key), *gang.members]

    def _classify(self, gang: AskedGang) -> GroupMembers:
        key = gang.group.key
        if not gang.members:
            return self._store.members.classify(key)
        if isinstance(gang.group.tree, Leaf):
            return classify(self._list_members(gang), self._store.schedulers)
        below: dict[str, list[Pod]] = {leaf.name: [] for leaf in list_leaves(gang.group.tree)}
        known = [(self._store.members.leaf_of(pod.uid), pod) for pod in self._store.members.of_group(key)]
        coming = [(pod.group.name, pod) for pod in gang.members if pod.group is not None]
        for name, pod in (*known, *coming):
            if name in below:
                below[name].append(pod)
        return sum_members({name: classify(pods, self._store.schedulers) for name, pods in below.items()})

    def _find_priority(self, gang: AskedGang, members: Iterable[Pod]) -> int:
        own = self._find_own_priority(gang.group)
        return min((pod.priority for pod in members), default=0) if own is None else own

    def _find_own_priority(self, group: PodGroup) -> int | None:
        """Return the priority of the group itself, as admission would set it; None if it has none.

        Without one, the lowest priority of its pods counts. A PriorityClass is looked up in the question and in the
        cluster.
        """
        if group.key in self._sent_priorities:
            return self._sent_priorities[group.key]
        if group.key not in self._store.groups and group.priority is None:
            group = replace(group, priority=resolve_priority(group.priority_class, self._store.priority_classes))
        return self._store.priorities.read_object_priority(group)

    def _build_request(self, group: PodGroup, group_members: GroupMembers, waiting: Waiting) -> PlanRequest | Verdict:
        shortage = find_shortage(group, group_members, self._store)
        if shortage is not None:
            return shortage
        if not group_members.waiting:
            return self._check_running(group, group_members)
        state = self._core.groups.states.get(group.key)
        domain = state.assigned_domain if state is not None else ""
        # As if all waits at preferred levels were over (infinite waiting time): the question is whether the gang fits,
        # not how long it waits for a domain of a preferred level.
        request = build_request(group, group_members, frozenset(), self._store.nodes, math.inf, assigned_domain=domain)
        if isinstance(request, Verdict):
            return request
        gone = self._removed_pods.keys()
        promised = self._core.backfill.list_kept_domains(waiting, group.topology_key)
        spent = ExclusiveShares(self._core.context).find_exhausted(group, gone, promised)
        request = exclude_occupied(request, group, self._store, self._core.ledger, spent, gone)
        if request.exclusive:
            placed = {domain for other, domain in self._occupied if other.topology_key == group.topology_key}
            request = replace(request, taken=request.taken | placed)
        return replace(request, group_priority=self._find_own_priority(group))

    def _check_running(self, group: PodGroup, group_members: GroupMembers) -> Verdict:
        """Return the verdict on a gang of which no member waits for a node: BROKEN or SCHEDULED.

        It is BROKEN if the changes of the what-if question leave the gang fewer members than its quorum, or take any
        member of a tree of groups or of a group without minCount. No nodes are searched for the lost members.
        """
        drained = frozenset(self._changes.drained)
        lost = sum(pod.uid in self._removed_pods or pod.node in drained for pod in group_members.bound)
        least = group.policy.min_count if isinstance(group.tree, Leaf) else None
        have, need = group_members.placed - lost, group_members.placed if least is None else least
        if lost and have < need:
            return Verdict(Reason.BROKEN, have=have, need=need, detail="Serried looked for no other nodes")
        return Verdict(Reason.SCHEDULED, have=have)

    def _plan(self, cluster: _ClusterCopy, waiting: Waiting, request: PlanRequest) -> Plan | Verdict:
        snapshot = self._make_snapshot(cluster)
        capacity = Capacity(cluster.nodes, cluster.used, Capacity(cluster.nodes, {}))
        answer = plan_group(snapshot, request, capacity)
        queue = self._core.queue
        closed = queue.list_closed_nodes(waiting, request)
        passes = isinstance(answer, Verdict) or closed.isdisjoint(answer.nodes.values())
        if passes or self._core.backfill.may_pass(request):
            return answer
        beside = plan_group(snapshot, request.closing(closed), capacity)
        return self._core.backfill.make_refusal(request) if isinstance(beside, Verdict) else beside

    def _describe_waiting(self, gang: AskedGang, priority: int) -> Waiting:
        key = gang.group.key
        known = self._core.queue.describe(key, self._core.groups.states.get(key))
        since = self._core.clock() if math.isinf(known.since) else known.since
        return replace(known, priority=priority, since=since)

    def _add_placed(self, group: PodGroup, request: PlanRequest, plan: Plan) -> None:
        for pod in request.members:
            if pod.uid in plan.nodes:
                self._placed.append((plan.nodes[pod.uid], dict(pod.shape.requests)))
        if group.preference.exclusive and plan.domain:
            self._occupied.append((group, plan.domain))

    # --- victims ----------------------------------------------------------------------------------------------

    def _find_victims(
        self, gang: AskedGang, waiting: Waiting, request: PlanRequest, refusal: Verdict
    ) -> Preemption | NoVictims | None:
        request = request.closing(self._core.queue.list_closed_nodes(waiting, request))
        search = Search(request, waiting, refusal, math.inf)
        preemptions = self._core.preemptions
        if self._core.context.options.preemption is PreemptionMode.OFF or preemptions.find_reason_not_to_search(search):
            return None
        if not self._store.priorities.may_preempt_with(gang.group, gang.members):
            return None
        cluster = self._copy_cluster(gang.group, request)
        make = preemptions.make_search_function(search, self._removed_pods.keys())
        found: Preemption | NoVictims
        found = make(
            self._make_snapshot(cluster),
            Capacity(cluster.nodes, cluster.used),
        )
        return found

    # --- the cluster -------------------------------------------------------------------------------------------

    def _copy_cluster(self, group: PodGroup, request: PlanRequest) -> _ClusterCopy:
        """Return a copy of the cluster as the planner would see it for this gang after the question's changes.

        Resources of other nominated pods count as used if their priority is at least that of ``request``. So do those
        of the gangs that were placed before for this question.
        """
        snapshot = self._store.snapshots.take(request.yielding_priority, request.members)
        used = dict(self._store.occupancy.used)
        used.update((name, snapshot.used[name]) for name in snapshot.over)
        cluster = _ClusterCopy(dict(snapshot.nodes), used)
        self._add_nodes(cluster)
        for name in self._changes.drained:
            cluster.nodes.pop(name, None)  # the node may have been deleted since `check`
        for uid, pod in self._removed_pods.items():
            node = self._store.occupancy.node_of(uid)
            if node is not None:
                cluster.subtract(node, dict(pod.shape.requests))
        for key in self._changes.removed:
            self._release_kept_slots(cluster, key)
        self._release_plan(cluster, group.key)
        for node, requests in self._placed:
            cluster.add(node, requests)
        return cluster

    def _make_snapshot(self, cluster: _ClusterCopy) -> Snapshot:
        return Snapshot(cluster.nodes, cluster.used, rules=self._core.store.snapshots.rules, limit=self._limit)

    def _add_nodes(self, cluster: _ClusterCopy) -> None:
        for like, count in self._changes.added:
            node = self._copied_nodes[like]
            for number in range(1, count + 1):
                name = f"{like}+{number}"
                hostname = {HOSTNAME: name} if HOSTNAME in node.labels else {}
                cluster.nodes[name] = replace(
                    node, name=name, labels={**node.labels, **hostname}, unschedulable=False, version=""
                )
                cluster.used[name] = self._daemons.get(like, {})

    def _release_kept_slots(self, cluster: _ClusterCopy, key: GroupKey) -> None:
        for vacancy in self._store.vacancies.of_group(key):
            usage = self._store.occupancy.usage_of(vacancy.holder)
            if usage is not None and vacancy.replacement not in self._removed_pods:
                cluster.subtract(usage[0], dict(usage[1]))

    def _release_plan(self, cluster: _ClusterCopy, key: GroupKey) -> None:
        """Subtract the slots that a group has for unbound members from the copy's used resources.

        So an existing group that is asked about does not compete with its own reservation.
        """
        reservation = self._core.ledger.of_group(key)
        for slot in reservation.slots.values() if reservation is not None else ():
            pod = self._store.pods.get(slot.uid)
            if pod is not None and not pod.bound and slot.uid not in self._removed_pods:
                cluster.subtract(slot.node, dict(pod.shape.requests))


def _is_daemon(pod: Pod) -> bool:
    return pod.owner is not None and pod.owner.kind == "DaemonSet"
