"""What becomes of a gang of disruption mode ``all`` when somebody ends one of its members.

Whoever disrupts a pod writes the condition DisruptionTarget first, and ends the pod right after it; from then on those
that go with it are ended, too. It does not matter who it was, nor whether kube-scheduler has asked before
(`extender.scheduling.disruption`, docs/decisions/0025-a-gang-goes-whole.md).

Plain pods that kube-scheduler has nominated to where members waited at bind, and may not try though these have gone.

It ends such a member like any other victim, and tries the preemptor again when a pod that counts on a node is deleted.
A member stops counting at once when its bind call fails, which is when its gang ends: at the first victim, so before
the others are deleted, or before kube-scheduler itself has seen the deletion. What kube-scheduler then hears of comes
while it still waits for its own deletions to return, when it tries the preemptor not at all (upstream's
pkg/scheduler/framework/preemption/executor.go: isRunningPreemption), and the deletion of a pod that counts nowhere is
no reason to try it later (pkg/scheduler/eventhandlers.go: deletePodFromSchedulingQueue).

Plain pods that got no victims for the moment: those on their nodes belong to gangs that are just being bound.

kube-scheduler would try such a pod again when a pod ends or a node changes, else after 5 minutes; the end of a binding
cycle is neither. So it is woken when that cycle has ended. It was rejected for want of room, not by filter, so it takes
more than a touch (`effects.Requeue`).

Where kube-scheduler may preempt for a pod of no gang. It asks before it does, and nothing need follow the answer.

What goes with a victim that it has ended is seen to afterwards (`extender.scheduling.disruption`), whether it had asked
or not (docs/decisions/0025-a-gang-goes-whole.md).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from extender.protocol import Candidate
from extender.scheduling.binding_cycle import BindingCycle
from extender.scheduling.effects import EvictTogether, Outbox, Preempt, Requeue
from extender.scheduling.group import Groups, GroupState
from extender.scheduling.preemption import Method
from extender.status.timeline import StatusSink
from serried.api.group import PodGroup
from serried.api.names import PREEMPTED, GroupKey
from serried.api.pod import Pod
from serried.api.verdict import render_disruption
from serried.cluster.cache import Store
from serried.cluster.forest import Forest
from serried.cluster.members import Members
from serried.cluster.membership import Membership
from serried.cluster.priorities import Companies, Company, GroupPriorities
from serried.cluster.usage import Occupancy, Vacancies, Yields
from serried.plan.fit import slots


class Disrupted(StrEnum):
    """When a gang of mode ``all`` goes with one of its members."""

    KEEP = "keep"
    """Never: then kube-scheduler may not preempt one either."""

    PREEMPTED = "preempted"
    """When a kube-scheduler has preempted one."""

    ANY = "any"
    """When anybody has disrupted one: also by eviction, by a taint, or because its node shuts down."""


class Disruptions:
    """Has the rest of a gang follow a member. Every method is synchronous."""

    def __init__(
        self,
        pods: Mapping[str, Pod],
        members: Members,
        membership: Membership,
        forest: Forest,
        *,
        companies: Companies,
        vacancies: Vacancies,
        yields: Yields,
        outbox: Outbox,
        status: StatusSink,
        rule: Disrupted,
        method: Method,
    ) -> None:
        self._pods = pods
        self._members = members
        self._membership = membership
        self._forest = forest
        self._companies = companies
        self._vacancies = vacancies
        self._yields = yields
        self._outbox = outbox
        self._status = status
        self._rule = rule
        self._method = method

    def follow(self, key: GroupKey, state: GroupState, group: PodGroup) -> None:
        """Have those ended that go with a disrupted member. What has followed once does not follow again."""
        if self._rule is Disrupted.KEEP:
            return
        for pod in self._list_disrupted(key):
            if pod.uid not in state.disrupted:
                state.disrupted.add(pod.uid)
                self._end_rest(state, Company(key, group.find_disrupted(self._find_part(pod))), pod)
        if state.disrupted:
            self._let_go(key, state)

    def _list_disrupted(self, key: GroupKey) -> list[Pod]:
        """The members that run, or ran until just now, and that somebody disrupts."""
        found = [pod for pod in self._members.iterate_disrupted(key) if pod.bound]
        found += [vacancy.pod for vacancy in self._vacancies.of_group(key)]
        return [pod for pod in found if self._counts(pod)]

    def _counts(self, pod: Pod) -> bool:
        if pod.uid in self._yields:
            return False  # who goes with it was decided with it (`preemption`)
        if self._yields.was_let_off(pod.uid) and not pod.deleting:
            return False  # it stays after all, and nobody may go with it
        if pod.disruption == PREEMPTED:
            return self._is_preempted(pod)
        return self._rule is Disrupted.ANY and bool(pod.disruption)

    def _is_preempted(self, pod: Pod) -> bool:
        """Whether a pod ends, or is gone: that it only says so may be all that ever happens to it.

        Whoever has written it may have died before the delete, or have been refused that. But a member that says that
        it follows another one goes on following, though that one is gone and nobody knows of it any more.
        """
        known = self._pods.get(pod.uid)
        return pod.deleting or pod.says_follower or known is None or not known.bound

    def _find_part(self, pod: Pod) -> str:
        own = self._membership.resolve(pod)  # whoever is gone is in no group any more
        return own.name if own is not None and own != self._forest.lift(own) else ""

    def _end_rest(self, state: GroupState, company: Company, pod: Pod) -> None:
        running = self._companies.list_running(company)
        # Nobody else ends one that follows: whoever was to do it is gone.
        rest = [each for each in running if each.uid != pod.uid or pod.says_follower]
        uids = tuple(each.uid for each in rest if each.uid not in state.leaving and not _is_newer(each, pod))
        if not uids:
            return
        state.disrupted.update(uids)
        others = sum(uid != pod.uid for uid in uids)
        text = render_disruption(pod.name, pod.disruption, others)
        if others:
            self._status.report_disrupted(company.group, text)
        if self._ends_as_preempted(pod):
            state.leaving.update(uids, (pod.uid,))
            self._outbox.put(Preempt(company.group, uids, text))
        else:  # they leave once it is known that all of them may
            self._outbox.put(EvictTogether(company.group, uids, pod.uid))

    def _ends_as_preempted(self, pod: Pod) -> bool:
        """Whether those that go with a pod end as kube-scheduler ends its victims, without asking their budgets.

        They do not where it was evicted for a gang of ours that was given up: it was evicted because budgets count.
        """
        own_victim = pod.says_victim and self._method is Method.EVICTION
        return pod.disruption == PREEMPTED and not own_victim

    def _let_go(self, key: GroupKey, state: GroupState) -> None:
        """Keep no slot of those that go together, and remember nobody who is gone."""
        for vacancy in self._vacancies.of_group(key):
            if vacancy.pod.uid in state.leaving:
                self._vacancies.close(vacancy)
        left = {vacancy.pod.uid for vacancy in self._vacancies.of_group(key)}
        state.disrupted = {uid for uid in state.disrupted if uid in self._pods or uid in left}
        state.leaving = {uid for uid in state.leaving if uid in self._pods or uid in left}


def _is_newer(pod: Pod, disrupted: Pod) -> bool:
    """Whether a member began only after another one was disrupted: it is of the gang that was placed anew."""
    return pod.started is not None and disrupted.disrupted is not None and pod.started > disrupted.disrupted


_REMEMBERED_SECONDS = 30.0
"""For how long after a failed bind call its node is looked at: the deletions of victims may be many, or slow."""

_PATIENCE_SECONDS = 11.0
"""How long there is room for a pod before it is woken, and woken once more.

More than kube-scheduler's longest backoff (``podMaxBackoffSeconds``, 10 by default), after which a pod is tried anyway.
To be woken costs the pod its nomination, which is all that keeps others off the node.
"""

_MAX_WOKEN = 8
"""How many pods are woken at a time, twice a second."""

PodOnNode = tuple[str, str]
"""The UID of a pod, and the node that it is for."""


class OverlookedPreemptors:
    """Finds and wakes them. Synchronous. ``clock`` gives loop seconds.

    The next leader does not know of them, like `scheduling.disruption`.
    """

    def __init__(self, store: Store, outbox: Outbox, clock: Callable[[], float]) -> None:
        self._store = store
        self._outbox = outbox
        self._clock = clock
        self._left: dict[str, float] = {}
        """The nodes for which a bind call has failed, the oldest first, and when."""

        self._found: dict[PodOnNode, float] = {}
        """Those that were found at the last review, and since when they were, or when they were woken."""

        self._woken: set[PodOnNode] = set()
        """Those of them that were woken, so that they carry no nomination any more.

        It may have been too early once more: kube-scheduler may still have waited for its deletions.
        """

    def note_left(self, node: str) -> None:
        """A bind call for this node has failed: kube-scheduler gives its room away."""
        self._left.pop(node, None)
        self._left[node] = self._clock()

    def end_term(self) -> None:
        """Another instance may lead from now on: what was seen is too old when this one does again."""
        self._left.clear()
        self._found.clear()
        self._woken.clear()

    def review(self) -> None:
        """Have those woken for whom there has been room for a while. Called about twice a second."""
        now = self._clock()
        while self._left and self._left[first := next(iter(self._left))] < now - _REMEMBERED_SECONDS:
            del self._left[first]
        found = {(pod.uid, node): pod for pod, node in self._find()} if self._left else {}
        self._found = {key: self._found.get(key, now) for key in found}
        self._woken &= found.keys()
        due = [key for key, since in self._found.items() if now - since >= _PATIENCE_SECONDS]
        if due:
            self._wake({key: found[key] for key in due[:_MAX_WOKEN]}, now)

    def _wake(self, due: dict[PodOnNode, Pod], now: float) -> None:
        # The deletion of a pod that counts there wakes them in time. Before that they would look for other victims.
        ending = {pod.node for pod in self._store.pods.values() if pod.deleting and pod.node in self._left}
        for key, pod in due.items():
            self._found[key] = now
            if key[1] not in ending:
                self._woken.add(key)
                self._outbox.put(Requeue(pod, key[1]))

    def _find(self) -> Iterator[tuple[Pod, str]]:
        """Those pods that have room on the node that they are nominated to, or were when they were woken."""
        for pod, node in self._candidates():
            if node in self._left and self._may_be_overlooked(pod) and self._has_room(pod, node):
                yield pod, node

    def _candidates(self) -> Iterator[tuple[Pod, str]]:
        for pod in self._store.nominations:
            yield pod, pod.nominated
        for uid, node in self._woken:
            woken = self._store.pods.get(uid)
            if woken is not None and woken.pending and not woken.nominated:
                yield woken, node

    def _may_be_overlooked(self, pod: Pod) -> bool:
        """Whether it is a pod of no gang, and one that kube-scheduler does not nominate while it waits in PreBind.

        There it waits for volumes and devices (upstream's NominatedNodeNameForExpectation), and needs no waking.
        """
        if pod.scheduler not in self._store.schedulers or self._store.members.group_of(pod.uid) is not None:
            return False
        return not pod.counted_elsewhere and not self._store.volumes.count_unbound([pod])

    def _has_room(self, pod: Pod, name: str) -> bool:
        node = self._store.nodes.get(name)
        return node is not None and slots(pod.shape, node, self._store.occupancy.used.get(name)) > 0


_MAX_REMEMBERED = 10_000
"""How many pods are remembered; of more, the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """A pod, a node that it could have, and the cycles that stood in its way."""

    pod: Pod
    node: str
    cycles: Mapping[GroupKey, BindingCycle]


class RefusedPreemptors:
    """Remembers and wakes them. Synchronous.

    The next leader does not know of them: after a failover in this moment they wait as they would without us.
    """

    def __init__(self, groups: Groups, outbox: Outbox) -> None:
        self._groups = groups
        self._outbox = outbox
        self._refused: dict[str, _Refused] = {}

    def note(self, pod: Pod, node: str, cycles: Mapping[GroupKey, BindingCycle]) -> None:
        """No candidate was left to this pod, and these cycles were the reason for the node and maybe for others."""
        self._refused.pop(pod.uid, None)
        self._refused[pod.uid] = _Refused(pod, node, cycles)
        if len(self._refused) > _MAX_REMEMBERED:
            self.forget(next(iter(self._refused)))

    def forget(self, uid: str) -> None:
        """This pod has got an answer that names victims."""
        self._refused.pop(uid, None)

    def review(self) -> None:
        """Have those woken of whose cycles one has ended. Called about twice a second."""
        due = (refused for refused in self._refused.values() if self._has_ended(refused.cycles))
        self._wake(list(islice(due, _MAX_WOKEN)))

    def _has_ended(self, cycles: Mapping[GroupKey, BindingCycle]) -> bool:
        states = self._groups.states
        return any(key not in states or states[key].cycle is not cycle for key, cycle in cycles.items())

    def _wake(self, due: Collection[_Refused]) -> None:
        for refused in due:
            del self._refused[refused.pod.uid]
            self._outbox.put(Requeue(refused.pod, refused.node))


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost with a candidate."""

    candidate: Candidate

    priority: int
    """The highest of all pods that go, and of their gangs."""

    gangs: int = 0
    """How many gangs of mode ``all`` go with it."""

    others: int = 0
    """How many pods go with it that kube-scheduler does not evict itself."""


def choose(losses: Sequence[Loss]) -> tuple[Candidate, ...]:
    """The candidates among which kube-scheduler may choose: all that break no gang, unless a gang is the least loss.

    First count violations of budgets, then the highest priority, as in kube-scheduler's own choice
    (pkg/scheduler/framework/preemption/preemption.go: pickOneNodeForPreemption); then gangs, then pods. So no gang
    goes where as little of the same priority does without it, and none stays at the cost of pods of higher priority.
    """
    best = min(losses, key=_order, default=None)
    if best is not None and best.gangs:
        return (best.candidate,)  # the rest of its gang is unknown to kube-scheduler, which would choose another one
    return tuple(loss.candidate for loss in losses if not loss.gangs)


def _order(loss: Loss) -> tuple[int, int, int, int, str]:
    return loss.candidate.violations, loss.priority, loss.gangs, loss.others, loss.candidate.node


@dataclass(frozen=True, slots=True)
class _Cost:
    uids: frozenset[str]
    priority: int


class Candidates:
    """Weighs kube-scheduler's candidates. Synchronous; nothing follows but that a refused pod may be woken later."""

    def __init__(
        self,
        pods: Mapping[str, Pod],
        members: Members,
        companies: Companies,
        occupancy: Occupancy,
        *,
        priorities: GroupPriorities,
        groups: Groups,
        refused: RefusedPreemptors,
        rule: Disrupted,
    ) -> None:
        self._pods = pods
        self._members = members
        self._refused = refused
        self._priorities = priorities
        self._companies = companies
        self._occupancy = occupancy
        self._groups = groups
        self._rule = rule

    def weigh(self, preemptor: Pod, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
        """The candidates that may stay. The victims of each are those on its node.

        kube-scheduler refuses an answer that names a victim on another node (pkg/scheduler/extender.go:
        convertPodUIDToPod), although its own candidates do where it knows of gangs itself.
        """
        here = [
            replace(each, victims=tuple(uid for uid in each.victims if self._node_of(uid) in ("", each.node)))
            for each in candidates
        ]
        costs: dict[Company, _Cost] = {}
        losses = [self._count_loss(preemptor, each, costs) for each in here if each.victims]
        chosen = choose([loss for loss in losses if loss is not None])
        self._note(preemptor, () if chosen else here)
        return chosen

    def _note(self, preemptor: Pod, refused: Iterable[Candidate]) -> None:
        """Have a pod woken once a cycle has ended that kept it from the last candidates."""
        found = ((each.node, self._find_way(uid)) for each in refused for uid in each.victims)
        ways = [(node, way) for node, way in found if way is not None]
        if ways:
            self._refused.note(preemptor, ways[0][0], dict(way for _, way in ways))
        else:
            self._refused.forget(preemptor.uid)

    def _node_of(self, uid: str) -> str:
        return self._occupancy.node_of(uid) or ""

    def _count_loss(self, preemptor: Pod, candidate: Candidate, costs: dict[Company, _Cost]) -> Loss | None:
        """None for a candidate that must not be; ``costs`` are those that were looked up for earlier ones."""
        if any(self._find_way(uid) is not None or self._is_turned_away(uid) for uid in candidate.victims):
            return None
        companies = {company for uid in candidate.victims if (company := self._companies.of_pod(uid)) is not None}
        for company in companies - costs.keys():
            costs[company] = self._find_cost(company)
        going = [costs[company] for company in companies]
        others = sum(len(each.uids) - len(each.uids.intersection(candidate.victims)) for each in going)
        if others and self._rule is Disrupted.KEEP:
            return None
        victims = [pod for uid in candidate.victims if (pod := self._pods.get(uid)) is not None]
        known = [self._find_priority(pod) for pod in victims]
        highest = max([*known, *(each.priority for each in going)], default=preemptor.priority - 1)
        return None if highest >= preemptor.priority else Loss(candidate, highest, len(going), others)

    def _find_cost(self, company: Company) -> _Cost:
        running = self._companies.list_running(company)
        highest = max(map(self._find_priority, running), default=self._priorities.of_group(company.group))
        return _Cost(frozenset(pod.uid for pod in running), highest)

    def _find_priority(self, pod: Pod) -> int:
        """Whoever ends a pod must be above it, and above its group.

        A member that says less than its group would be taken by whom its gang then evicts, again and again.
        """
        return max(pod.priority, self._priorities.of_pod(pod))

    def _is_turned_away(self, uid: str) -> bool:
        """Whether kube-scheduler has still to learn that a member's bind call has failed: it would end it in vain.

        Once it knows, it gives the room away, and tries all again that lack room (pkg/scheduler/schedule_one.go:
        handleBindingCycleError).
        """
        known = uid in self._pods and self._members.group_of(uid) is not None
        return known and self._occupancy.node_of(uid) is None

    def _find_way(self, uid: str) -> tuple[GroupKey, BindingCycle] | None:
        """The cycle of a pod that waits at its bind call for the others of its gang, or is being bound with them."""
        key = self._members.group_of(uid)
        gang = self._groups.states.get(key) if key is not None else None
        if key is None or gang is None or gang.cycle is None:
            return None
        on_its_way = uid in gang.cycle.at_bind or bool(gang.cycle.reservation.committed)
        return (key, gang.cycle) if on_its_way else None
