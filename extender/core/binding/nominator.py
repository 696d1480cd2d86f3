"""Makes kube-scheduler try members on their planned nodes: nominates pods, lifts gates, activates pods.

Activating a pod means that kube-scheduler moves it from its unschedulable pods to its active queue. Serried lifts its
own scheduling gate for that, or writes an annotation, as any update of a rejected pod requeues it.

A nomination (`status.nominatedNodeName`) is a hint, not a record. It makes kube-scheduler try one node instead of all,
and keep other pods off that node. kube-scheduler may clear it at any time; filter then still answers the planned node
from the ledger. `Effects` puts nominations into the queue of the `Nominator`, whose `run` writes them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.cycle_member import MemberStage
from extender.core.scheduling.effects import Context
from extender.options import NominationPolicy
from serried.api.pod import HELD_GATE, Pod, lacks_matching_pods
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Conflict, NotFound, TooMany, Unavailable
from serried.kube.retry import Attempts, Backoff
from serried.kube.wire import PODS
from serried.ops.log import name_pod

log = logging.getLogger(__name__)

ACTIVATION_ANNOTATION = "scheduling.serried.dev/kick"
_ACTIVATE_SECONDS = 2.0
"""After how many seconds a nominated member is activated if kube-scheduler has not tried it and is silent.

kube-scheduler is silent while it sends no filter calls.
"""

_ACTIVATE_BUSY_SECONDS = 20.0
"""After how many seconds a nominated member is activated if kube-scheduler has not tried it, but tries other pods."""

_WRITERS = 16
"""The number of nominations written at the same time, and also the number of other writes at the same time."""

_RETRY = Backoff(first=1.0, cap=30.0)

Write = Callable[[Pod], Coroutine[Any, Any, None]]


class Nominator:
    """Writes nominations, and activates pods. One instance lives as long as the process.

    Nominations are written in the order in which the binding of their gangs began (`BindingCycle`).

    A configured window limits how many nominated members may wait for their filter call: as many as kube-scheduler
    handles in about two seconds. So no nomination is older than that when kube-scheduler tries the pod.
    """

    _terms = 0

    _waiting_for_retry = 0
    """The number of background writes (activations and cleared nominations) that wait for a retry."""

    def __init__(self, client: ApiClient, context: Context) -> None:
        self._client = client
        self._store = context.store
        self._activity = context.groups.activity
        self._clock = context.clock
        self._policy = context.options.nomination
        self._window = context.options.nomination_window
        self._queue: deque[tuple[BindingCycle, str]] = deque()
        self._open: dict[str, float] = {}
        self._sent: dict[str, tuple[float, int]] = {}
        self._early: set[str] = set()
        """The UIDs of members that are nominated to nodes on which victims have not ended yet."""

        self._few = asyncio.Semaphore(_WRITERS)
        self._wake = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._activating: dict[asyncio.Task[None], str] = {}
        """The background tasks that activate a pod, with its UID."""

        self._writing: list[asyncio.Task[None]] = []
        """The tasks that write nominations."""

    async def run(self) -> None:
        """Write the queued nominations until cancelled. Then cancel all other writes, too."""
        try:
            while True:  # `close` cancels the writers, then new ones begin
                self._writing = [asyncio.create_task(self._write_nominations()) for _ in range(_WRITERS)]
                ended, _ = await asyncio.wait(self._writing, return_when=asyncio.FIRST_EXCEPTION)
                for writer in ended:
                    if not writer.cancelled():
                        writer.result()
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancel the writes in flight and wait until they have stopped.

        If `run` still runs, it starts new writers for the rest of the queue.
        """
        tasks = [*self._writing, *self._background]
        for task in tasks:
            task.cancel()
        self._waiting_for_retry = 0
        await asyncio.gather(*tasks, return_exceptions=True)

    def nominate(self, cycle: BindingCycle, uids: Iterable[str]) -> None:
        """Queue these members of a cycle for nomination to the nodes of their slots."""
        self._queue.extend((cycle, uid) for uid in uids)
        self._wake.set()

    def nominate_all(self, cycle: BindingCycle) -> None:
        """Queue all members of a cycle that have a slot for nomination to its node."""
        self.nominate(cycle, list(cycle.reservation.slots))

    def note_filter_call(self, uid: str) -> None:
        """Note that kube-scheduler has sent a filter call for a member (UID), so that another one may be nominated.

        Ignored for pods that were not nominated.
        """
        if self._open.pop(uid, None) is not None:
            self._wake.set()

    def release(self, uids: Iterable[str], pods: Iterable[Pod]) -> None:
        """Drop the members ``uids``, whose cycle has ended, and clear the nominations of ``pods``, which have one."""
        for uid in uids:
            self.note_filter_call(uid)
            self._sent.pop(uid, None)
            self._early.discard(uid)
        for pod in pods:
            self._spawn(pod, self._clear)

    def end_term(self) -> frozenset[str]:
        """Cancel the writes in the background, and empty the queue, because another instance may lead from now on.

        Writes for members taken from the queue, which are in flight, are not cancelled. Return the UIDs of the pods
        that were to be activated in the background and were not yet.
        """
        self._terms += 1
        dropped = frozenset(self._activating.values())
        self._queue.clear()
        self._open.clear()
        self._sent.clear()
        self._early.clear()
        for task in self._background:
            task.cancel()
        self._waiting_for_retry = 0
        return dropped

    def activate(self, pod: Pod) -> None:
        """Make kube-scheduler try a pod, with retries in the background.

        Lift Serried's scheduling gate if the pod has it. Else write an annotation, as any update of a pod that filter
        has rejected requeues it.
        """
        task = self._spawn(pod, self._activate)
        self._activating[task] = pod.uid
        task.add_done_callback(self._activating.pop)

    def requeue(self, pod: Pod, node: str) -> None:
        """Make kube-scheduler try a pod that its own plugins have rejected: nominate it to ``node`` for a moment.

        An annotation is not enough: of the pod's own updates NodeResourcesFit reacts only to smaller requests. A
        cleared nomination counts as the end of a pod on the node (upstream's pkg/scheduler/eventhandlers.go:
        updatePodInSchedulingQueue), for all pods of no higher priority.
        """
        self._spawn(pod, partial(self._nominate_shortly, node=node))

    def activate_idle(self, cycle: BindingCycle) -> None:
        """Activate the members of a cycle that kube-scheduler should have tried by now.

        Their earlier nomination or activation seems lost. While kube-scheduler sends filter calls, it is working
        through its queue, so a member is activated only after 20 seconds without a filter call for it. If it has sent
        no filter call for a second, 2 seconds are enough, because it seems not to know that it should try the member.
        Both times double with each activation of a member.
        """
        now = self._clock()
        patience = _ACTIVATE_SECONDS if self._activity.is_silent() else _ACTIVATE_BUSY_SECONDS
        for uid in cycle.reservation.slots.keys() - cycle.at_bind - cycle.bound:
            since, activations = self._sent.get(uid, (now, 0))
            pod, member = self._store.pods.get(uid), cycle.member(uid)
            if cycle.open_slots.waits_for_mates(uid):
                continue
            if pod is None or now - max(since, member.filtered_at or 0.0) < patience * 2**activations:
                continue
            if len(self._background) - self._waiting_for_retry >= _WRITERS:
                return
            self._sent[uid] = (now, activations + 1)
            self.note_filter_call(uid)  # a member that kube-scheduler does not try must not fill the window
            if pod.held_by_gate and not cycle.open_slots.any_node and not member.nominated:
                self.nominate(cycle, [uid])  # the nomination has failed; the gate is lifted only after it
            else:
                self.activate(pod)

    async def _write_nominations(self) -> None:
        while True:
            while not self._queue or len(self._open) >= self._window:
                self._wake.clear()
                await self._wake.wait()
            cycle, uid = self._queue.popleft()
            try:
                await self._send(cycle, uid)
            except ApiError as error:
                # filter still answers the planned node from the ledger; activate_idle tries again.
                self.note_filter_call(uid)
                log.warning(
                    "could not nominate a member to its node; trying again", extra={"uid": uid, "err": str(error)}
                )
            except Exception:
                # One faulty member must not stop the nominations of all others.
                self.note_filter_call(uid)
                log.exception("could not nominate a member because of an internal error", extra={"uid": uid})

    async def _send(self, cycle: BindingCycle, uid: str) -> None:
        slot, pod = cycle.reservation.slots.get(uid), self._store.pods.get(uid)
        member = cycle.member(uid)
        if slot is None or pod is None or cycle.over or member.call is not None or member.bound:
            return
        # kube-scheduler treats a nominated pod as present on the node. Members that are to be placed before it, as they
        # are in earlier waves, might find their nodes infeasible then.
        any_order = cycle.open_slots.in_any_order(uid) and uid != cycle.open_slots.chosen_missed
        if cycle.waits_for_victims:
            if not any_order and cycle.open_slots.is_first_on_node(uid, cycle.reservation.slots):
                await self._nominate_early(cycle, pod, slot.node)
                self._nominate_again_if_moved(cycle, uid, slot.node)
            return
        if cycle.open_slots.waits_for_mates(uid):
            return  # it is nominated when the members before it are placed
        known = uid in self._sent
        self._sent.setdefault(uid, (self._clock(), 0))
        if any_order:
            # A member whose slot was moved after its filter call is unschedulable again, and has to be activated again.
            tried = known and member.filtered_at is None and pod.unschedulable
            if (not known or tried) and (member.stage is MemberStage.UNSCHEDULABLE or pod.held_by_gate):
                await self._activate(pod)
            return
        # A member that filter has answered needs no write, nor does a member that kube-scheduler will try anyway if
        # any node does.
        aside = member.stage is MemberStage.UNSCHEDULABLE
        if member.filtered_at is None and (aside or not cycle.open_slots.any_node):
            never = self._policy is NominationPolicy.NEVER
            await (self._annotate(pod) if never else self._nominate(cycle, pod, slot.node))
            if not never and lacks_matching_pods(pod.objection):
                await self._annotate(pod)  # rejected by affinity to a mate: a nomination does not requeue it
        if pod.held_by_gate and not cycle.over:
            # Only after the response: kube-scheduler's watch is ordered, so it sees the nomination first.
            await self._lift_gate(pod)

    async def _nominate_early(self, cycle: BindingCycle, pod: Pod, node: str) -> None:
        """Nominate a member to its node while victims still run there, so that kube-scheduler keeps other pods off it.

        Do nothing if the settings forbid nominations (`NominationPolicy.NEVER`).
        """
        if self._policy is NominationPolicy.NEVER:
            return
        self._early.add(pod.uid)
        if pod.nominated == node:
            return
        term = self._terms
        await self._patch_nomination(pod, node)
        if self._terms != term:
            return
        cycle.mark_nominated(pod.uid)
        if cycle.over:
            await self._clear(pod)

    def _nominate_again_if_moved(self, cycle: BindingCycle, uid: str, node: str) -> None:
        """Nominate a member again if its slot was moved away from ``node`` while it was nominated to that node."""
        slot = cycle.reservation.slots.get(uid)
        if slot is not None and slot.node != node and not cycle.over and not cycle.member(uid).reached:
            self.nominate(cycle, [uid])

    async def _nominate(self, cycle: BindingCycle, pod: Pod, node: str) -> None:
        cycle.mark_nominating(pod.uid, begun=True)
        try:
            await self._write_nomination(cycle, pod, node)
        finally:
            cycle.mark_nominating(pod.uid, begun=False)

    async def _write_nomination(self, cycle: BindingCycle, pod: Pod, node: str) -> None:
        self._open[pod.uid], term = self._clock(), self._terms
        if pod.nominated and pod.nominated != node:
            # In two steps, because kube-scheduler's nominator does not expect a nomination to change its node.
            await self._patch_nomination(pod, None)
            if self._terms != term:
                return
        if pod.nominated != node:
            await self._patch_nomination(pod, node)
        elif not pod.held_by_gate:
            # The pod has this nomination already, so kube-scheduler would get no update. If kube-scheduler has just
            # cleared it, filter still answers the node. (The policy `serried-extender-pod-status` allows no write of
            # the status that does both.)
            await self._annotate(pod)
        if self._terms != term:
            return  # the nomination may be the next leader's by now
        cycle.mark_nominated(pod.uid)
        if cycle.over:
            # The cycle ended during the write, after release() had checked the nominations.
            await self._clear(pod)

    async def _clear(self, pod: Pod) -> None:
        if pod.uid not in self._sent and pod.uid not in self._early:  # else a newer cycle has nominated it by now
            await self._patch_nomination(pod, None)

    async def _activate(self, pod: Pod) -> None:
        await (self._lift_gate(pod) if pod.held_by_gate else self._annotate(pod))

    async def _nominate_shortly(self, pod: Pod, node: str) -> None:
        # This write may have waited, and kube-scheduler may have tried the pod meanwhile. The store may not have the
        # pod if only kube-scheduler's watch has shown it yet.
        current = self._store.pods.get(pod.uid, pod)
        if not current.pending or current.nominated not in {"", node}:
            return
        # If this process dies in between, kube-scheduler's next try ends the nomination.
        await self._patch_nomination(pod, node)
        await self._patch_nomination(pod, None)

    async def _patch_nomination(self, pod: Pod, node: str | None) -> None:
        body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
        await self._client.patch_merge(PODS, pod.namespace, pod.name, body, "status")

    async def _lift_gate(self, pod: Pod) -> None:
        gates = [{"name": gate} for gate in pod.gates if gate != HELD_GATE]
        body = {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": gates or None}}
        await self._client.patch_merge(PODS, pod.namespace, pod.name, body)

    async def _annotate(self, pod: Pod) -> None:
        # Any update of the pod requeues it (upstream's pkg/scheduler/backend/queue/scheduling_queue.go). The value only
        # has to be new.
        note = {ACTIVATION_ANNOTATION: f"{self._clock():.3f}"}
        body: dict[str, Any] = {"metadata": {"uid": pod.uid, "annotations": note}}
        if lacks_matching_pods(pod.objection):
            # A pod rejected by InterPodAffinity is requeued only by a change of its labels (EventsToRegister).
            body["metadata"]["labels"] = note
        await self._client.patch_merge(PODS, pod.namespace, pod.name, body)

    def _spawn(self, pod: Pod, write: Write) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._run_with_retries(pod, write))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _run_with_retries(self, pod: Pod, write: Write) -> None:
        # No caller repeats the write. A pod that is not activated waits for minutes, and a nomination that stays keeps
        # other pods off the node.
        async for failures in Attempts(_RETRY):
            if failures:
                self._waiting_for_retry -= 1
            if await self._try(pod, write):
                return
            self._waiting_for_retry += 1

    async def _try(self, pod: Pod, write: Write) -> bool:
        """Call ``write``, which patches a pod, once. Return True if it is done or can never succeed.

        Return False if it is to be tried again later. A failure is logged, except NotFound and Conflict.
        """
        # Bindings use the same connections, so hundreds of these writes must not queue before them.
        async with self._few:
            try:
                await write(pod)
            except (TooMany, Unavailable) as error:
                text = "could not patch a pod to requeue it or to clear its nomination; trying again"
                log.warning(text, extra=name_pod(pod) | {"err": str(error)})
                return False
            except NotFound:
                return True
            except Conflict:
                # The pod was made again (then the old UID leaves the Store), or other clients write to it all the time.
                return pod.uid not in self._store.pods
            except ApiError as error:
                text = "the API server refuses to patch a pod, so it is not requeued, or keeps its nomination"
                log.warning(text, extra=name_pod(pod) | {"err": str(error)})
            except Exception:
                log.exception("could not patch a pod because of an internal error", extra=name_pod(pod))
        return True
