"""Pods of no gang: the nodes that they may use, the victims that kube-scheduler may choose for them, and their requeue.

`PlainPods` has four parts. `KeptOffPods` removes nodes from filter's answer. With ``--backfill-plain wait`` these are
the nodes kept for the head of the queue (docs/queue.md), and all that other features keep (`Feature.keep_from_pod`).
Without it, they are the nodes of gangs for which pods were evicted and whose members are tried in a fixed order,
because of a rule about other pods. Elsewhere a nomination protects freed room. There it would keep the members off
each other. kube-scheduler tries a rejected pod again when the cluster changes. `KeptOffPods` requeues it if nothing
changes.

`Candidates` answers preempt calls. kube-scheduler calls before it preempts, but need not act on the answer. Members
that must be ended with a victim are handled afterwards (`extender.features.disruption`), whether or not there was a
call (docs/decisions/0025-a-gang-goes-whole.md).

`RefusedPreemptors` requeues pods whose candidates were all rejected because the victims belonged to gangs that were
just being bound. kube-scheduler would try such a pod again when a pod ends or a node changes, else after 5 minutes; the
end of a binding cycle is neither. It was rejected for want of room, not by filter, so it takes more than a touch
(`effects.Requeue`).

`OverlookedPreemptors` requeues pods that were nominated to a node where members waited at bind, and are gone. When the
bind call of such a member fails, kube-scheduler stops counting it at once. That is when its gang's cycle ends: at the
first victim, so before the other victims are deleted, or before kube-scheduler has seen the deletion. kube-scheduler
gets these events while it still waits for its own deletions to return, and does not try the preemptor then (upstream's
pkg/scheduler/framework/preemption/executor.go: isRunningPreemption). The deletion of a pod that counts nowhere is no
reason to try it later (pkg/scheduler/eventhandlers.go: deletePodFromSchedulingQueue). The same happens to a preemptor
that is tried once more before kube-scheduler has seen the end of its victim: the second deletion finds no pod, and no
event follows (PreemptPod there).
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
from serried.plan.fit import count_fitting

_MAX_WOKEN = 8
"""The number of pods that are requeued per tick, twice a second, at most."""


_MAX_TURNED_AWAY = 50_000
"""The number of rejected pods that are remembered; beyond it the oldest are forgotten."""


_UNSEEN_SECONDS = 360.0
"""The time for which a pod is remembered that the watch does not show: kube-scheduler calls again within it."""


_TIDY_SECONDS = 30.0
"""The pause between two rounds in which pods that are gone are forgotten."""


_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class _TurnedAway:
    """A pod for which filter left no node."""

    closed: frozenset[str]
    """The nodes that were kept from it."""

    at: float
    """The loop time of the last rejection."""

    tries: int
    """The number of rejections in a row because of these nodes."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """The nodes on which the members of a gang have slots for which pods were evicted, and the gang's priority."""

    priority: int
    nodes: frozenset[str]


class KeptOffPods:
    """Keeps pods of no gang off nodes, and requeues them when the nodes are open again. Every method is synchronous."""

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
        """The cycles with victims whose members are tried in a fixed order, so that they have no nominations."""

        self._cleared: tuple[_Placed, ...] = ()
        """The nodes and the priority of each of these cycles."""

        self._kept: tuple[frozenset[str], ...] = ()
        """The node sets that other features kept from any pod when ``_united`` was made."""

        self._united: dict[tuple[frozenset[str], ...], frozenset[str]] = {}
        """The unions of several node sets, kept as hundreds of pods may need the same one."""

        self._turned_away: dict[str, _TurnedAway] = {}
        """The pods for which no node was left, by UID."""

        self._due: dict[str, None] = {}
        """The UIDs of pods to be requeued, in order."""

        self._seen: tuple[frozenset[str], ...] = ()
        """The node sets that were kept from any pod at the last review, or since."""

    def note_begun(self, cycle: BindingCycle) -> None:
        """Keep pods off the nodes of a cycle with victims if its members get no nominations."""
        if cycle.open_slots.has_waves:
            self._cycles[cycle.reservation.group] = cycle

    # --- filter and preempt ------------------------------------------------------------------------------------

    def narrow(self, pod: Pod, names: Sequence[str]) -> Sequence[str] | None:
        """Return the offered nodes that a pod may use; None for all of them."""
        closed = self.closed_to(pod)
        # A nominated pod has had victims of its own: kube-scheduler offers its nominated node alone, first.
        evicted_for = len(names) == 1 and names[0] == pod.nominated
        left = [name for name in names if name not in closed] if closed and not evicted_for else names
        if left or not names:
            self._turned_away.pop(pod.uid, None)
            return None if len(left) == len(names) else left
        self._note_turned_away(pod, closed, len(names))
        return left

    def closed_to(self, pod: Pod) -> frozenset[str]:
        """Return the nodes that a pod must not use."""
        if pod.scheduler not in self._schedulers:
            return _NONE
        self._follow_cycles()
        cleared = (each.nodes for each in self._cleared if pod.priority <= each.priority)
        return self._unite(tuple(nodes for nodes in (*self._list_kept(pod), *cleared) if nodes))

    def _list_kept(self, pod: Pod | None) -> tuple[frozenset[str], ...]:
        """Return the node sets that other features keep from a pod; for None, from any pod."""
        if not self._waits:
            return ()
        return tuple(nodes for each in self._features[Feature.keep_from_pod] for nodes in each.keep_from_pod(pod))

    def _follow_cycles(self) -> None:
        """Bring the nodes of the cycles up to date, and forget cycles that have ended."""
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
        """Return the union of node sets; the same object as long as the sets are the same."""
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

    def _note_turned_away(self, pod: Pod, closed: frozenset[str], offered: int) -> None:
        before = self._turned_away.pop(pod.uid, None)
        tries = before.tries + 1 if before is not None and before.closed is closed else 1
        self._turned_away[pod.uid] = _TurnedAway(closed, self._clock(), tries)
        if all(closed is not each for each in self._seen):
            # A head may come and go between two reviews: the next review has to see that its nodes are open.
            self._seen = (*self._seen, closed)
        # kube-scheduler offers a part of many nodes, and another part next time: there may be room on these.
        if offered >= MAX_COMPLETE_LIST and tries <= len(closed) // offered + 1:
            self._due[pod.uid] = None
        if len(self._turned_away) > _MAX_TURNED_AWAY:
            self._forget(next(iter(self._turned_away)))

    # --- requeueing --------------------------------------------------------------------------------------------

    def review(self) -> None:
        """Requeue pods to which nodes are open by now. Called about twice a second."""
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
        """Requeue one pod of each shape and priority; if it is bound, kube-scheduler tries all others."""
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
            # A pod that was tried again meanwhile, and got a node, is not in `_turned_away` any more.
            if uid in self._turned_away and pod is not None and pod.pending:
                self._outbox.put(Activate(pod))

    def _tidy(self) -> None:
        since = self._clock() - _UNSEEN_SECONDS
        for uid, turned in list(self._turned_away.items()):
            pod = self._pods.get(uid)
            if turned.at < since if pod is None else not pod.pending:
                self._forget(uid)

    def _forget(self, uid: str) -> None:
        self._turned_away.pop(uid, None)
        self._due.pop(uid, None)


_REMEMBERED_SECONDS = 30.0
"""The time for which a node is watched after a failed bind call or an answer with victims, which may end slowly."""


_PATIENCE_SECONDS = 11.0
"""The time for which a pod has room before it is requeued, and before it is requeued once more, in seconds.

It is longer than kube-scheduler's longest backoff (``podMaxBackoffSeconds``, 10 by default), after which a pod is tried
anyway. A requeue costs the pod its nomination, which is all that keeps other pods off the node.
"""


PodOnNode = tuple[str, str]
"""The UID of a pod, and the name of its node."""


class OverlookedPreemptors:
    """Requeues preemptors that kube-scheduler overlooks. Every method is synchronous; ``clock`` gives loop seconds.

    All of it is memory: the next leader does not know these pods.
    """

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._outbox = context.outbox
        self._clock = context.clock
        self._left: dict[str, float] = {}
        """The loop time of the last failed bind call or answer with victims, by node; the oldest first."""

        self._found: dict[PodOnNode, float] = {}
        """The pods found at the last review, with the loop time since which they have room or were requeued."""

        self._woken: set[PodOnNode] = set()
        """The pods of ``_found`` that were requeued, and so have lost their nominations.

        They may need another requeue: kube-scheduler may still have been waiting for its deletions.
        """

    def note_left(self, node: str) -> None:
        """Watch a node on which pods end, or on which kube-scheduler releases the room of a member."""
        self._left.pop(node, None)
        self._left[node] = self._clock()

    def end_term(self) -> None:
        """Forget all pods and nodes, as another instance may lead from now on."""
        self._left.clear()
        self._found.clear()
        self._woken.clear()

    def review(self) -> None:
        """Requeue pods that have had room for a while. Called about twice a second."""
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
        # A pod that is still ending on the node will wake them. Before that they would look for other victims.
        ending = {pod.node for pod in self._store.pods.values() if pod.deleting and pod.node in self._left}
        for key, pod in due.items():
            self._found[key] = now
            if key[1] not in ending:
                self._woken.add(key)
                self._outbox.put(Requeue(pod, key[1]))

    def _find(self) -> Iterator[tuple[Pod, str]]:
        """Yield the pods with room on their nominated node, or on the node of their nomination before the requeue."""
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
        """Return whether a nominated pod is of no gang and has neither volumes nor devices.

        kube-scheduler also nominates a pod that waits for volumes or devices in PreBind (upstream's
        NominatedNodeNameForExpectation). Such a pod needs no requeue.
        """
        if pod.scheduler not in self._store.schedulers or self._store.members.group_of(pod.uid) is not None:
            return False
        return not (pod.uncounted or pod.device_claims) and not self._store.list_caveats([pod])

    def _has_room(self, pod: Pod, name: str) -> bool:
        node = self._store.nodes.get(name)
        return node is not None and count_fitting(pod.shape, node, self._store.occupancy.used.get(name)) > 0


_LOWEST_PRIORITY = -(2**31)
"""The lowest possible ``spec.priority`` of a pod."""


_MAX_REMEMBERED = 10_000
"""The number of refused preemptors that are remembered; beyond it the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """A preemptor without candidates, a node that it could have had, and the binding cycles that prevented it."""

    pod: Pod
    node: str
    cycles: Mapping[GroupKey, BindingCycle]


class RefusedPreemptors:
    """Requeues preemptors whose candidates were all rejected because of binding cycles. Every method is synchronous.

    All of it is memory: after a failover these pods wait as they would without Serried.
    """

    def __init__(self, context: Context) -> None:
        self._groups = context.groups
        self._outbox = context.outbox
        self._refused: dict[str, _Refused] = {}

    def note(self, pod: Pod, node: str, cycles: Mapping[GroupKey, BindingCycle]) -> None:
        """Remember a pod without candidates, and the cycles because of which ``node`` and others were rejected."""
        self._refused.pop(pod.uid, None)
        self._refused[pod.uid] = _Refused(pod, node, cycles)
        if len(self._refused) > _MAX_REMEMBERED:
            self.forget(next(iter(self._refused)))

    def forget(self, uid: str) -> None:
        """Forget a pod whose last answer had candidates, or had none for other reasons."""
        self._refused.pop(uid, None)

    def review(self) -> None:
        """Requeue the pods one of whose cycles has ended. Called about twice a second."""
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
    """The loss if kube-scheduler chooses a candidate: a node with its victims."""

    candidate: Candidate

    priority: int
    """The highest priority of all pods that would end, and of their gangs."""

    gangs: int = 0
    """The number of gangs of mode ``all`` that would end with the victims."""

    others: int = 0
    """The number of pods that would end with the victims, and that kube-scheduler does not evict itself."""


def choose(losses: Sequence[Loss]) -> tuple[Candidate, ...]:
    """Return the candidates among which kube-scheduler may choose: all that end no gang, unless that is the least loss.

    Losses are compared by violations of budgets first, then by the highest priority, as in kube-scheduler's own choice
    (pkg/scheduler/framework/preemption/preemption.go: pickOneNodeForPreemption); then by gangs, then by pods. So no
    gang ends if other victims of the same priority will do, and none is spared at the cost of pods of higher priority.
    """
    best = min(losses, key=_order, default=None)
    if best is not None and best.gangs:
        return (best.candidate,)  # alone, as kube-scheduler does not count the rest of the gang, and might choose worse
    return tuple(loss.candidate for loss in losses if not loss.gangs)


def _order(loss: Loss) -> tuple[int, int, int, int, str]:
    return loss.candidate.violations, loss.priority, loss.gangs, loss.others, loss.candidate.node


@dataclass(frozen=True, slots=True)
class _Cost:
    uids: frozenset[str]
    priority: int


class Candidates:
    """Chooses among kube-scheduler's candidates for a preemption. Every method is synchronous, and evicts nothing."""

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
        """Return the candidates that may stay, each with only those victims that are on its node.

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
        self._note_refused(preemptor, () if chosen else here)
        return chosen

    def _note_refused(self, preemptor: Pod, refused: Iterable[Candidate]) -> None:
        """Remember a pod without candidates if binding cycles were the reason; else forget it."""
        found = ((each.node, self._find_way(uid)) for each in refused for uid in each.victims)
        ways = [(node, way) for node, way in found if way is not None]
        if ways:
            self._refused.note(preemptor, ways[0][0], dict(way for _, way in ways))
        else:
            self._refused.forget(preemptor.uid)

    def _node_of(self, uid: str) -> str:
        return self._occupancy.node_of(uid) or ""

    def _count_loss(self, preemptor: Pod, candidate: Candidate, costs: dict[DisruptionGroup, _Cost]) -> Loss | None:
        """Return the loss with a candidate; None if it must not be chosen. ``costs`` is a cache over all candidates."""
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
        # An unknown victim is gone already, and kube-scheduler has not seen that yet: no loss.
        highest = max([*known, *(each.priority for each in going)], default=_LOWEST_PRIORITY)
        return None if highest >= preemptor.priority else Loss(candidate, highest, len(going), others)

    def _find_cost(self, disruption_group: DisruptionGroup) -> _Cost:
        running = self._disruption_groups.list_running(disruption_group)
        highest = max(map(self._find_priority, running), default=self._priorities.of_group(disruption_group.group))
        return _Cost(frozenset(pod.uid for pod in running), highest)

    def _find_priority(self, pod: Pod) -> int:
        """Return the priority that a preemptor must exceed: the higher of the pod's and its group's.

        Otherwise a preemptor could end a member of lower priority, whose gang would then evict the preemptor, and so
        on for ever.
        """
        return max(pod.priority, self._priorities.of_pod(pod))

    def _is_turned_away(self, uid: str) -> bool:
        """Return whether a member's bind call has failed, and kube-scheduler does not know it yet.

        To end such a member would be in vain. Once kube-scheduler knows, it releases the room, and tries all pods again
        that lack room (pkg/scheduler/schedule_one.go: handleBindingCycleError).
        """
        known = uid in self._pods and self._members.group_of(uid) is not None
        return known and self._occupancy.node_of(uid) is None

    def _find_way(self, uid: str) -> tuple[GroupKey, BindingCycle] | None:
        """Return the group and the cycle of a pod that is at bind, or whose gang is committed; None for others."""
        key = self._members.group_of(uid)
        gang = self._groups.states.get(key) if key is not None else None
        if key is None or gang is None or gang.cycle is None:
            return None
        on_its_way = uid in gang.cycle.at_bind or bool(gang.cycle.reservation.committed)
        return (key, gang.cycle) if on_its_way else None


class PlainPods(Feature):
    """The feature about pods of no gang. Every method is synchronous."""

    def __init__(self, parts: Parts) -> None:
        context = parts.context
        self._kept_off = KeptOffPods(context)
        self._refused = RefusedPreemptors(context)
        self._overlooked = OverlookedPreemptors(context)
        self._candidates = Candidates(context, self._refused)

    def filter_pod(self, pod: Pod, names: Sequence[str]) -> Sequence[str] | None:
        """Return the offered nodes that a pod may use; None for all of them."""
        return self._kept_off.narrow(pod, names)

    def preempt_pod(self, pod: Pod, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the candidates that may stay, with the victims on their nodes; ``pod`` is the preemptor.

        Nodes that filter would reject for the pod are left out.
        """
        closed = self._kept_off.closed_to(pod)
        chosen = self._candidates.weigh(pod, [each for each in candidates if each.node not in closed])
        for each in chosen:
            self._overlooked.note_left(each.node)
        return chosen

    def unreserve_pod(self, node: str) -> None:
        """Take note of a failed bind call for this node: kube-scheduler releases the room."""
        self._overlooked.note_left(node)

    def reserve(self, cycle: BindingCycle) -> None:
        """Take note of a cycle with victims that begins: its nodes may have to be kept from pods."""
        self._kept_off.note_begun(cycle)

    def hints(self) -> Work[Iterable[GroupKey]]:
        """Requeue the pods that are due; return no gang."""
        self._kept_off.review()
        self._refused.review()
        self._overlooked.review()
        yield from ()
        return ()

    def end_term(self) -> None:
        """Forget what was seen, as another instance may lead from now on."""
        self._overlooked.end_term()
