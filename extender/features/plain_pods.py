"""What becomes of pods of no gang: which nodes they may use, whom kube-scheduler may preempt for them, who wakes them.

A setting keeps them off the nodes that are kept for the head of the queue (docs/queue.md). Without it they are kept off
the nodes of one kind of gang: others went for it, and its members are tried in an order, as a rule about other pods
couples them. A nomination, which keeps others off everywhere else, would keep the members off each other there.
kube-scheduler tries a pod that was turned away again when anything happens in the cluster; only where nothing does,
somebody has to wake it.

kube-scheduler asks before it preempts, and nothing need follow the answer. What goes with a victim that it has ended is
seen to afterwards (`extender.features.disruption`), whether it had asked or not
(docs/decisions/0025-a-gang-goes-whole.md).

Two kinds of preemptors are woken. Of the first the victims belonged to gangs that were just being bound. kube-scheduler
would try it again when a pod ends or a node changes, else after 5 minutes; the end of a binding cycle is neither. It
was rejected for want of room, not by filter, so it takes more than a touch (`effects.Requeue`).

The second was nominated to where members waited at bind, which have gone. Such a member stops counting at once when its
bind call fails, which is when its gang ends: at the first victim, so before the others are deleted, or before
kube-scheduler itself has seen the deletion. What kube-scheduler then hears of comes while it still waits for its own
deletions to return, when it tries the preemptor not at all (upstream's pkg/scheduler/framework/preemption/executor.go:
isRunningPreemption), and the deletion of a pod that counts nowhere is no reason to try it later
(pkg/scheduler/eventhandlers.go: deletePodFromSchedulingQueue). The same becomes of a preemptor that was tried once more
before kube-scheduler saw its victim go: the second deletion finds nobody, and nothing follows it (PreemptPod there).

What other features keep from a pod, they say (`Feature.keep_from_pod`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from extender.core.feature import Feature
from extender.core.parts import Parts
from extender.core.protocol import MAX_COMPLETE_LIST, Candidate
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.effects import Activate, Context, Requeue
from extender.options import Disrupted, PlainRule
from serried.api.names import GroupKey
from serried.api.pod import Pod
from serried.cluster.priorities import DisruptionGroup
from serried.ops.steps import Work
from serried.plan.fit import slots

_MAX_WOKEN = 8
"""How many pods are woken at a time, twice a second."""


_MAX_TURNED_AWAY = 50_000
"""How many pods are remembered; of more, the oldest are forgotten."""


_STRANGER_SECONDS = 360.0
"""How long a pod is remembered that the watch does not show: kube-scheduler asks again before that."""


_TIDY_SECONDS = 30.0
"""How often those that are gone are forgotten."""


_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class _TurnedAway:
    """A pod that was left no node."""

    closed: frozenset[str]
    """The nodes that were kept from it."""

    at: float
    """When, in loop seconds."""

    tries: int
    """How often in a row it was turned away for these nodes."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """The nodes on which the members of a gang have slots for which pods were evicted, and the gang's priority."""

    priority: int
    nodes: frozenset[str]


class KeptOffPods:
    """Keeps pods of no gang off nodes, and wakes them. Synchronous.

    ``pods`` is the Store's own map, ``schedulers`` are those whose pods are ours to keep off.
    """

    _tidied = 0.0

    def __init__(self, context: Context) -> None:
        self._pods = context.store.pods
        self._schedulers = context.store.schedulers
        self._features = context.features
        self._groups = context.groups
        self._priorities = context.store.priorities
        self._outbox = context.outbox
        self._clock = context.clock
        self._waits = context.options.plain is PlainRule.WAIT

        self._cycles: dict[GroupKey, BindingCycle] = {}
        """The cycles for which others went, and whose members are tried in an order: they carry no nominations."""

        self._cleared: tuple[_Placed, ...] = ()
        """Slots and priority of each of them."""

        self._kept: tuple[frozenset[str], ...] = ()
        """The nodes that others keep from any pod, when ``_united`` was made."""

        self._united: dict[tuple[frozenset[str], ...], frozenset[str]] = {}
        """Several sets of nodes, and all of them together: hundreds of pods may be asked about the same."""

        self._turned_away: dict[str, _TurnedAway] = {}

        self._due: dict[str, None] = {}
        """Those of them that are to be woken."""

        self._seen: tuple[frozenset[str], ...] = ()
        """The nodes that were kept from anybody at the last review, or since."""

    def note_begun(self, cycle: BindingCycle) -> None:
        """A cycle begins for which others end: where its members get no nominations, its nodes are kept from pods."""
        if cycle.seats.in_order:
            self._cycles[cycle.reservation.group] = cycle

    # --- filter and preempt ------------------------------------------------------------------------------------

    def narrow(self, pod: Pod, names: Sequence[str]) -> Sequence[str] | None:
        """Those of the offered nodes that a pod may use; None for all of them."""
        closed = self.closed_to(pod)
        # Whoever is nominated has had others evicted for it: the node by itself is offered first.
        evicted_for = len(names) == 1 and names[0] == pod.nominated
        left = [name for name in names if name not in closed] if closed and not evicted_for else names
        if left or not names:
            self._turned_away.pop(pod.uid, None)
            return None if len(left) == len(names) else left
        self._note(pod, closed, len(names))
        return left

    def closed_to(self, pod: Pod) -> frozenset[str]:
        """The nodes that a pod must not use."""
        if pod.scheduler not in self._schedulers:
            return _NONE
        self._follow_cycles()
        cleared = (each.nodes for each in self._cleared if pod.priority <= each.priority)
        return self._unite(tuple(nodes for nodes in (*self._list_kept(pod), *cleared) if nodes))

    def _list_kept(self, pod: Pod | None) -> tuple[frozenset[str], ...]:
        """The sets of nodes that other features keep from a pod; None for all that they keep from any."""
        if not self._waits:
            return ()
        return tuple(nodes for each in self._features[Feature.keep_from_pod] for nodes in each.keep_from_pod(pod))

    def _follow_cycles(self) -> None:
        """Keep the nodes of the gangs for which others went, as they have them now: until they are bound, or fail."""
        if not (self._cycles or self._cleared):
            return
        states = self._groups.states
        for key, cycle in [*self._cycles.items()]:
            if key not in states or states[key].cycle is not cycle:
                del self._cycles[key]
        cycles = self._cycles.items()
        cleared = tuple(_Placed(self._priorities.of_group(key), cycle.reservation.nodes) for key, cycle in cycles)
        if cleared != self._cleared:
            self._cleared = cleared
            self._united.clear()

    def _unite(self, parts: tuple[frozenset[str], ...]) -> frozenset[str]:
        """All these nodes; the same object as long as the parts are the same."""
        if len(parts) <= 1:
            return parts[0] if parts else _NONE
        kept = self._list_kept(None)
        if kept != self._kept:
            self._kept = kept
            self._united.clear()
        known = self._united.get(parts)
        if known is None:
            known = self._united[parts] = frozenset().union(*parts)
        return known

    def _note(self, pod: Pod, closed: frozenset[str], offered: int) -> None:
        before = self._turned_away.pop(pod.uid, None)
        tries = before.tries + 1 if before is not None and before.closed is closed else 1
        self._turned_away[pod.uid] = _TurnedAway(closed, self._clock(), tries)
        if all(closed is not each for each in self._seen):
            # A head may come and go between two reviews: the next one has to see that its nodes are open.
            self._seen = (*self._seen, closed)
        # The scheduler has tried some of many nodes, and tries others the next time: there may be room on these.
        if offered >= MAX_COMPLETE_LIST and tries <= len(closed) // offered + 1:
            self._due[pod.uid] = None
        if len(self._turned_away) > _MAX_TURNED_AWAY:
            self._forget(next(iter(self._turned_away)))

    # --- waking ------------------------------------------------------------------------------------------------

    def review(self) -> None:
        """Have those woken that nodes are open to by now. Called about twice a second."""
        self._follow_cycles()
        now = (*self._list_kept(None), *(each.nodes for each in self._cleared))
        if now != self._seen:
            self._seen = now
            self._note_opened(frozenset().union(*now))
        self._wake()
        if self._clock() - self._tidied >= _TIDY_SECONDS:
            self._tidied = self._clock()
            self._tidy()

    def _note_opened(self, closed: frozenset[str]) -> None:
        """Have one pod of each kind woken; if it is bound, kube-scheduler tries all the others."""
        opened: dict[frozenset[str], bool] = {}
        woken: set[tuple[int, int]] = set()
        for uid, turned in self._turned_away.items():
            if turned.closed not in opened:
                opened[turned.closed] = not turned.closed <= closed
            pod = self._pods.get(uid)
            if not opened[turned.closed] or pod is None or not pod.pending:
                continue
            kind = id(pod.shape), pod.priority  # shapes are shared, and slow to hash
            if kind not in woken:
                woken.add(kind)
                self._due[uid] = None

    def _wake(self) -> None:
        for uid in list(islice(self._due, _MAX_WOKEN)):
            del self._due[uid]
            pod = self._pods.get(uid)
            # Whoever was asked about again meanwhile needs nobody to wake it.
            if uid in self._turned_away and pod is not None and pod.pending:
                self._outbox.put(Activate(pod))

    def _tidy(self) -> None:
        since = self._clock() - _STRANGER_SECONDS
        for uid, turned in list(self._turned_away.items()):
            pod = self._pods.get(uid)
            if turned.at < since if pod is None else not pod.pending:
                self._forget(uid)

    def _forget(self, uid: str) -> None:
        self._turned_away.pop(uid, None)
        self._due.pop(uid, None)


_REMEMBERED_SECONDS = 30.0
"""For how long after a failed bind call, or an answer that names victims, a node is looked at: they may end slowly."""


_PATIENCE_SECONDS = 11.0
"""How long there is room for a pod before it is woken, and woken once more.

More than kube-scheduler's longest backoff (``podMaxBackoffSeconds``, 10 by default), after which a pod is tried anyway.
To be woken costs the pod its nomination, which is all that keeps others off the node.
"""


PodOnNode = tuple[str, str]
"""The UID of a pod, and the node that it is for."""


class OverlookedPreemptors:
    """Finds and wakes them. Synchronous. ``clock`` gives loop seconds.

    The next leader does not know of them, like those of `extender.features.repair`.
    """

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._outbox = context.outbox
        self._clock = context.clock
        self._left: dict[str, float] = {}
        """The nodes for which a bind call has failed, or victims were named, the oldest first, and when."""

        self._found: dict[PodOnNode, float] = {}
        """Those that were found at the last review, and since when they were, or when they were woken."""

        self._woken: set[PodOnNode] = set()
        """Those of them that were woken, so that they carry no nomination any more.

        It may have been too early once more: kube-scheduler may still have waited for its deletions.
        """

    def note_left(self, node: str) -> None:
        """Pods leave this node, or kube-scheduler gives the room away that one was to have there."""
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
        return not (pod.uncounted or pod.device_claims) and not self._store.list_caveats([pod])

    def _has_room(self, pod: Pod, name: str) -> bool:
        node = self._store.nodes.get(name)
        return node is not None and slots(pod.shape, node, self._store.occupancy.used.get(name)) > 0


_LOWEST_PRIORITY = -(2**31)
"""What ``spec.priority`` of a pod can be at least."""


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

    def __init__(self, context: Context) -> None:
        self._groups = context.groups
        self._outbox = context.outbox
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

    def __init__(self, context: Context, refused: RefusedPreemptors) -> None:
        self._pods = context.store.pods
        self._members = context.store.members
        self._refused = refused
        self._priorities = context.store.priorities
        self._disruption_groups = context.store.disruption_groups
        self._occupancy = context.store.occupancy
        self._groups = context.groups
        self._rule = context.options.disrupted

    def weigh(self, preemptor: Pod, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
        """The candidates that may stay. The victims of each are those on its node.

        kube-scheduler refuses an answer that names a victim on another node (pkg/scheduler/extender.go:
        convertPodUIDToPod), although its own candidates do where it knows of gangs itself.
        """
        here = [
            replace(each, victims=tuple(uid for uid in each.victims if self._node_of(uid) in ("", each.node)))
            for each in candidates
        ]
        costs: dict[DisruptionGroup, _Cost] = {}
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

    def _count_loss(self, preemptor: Pod, candidate: Candidate, costs: dict[DisruptionGroup, _Cost]) -> Loss | None:
        """None for a candidate that must not be; ``costs`` are those that were looked up for earlier ones."""
        if any(self._find_way(uid) is not None or self._is_turned_away(uid) for uid in candidate.victims):
            return None
        disruption_groups = {
            disruption_group
            for uid in candidate.victims
            if (disruption_group := self._disruption_groups.of_pod(uid)) is not None
        }
        for disruption_group in disruption_groups - costs.keys():
            costs[disruption_group] = self._find_cost(disruption_group)
        going = [costs[disruption_group] for disruption_group in disruption_groups]
        others = sum(len(each.uids) - len(each.uids.intersection(candidate.victims)) for each in going)
        if others and self._rule is Disrupted.KEEP:
            return None
        victims = [pod for uid in candidate.victims if (pod := self._pods.get(uid)) is not None]
        known = [self._find_priority(pod) for pod in victims]
        # A victim that is not known is gone, and kube-scheduler has still to see it: nothing is lost with it.
        highest = max([*known, *(each.priority for each in going)], default=_LOWEST_PRIORITY)
        return None if highest >= preemptor.priority else Loss(candidate, highest, len(going), others)

    def _find_cost(self, disruption_group: DisruptionGroup) -> _Cost:
        running = self._disruption_groups.list_running(disruption_group)
        highest = max(map(self._find_priority, running), default=self._priorities.of_group(disruption_group.group))
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


class PlainPods(Feature):
    """All that is decided on pods of no gang. Synchronous."""

    def __init__(self, parts: Parts) -> None:
        context = parts.context
        self._kept_off = KeptOffPods(context)
        self._refused = RefusedPreemptors(context)
        self._overlooked = OverlookedPreemptors(context)
        self._candidates = Candidates(context, self._refused)

    def filter_pod(self, pod: Pod, names: Sequence[str]) -> Sequence[str] | None:
        """Return those of the offered nodes that a pod may use; None for all of them."""
        return self._kept_off.narrow(pod, names)

    def preempt_pod(self, pod: Pod, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the candidates that may stay, with the victims on their nodes; none where filter would not leave it.

        ``pod`` is the preemptor.
        """
        closed = self._kept_off.closed_to(pod)
        chosen = self._candidates.weigh(pod, [each for each in candidates if each.node not in closed])
        for each in chosen:
            self._overlooked.note_left(each.node)
        return chosen

    def unreserve_pod(self, node: str) -> None:
        """A bind call for this node has failed: kube-scheduler gives its room away."""
        self._overlooked.note_left(node)

    def reserve(self, cycle: BindingCycle) -> None:
        """A cycle begins for which others end: its nodes may have to be kept from pods."""
        self._kept_off.note_begun(cycle)

    def hints(self) -> Work[Iterable[GroupKey]]:
        """Have the pods woken whose time has come; return no gang."""
        self._kept_off.review()
        self._refused.review()
        self._overlooked.review()
        yield from ()
        return ()

    def end_term(self) -> None:
        """Another instance may lead from now on: what was seen is too old when this one does again."""
        self._overlooked.end_term()
