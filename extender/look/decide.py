"""The planner's answer for gangs that do not exist, in the cluster as it is but for some changes. Touches nothing.

Each gang is planned on copies of the nodes and of what is used on them, the highest priority first, beside those that
were placed before it. Who would have to go is found by the same search as for gangs that exist.

The decision on one group, made again from a capture, and beside it the one that was made then.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from extender.core.scheduling.group import GroupState
from extender.core.scheduling.request import build_request, find_shortage
from extender.features.exclusive import ExclusiveShares, close_taken
from extender.features.preemption.search import Search
from extender.look.cluster import restore
from extender.look.owners import Newcomer
from extender.look.snapshot import Capture
from extender.options import PreemptionMode
from extender.wiring import Core
from serried.api.group import Leaf, PodGroup, list_leaves
from serried.api.interpod import HOSTNAME
from serried.api.names import GroupKey
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
class Ruling:
    """A plan, or why there is none."""

    domain: str = ""

    nodes: Mapping[str, str] = field(default_factory=dict)
    """Node by the name of the member; empty without a plan."""

    victims: tuple[str, ...] = ()
    """Namespace and name of each pod that has to end before the plan holds, sorted."""

    verdict: Verdict | None = None
    """Why there is no plan; None with one."""

    def describe(self) -> str:
        """One sentence."""
        if self.verdict is not None:
            return render(self.verdict)
        place = f" in {self.domain}" if self.domain else ""
        cost = f", once {len(self.victims)} pods have ended: {', '.join(self.victims)}" if self.victims else ""
        return f"{Reason.PLANNED}: {len(self.nodes)} members on {len(set(self.nodes.values()))} nodes{place}{cost}"


class Match(StrEnum):
    """How a decision compares with the one that was recorded."""

    EQUAL = "equal"

    OTHER_NUMBERS = "other numbers"
    """The same reason with other numbers: room has changed since, and not so that it could have helped."""

    DIFFERENT = "different"

    UNRECORDED = "unrecorded"
    """Nothing had been decided by then."""


def recall(capture: Capture, group: GroupKey) -> Ruling | None:
    """What was decided on a group by then; None if nothing was."""
    bound = {pod.uid for pod in capture.pods if pod.bound}
    for reserved in capture.reservations:
        if reserved.group == group:
            return _describe_plan(reserved.domain, [s for s in reserved.slots if s.uid not in bound], reserved.victims)
    for memory in capture.memories:
        if memory.group == group:
            return None if memory.verdict is None else Ruling(verdict=memory.verdict)
    return None


def decide(capture: Capture, group: GroupKey) -> Ruling:
    """The decision on a group as it would be made anew: without the reservation that it may have.

    Raises ValueError if the group is not in the capture.
    """
    core = restore(capture)
    if group not in core.store.groups and not core.store.members.of_group(group):
        raise ValueError(f"group {group} is not in the snapshot")
    _take_back(core, capture, group)
    known = core.groups.states.setdefault(group, GroupState(capture.clock))
    known.cycle = None
    known.verdict = None
    core.group_scheduler.consider(group)
    reservation = core.ledger.of_group(group)
    if reservation is not None:
        return _describe_plan(reservation.domain, reservation.slots.values(), reservation.victims.values())
    state = core.groups.states.get(group)
    return Ruling(verdict=state.verdict if state is not None else None)


def _take_back(core: Core, capture: Capture, group: GroupKey) -> None:
    """As if the group had no plan yet, and what followed from that had not come either."""
    core.ledger.unreserve(group)
    head = core.backfill.head
    since = next((each.since for each in capture.reservations if each.group == group), None)
    if head is not None and since is not None and head.made >= since:
        core.backfill.head = None


def compare(recorded: Ruling | None, found: Ruling) -> Match:
    """How a decision that was made again compares with the recorded one; what else a verdict says does not count."""
    if recorded is None:
        return Match.UNRECORDED
    if _without_detail(recorded) == _without_detail(found):
        return Match.EQUAL
    if recorded.verdict is not None and found.verdict is not None and recorded.verdict.reason is found.verdict.reason:
        return Match.OTHER_NUMBERS
    return Match.DIFFERENT


def list_waiting(capture: Capture) -> list[GroupKey]:
    """The groups that waited for something, in the order of their names."""
    reserved = {each.group for each in capture.reservations}
    told = [(each.group, each.verdict) for each in capture.memories if each.verdict is not None]
    waiting = {group for group, verdict in told if verdict.reason is not Reason.SCHEDULED}
    return sorted(waiting | reserved)


def _describe_plan(domain: str, slots: Iterable[Slot], victims: Iterable[Victim]) -> Ruling:
    return Ruling(
        domain,
        {slot.name: slot.node for slot in sorted(slots, key=lambda slot: slot.name)},
        tuple(sorted(f"{victim.namespace}/{victim.name}" for victim in victims)),
    )


def _without_detail(decision: Ruling) -> Ruling:
    verdict = decision.verdict
    return decision if verdict is None else replace(decision, verdict=replace(verdict, detail=""))


_MAX_ADDED_NODES = 1000


@dataclass(frozen=True, slots=True)
class Changes:
    """How the cluster is to be another one."""

    drained: tuple[str, ...] = ()
    """Nodes that are not there; what runs on them is gone."""

    added: tuple[tuple[str, int], ...] = ()
    """So many more nodes like this one; pods of DaemonSets run on them, too."""

    removed: tuple[GroupKey, ...] = ()
    """Groups that are gone with their pods."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What would become of one gang."""

    newcomer: Newcomer
    priority: int

    members: int
    """How many would wait for a node."""

    need: int
    """How many of them must be placed together."""

    plan: Plan | None
    """Where they would go; None if they do not fit as things are."""

    verdict: Verdict | None
    """Why they do not fit as things are."""

    preemption: Preemption | NoVictims | None = None
    """Who would have to go; None where nobody was looked for."""

    names: Mapping[str, str] = field(default_factory=dict)
    """The members' names by UID."""


@dataclass(slots=True)
class _Ground:
    """A cluster that may be changed."""

    nodes: dict[str, Node]
    used: dict[str, Resources]

    def add(self, node: str, requests: Resources) -> None:
        self.used[node] = add(self.used.get(node, {}), requests)

    def take(self, node: str, requests: Resources) -> None:
        self.used[node] = subtract(self.used.get(node, {}), requests)


class Hypothesis:
    """One question, to be answered before anything changes. ``limit`` is how much work the answer may be."""

    def __init__(self, core: Core, changes: Changes, limit: Limit) -> None:
        self.displaced = 0
        """How many pods of the drained nodes would need another place."""

        self._core = core
        self._store = core.store
        self._changes = changes
        self._limit = limit
        self._seated: list[tuple[str, Resources]] = []
        """The room of the members that were placed before."""

        self._gone: dict[str, Pod] = {}
        """The pods that are not there: those of removed groups, and victims, by UID."""

        self._patterns: dict[str, Node] = {}
        """The nodes like which others are added, as they were when that was asked."""

        self._daemons: dict[str, Resources] = {}
        """What pods of DaemonSets use on nodes like those that are added."""

        self._brought: dict[GroupKey, int] = {}
        """The priority of gangs whose PriorityClass comes with the question."""

        self._taken: list[tuple[PodGroup, str]] = []
        """The exclusive gangs that were placed before, and their domains."""

    def check(self) -> None:
        """Raise ValueError for a change that is not possible: what, and what to do."""
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
        self._patterns = {like: store.nodes[like] for like, _ in self._changes.added}
        for key in self._changes.removed:
            self._gone.update((pod.uid, pod) for pod in store.members.of_group(key))

    def solve(self, newcomers: Iterable[Newcomer]) -> list[Prediction]:
        """The predictions in the order in which the gangs would be planned."""
        self._look_around()
        newcomers = list(newcomers)
        self._brought = {each.group.key: each.priority for each in newcomers if each.priority is not None}
        order = sorted(newcomers, key=lambda each: -self._find_priority(each, self._list_members(each)))
        return [self._predict(newcomer) for newcomer in order]

    def _look_around(self) -> None:
        """Look at all pods once: who would need another place, and what DaemonSets take on nodes like the new ones."""
        drained = frozenset(self._changes.drained)
        patterns = {like for like, _ in self._changes.added}
        for pod in self._store.pods.values() if drained or patterns else ():
            self._limit.spend()
            if not pod.bound:
                continue
            if _is_daemon(pod) and pod.node in patterns:
                self._daemons[pod.node] = add(self._daemons.get(pod.node, {}), dict(pod.shape.requests))
            self.displaced += pod.node in drained and pod.uid not in self._gone and not _is_daemon(pod)

    # --- one gang ----------------------------------------------------------------------------------------------

    def _predict(self, newcomer: Newcomer) -> Prediction:
        """Return what would become of a gang."""
        group = newcomer.group
        members = self._list_members(newcomer)
        priority = self._find_priority(newcomer, members)
        group_members = self._classify(newcomer)
        said = Prediction(newcomer, priority, len(group_members.waiting), 0, None, None)
        waiting = self._wait(newcomer, priority)
        request = self._ask(group, group_members, waiting)
        if isinstance(request, Verdict):
            return replace(said, verdict=request)
        said = replace(said, need=request.need, names={pod.uid: pod.name for pod in request.members})
        ground = self._survey(group, request)
        answer = self._plan(ground, waiting, request)
        if isinstance(answer, Plan):
            self._seat(group, request, answer)
            return replace(said, plan=answer)
        preemption = self._seek_victims(newcomer, waiting, request, answer)
        if isinstance(preemption, Preemption):
            self._gone.update((pod.uid, pod) for unit in preemption.victims for pod in unit.pods)
            self._seat(group, request, preemption.plan)
        return replace(said, verdict=answer, preemption=preemption)

    def _list_members(self, newcomer: Newcomer) -> Sequence[Pod]:
        return [*self._store.members.of_group(newcomer.group.key), *newcomer.members]

    def _classify(self, newcomer: Newcomer) -> GroupMembers:
        key = newcomer.group.key
        if not newcomer.members:
            return self._store.members.classify(key)
        if isinstance(newcomer.group.tree, Leaf):
            return classify(self._list_members(newcomer), self._store.schedulers)
        below: dict[str, list[Pod]] = {leaf.name: [] for leaf in list_leaves(newcomer.group.tree)}
        known = [(self._store.members.leaf_of(pod.uid), pod) for pod in self._store.members.of_group(key)]
        coming = [(pod.group.name, pod) for pod in newcomer.members if pod.group is not None]
        for name, pod in (*known, *coming):
            if name in below:
                below[name].append(pod)
        return sum_members({name: classify(pods, self._store.schedulers) for name, pods in below.items()})

    def _find_priority(self, newcomer: Newcomer, members: Iterable[Pod]) -> int:
        own = self._find_own(newcomer.group)
        return min((pod.priority for pod in members), default=0) if own is None else own

    def _find_own(self, group: PodGroup) -> int | None:
        """The group's own priority, once admission or the controller has resolved its class."""
        if group.key in self._brought:
            return self._brought[group.key]
        if group.key not in self._store.groups and group.priority is None:
            group = replace(group, priority=resolve_priority(group.priority_class, self._store.priority_classes))
        return self._store.priorities.find_own_of(group)

    def _ask(self, group: PodGroup, group_members: GroupMembers, waiting: Waiting) -> PlanRequest | Verdict:
        shortage = find_shortage(group, group_members, self._store)
        if shortage is not None:
            return shortage
        if not group_members.waiting:
            return self._judge_running(group, group_members)
        state = self._core.groups.states.get(group.key)
        domain = state.assigned_domain if state is not None else ""
        # How long it would wait for a preferred level is no question of whether it fits: all of them are open.
        request = build_request(group, group_members, frozenset(), self._store.nodes, math.inf, assigned_domain=domain)
        if isinstance(request, Verdict):
            return request
        gone = self._gone.keys()
        promised = self._core.backfill.list_promised(waiting, group.topology_key)
        spent = ExclusiveShares(self._core.context).find_spent(group, gone, promised)
        request = close_taken(request, group, self._store, self._core.ledger, spent, gone)
        if request.exclusive:
            placed = {domain for other, domain in self._taken if other.topology_key == group.topology_key}
            request = replace(request, taken=request.taken | placed)
        return replace(request, group_priority=self._find_own(group))

    def _judge_running(self, group: PodGroup, group_members: GroupMembers) -> Verdict:
        """The verdict of a gang of which nobody waits: no other place is looked for members that would be gone."""
        drained = frozenset(self._changes.drained)
        lost = sum(pod.uid in self._gone or pod.node in drained for pod in group_members.bound)
        least = group.policy.min_count if isinstance(group.tree, Leaf) else None
        have, need = group_members.placed - lost, group_members.placed if least is None else least
        if lost and have < need:
            return Verdict(Reason.BROKEN, have=have, need=need, detail="no other place was looked for")
        return Verdict(Reason.SCHEDULED, have=have)

    def _plan(self, ground: _Ground, waiting: Waiting, request: PlanRequest) -> Plan | Verdict:
        snapshot = self._show(ground)
        capacity = Capacity(ground.nodes, ground.used, Capacity(ground.nodes, {}))
        answer = plan_group(snapshot, request, capacity)
        queue = self._core.queue
        closed = queue.closed_to(waiting, request)
        passes = isinstance(answer, Verdict) or closed.isdisjoint(answer.nodes.values())
        if passes or self._core.backfill.lets_pass(request):
            return answer
        beside = plan_group(snapshot, request.closing(closed), capacity)
        return self._core.backfill.refuse(request) if isinstance(beside, Verdict) else beside

    def _wait(self, newcomer: Newcomer, priority: int) -> Waiting:
        key = newcomer.group.key
        known = self._core.queue.describe(key, self._core.groups.states.get(key))
        since = self._core.clock() if math.isinf(known.since) else known.since
        return replace(known, priority=priority, since=since)

    def _seat(self, group: PodGroup, request: PlanRequest, plan: Plan) -> None:
        for pod in request.members:
            if pod.uid in plan.nodes:
                self._seated.append((plan.nodes[pod.uid], dict(pod.shape.requests)))
        if group.preference.exclusive and plan.domain:
            self._taken.append((group, plan.domain))

    # --- who would have to go ----------------------------------------------------------------------------------

    def _seek_victims(
        self, newcomer: Newcomer, waiting: Waiting, request: PlanRequest, refusal: Verdict
    ) -> Preemption | NoVictims | None:
        request = request.closing(self._core.queue.closed_to(waiting, request))
        search = Search(request, waiting, refusal, math.inf)
        preemptions = self._core.preemptions
        if self._core.context.options.preemption is PreemptionMode.OFF or preemptions.find_objection(search):
            return None
        if not self._store.priorities.may_preempt_with(newcomer.group, newcomer.members):
            return None
        ground = self._survey(newcomer.group, request)
        make = preemptions.prepare(search, self._gone.keys())
        found: Preemption | NoVictims
        found = make(
            self._show(ground),
            Capacity(ground.nodes, ground.used),
        )
        return found

    # --- the cluster -------------------------------------------------------------------------------------------

    def _survey(self, group: PodGroup, request: PlanRequest) -> _Ground:
        """The cluster as the gang would find it, a copy."""
        snapshot = self._store.snapshots.take(request.yielding_priority, request.members)
        used = dict(self._store.occupancy.used)
        used.update((name, snapshot.used[name]) for name in snapshot.over)
        ground = _Ground(dict(snapshot.nodes), used)
        self._add_nodes(ground)
        for name in self._changes.drained:
            ground.nodes.pop(name, None)  # it may have gone meanwhile
        for uid, pod in self._gone.items():
            node = self._store.occupancy.node_of(uid)
            if node is not None:
                ground.take(node, dict(pod.shape.requests))
        for key in self._changes.removed:
            self._close_slots(ground, key)
        self._give_back(ground, group.key)
        for node, requests in self._seated:
            ground.add(node, requests)
        return ground

    def _show(self, ground: _Ground) -> Snapshot:
        return Snapshot(ground.nodes, ground.used, rules=self._core.store.snapshots.rules, limit=self._limit)

    def _add_nodes(self, ground: _Ground) -> None:
        for like, count in self._changes.added:
            node = self._patterns[like]
            for number in range(1, count + 1):
                name = f"{like}+{number}"
                hostname = {HOSTNAME: name} if HOSTNAME in node.labels else {}
                ground.nodes[name] = replace(
                    node, name=name, labels={**node.labels, **hostname}, unschedulable=False, version=""
                )
                ground.used[name] = self._daemons.get(like, {})

    def _close_slots(self, ground: _Ground, key: GroupKey) -> None:
        for vacancy in self._store.vacancies.of_group(key):
            claim = self._store.occupancy.claim_of(vacancy.claimant)
            if claim is not None and vacancy.replacement not in self._gone:
                ground.take(claim[0], dict(claim[1]))

    def _give_back(self, ground: _Ground, key: GroupKey) -> None:
        """As if a group that exists had no plan yet."""
        reservation = self._core.ledger.of_group(key)
        for slot in reservation.slots.values() if reservation is not None else ():
            pod = self._store.pods.get(slot.uid)
            if pod is not None and not pod.bound and slot.uid not in self._gone:
                ground.take(slot.node, dict(pod.shape.requests))


def _is_daemon(pod: Pod) -> bool:
    return pod.owner is not None and pod.owner.kind == "DaemonSet"
