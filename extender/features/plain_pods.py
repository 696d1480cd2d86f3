"""Plain pods, i.e. pods of no gang: the nodes that they may use, the victims that kube-scheduler may evict for them.

`PlainPods` has four parts.

`KeptOffPods` removes nodes from filter's answer for a plain pod, and requeues the pod later. With ``--backfill-plain
wait`` these are the nodes kept for the head of the queue (docs/queue.md), and all nodes that other features keep
(`Feature.list_kept_from_pod`). With any value of this flag it also removes the planned nodes of a gang for which pods
were evicted, if the members have to be tried in a fixed order, because a rule such as pod affinity or anti-affinity
makes the node of one depend on others. Such members are not nominated, as nominations would keep them off each other.
The members of other gangs are nominated to the freed nodes, and kube-scheduler itself keeps other pods off these.
kube-scheduler tries a rejected pod again when the cluster changes. `KeptOffPods` requeues it if nothing changes.

`Candidates` answers preempt calls, i.e. chooses among the nodes on which kube-scheduler could evict pods.
kube-scheduler calls before it preempts, but need not act on the answer. So the members that have to end together with a
victim are handled afterwards (`extender.features.disruption`), whether or not there was a call
(docs/decisions/0025-a-gang-ends-as-a-whole.md).

`RefusedPreemptors` requeues pods for which `Candidates` has left no node, because the victims belonged to gangs that
were just being bound. kube-scheduler would try such a pod again when a pod ends or a node changes, else after 5
minutes. The end of a binding cycle is neither. kube-scheduler's own plugins have rejected the pod, so an update of the
pod does not requeue it, as it does after a rejection by filter; a nomination does (`effects.Requeue`).

`OverlookedPreemptors` requeues plain pods that are nominated to a node and would fit there, because kube-scheduler
fails to try them. That happens when a victim is a member that waits at its bind call. The gang's cycle ends at the
first victim. Then the bind calls of all its members fail, and kube-scheduler releases their resources at once. These
events arrive while kube-scheduler still waits for its own deletions of victims to return, and it does not try the
preemptor then (upstream's pkg/scheduler/framework/preemption/executor.go: isRunningPreemption). The later deletion of a
pod that uses no resources any more is no reason to try it (pkg/scheduler/eventhandlers.go:
deletePodFromSchedulingQueue). The same happens to a preemptor that is tried once more before kube-scheduler has seen
the end of its victim: the second deletion finds no pod, and no event follows (PreemptPod there).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from extender.core.feature import Feature
from extender.core.parts import Parts
from extender.core.protocol import MAX_COMPLETE_LIST, Candidate
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.effects import Activate, Context, Requeue
from extender.options import DisruptionTrigger, PlainPodRule
from serried.api.names import GroupKey
from serried.api.pod import Pod
from serried.cluster.priorities import DisruptionGroup
from serried.ops.steps import Work
from serried.plan.fit import count_fitting

_MAX_REQUEUED = 8
"""The maximum number of pods that are requeued per tick, twice a second."""


_MAX_REJECTED = 50_000
"""The maximum number of pods that are remembered because filter left no node for them; the oldest are dropped first."""


_UNSEEN_SECONDS = 360.0
"""For how many seconds a rejected pod is remembered while the watch does not show it.

kube-scheduler tries every waiting pod again within this time, and calls filter then.
"""


_FORGET_PERIOD_SECONDS = 30.0
"""The period in which rejected pods that are gone or bound are dropped, in seconds."""


_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class _RejectedPod:
    """A plain pod for which filter left no node."""

    excluded: frozenset[str]
    """The nodes that the pod must not use, because they are kept for gangs."""

    rejected_at: float
    """The loop time of the last filter call that left no node."""

    tries: int
    """The number of filter calls in a row that left no node, with the same ``excluded``."""


@dataclass(frozen=True, slots=True)
class _PreemptorNodes:
    """A gang for which pods were evicted: its priority, and the nodes of its slots."""

    priority: int
    nodes: frozenset[str]


class KeptOffPods:
    """Keeps plain pods off nodes that are kept for gangs, and requeues the pods when they may use the nodes again.

    Every method is synchronous.
    """

    _forgot_at = 0.0

    def __init__(self, context: Context) -> None:
        self._pods = context.store.pods
        self._schedulers = context.store.schedulers
        self._features = context.features
        self._groups = context.groups
        self._priorities = context.store.priorities
        self._outbox = context.outbox
        self._clock = context.clock
        self._waits = context.options.plain is PlainPodRule.WAIT

        self._cycles: dict[GroupKey, BindingCycle] = {}
        """The cycles with victims whose members are tried in a fixed order, and so are not nominated."""

        self._cleared: tuple[_PreemptorNodes, ...] = ()
        """The nodes and the priority of each cycle in ``_cycles``."""

        self._kept: tuple[frozenset[str], ...] = ()
        """The node sets that other features kept from plain pods when ``_united`` was filled."""

        self._united: dict[tuple[frozenset[str], ...], frozenset[str]] = {}
        """A cache of unions, by the united node sets: hundreds of pods may need the same one."""

        self._rejected: dict[str, _RejectedPod] = {}
        """The pods for which filter left no node, by UID."""

        self._due: dict[str, None] = {}
        """The UIDs of pods to be requeued, in order."""

        self._seen: tuple[frozenset[str], ...] = ()
        """The node sets that were kept from plain pods at the last tick, or at a filter call since."""

    def add_cycle(self, cycle: BindingCycle) -> None:
        """Keep plain pods off the nodes of a binding cycle with victims until the cycle ends.

        Ignored if the members are nominated to these nodes, as kube-scheduler keeps other pods off them then. They are
        not nominated if they are tried in a fixed order (see the module).
        """
        if cycle.open_slots.has_waves:
            self._cycles[cycle.reservation.group] = cycle

    # --- filter and preempt ------------------------------------------------------------------------------------

    def filter_nodes(self, pod: Pod, names: Sequence[str]) -> Sequence[str] | None:
        """Answer a filter call for a plain pod. Return those of the offered nodes ``names`` that the pod may use.

        None means that it may use all of them. If none is left, the pod is remembered to be requeued. If its nominated
        node alone is offered, the pod may use it in any case.
        """
        excluded = self.list_excluded(pod)
        # A nominated pod has had victims of its own: kube-scheduler offers its nominated node alone, first.
        evicted_for = len(names) == 1 and names[0] == pod.nominated
        left = [name for name in names if name not in excluded] if excluded and not evicted_for else names
        if left or not names:
            self._rejected.pop(pod.uid, None)
            return None if len(left) == len(names) else left
        self._remember_rejected(pod, excluded, len(names))
        return left

    def list_excluded(self, pod: Pod) -> frozenset[str]:
        """Return the names of the nodes that a plain pod must not use; none for a pod of another scheduler.

        Nodes of a gang for which pods were evicted are open to pods of a higher priority than the gang's.
        """
        if pod.scheduler not in self._schedulers:
            return _NONE
        self._update_cycles()
        cleared = (each.nodes for each in self._cleared if pod.priority <= each.priority)
        return self._unite(tuple(nodes for nodes in (*self._list_kept_nodes(pod), *cleared) if nodes))

    def _list_kept_nodes(self, pod: Pod | None) -> tuple[frozenset[str], ...]:
        """Return the sets of nodes that other features keep from ``pod``, or, for None, from any plain pod.

        Empty without ``--backfill-plain wait``.
        """
        if not self._waits:
            return ()
        return tuple(
            nodes for each in self._features[Feature.list_kept_from_pod] for nodes in each.list_kept_from_pod(pod)
        )

    def _update_cycles(self) -> None:
        """Drop remembered binding cycles that have ended. Update the nodes of the others: slots may have moved."""
        if not (self._cycles or self._cleared):
            return
        states = self._groups.states
        for key, cycle in [*self._cycles.items()]:
            if key not in states or states[key].cycle is not cycle:
                del self._cycles[key]
        cycles = self._cycles.items()
        cleared = tuple(
            _PreemptorNodes(self._priorities.of_group(key), cycle.reservation.nodes) for key, cycle in cycles
        )
        if cleared != self._cleared:
            self._cleared = cleared
            self._united.clear()

    def _unite(self, parts: tuple[frozenset[str], ...]) -> frozenset[str]:
        """Return the union of the node sets ``parts``. It is the same object in each call while the sets are the same.

        Callers compare unions by identity, which is fast.
        """
        if len(parts) <= 1:
            return parts[0] if parts else _NONE
        kept = self._list_kept_nodes(None)
        if kept != self._kept:
            self._kept = kept
            self._united.clear()
        known = self._united.get(parts)
        if known is None:
            known = self._united[parts] = frozenset().union(*parts)
        return known

    def _remember_rejected(self, pod: Pod, excluded: frozenset[str], offered: int) -> None:
        before = self._rejected.pop(pod.uid, None)
        tries = before.tries + 1 if before is not None and before.excluded is excluded else 1
        self._rejected[pod.uid] = _RejectedPod(excluded, self._clock(), tries)
        if all(excluded is not each for each in self._seen):
            # A gang may become the head and be bound between two ticks. The next tick has to notice that pods may use
            # its nodes again.
            self._seen = (*self._seen, excluded)
        # In a large cluster kube-scheduler offers only a sample of the nodes, and another sample next time. The pod may
        # fit there.
        if offered >= MAX_COMPLETE_LIST and tries <= len(excluded) // offered + 1:
            self._due[pod.uid] = None
        if len(self._rejected) > _MAX_REJECTED:
            self._forget(next(iter(self._rejected)))

    # --- requeueing --------------------------------------------------------------------------------------------

    def requeue_due(self) -> None:
        """Requeue rejected pods that may use more nodes by now. Called about twice a second.

        At most eight pods are requeued per call; the others follow in the next calls.
        """
        self._update_cycles()
        now = (*self._list_kept_nodes(None), *(each.nodes for each in self._cleared))
        if now != self._seen:
            self._seen = now
            self._queue_after_change(frozenset().union(*now))
        self._requeue()
        if self._clock() - self._forgot_at >= _FORGET_PERIOD_SECONDS:
            self._forgot_at = self._clock()
            self._forget_gone()

    def _queue_after_change(self, excluded: frozenset[str]) -> None:
        """Schedule the requeue of rejected pods that may use a node by now which was kept from them before.

        ``excluded`` are all nodes that are kept from plain pods now. Of pods with the same priority, requests and
        constraints only one is requeued: if it is bound, kube-scheduler tries the others by itself.
        """
        opened: dict[frozenset[str], bool] = {}
        woken: set[tuple[int, int]] = set()
        for uid, rejected in self._rejected.items():
            if rejected.excluded not in opened:
                opened[rejected.excluded] = not rejected.excluded <= excluded
            pod = self._pods.get(uid)
            if not opened[rejected.excluded] or pod is None or not pod.pending:
                continue
            kind = id(pod.shape), pod.priority  # shapes are shared, and slow to hash
            if kind not in woken:
                woken.add(kind)
                self._due[uid] = None

    def _requeue(self) -> None:
        for uid in list(islice(self._due, _MAX_REQUEUED)):
            del self._due[uid]
            pod = self._pods.get(uid)
            # A pod that was tried again meanwhile, and got a node, is not in `_rejected` any more.
            if uid in self._rejected and pod is not None and pod.pending:
                self._outbox.put(Activate(pod))

    def _forget_gone(self) -> None:
        since = self._clock() - _UNSEEN_SECONDS
        for uid, rejected in list(self._rejected.items()):
            pod = self._pods.get(uid)
            if rejected.rejected_at < since if pod is None else not pod.pending:
                self._forget(uid)

    def _forget(self, uid: str) -> None:
        self._rejected.pop(uid, None)
        self._due.pop(uid, None)


_WATCH_SECONDS = 30.0
"""For how many seconds a node is watched after a failed bind call, or after a preempt answer with victims on it.

The victims may take long to end.
"""


_OVERLOOKED_SECONDS = 11.0
"""For how many seconds a nominated pod must fit on its node before it is requeued, or requeued once more.

It is longer than kube-scheduler's longest backoff (``podMaxBackoffSeconds``, 10 by default), after which kube-scheduler
tries the pod by itself. A requeue is the last resort: the pod loses its nomination by it, and nothing else keeps other
pods off the node.
"""


PodOnNode = tuple[str, str]
"""The UID of a pod, and the name of its node."""


class OverlookedPreemptors:
    """Requeues nominated plain pods that would fit on their node but that kube-scheduler does not try.

    kube-scheduler may miss that a victim is gone, for instance if the bind call of the victim fails while
    kube-scheduler is deleting other victims (see the module). Every method is synchronous. The state is not persisted:
    the next leader does not know these pods.
    """

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._outbox = context.outbox
        self._clock = context.clock
        self._watched: dict[str, float] = {}
        """The loop time of the last failed bind call or preempt answer with victims, by node name; the oldest first."""

        self._found: dict[PodOnNode, float] = {}
        """The pods that fitted on their nominated node at the last tick.

        The value is the loop time since which the pod fits, or at which it was requeued last.
        """

        self._requeued: set[PodOnNode] = set()
        """The pods of ``_found`` that were requeued, and so have lost their nominations.

        They may need another requeue, if kube-scheduler was still waiting for its own deletions of victims.
        """

    def watch_node(self, node: str) -> None:
        """Watch a node for preemptors for some time.

        Call when victims end on the node, or when kube-scheduler releases the resources of a member there.
        """
        self._watched.pop(node, None)
        self._watched[node] = self._clock()

    def end_term(self) -> None:
        """Drop all remembered pods and nodes, as another instance may lead from now on."""
        self._watched.clear()
        self._found.clear()
        self._requeued.clear()

    def requeue_due(self) -> None:
        """Requeue the pods that have fitted on their nominated node for 11 seconds. Called about twice a second.

        Pods are only looked for on watched nodes. At most eight are requeued per call. While a pod is still ending on
        the node, none is requeued for another 11 seconds: that pod's end makes kube-scheduler try them.
        """
        now = self._clock()
        while self._watched and self._watched[first := next(iter(self._watched))] < now - _WATCH_SECONDS:
            del self._watched[first]
        found = {(pod.uid, node): pod for pod, node in self._find_overlooked()} if self._watched else {}
        self._found = {key: self._found.get(key, now) for key in found}
        self._requeued &= found.keys()
        due = [key for key, since in self._found.items() if now - since >= _OVERLOOKED_SECONDS]
        if due:
            self._requeue({key: found[key] for key in due[:_MAX_REQUEUED]}, now)

    def _requeue(self, due: dict[PodOnNode, Pod], now: float) -> None:
        # While a pod is still ending on the node, its end will make kube-scheduler try them. If they were tried before,
        # kube-scheduler would evict other victims for them.
        ending = {pod.node for pod in self._store.pods.values() if pod.deleting and pod.node in self._watched}
        for key, pod in due.items():
            self._found[key] = now
            if key[1] not in ending:
                self._requeued.add(key)
                self._outbox.put(Requeue(pod, key[1]))

    def _find_overlooked(self) -> Iterator[tuple[Pod, str]]:
        """Yield the plain pods that fit on their nominated node, with that node, if the node is watched.

        A pod that was requeued has no nomination any more; for it, the node is the one before the requeue.
        """
        for pod, node in self._candidates():
            if node in self._watched and self._is_plain_preemptor(pod) and self._has_room(pod, node):
                yield pod, node

    def _candidates(self) -> Iterator[tuple[Pod, str]]:
        for pod in self._store.nominations:
            yield pod, pod.nominated
        for uid, node in self._requeued:
            woken = self._store.pods.get(uid)
            if woken is not None and woken.pending and not woken.nominated:
                yield woken, node

    def _is_plain_preemptor(self, pod: Pod) -> bool:
        """Return whether a nominated pod can only be a preemptor: it is in no gang and has neither volumes nor devices.

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


_MAX_REFUSED = 10_000
"""The maximum number of preemptors that are remembered because no candidate was left; the oldest are dropped first."""


@dataclass(frozen=True, slots=True)
class _RefusedPreemptor:
    """A plain pod for which a preempt call left no node, because gangs with victims there are just being bound."""

    pod: Pod
    node: str
    """One of the candidate nodes that were left out; the pod is nominated to it for a moment to be requeued."""

    cycles: Mapping[GroupKey, BindingCycle]
    """The binding cycles because of which candidates were left out, by gang."""


class RefusedPreemptors:
    """Requeues plain pods for which a preempt call left no node because gangs were just being bound.

    Every method is synchronous. The state is not persisted: after a failover kube-scheduler tries these pods again by
    its own rules, maybe minutes later.
    """

    def __init__(self, context: Context) -> None:
        self._groups = context.groups
        self._outbox = context.outbox
        self._refused: dict[str, _RefusedPreemptor] = {}

    def remember(self, pod: Pod, node: str, cycles: Mapping[GroupKey, BindingCycle]) -> None:
        """Remember a plain pod for which a preempt call left no node, to requeue it when one of ``cycles`` has ended.

        ``node`` is one of the candidate nodes left out because of these binding cycles.
        """
        self._refused.pop(pod.uid, None)
        self._refused[pod.uid] = _RefusedPreemptor(pod, node, cycles)
        if len(self._refused) > _MAX_REFUSED:
            self.forget(next(iter(self._refused)))

    def forget(self, uid: str) -> None:
        """Drop a pod (UID): the end of a binding cycle would not help it.

        Its last preempt call left a node, or left none although no victim's gang was just being bound.
        """
        self._refused.pop(uid, None)

    def requeue_due(self) -> None:
        """Requeue the remembered pods if a binding cycle because of which candidates were left out has ended.

        Called about twice a second. A pod needs only one of its cycles to end.
        """
        due = (refused for refused in self._refused.values() if self._has_ended(refused.cycles))
        self._requeue(list(islice(due, _MAX_REQUEUED)))

    def _has_ended(self, cycles: Mapping[GroupKey, BindingCycle]) -> bool:
        states = self._groups.states
        return any(key not in states or states[key].cycle is not cycle for key, cycle in cycles.items())

    def _requeue(self, due: Collection[_RefusedPreemptor]) -> None:
        for refused in due:
            del self._refused[refused.pod.uid]
            self._outbox.put(Requeue(refused.pod, refused.node))


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss if kube-scheduler preempts on one candidate node.

    Besides the victims, the other members of their gangs end if the gang has disruption mode ``all``.
    """

    candidate: Candidate

    priority: int
    """The highest priority of all pods that would end, and of their gangs."""

    gangs: int = 0
    """The number of gangs of disruption mode ``all`` that would end as a whole."""

    other_pods: int = 0
    """The number of pods that would end in addition to the candidate's victims: the other members of these gangs."""


def choose_least_loss(losses: Sequence[Loss]) -> tuple[Candidate, ...]:
    """Return the candidates among which kube-scheduler may choose, so that as little as possible is lost.

    If the least of ``losses`` ends no gang as a whole, return all candidates whose loss ends none. Else return only the
    candidate with the least loss. Losses are compared by violations of budgets first, then by the highest priority, as
    in kube-scheduler's own choice (pkg/scheduler/framework/preemption/preemption.go: pickOneNodeForPreemption); then by
    gangs, then by pods. So no gang ends if other victims of the same priority suffice, and no gang is spared at the
    cost of pods of higher priority.
    """
    best = min(losses, key=_order, default=None)
    if best is not None and best.gangs:
        return (best.candidate,)  # alone, as kube-scheduler does not count the rest of the gang, and might choose worse
    return tuple(loss.candidate for loss in losses if not loss.gangs)


def _order(loss: Loss) -> tuple[int, int, int, int, str]:
    return loss.candidate.violations, loss.priority, loss.gangs, loss.other_pods, loss.candidate.node


@dataclass(frozen=True, slots=True)
class _Cost:
    """A group that ends as a whole: the UIDs of its running pods, and the highest priority of these pods."""

    uids: frozenset[str]
    priority: int


class Candidates:
    """Chooses among the candidates of a preempt call, i.e. nodes with the pods that kube-scheduler would evict there.

    Every method is synchronous, and evicts nothing.
    """

    def __init__(self, context: Context, refused: RefusedPreemptors) -> None:
        self._pods = context.store.pods
        self._members = context.store.members
        self._refused = refused
        self._priorities = context.store.priorities
        self._disruption_groups = context.store.disruption_groups
        self._occupancy = context.store.occupancy
        self._groups = context.groups
        self._rule = context.options.disrupted

    def choose(self, preemptor: Pod, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
        """Return those of kube-scheduler's candidates that it may choose from for the plain pod ``preemptor``.

        Candidates are left out if they have no victims on their node, if Serried must not let kube-scheduler choose
        them (`_estimate_loss`), or if another candidate is better (`choose_least_loss`). `_estimate_loss` rules one out
        if a victim's gang is just being bound, or pods of too high a priority would end with the victims, for instance.
        If all are left out, and a victim's gang is being bound, the pod is remembered to be requeued.

        Victims on other nodes are removed from each candidate: kube-scheduler rejects an answer that names one
        (pkg/scheduler/extender.go: convertPodUIDToPod). Yet a kube-scheduler that knows gangs sends such candidates.
        """
        here = [
            replace(each, victims=tuple(uid for uid in each.victims if self._node_of(uid) in ("", each.node)))
            for each in candidates
        ]
        costs: dict[DisruptionGroup, _Cost] = {}
        losses = [self._estimate_loss(preemptor, each, costs) for each in here if each.victims]
        chosen = choose_least_loss([loss for loss in losses if loss is not None])
        self._remember_refused(preemptor, () if chosen else here)
        return chosen

    def _remember_refused(self, preemptor: Pod, refused: Iterable[Candidate]) -> None:
        """Remember the preemptor, for which no candidate was left, if binding cycles are the reason; else forget it.

        ``refused`` are the candidates that were left out.
        """
        found = ((each.node, self._find_binding_cycle(uid)) for each in refused for uid in each.victims)
        ways = [(node, way) for node, way in found if way is not None]
        if ways:
            self._refused.remember(preemptor, ways[0][0], dict(way for _, way in ways))
        else:
            self._refused.forget(preemptor.uid)

    def _node_of(self, uid: str) -> str:
        return self._occupancy.node_of(uid) or ""

    def _estimate_loss(self, preemptor: Pod, candidate: Candidate, costs: dict[DisruptionGroup, _Cost]) -> Loss | None:
        """Return the loss if kube-scheduler preempts on a candidate node; None if it must not choose this node.

        ``costs`` is a cache for all candidates of one call: it is filled with the groups that would end as a whole.
        """
        if any(
            self._find_binding_cycle(uid) is not None or self._has_failed_bind_call(uid) for uid in candidate.victims
        ):
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
        if others and self._rule is DisruptionTrigger.KEEP:
            return None
        victims = [pod for uid in candidate.victims if (pod := self._pods.get(uid)) is not None]
        known = [self._find_priority(pod) for pod in victims]
        # A victim that is not in the cache is gone already, which kube-scheduler has not seen yet: it is no loss.
        highest = max([*known, *(each.priority for each in going)], default=_LOWEST_PRIORITY)
        return None if highest >= preemptor.priority else Loss(candidate, highest, len(going), others)

    def _find_cost(self, disruption_group: DisruptionGroup) -> _Cost:
        running = self._disruption_groups.list_running(disruption_group)
        highest = max(map(self._find_priority, running), default=self._priorities.of_group(disruption_group.group))
        return _Cost(frozenset(pod.uid for pod in running), highest)

    def _find_priority(self, pod: Pod) -> int:
        """Return the priority that a preemptor must exceed to evict ``pod``: the higher of the pod's and its group's.

        If only the pod's counted, a preemptor could evict a member whose own priority is lower. The gang would then
        evict the preemptor by its higher priority, and so on for ever.
        """
        return max(pod.priority, self._priorities.of_pod(pod))

    def _has_failed_bind_call(self, uid: str) -> bool:
        """Return whether a member (UID) uses no resources any more, because Serried has just failed its bind call.

        kube-scheduler does not know that yet, and still wants to evict the member, which would be in vain. Once it
        knows, it releases the member's resources, and tries the pods again that lack resources
        (pkg/scheduler/schedule_one.go: handleBindingCycleError). False for pods that are unknown or in no gang.
        """
        known = uid in self._pods and self._members.group_of(uid) is not None
        return known and self._occupancy.node_of(uid) is None

    def _find_binding_cycle(self, uid: str) -> tuple[GroupKey, BindingCycle] | None:
        """Return the gang and binding cycle of a pod (UID) that must not be evicted as its gang is being bound.

        That is so while the pod waits at its bind call, or once the cycle is committed. None for all other pods.
        """
        key = self._members.group_of(uid)
        gang = self._groups.states.get(key) if key is not None else None
        if key is None or gang is None or gang.cycle is None:
            return None
        on_its_way = uid in gang.cycle.at_bind or bool(gang.cycle.reservation.committed)
        return (key, gang.cycle) if on_its_way else None


class PlainPods(Feature):
    """The feature that keeps plain pods (pods of no gang) off nodes kept for gangs, and answers their preempt calls.

    It requeues plain pods that kube-scheduler would try again too late or never. The core calls its methods, which are
    all synchronous.
    """

    def __init__(self, parts: Parts) -> None:
        context = parts.context
        self._kept_off = KeptOffPods(context)
        self._refused = RefusedPreemptors(context)
        self._overlooked = OverlookedPreemptors(context)
        self._candidates = Candidates(context, self._refused)

    def filter_pod(self, pod: Pod, names: Sequence[str]) -> Sequence[str] | None:
        """Return those of the offered nodes ``names`` that a plain pod may use; None for all of them."""
        return self._kept_off.filter_nodes(pod, names)

    def preempt_pod(self, pod: Pod, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Answer a preempt call: return the candidates that kube-scheduler may choose from for the plain pod ``pod``.

        A candidate is a node with its victims. Nodes that filter would not let the pod use are left out, and so are
        nodes whose victims must not be evicted now.
        """
        closed = self._kept_off.list_excluded(pod)
        chosen = self._candidates.choose(pod, [each for each in candidates if each.node not in closed])
        for each in chosen:
            self._overlooked.watch_node(each.node)
        return chosen

    def unreserve_pod(self, node: str) -> None:
        """Watch a node because a bind call for it has failed: kube-scheduler releases resources there now.

        A plain pod that is nominated to the node, would fit now, but is not tried by kube-scheduler, is requeued later.
        """
        self._overlooked.watch_node(node)

    def reserve(self, cycle: BindingCycle) -> None:
        """Keep plain pods off the nodes of a binding cycle with victims that begins (`KeptOffPods.add_cycle`)."""
        self._kept_off.add_cycle(cycle)

    def list_requeues(self) -> Work[Iterable[GroupKey]]:
        """Requeue the plain pods that may use more nodes by now, and those that kube-scheduler fails to try again.

        `Work` is a generator that may yield between steps; this one yields nothing. Its result is empty: the caller
        would plan the gangs in the result again, and plain pods are in none.
        """
        self._kept_off.requeue_due()
        self._refused.requeue_due()
        self._overlooked.requeue_due()
        yield from ()
        return ()

    def end_term(self) -> None:
        """Drop the watched nodes, and the nominated pods found there, as another instance may lead from now on."""
        self._overlooked.end_term()
