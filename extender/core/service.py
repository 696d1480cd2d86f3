"""What the verbs answer. Filter, prioritize and preempt are synchronous and constant in the size of the cluster.

Calls of filter in which kube-scheduler only tries something out.

With its gate TopologyAwareWorkloadScheduling it places a group that has ``schedulingConstraints`` in one domain after
another, each with the nodes of that domain alone, and goes on with the best (upstream's
pkg/scheduler/schedule_one_podgroup.go). That a member's node is missing there says nothing of the node. With its gate
GenericWorkload it also tries where a gang would go if all pods of lower priority were gone (upstream's
pkg/scheduler/framework/preemption/podgrouppreemption.go). That a node is there says nothing of who runs on it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from extender.core.binding.binder import Binder, BindOutcome
from extender.core.binding.nominator import Nominator
from extender.core.binding.run import CycleRunner
from extender.core.feature import Feature
from extender.core.protocol import MAX_COMPLETE_LIST, Answer, BindRequest, Candidate, Hold, Narrow, Pass, Steer
from extender.core.scheduling.activity import may_try_out
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.cycle_updates import CycleUpdates
from extender.core.scheduling.effects import Context
from extender.core.timeline import Milestone
from serried.api.group import PodGroup
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.pod import Pod
from serried.cluster.cache import Store
from serried.cluster.usage import ClaimKind
from serried.kube.errors import ApiError


def find_tried_domain(group: PodGroup | None, pod: Pod, names: Sequence[str], store: Store) -> str | None:
    """The domain of all offered nodes, where the scheduler may be trying one after another; else None."""
    if group is None or not group.constrained or not names or not may_try_out(group, pod, store):
        return None
    first = find_domain(group, names[0], store.nodes)
    return first if all(find_domain(group, name, store.nodes) == first for name in names) else None


def find_domain(group: PodGroup | None, name: str, nodes: Mapping[str, Node]) -> str | None:
    """The domain of the group's key in which a node is."""
    node = nodes.get(name)
    key = None if group is None else group.topology_key
    return None if node is None or key is None else node.labels.get(key)


_LAG_SECONDS = 5.0
"""How long the scheduler may take to see that victims have ended: what it does not offer until then is not refused."""


class ExtenderService:
    """Answers kube-scheduler from the Store and the ledger. ``clock`` gives loop seconds."""

    synced = False
    """Whether all caches are listed: before, a pod that may be a gang's is held and every other one passes."""

    def __init__(
        self,
        context: Context,
        cycle_updates: CycleUpdates,
        nominator: Nominator,
        runner: CycleRunner,
        binder: Binder,
    ) -> None:
        self.pods: Mapping[str, Pod] = context.store.pods
        """Those that the watch has shown, by UID."""

        self._store = context.store
        self._groups = context.groups
        self._held = context.groups.held
        self._activity = context.groups.activity
        self._seating = cycle_updates.seating
        self._reassignments = cycle_updates.reassignments
        self._offers = cycle_updates.offers
        self._features = context.features
        self._cycle_updates = cycle_updates
        self._nominator = nominator
        self._runner = runner
        self._binder = binder
        self._timelines = context.timelines
        self._status = context.status
        self._clock = context.clock

    def filter(self, pod: Pod, names: Sequence[str]) -> Answer:
        """Which of the offered nodes the pod may use.

        Notes what the scheduler offered for a planned member, and moves its slot to an offered node if any will do.
        Both are harmless if the call was a simulation (the native group cycle): nothing is taken that was not held
        before. Where that tries one domain after another, an answer about another domain than the planned one teaches
        nothing (`find_tried_domain`).
        """
        self._activity.note_call()
        key = self._find_key(pod)
        if key is None or (self._goes_alone(key) and not self._waits_for_gate(key)):
            return self._let_pass(pod, names)
        known = self.pods.get(pod.uid)
        if known is not None and known.node and known.node in names:
            # The scheduler's watch is behind: whatever else it is told, it writes that it has failed.
            return Steer(known.node)
        cycle = self._groups.cycle_of(pod.uid)
        group = self._store.groups.get(key)
        tried = find_tried_domain(group, pod, names, self._store)
        if cycle is None or cycle.reservation.group != key or self._store.obstacles.needed:
            self._held.note(pod.uid, self._clock())
            self._groups.note_return(key)
            if tried is None:
                self._note_offer(pod, names)
            return self._hold(key)
        return self._steer(cycle, group, pod, names, tried)

    def _let_pass(self, pod: Pod, names: Sequence[str]) -> Answer:
        """A pod that needs no gang may use all nodes, but for those that features keep from it."""
        left: Sequence[str] | None = None
        for feature in self._features[Feature.filter_pod]:
            narrowed = feature.filter_pod(pod, names if left is None else left)
            left = left if narrowed is None else narrowed
        return Pass() if left is None else Narrow(left)

    def _steer(
        self, cycle: BindingCycle, group: PodGroup | None, pod: Pod, names: Sequence[str], tried: str | None
    ) -> Answer:
        """Where a planned member goes; it is held while no seat of its class is open on an offered node."""
        self._nominator.arrived(pod.uid)
        if cycle.seats.is_closed(pod.uid) and not may_try_out(group, pod, self._store):
            cycle.mark_unschedulable(pod.uid)
            return self._hold(cycle.reservation.group)
        own = cycle.reservation.slots[pod.uid].node
        if tried is not None and find_domain(group, own, self._store.nodes) != tried:
            return self._hold(cycle.reservation.group)
        open_names = self._list_free(cycle, group, pod, names) if cycle.preempts else names
        node = self._seating.seat(cycle, pod, open_names)
        if node is None:
            self._note_missed(cycle, pod, own, names)
            return self._hold(cycle.reservation.group)
        cycle.mark_filtered(pod.uid, self._clock(), pod.said, pod.nominated)
        if cycle.seats.in_order:
            self._seating.open_next(cycle)
        self._runner.carry_out()
        self._timelines.note(cycle.reservation.group, Milestone.STEERED)
        self._held.forget(pod.uid)
        return Steer(node)

    def _hold(self, key: GroupKey) -> Hold:
        return Hold(self._status.describe_hold(key))

    def _list_free(self, cycle: BindingCycle, group: PodGroup | None, pod: Pod, names: Sequence[str]) -> Sequence[str]:
        """The offered nodes that have room for a member, though others are to end for its gang.

        The scheduler may see one of those end before our watch shows it. If it offers the room then and the member is
        held, it erases the nomination, and the next pod takes the room.
        """
        if cycle.eviction_sent and not may_try_out(group, pod, self._store):
            return names
        return [name for name in names if not self._store.pending_victims.are_on(name)]

    def _note_offer(self, pod: Pod, names: Sequence[str]) -> None:
        if list(names) != [pod.nominated]:  # a nomination is tried by itself
            self._offers.note(pod.uid, names)

    def _note_missed(self, cycle: BindingCycle, pod: Pod, node: str, names: Sequence[str]) -> None:
        """A member is held, as no seat of its class is open on an offered node; its own is on ``node``."""
        cycle.mark_unschedulable(pod.uid)
        if cycle.preempts:
            # It is nominated all the same, so that the scheduler keeps others off: but others still use its room.
            self._held.note(pod.uid, self._clock())
            return
        if cycle.seats.waits(pod.uid) or (pod.nominated and list(names) == [pod.nominated]):
            return  # nothing is learnt; an outdated nomination is tried by itself first, and the list follows at once
        if cycle.seats.is_in_turn(pod.uid) and pod.uid != cycle.seats.called:
            self._seating.wait_for_turn(cycle, pod.uid)
            self._runner.carry_out()
            return
        self._note_offer(pod, names)
        # The planned node was not offered. That is a refusal only if it was tried: the nomination in this very request
        # made the scheduler evaluate it first, or the list is complete. A sample without it teaches nothing. Nor does
        # the first complete list: the scheduler may have begun before it saw what freed the room that was planned on.
        # Of victims it may see one end after the other.
        missed, nominated = cycle.member(pod.uid).missed, pod.nominated == node
        lags = cycle.eviction_sent and self._clock() < cycle.started + _LAG_SECONDS
        if not ((missed and nominated) if lags else (missed or nominated)):
            self._seating.nominate_missed(cycle, pod.uid)
            self._runner.carry_out()
        elif pod.uid == cycle.seats.called and self._seating.call_elsewhere(cycle, pod.uid):
            self._runner.carry_out()
        elif not lags and (nominated or len(self._store.nodes) <= MAX_COMPLETE_LIST):
            asyncio.get_running_loop().call_soon(self._refuse, pod.uid, node, names)

    def _refuse(self, uid: str, node: str, names: Sequence[str]) -> None:
        try:
            self._cycle_updates.refuse(uid, node, names)
        finally:
            self._runner.carry_out()

    def prioritize(self, names: Sequence[str]) -> Sequence[int]:
        """How good each of these nodes is, from 0 to 10: pods that may go anywhere leave whole domains to gangs.

        Whoever is asked about is such a pod: a planned member has one node left, and then the scheduler does not ask.
        """
        return self._store.domain_use.score(names) if self.synced else [0] * len(names)

    def preempt(self, pod: Pod, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """The candidates that may stay, each with the victims that kube-scheduler is to evict itself.

        None for a member of a gang: its group's room is planned, never taken pod by pod. For other pods,
        features may take candidates out. The call is a question: nothing
        may follow it.
        """
        if self._group_of(pod) is not None:
            return ()
        for feature in self._features[Feature.preempt_pod]:
            candidates = feature.preempt_pod(pod, candidates)
        return tuple(candidates)

    def _group_of(self, pod: Pod) -> GroupKey | None:
        """The group with which this pod is placed, None if it is placed like any plain pod."""
        key = self._find_key(pod)
        return None if key is None or self._goes_alone(key) else key

    def _goes_alone(self, key: GroupKey) -> bool:
        group = self._store.groups.get(key)
        return self.synced and group is not None and group.goes_one_by_one

    def _waits_for_gate(self, key: GroupKey) -> bool:
        """Whether members of a basic group are held, because one of them has another owner's scheduling gate."""
        return self._store.members.has_gated(key) and self._store.groups[key].gates_together

    def _find_key(self, pod: Pod) -> GroupKey | None:
        """The group whose state decides on this pod, None for a plain pod, and for one that is not ours to place.

        Extenders are those of the whole kube-scheduler: a pod of another of its profiles comes here, too. Such a pod is
        not ours to place, whatever it says of a group, so nobody would ever plan it.
        """
        if pod.scheduler not in self._store.schedulers:
            return None
        if not self.synced:
            return (pod.group or GroupKey(pod.namespace, "")) if pod.linked else None
        known = pod.uid in self._store.pods
        key = self._store.members.group_of(pod.uid) if known else self._store.membership.find_group(pod)
        group = self._store.groups.get(key) if key else None
        state = self._groups.states.get(key) if key else None
        awaited = state.awaited if state is not None and group is None else None
        return None if key is not None and awaited is not None and awaited.is_lost(key, pod) else key

    async def bind(self, request: BindRequest, hangup: Callable[[], Coroutine[Any, Any, None]]) -> str:
        """Bind a pod, a gang's member together with its gang. Returns the error text, "" for success.

        ``hangup`` returns when the scheduler has closed the connection.
        """
        failure = await self._bind(request, hangup)
        if failure:
            for feature in self._features[Feature.unreserve_pod]:
                feature.unreserve_pod(request.node)
        return failure

    async def _bind(self, request: BindRequest, hangup: Callable[[], Coroutine[Any, Any, None]]) -> str:
        pod = self._store.pods.get(request.uid)
        if pod is None:
            try:
                pod = await self._binder.fetch(request.pod, request.uid)
            except ApiError as error:
                return f"cannot read pod {request.pod}: {error}"
            if pod is None:
                return f"pod {request.pod} with UID {request.uid} does not exist"
        if self._group_of(pod) is None:
            return await self._bind_plain(request, pod)
        if pod.node == request.node:
            return ""  # the scheduler has tried it before its watch has shown it bound
        return await self._bind_member(request, hangup)

    async def _bind_plain(self, request: BindRequest, pod: Pod) -> str:
        # Counted before the write: a plan between the write and its echo must not see the room as free.
        self._store.occupancy.claim(pod.uid, ClaimKind.ASSUMED, request.node, pod.shape.requests)
        stands = False
        try:
            sent = await self._binder.bind(request.pod, request.uid, request.node)
            stands = sent.outcome is BindOutcome.BOUND
        finally:
            # A pod that was deleted, or was never seen: the watch will not take the claim back, or will lay its own.
            if not stands or pod.uid not in self._store.pods:
                self._store.occupancy.release(pod.uid, ClaimKind.ASSUMED)
        return sent.error

    async def _bind_member(self, request: BindRequest, hangup: Callable[[], Coroutine[Any, Any, None]]) -> str:
        cycle = self._groups.cycle_of(request.uid)
        if cycle is None or cycle.reservation.slots[request.uid].node != request.node:
            self._reassignments.admit_late(request.uid, request.node)
            cycle = self._groups.cycle_of(request.uid)
        if cycle is None:
            return f"serried: {request.pod} has no planned slot (its plan was given up); it is tried again"
        node = cycle.reservation.slots[request.uid].node
        if node != request.node:
            return f"serried: {request.pod} is planned on {node}, not on {request.node}; it is tried again"
        if request.uid in cycle.bound:
            return ""
        return await self._wait_for_gang(cycle, request.uid, hangup)

    async def _wait_for_gang(
        self, cycle: BindingCycle, uid: str, hangup: Callable[[], Coroutine[Any, Any, None]]
    ) -> str:
        call = cycle.open_call(uid, self._clock())
        self._timelines.note(cycle.reservation.group, Milestone.AT_BIND)
        watch: asyncio.Future[Any] = asyncio.ensure_future(hangup())
        try:
            waits: list[asyncio.Future[Any]] = [call, watch]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            if not call.done():
                cycle.abandon_call(uid, call)
        return call.result() if call.done() else "the scheduler hung up"
