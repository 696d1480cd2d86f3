"""The start of a term: committed Reservations are rolled forward, planned ones taken up again or dropped.

Runs once all caches are listed and before the first plan: a plan made earlier would not see the slots that an
earlier term has promised. First of all each record gets this term's name (`Records.take_over`), so that no earlier
leader can write it any more; whether its members may still be bound, the permit says
(`extender.core.scheduling.permit`).
A committed record is judged by all of its members that exist, also by those that the watch shows later (`unseen`).

How far a record reaches: it speaks for the pods of its own namespace, and for others as far as these say it, too.

A record is an object of its namespace, so whoever may do everything there may have written it, unless the policy
`serried-reservations` is there. Members are always of the namespace of their group. Victims may be of any; Serried
has said on each of them that it ends for this gang before the first one was evicted, and who can write only into
another namespace cannot say that. Without it nobody was evicted for the gang: it is planned anew.

Our nominations of pods that hold no slot: left by a process that died before the end of its record.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from extender.core.binding.committed import EarlierBindings
from extender.core.binding.nominator import Nominator
from extender.core.binding.records import Records
from extender.core.binding.run import CycleRunner
from extender.core.feature import Feature
from extender.core.scheduling.binding_cycle import BindingCycle, CycleStage
from extender.core.scheduling.effects import Context
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.permit import find_misfit
from extender.core.scheduling.scheduling_cycle import SchedulingCycle
from extender.core.scheduling.seats import Seats, arrange
from serried.api.group import PodGroup, Policy
from serried.api.pod import Pod
from serried.api.reservation import Reservation, Slot, Victim, describe_end
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, NotFound, TooMany, Unavailable
from serried.kube.retry import Attempts, Backoff
from serried.kube.wire import PODS
from serried.ops.log import name_group
from serried.plan.coupled import restore_waves

FindPod = Callable[[str], Pod | None]
"""The pod with a UID; None if it is gone, or was never there."""


def confine(record: Reservation, find: FindPod) -> Reservation:
    """The record without what it cannot speak for: itself, if it says nothing else. It may be left without slots."""
    slots = {uid: slot for uid, slot in record.slots.items() if _is_own(record, slot, find)}
    victims = [victim for victim in record.victims.values() if _is_confirmed(record, victim, find)]
    if len(slots) == len(record.slots) and len(victims) == len(record.victims):
        return record
    committed = record.committed & slots.keys()
    return Reservation(
        record.group, record.group_uid, record.domain, record.need, slots, committed, record.parts, victims
    )


def _is_own(record: Reservation, slot: Slot, find: FindPod) -> bool:
    pod = find(slot.uid)
    return pod is None or pod.namespace == record.group.namespace


def _is_confirmed(record: Reservation, victim: Victim, find: FindPod) -> bool:
    if record.committed:
        return False  # its victims were gone before: what is named here would only look as if it ended
    pod = find(victim.uid)
    if pod is None:
        return True
    if (pod.namespace, pod.name) != (victim.namespace, victim.name):
        return False
    own = pod.namespace == record.group.namespace
    return own or pod.deleting or pod.disruption_message == describe_end(record.group)


log = logging.getLogger(__name__)

FIELD_MANAGER = "serried"
"""The name under which we write, as ``managedFields`` have it."""

_MAX_READS = 16
"""How many pods are read at the same time."""

_MAX_FAILURES = 3
"""How many failures to read one are outlasted; all that wait for the new leader wait for this."""

_RETRY = Backoff(first=0.5, cap=2.0)


class StrayNominations:
    """Takes them off at the start of a term."""

    def __init__(self, client: ApiClient, context: Context, *, nominator: Nominator) -> None:
        self._client = client
        self._pods = context.store.pods
        self._members = context.store.members
        self._ledger = context.ledger
        self._nominator = nominator
        self._term = context.term

    async def clear(self) -> None:
        """Look at every nominated member without a slot. To be called once the ledger is rebuilt."""
        strays = [pod for pod in self._pods.values() if self._may_be_stray(pod)]
        reads = asyncio.Semaphore(_MAX_READS)
        async with asyncio.TaskGroup() as tasks:
            for pod in strays:
                tasks.create_task(self._clear(pod, reads))

    def _may_be_stray(self, pod: Pod) -> bool:
        is_member = self._members.group_of(pod.uid) is not None
        return is_member and pod.pending and bool(pod.nominated) and not self._has_slot(pod)

    async def _clear(self, pod: Pod, reads: asyncio.Semaphore) -> None:
        if await self._is_ours(pod, reads) and not self._has_slot(pod) and self._term.leads():
            self._nominator.release([pod.uid], [pod])

    def _has_slot(self, pod: Pod) -> bool:
        return self._ledger.of_pod(pod.uid) is not None

    async def _is_ours(self, pod: Pod, reads: asyncio.Semaphore) -> bool:
        # The scheduler nominates members too (preemption); only the field's manager tells the two apart.
        async for failures in Attempts(_RETRY):
            try:
                async with reads:
                    found = await self._client.get(PODS, pod.namespace, pod.name)
            except NotFound:
                return False
            except ApiError as error:
                if failures < _MAX_FAILURES and isinstance(error, (TooMany, Unavailable)):
                    continue
                detail = {"pod": f"{pod.namespace}/{pod.name}", "node": pod.nominated, "err": str(error)}
                log.warning("cannot tell whose nomination a pod has: it stays", extra=detail)
                return False
            return _has_nominated(found)
        raise AssertionError("attempts do not end")


def _has_nominated(pod: Mapping[str, Any]) -> bool:
    """Whether its nomination is one that we wrote."""
    return any(
        entry.get("manager") == FIELD_MANAGER
        and "f:nominatedNodeName" in (entry.get("fieldsV1") or {}).get("f:status", {})
        for entry in pod["metadata"].get("managedFields") or []
    )


_MAX_NAMED = 3
"""How many pods are named in a line of the log."""


class Recovery:
    """Rebuilds the ledger from the records of earlier terms. ``clock`` gives loop seconds."""

    def __init__(
        self,
        context: Context,
        records: Records,
        earlier: EarlierBindings,
        stray_nominations: StrayNominations,
        scheduling_cycle: SchedulingCycle,
        runner: CycleRunner,
    ) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._context = context
        self._term = context.term
        self._records = records
        self._earlier = earlier
        self._stray_nominations = stray_nominations
        self._scheduling_cycle = scheduling_cycle
        self._runner = runner
        self._features = context.features

    async def recover(self) -> bool:
        """Take every record over, then take stray nominations off; whether the term has lasted until the end of it.

        If not, others may have led meanwhile: what was read is outdated. Raises ApiError if the records cannot be read,
        and UnjudgedError if one cannot be judged yet: nobody may be planned before, as its room is not held.
        """
        self._scheduling_cycle.endings.leave_all()  # of an attempt that failed: the records are read anew
        self._runner.carry_out()
        self._term.recovering = True  # its cycles are driven on before anybody may plan
        try:
            taken = await self._records.take_over(self._confine)
            await self._earlier.wait(taken)
            for feature in self._features[Feature.recover]:
                feature.recover(taken)
            if not self._term.leads():
                return False
            # Nothing awaits before all are held: a member whose node has gone must find no room that is promised.
            dropped = [each for each in taken if not self._take(each)]
            for feature in self._features[Feature.recovered]:
                await feature.recovered(dropped)
            for reservation in dropped:
                if not self._term.leads():
                    return False
                await self._runner.end_record(reservation)
            await self._stray_nominations.clear()
            return self._term.leads()
        finally:
            self._term.recovering = False

    def _confine(self, record: Reservation) -> Reservation:
        """What counts of a record: it may name pods that it cannot speak for."""
        confined = confine(record, self._find_pod)
        if confined is not record:
            kept = confined.slots.keys() | confined.victims.keys()
            dropped = sorted((record.slots.keys() | record.victims.keys()) - kept)
            named = {"uids": dropped[:_MAX_NAMED], "pods": len(dropped)}
            log.warning("a Reservation names pods that it cannot speak for", extra=name_group(record.group) | named)
        return confined

    def _find_pod(self, uid: str) -> Pod | None:
        """A pod, or the one that has left a vacancy."""
        pod = self._store.pods.get(uid)
        if pod is not None:
            return pod
        vacancy = self._store.vacancies.find(uid)
        return vacancy.pod if vacancy is not None else None

    def _take(self, reservation: Reservation) -> bool:
        """Hold a record's slots and drive its cycle on; whether there was anything left to drive."""
        group = self._find_group(reservation)
        known = [self._store.pods[uid] for uid in reservation.slots if uid in self._store.pods]
        pods = {pod.uid: pod for pod in known if pod.pending}
        if group is None or not pods or (self._waits(reservation) and not self._features[Feature.pre_bind]):
            return False
        bound = [pod for pod in known if pod.bound]
        cycle = self._make_cycle(group, reservation, bound, pods)
        if not self._hold(cycle, pods):
            return False
        if reservation.committed:
            self._earlier.note(cycle, bound)
        log.info("took up a reservation", extra=name_group(reservation.group) | {"phase": reservation.phase})
        state = self._context.groups.states.setdefault(reservation.group, GroupState(cycle.started))
        self._scheduling_cycle.start(state, cycle)
        self._runner.carry_out()
        return True

    def _waits(self, reservation: Reservation) -> bool:
        """Whether others are to end for a record."""
        return not reservation.committed and self._has_victims(reservation)

    def _has_victims(self, reservation: Reservation) -> bool:
        pods = (self._store.pods.get(uid) for uid in reservation.victims)
        return any(pod is not None and pod.bound for pod in pods)

    def _hold(self, cycle: BindingCycle, pods: Mapping[str, Pod]) -> bool:
        """Hold the slots of these members; False for a plan that lacks some by now, or does not fit any more."""
        reservation = cycle.reservation
        self._ledger.reserve(reservation, pods)
        if reservation.committed:
            return True
        fits = cycle.stage is CycleStage.PREEMPTING
        if not fits:
            self._ledger.forget_victims(reservation)
            fits = find_misfit(cycle.group, reservation, pods, self._store, beside=self._ledger) is None
        if fits and not reservation.lacks(pods.keys()):
            return True
        self._ledger.unreserve(reservation.group)
        return False

    def _make_cycle(
        self, group: PodGroup, reservation: Reservation, bound: Collection[Pod], pods: Mapping[str, Pod]
    ) -> BindingCycle:
        now, runs = self._context.clock(), {pod.uid for pod in bound}
        preempts = self._has_victims(reservation)
        stage = CycleStage.PREEMPTING if preempts else CycleStage.GATHERING
        waves = arrange(self._find_waves(reservation, pods), pods, self._store.members.leaf_of)
        cycle = BindingCycle(
            group,
            reservation,
            started=now,
            progressed=now,
            stage=CycleStage.BINDING if reservation.committed else stage,
            seats=Seats(waves),
            preempted=bool(reservation.victims),
            # Also of those that are gone: nobody is to end for these.
            cleared={uid: slot for uid, slot in reservation.slots.items() if preempts and uid not in runs},
            taken_up=True,
        )
        if reservation.victims and not preempts:
            cycle.note_eviction_sent(self._store.list_foreign(reservation.nodes))
        return cycle

    def _find_waves(self, reservation: Reservation, pods: Mapping[str, Pod]) -> tuple[tuple[str, ...], ...]:
        """When the members may be tried, as in the plan: a record does not say that."""
        if reservation.committed:
            return ()
        members = tuple(pods.values())
        nodes = {uid: slot.node for uid, slot in reservation.slots.items() if uid in pods}
        priority = min(member.priority for member in members)
        return restore_waves(self._store.snapshots.take(priority, members), members, nodes)

    def _find_group(self, reservation: Reservation) -> PodGroup | None:
        """The record's own PodGroup, not one made anew under its name.

        A committed record outlives it: its members are bound as was committed, in the domain of the nodes it names.
        """
        found = self._store.groups.get(reservation.group)
        if found is not None and found.uid == reservation.group_uid:
            return found
        if not reservation.committed:
            return None
        key = self._find_key(reservation) if reservation.domain else None
        return PodGroup(reservation.group, reservation.group_uid, Policy(len(reservation.committed)), key)

    def _find_key(self, reservation: Reservation) -> str:
        """The topology key that a record's domain belongs to; one that no node carries if it cannot be told.

        The record names the domain only. The key is a label with that value on all of its nodes: of several, any keeps
        the gang together.
        """
        nodes = (self._store.nodes.get(slot.node) for slot in reservation.slots.values())
        labels = [node.labels.items() for node in nodes if node is not None]
        shared = set(labels[0]).intersection(*labels) if labels else set()
        return min((key for key, value in shared if value == reservation.domain), default="")
