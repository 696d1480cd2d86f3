"""The answers to kube-scheduler's extender calls: filter, prioritize, preempt and bind.

`extender.core.http.verbs` calls `ExtenderService` with decoded requests. Filter, prioritize and preempt are synchronous
and take constant time in the size of the cluster. Bind waits until the gang may be bound.

kube-scheduler also calls filter without meaning to place the pod. With its gate TopologyAwareWorkloadScheduling it
simulates a group that has ``schedulingConstraints`` in one domain after another, each time with the nodes of that
domain alone, and then takes the best (upstream's pkg/scheduler/schedule_one_podgroup.go). So a member's node may be
missing from the list though it is feasible. With its gate GenericWorkload it simulates where a gang would fit if all
pods of lower priority were evicted (upstream's pkg/scheduler/framework/preemption/podgrouppreemption.go). So a node may
be in the list though it is full.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from extender.core.binding.binder import Binder, BindOutcome
from extender.core.binding.nominator import Nominator
from extender.core.binding.run import CycleRunner
from extender.core.feature import Feature
from extender.core.protocol import MAX_COMPLETE_LIST, Answer, BindRequest, Candidate, Hold, Narrow, Pass, Steer
from extender.core.scheduling.activity import may_be_simulated
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.cycle_updates import CycleUpdates
from extender.core.scheduling.effects import Context
from extender.core.timeline import Milestone
from serried.api.group import PodGroup
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.pod import Pod
from serried.cluster.cache import Store
from serried.cluster.usage import UsageSource
from serried.kube.errors import ApiError


def find_simulated_domain(group: PodGroup | None, pod: Pod, names: Sequence[str], store: Store) -> str | None:
    """Return the domain in which kube-scheduler perhaps only simulates a placement: the one with all offered nodes.

    ``names`` are the nodes that its filter call for ``pod`` offers. None if they are in several domains, or if
    kube-scheduler does no such simulations for this group (see the module's docstring).
    """
    if group is None or not group.constrained or not names or not may_be_simulated(group, pod, store):
        return None
    first = find_domain(group, names[0], store.nodes)
    return first if all(find_domain(group, name, store.nodes) == first for name in names) else None


def find_domain(group: PodGroup | None, name: str, nodes: Mapping[str, Node]) -> str | None:
    """Return the value of the group's topology key on the node ``name``; None without group, key, node or label."""
    node = nodes.get(name)
    key = None if group is None else group.topology_key
    return None if node is None or key is None else node.labels.get(key)


_LAG_SECONDS = 5.0
"""The seconds after evictions in which a planned node that filter calls do not offer does not count as rejected.

kube-scheduler's watch may show the end of the victims that late.
"""


class ExtenderService:
    """Answers kube-scheduler's calls from Store and ledger. One instance serves the whole process."""

    synced = False
    """True once all watches are listed.

    Before, filter holds pods that may belong to a gang, and allows all other pods all nodes.
    """

    def __init__(
        self,
        context: Context,
        cycle_updates: CycleUpdates,
        nominator: Nominator,
        runner: CycleRunner,
        binder: Binder,
    ) -> None:
        self.pods: Mapping[str, Pod] = context.store.pods
        """The pods that the watch has shown, by UID."""

        self._store = context.store
        self._groups = context.groups
        self._held = context.groups.held
        self._activity = context.groups.activity
        self._slot_assigner = cycle_updates.slot_assigner
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
        """Return which of the offered nodes ``names`` the pod may use.

        A member of a planned gang gets one node, by exchanging or moving slots if need be. A member without a slot is
        held, i.e. may use no node for now. If a member gets no node, the offered nodes may be noted for later plans,
        but not while kube-scheduler may only simulate a domain other than the planned one. So a call that is only
        simulated does no harm: no resources are used that were not reserved before.
        """
        self._activity.note_call()
        key = self._find_key(pod)
        if key is None or (self._binds_one_by_one(key) and not self._waits_for_gate(key)):
            return self._answer_plain(pod, names)
        known = self.pods.get(pod.uid)
        if known is not None and known.node and known.node in names:
            # kube-scheduler's watch is late. With any other answer it would report the bound pod as unschedulable.
            return Steer(known.node)
        cycle = self._groups.find_cycle(pod.uid)
        group = self._store.groups.get(key)
        simulated = find_simulated_domain(group, pod, names, self._store)
        if cycle is None or cycle.reservation.group != key or self._store.obstacles.needed:
            self._held.add(pod.uid, self._clock())
            self._groups.note_tried_again(key)
            if simulated is None:
                self._note_offer(pod, names)
            return self._hold(key)
        return self._answer_planned(cycle, group, pod, names, simulated)

    def _answer_plain(self, pod: Pod, names: Sequence[str]) -> Answer:
        """Return the answer for a pod that is not placed with a gang: all nodes but those kept from it by features."""
        left: Sequence[str] | None = None
        for feature in self._features[Feature.filter_pod]:
            narrowed = feature.filter_pod(pod, names if left is None else left)
            left = left if narrowed is None else narrowed
        return Pass() if left is None else Narrow(left)

    def _answer_planned(
        self, cycle: BindingCycle, group: PodGroup | None, pod: Pod, names: Sequence[str], simulated: str | None
    ) -> Answer:
        """Return the answer for a member of a planned gang: the node of its slot, or no node for now (`Hold`).

        ``names`` are the offered nodes. ``simulated`` is the domain for which kube-scheduler perhaps only simulates a
        placement; None if it certainly does not. The member gets no node if it is planned in another domain, if other
        members must be placed before it, or if there is no slot for it on an offered node.
        """
        self._nominator.note_filter_call(pod.uid)
        if cycle.open_slots.is_closed(pod.uid) and not may_be_simulated(group, pod, self._store):
            cycle.mark_unschedulable(pod.uid)
            return self._hold(cycle.reservation.group)
        own = cycle.reservation.slots[pod.uid].node
        if simulated is not None and find_domain(group, own, self._store.nodes) != simulated:
            return self._hold(cycle.reservation.group)
        open_names = self._list_free(cycle, group, pod, names) if cycle.waits_for_victims else names
        node = self._slot_assigner.assign(cycle, pod, open_names)
        if node is None:
            self._note_missed(cycle, pod, own, names)
            return self._hold(cycle.reservation.group)
        cycle.mark_filtered(pod.uid, self._clock(), pod.said, pod.nominated)
        if cycle.open_slots.has_waves:
            self._slot_assigner.open_next(cycle)
        self._runner.carry_out()
        self._timelines.note(cycle.reservation.group, Milestone.STEERED)
        self._held.discard(pod.uid)
        return Steer(node)

    def _hold(self, key: GroupKey) -> Hold:
        return Hold(self._status.describe_hold(key))

    def _list_free(self, cycle: BindingCycle, group: PodGroup | None, pod: Pod, names: Sequence[str]) -> Sequence[str]:
        """Return the offered nodes on which no victims are left, for a member of a gang that preempts.

        Once evictions are sent, return all offered nodes. kube-scheduler's watch may show the end of a victim first,
        and then offers the node. If filter left the member no node, kube-scheduler would clear its nomination, and the
        next pod would take the resources.
        """
        if cycle.eviction_sent and not may_be_simulated(group, pod, self._store):
            return names
        return [name for name in names if not self._store.pending_victims.are_on(name)]

    def _note_offer(self, pod: Pod, names: Sequence[str]) -> None:
        if list(names) != [pod.nominated]:  # kube-scheduler tries a nominated node alone, before all others
            self._offers.note_offer(pod.uid, names)

    def _note_missed(self, cycle: BindingCycle, pod: Pod, node: str, names: Sequence[str]) -> None:
        """Handle a filter call for a planned member that offers no node with a slot for it.

        ``node`` is the planned node, ``names`` are the offered nodes. kube-scheduler has rejected ``node`` if it has
        tried it: because the pod is nominated to it, or because ``names`` are all feasible nodes. Then have the slot
        moved to another node, or else the member dropped or the gang planned again
        (`CycleUpdates.handle_rejected_node`). If the rejection is not certain, nominate the member to ``node``, so that
        kube-scheduler tries it next.
        """
        cycle.mark_unschedulable(pod.uid)
        if cycle.waits_for_victims:
            # The nomination makes kube-scheduler keep other pods off, but the victims still use the resources.
            self._held.add(pod.uid, self._clock())
            return
        if cycle.open_slots.waits_for_mates(pod.uid) or (pod.nominated and list(names) == [pod.nominated]):
            return  # proves nothing: an outdated nomination is tried alone first, and the full list follows at once
        if cycle.open_slots.in_any_order(pod.uid) and pod.uid != cycle.open_slots.chosen_missed:
            self._slot_assigner.queue_missed(cycle, pod.uid)
            self._runner.carry_out()
            return
        self._note_offer(pod, names)
        # The planned node was not offered. kube-scheduler has refused it only if it has tried it: because the pod in
        # this request is nominated to it, or because the list is complete. A sample without the node proves nothing.
        # Nor does the first complete list: kube-scheduler may have begun the cycle before its watch showed that the
        # resources were free. After evictions its watch shows the victims end one after the other.
        missed, nominated = cycle.member(pod.uid).not_offered, pod.nominated == node
        lags = cycle.eviction_sent and self._clock() < cycle.started + _LAG_SECONDS
        if not ((missed and nominated) if lags else (missed or nominated)):
            self._slot_assigner.nominate_missed(cycle, pod.uid)
            self._runner.carry_out()
        elif pod.uid == cycle.open_slots.chosen_missed and self._slot_assigner.nominate_elsewhere(cycle, pod.uid):
            self._runner.carry_out()
        elif not lags and (nominated or len(self._store.nodes) <= MAX_COMPLETE_LIST):
            asyncio.get_running_loop().call_soon(self._refuse, pod.uid, node, names)

    def _refuse(self, uid: str, node: str, names: Sequence[str]) -> None:
        try:
            self._cycle_updates.handle_rejected_node(uid, node, names)
        finally:
            self._runner.carry_out()

    def prioritize(self, names: Sequence[str]) -> Sequence[int]:
        """Return a score from 0 to 10 for each node, so that pods of no gang fill domains that are in use already.

        Other domains then stay free for gangs. Members of gangs are not scored: filter leaves them one node,
        and kube-scheduler does not call prioritize then.
        """
        return self._store.domain_use.score(names) if self.synced else [0] * len(names)

    def preempt(self, pod: Pod, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return those of the candidates from which kube-scheduler may choose one, to evict its victims for a pod.

        Empty for a member of a gang, because Serried plans the victims for a whole gang. For other pods, features (such
        as `PlainPods`) may remove candidates. kube-scheduler may call this without evicting any pod afterwards.
        """
        if self._group_of(pod) is not None:
            return ()
        for feature in self._features[Feature.preempt_pod]:
            candidates = feature.preempt_pod(pod, candidates)
        return tuple(candidates)

    def _group_of(self, pod: Pod) -> GroupKey | None:
        """Return the gang with which a pod is placed; None if the pod is placed on its own."""
        key = self._find_key(pod)
        return None if key is None or self._binds_one_by_one(key) else key

    def _binds_one_by_one(self, key: GroupKey) -> bool:
        group = self._store.groups.get(key)
        return self.synced and group is not None and group.schedules_individually

    def _waits_for_gate(self, key: GroupKey) -> bool:
        """Return whether the pods of a group without minCount, which are placed one by one, have to wait now.

        They wait while one of them has a scheduling gate that is not Serried's. That is so only for kinds of groups
        that kube-scheduler queues as one entity (`PodGroup.waits_for_gated_members`); False for all others.
        """
        return self._store.members.has_gated(key) and self._store.groups[key].waits_for_gated_members

    def _find_key(self, pod: Pod) -> GroupKey | None:
        """Return the group to which a pod belongs; None for a plain pod, and for a pod that Serried does not schedule.

        kube-scheduler calls its extenders for the pods of all its profiles. Serried must not hold pods of other
        profiles, because it would never place them. None also if the API server has said that the owner from which the
        group would come does not exist. Until all watches are listed (`synced`), a group is guessed from the pod alone.
        """
        if pod.scheduler not in self._store.schedulers:
            return None
        if not self.synced:
            return (pod.group or GroupKey(pod.namespace, "")) if pod.may_be_member else None
        known = pod.uid in self._store.pods
        key = self._store.members.group_of(pod.uid) if known else self._store.membership.find_group(pod)
        group = self._store.groups.get(key) if key else None
        state = self._groups.states.get(key) if key else None
        awaited = state.awaited if state is not None and group is None else None
        return None if key is not None and awaited is not None and awaited.is_lost(key, pod) else key

    async def bind(self, request: BindRequest, hangup: Callable[[], Coroutine[Any, Any, None]]) -> str:
        """Bind a pod, or a member together with its gang. Return the error for kube-scheduler; "" for success.

        The call of a member waits until its gang may be bound, or until ``hangup`` returns: kube-scheduler has
        then closed the connection.
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
            return ""  # kube-scheduler has tried the pod before its watch showed it bound
        return await self._bind_member(request, hangup)

    async def _bind_plain(self, request: BindRequest, pod: Pod) -> str:
        # Before the write: a plan made before the watch shows the bound pod must not count the resources as free.
        self._store.occupancy.add_usage(pod.uid, UsageSource.ASSUMED, request.node, pod.shape.requests)
        bound = False
        try:
            sent = await self._binder.bind(request.pod, request.uid, request.node)
            bound = sent.outcome is BindOutcome.BOUND
        finally:
            # For a failed Binding or a pod that the watch does not show, no watch event would release these resources.
            if not bound or pod.uid not in self._store.pods:
                self._store.occupancy.release(pod.uid, UsageSource.ASSUMED)
        return sent.error

    async def _bind_member(self, request: BindRequest, hangup: Callable[[], Coroutine[Any, Any, None]]) -> str:
        cycle = self._groups.find_cycle(request.uid)
        if cycle is None or cycle.reservation.slots[request.uid].node != request.node:
            self._reassignments.accept_bind_node(request.uid, request.node)
            cycle = self._groups.find_cycle(request.uid)
        if cycle is None:
            return f"serried: no node is planned for {request.pod} any more: kube-scheduler tries the pod again"
        node = cycle.reservation.slots[request.uid].node
        if node != request.node:
            return (
                f"serried: {request.pod} is planned on {node}, not on {request.node}: kube-scheduler tries the "
                "pod again"
            )
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
        return call.result() if call.done() else "kube-scheduler closed the connection"
