"""Sending members to their nodes: nominations, lifted gates, and activations of members that are not tried.

A nomination (`status.nominatedNodeName`) is a hint, not a record. It makes kube-scheduler try one node instead of all
and keeps other pods of the same scheduler off that node; the scheduler may erase it at any time, and the ledger then
still answers filter with the planned node.
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

log = logging.getLogger(__name__)

ACTIVATION_ANNOTATION = "scheduling.serried.dev/kick"
_ACTIVATE_SECONDS = 2.0
"""A member of which nothing is heard for so long is activated, if the scheduler is silent."""

_ACTIVATE_BUSY_SECONDS = 20.0
"""The same while the scheduler is busy."""

_WRITERS = 16
"""How many pods may be on their way."""

_RETRY = Backoff(first=1.0, cap=30.0)

Write = Callable[[Pod], Coroutine[Any, Any, None]]


class Nominator:
    """Writes nominations with a bounded number of pods on their way, in the order in which their cycles began.

    The window is how many nominated members may be without a filter call: what the scheduler drains in about two
    seconds, so that no nomination is older than that when its turn comes.
    """

    _terms = 0

    _resting = 0
    """How many of those in the background wait before they try again."""

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
        """The UIDs of members that are nominated to nodes which are not free yet."""

        self._few = asyncio.Semaphore(_WRITERS)
        self._wake = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._waking: dict[asyncio.Task[None], str] = {}
        """Those of them that activate a pod, with its UID."""

        self._writing: list[asyncio.Task[None]] = []
        """The writers of nominations."""

    async def run(self) -> None:
        """Write until cancelled."""
        try:
            while True:  # once, and again after each `close`
                self._writing = [asyncio.create_task(self._write_nominations()) for _ in range(_WRITERS)]
                ended, _ = await asyncio.wait(self._writing, return_when=asyncio.FIRST_EXCEPTION)
                for writer in ended:
                    if not writer.cancelled():
                        writer.result()
        finally:
            await self.close()

    async def close(self) -> None:
        """End every write where it stands, and return once none is on its way. What is queued comes after that."""
        tasks = [*self._writing, *self._background]
        for task in tasks:
            task.cancel()
        self._resting = 0
        await asyncio.gather(*tasks, return_exceptions=True)

    def nominate(self, cycle: BindingCycle, uids: Iterable[str]) -> None:
        """Send these members of a cycle to their slots."""
        self._queue.extend((cycle, uid) for uid in uids)
        self._wake.set()

    def nominate_all(self, cycle: BindingCycle) -> None:
        """Send all members of a cycle to their slots."""
        self.nominate(cycle, list(cycle.reservation.slots))

    def arrived(self, uid: str) -> None:
        """A steered member has come to filter: its place in the window is free."""
        if self._open.pop(uid, None) is not None:
            self._wake.set()

    def release(self, uids: Iterable[str], pods: Iterable[Pod]) -> None:
        """A cycle ended: forget these members, and take our nominations off those pods that still carry one."""
        for uid in uids:
            self.arrived(uid)
            self._sent.pop(uid, None)
            self._early.discard(uid)
        for pod in pods:
            self._spawn(pod, self._clear)

    def end_term(self) -> frozenset[str]:
        """Another instance may lead from now on: nothing more is written.

        The UIDs of the pods that are not activated any more, as far as this is known here.
        """
        self._terms += 1
        asleep = frozenset(self._waking.values())
        self._queue.clear()
        self._open.clear()
        self._sent.clear()
        self._early.clear()
        for task in self._background:
            task.cancel()
        self._resting = 0
        return asleep

    def activate(self, pod: Pod) -> None:
        """Make the scheduler try a pod: lift our gate, or touch it if it was held by filter."""
        task = self._spawn(pod, self._activate)
        self._waking[task] = pod.uid
        task.add_done_callback(self._waking.pop)

    def requeue(self, pod: Pod, node: str) -> None:
        """Make the scheduler try a pod that its own plugins have rejected, by a nomination to the node and its end.

        A touch does not do it: of the pod's own updates NodeResourcesFit waits for less requests only. The end of a
        nomination counts as that of a pod on the node (upstream's pkg/scheduler/eventhandlers.go:
        updatePodInSchedulingQueue), for all pods of no higher priority.
        """
        self._spawn(pod, partial(self._nominate_shortly, node=node))

    def activate_idle(self, cycle: BindingCycle) -> None:
        """Touch the members of a cycle for which a wake-up seems lost.

        A scheduler that calls filter is working through its queue, and a touch would only cost it a write; one that is
        silent for a second while a member waits for two has not heard of that member.
        """
        now = self._clock()
        patience = _ACTIVATE_SECONDS if self._activity.is_silent() else _ACTIVATE_BUSY_SECONDS
        for uid in cycle.reservation.slots.keys() - cycle.at_bind - cycle.bound:
            since, activations = self._sent.get(uid, (now, 0))
            pod, member = self._store.pods.get(uid), cycle.member(uid)
            if cycle.seats.waits(uid):
                continue
            if pod is None or now - max(since, member.filtered_at or 0.0) < patience * 2**activations:
                continue
            if len(self._background) - self._resting >= _WRITERS:
                return
            self._sent[uid] = (now, activations + 1)
            self.arrived(uid)  # whatever keeps it away, it must not keep others out of the window
            if pod.held_by_gate and not cycle.seats.any_node and not member.nominated:
                self.nominate(cycle, [uid])  # writing it failed, and the gate goes after it only
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
                # The ledger still answers filter with the planned node; activate_idle tries again.
                self.arrived(uid)
                log.warning("could not steer a member", extra={"uid": uid, "err": str(error)})
            except Exception:
                # One odd member must not stop the nominations of all others.
                self.arrived(uid)
                log.exception("could not steer a member", extra={"uid": uid})

    async def _send(self, cycle: BindingCycle, uid: str) -> None:
        slot, pod = cycle.reservation.slots.get(uid), self._store.pods.get(uid)
        member = cycle.member(uid)
        if slot is None or pod is None or cycle.over or member.call is not None or member.bound:
            return
        # A nomination counts for kube-scheduler as a pod on the node, which may keep off mates that come before.
        in_turn = cycle.seats.is_in_turn(uid) and uid != cycle.seats.called
        if cycle.preempts:
            if not in_turn and cycle.seats.comes_first(uid, cycle.reservation.slots):
                await self._keep_off(cycle, pod, slot.node)
                self._follow(cycle, uid, slot.node)
            return
        if cycle.seats.waits(uid):
            return  # it is sent when they have theirs
        known = uid in self._sent
        self._sent.setdefault(uid, (self._clock(), 0))
        if in_turn:
            # One whose slot was moved after filter had answered has left the scheduler's queue once more.
            tried = known and member.filtered_at is None and pod.unschedulable
            if (not known or tried) and (member.stage is MemberStage.UNSCHEDULABLE or pod.held_by_gate):
                await self._activate(pod)
            return
        # A member that filter has answered already is on its way without any write, and so is one that is tried by
        # itself if any node will do.
        aside = member.stage is MemberStage.UNSCHEDULABLE
        if member.filtered_at is None and (aside or not cycle.seats.any_node):
            never = self._policy is NominationPolicy.NEVER
            await (self._annotate(pod) if never else self._nominate(cycle, pod, slot.node))
            if not never and lacks_matching_pods(pod.objection):
                await self._annotate(pod)  # it was refused for want of a mate: a nomination does not wake it
        if pod.held_by_gate and not cycle.over:
            # After the answer: the scheduler's watch is in order, so it sees the nomination before the gate goes.
            await self._lift_gate(pod)

    async def _keep_off(self, cycle: BindingCycle, pod: Pod, node: str) -> None:
        """Have the scheduler keep others off a node that is not free yet; nobody waits for the member to come."""
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

    def _follow(self, cycle: BindingCycle, uid: str, node: str) -> None:
        """Nominate a member again whose seat was changed while its nomination to this node was written."""
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
            # Two steps: a nomination that jumps from node to node is not what the scheduler's nominator expects.
            await self._patch_nomination(pod, None)
            if self._terms != term:
                return
        if pod.nominated != node:
            await self._patch_nomination(pod, node)
        elif not pod.held_by_gate:
            # It carries this nomination already, so the scheduler would not hear of it. If it has just erased it,
            # filter steers all the same. (By `serried-extender-pod-status` no write of the status may do both.)
            await self._annotate(pod)
        if self._terms != term:
            return  # what the pod carries by now may be the next leader's
        cycle.mark_nominated(pod.uid)
        if cycle.over:
            # The cycle ended under our write, after release() had looked for nominations.
            await self._clear(pod)

    async def _clear(self, pod: Pod) -> None:
        if pod.uid not in self._sent and pod.uid not in self._early:  # else a newer cycle has nominated it by now
            await self._patch_nomination(pod, None)

    async def _activate(self, pod: Pod) -> None:
        await (self._lift_gate(pod) if pod.held_by_gate else self._annotate(pod))

    async def _nominate_shortly(self, pod: Pod, node: str) -> None:
        # It may have waited for its turn, or for the API server, and kube-scheduler tries the pod of its own accord.
        # Without the pod in the store only kube-scheduler has seen it yet.
        current = self._store.pods.get(pod.uid, pod)
        if not current.pending or current.nominated not in {"", node}:
            return
        # If we die in between, the scheduler ends it with its next try, which fills the node or finds no room there.
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
        # Any update of the pod itself wakes it (upstream's pkg/scheduler/backend/queue/scheduling_queue.go); the value
        # only has to be new.
        note = {ACTIVATION_ANNOTATION: f"{self._clock():.3f}"}
        body: dict[str, Any] = {"metadata": {"uid": pod.uid, "annotations": note}}
        if lacks_matching_pods(pod.objection):
            # Of its updates that of a label alone wakes a pod that InterPodAffinity has rejected (EventsToRegister).
            body["metadata"]["labels"] = note
        await self._client.patch_merge(PODS, pod.namespace, pod.name, body)

    def _spawn(self, pod: Pod, write: Write) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._bounded(pod, write))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _bounded(self, pod: Pod, write: Write) -> None:
        # Nobody asks for it again: a pod that is not woken waits for minutes, a nomination that stays keeps others out.
        async for failures in Attempts(_RETRY):
            if failures:
                self._resting -= 1
            if await self._try(pod, write):
                return
            self._resting += 1

    async def _try(self, pod: Pod, write: Write) -> bool:
        """Whether nothing is left to do: it is done, or the API server will never take it."""
        # Bindings go over the same connections: what only tidies up must not queue before them by the hundred.
        async with self._few:
            try:
                await write(pod)
            except (TooMany, Unavailable) as error:
                log.warning("could not touch a pod yet", extra={"err": str(error)})
                return False
            except NotFound:
                return True
            except Conflict:
                # It was made anew, or others have written to it each time that the API server tried: the watch knows.
                return pod.uid not in self._store.pods
            except ApiError as error:
                log.warning("could not touch a pod", extra={"err": str(error)})
            except Exception:
                log.exception("could not touch a pod")
        return True
