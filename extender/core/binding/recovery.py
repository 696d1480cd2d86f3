"""The start of a term: continues the cycles of committed records, and continues or drops planned ones.

The loop calls `Recovery.recover` once all caches are listed and before the first plan, because a plan must see the
slots of earlier terms. First each record gets the name of this term (`Records.take_over`), so that no earlier leader
can write it any more. A committed record waits until the watch shows all of its existing members
(`EarlierBindings.wait_until_shown`). Before each Binding, the permit decides whether the member may still be bound.

A record is an object of its namespace. Without the policy `serried-reservations` any client with write access there may
have written it, and may have put pods of other namespaces into it. `drop_foreign_pods` removes these. Members are
always in the namespace of their group. Victims may be in any namespace. Serried writes a condition that names the gang
on each victim before the first eviction, which a client without access to the victim's namespace cannot do. A victim in
another namespace without this condition was not evicted for the gang, so it is removed from the record.

`StrayNominations` clears the nominations of pods without a slot, left by a process that died before its cycle ended.
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
from extender.core.scheduling.open_slots import OpenSlots, merge_waves
from extender.core.scheduling.permit import find_misfit
from extender.core.scheduling.scheduling_cycle import SchedulingCycle
from serried.api.group import PodGroup, Policy
from serried.api.pod import Pod
from serried.api.reservation import Reservation, Slot, Victim, describe_preemption
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, NotFound, TooMany, Unavailable
from serried.kube.retry import Attempts, Backoff
from serried.kube.wire import PODS
from serried.ops.log import name_group
from serried.plan.coupled import restore_waves

FindPod = Callable[[str], Pod | None]
"""Returns the pod with a UID; None if it does not exist."""


def drop_foreign_pods(record: Reservation, find: FindPod) -> Reservation:
    """Return the record without the pods that the writer of the record may not bind or evict.

    These are members of another namespace than the gang's; all victims of a committed record; victims whose name or
    namespace is not that of the pod with their UID; and victims of another namespace that are not being deleted, and on
    which Serried has not written that they are evicted for this gang. Pods that ``find`` (by UID) does not find stay.
    Return ``record`` itself if none is dropped. The result may have no slots.
    """
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
        return False  # the victims had ended before the commit, so none may be named
    pod = find(victim.uid)
    if pod is None:
        return True
    if (pod.namespace, pod.name) != (victim.namespace, victim.name):
        return False
    own = pod.namespace == record.group.namespace
    return own or pod.deleting or pod.disruption_message == describe_preemption(record.group)


log = logging.getLogger(__name__)

FIELD_MANAGER = "serried"
"""Serried's name as the field manager in ``metadata.managedFields`` of the objects that it writes."""

_MAX_READS = 16
"""The maximum number of pods that are read at the same time."""

_MAX_FAILURES = 3
"""After how many failed reads of one pod its nomination is left as it is.

A new leader plans no gang before that, so the number is small.
"""

_RETRY = Backoff(first=0.5, cap=2.0)


class StrayNominations:
    """Clears nominations that earlier terms have written, and whose pods have no slot any more.

    They would keep other pods off the nodes.
    """

    def __init__(self, client: ApiClient, context: Context, *, nominator: Nominator) -> None:
        self._client = client
        self._pods = context.store.pods
        self._members = context.store.members
        self._ledger = context.ledger
        self._nominator = nominator
        self._term = context.term

    async def clear(self) -> None:
        """Clear the nominations of all pending members without a slot, if Serried has written them.

        Call at the start of a term, after the ledger has the slots of all records. Nominations that kube-scheduler has
        written stay.
        """
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
        # kube-scheduler nominates members, too, when it preempts. Only the field's manager tells the two apart.
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
                log.warning("cannot find out whether Serried nominated a pod, so its nomination stays", extra=detail)
                return False
            return _has_nominated(found)
        raise AssertionError("attempts do not end")


def _has_nominated(pod: Mapping[str, Any]) -> bool:
    """Return whether Serried has written the nomination of a pod, by the ``managedFields`` of the raw object."""
    return any(
        entry.get("manager") == FIELD_MANAGER
        and "f:nominatedNodeName" in (entry.get("fieldsV1") or {}).get("f:status", {})
        for entry in pod["metadata"].get("managedFields") or []
    )


_MAX_NAMED = 3
"""The maximum number of pods whose UIDs are named in one line of the log."""


class Recovery:
    """Rebuilds the ledger from the records of earlier terms, at the start of each term, and continues their cycles."""

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
        """Take over all records, continue or drop each, and clear nominations of pods without a slot.

        Return whether this instance still leads. If not, another instance may have led meanwhile, and what was read is
        outdated. Raise ApiError if the records cannot be read, and UndecidedError if it is unknown whether committed
        members exist. The caller then has to try again. No gang may be planned before, because the resources of the
        earlier gangs are not reserved in the ledger.
        """
        self._scheduling_cycle.endings.hand_over_all()  # cycles of a failed attempt, whose records are read again
        self._runner.carry_out()
        self._term.recovering = True  # cycles may write from now on, plans come later
        try:
            taken = await self._records.take_over(self._drop_foreign_pods)
            await self._earlier.wait_until_shown(taken)
            for feature in self._features[Feature.recover]:
                feature.recover(taken)
            if not self._term.leads():
                return False
            # No await until all slots are in the ledger: a member that needs another node must see all of them as used.
            dropped = [each for each in taken if not self._continue(each)]
            for feature in self._features[Feature.recovered]:
                await feature.recovered(dropped)
            for reservation in dropped:
                if not self._term.leads():
                    return False
                await self._runner.delete_record(reservation)
            await self._stray_nominations.clear()
            return self._term.leads()
        finally:
            self._term.recovering = False

    def _drop_foreign_pods(self, record: Reservation) -> Reservation:
        """Return a record without the pods that its writer may not bind or evict (`drop_foreign_pods`); log these."""
        accepted = drop_foreign_pods(record, self._find_pod)
        if accepted is not record:
            kept = accepted.slots.keys() | accepted.victims.keys()
            dropped = sorted((record.slots.keys() | record.victims.keys()) - kept)
            named = {"uids": dropped[:_MAX_NAMED], "pods": len(dropped)}
            text = "a Reservation names pods that its gang may neither bind nor evict; they are ignored"
            log.warning(text, extra=name_group(record.group) | named)
        return accepted

    def _find_pod(self, uid: str) -> Pod | None:
        """Return the pod with a UID from the cache; for a deleted member whose slot is kept, its last state.

        None if there is neither.
        """
        pod = self._store.pods.get(uid)
        if pod is not None:
            return pod
        vacancy = self._store.vacancies.find(uid)
        return vacancy.pod if vacancy is not None else None

    def _continue(self, reservation: Reservation) -> bool:
        """Reserve the slots of a record in the ledger and start its cycle.

        Return False if the record is to be dropped: its PodGroup is gone and it is not committed, none of its members
        is pending, it waits for victims but no feature evicts pods now, or it is a plan that does not fit any more.
        """
        group = self._find_group(reservation)
        known = [self._store.pods[uid] for uid in reservation.slots if uid in self._store.pods]
        pods = {pod.uid: pod for pod in known if pod.pending}
        if group is None or not pods or (self._waits_for_victims(reservation) and not self._features[Feature.pre_bind]):
            return False
        bound = [pod for pod in known if pod.bound]
        cycle = self._make_cycle(group, reservation, bound, pods)
        if not self._reserve(cycle, pods):
            return False
        if reservation.committed:
            self._earlier.restore_bound(cycle, bound)
        text = "took over the Reservation of an earlier leader"
        log.info(text, extra=name_group(reservation.group) | {"phase": reservation.phase})
        state = self._context.groups.states.setdefault(reservation.group, GroupState(cycle.started))
        self._scheduling_cycle.start(state, cycle)
        self._runner.carry_out()
        return True

    def _waits_for_victims(self, reservation: Reservation) -> bool:
        """Return whether a record is not committed and some of its victims are still on their nodes."""
        return not reservation.committed and self._has_victims(reservation)

    def _has_victims(self, reservation: Reservation) -> bool:
        pods = (self._store.pods.get(uid) for uid in reservation.victims)
        return any(pod is not None and pod.bound for pod in pods)

    def _reserve(self, cycle: BindingCycle, pods: Mapping[str, Pod]) -> bool:
        """Reserve the slots of the pending members ``pods`` (by UID) in the ledger. Return whether they stay reserved.

        A plan that is not committed is unreserved again, and False returned, if it has too few members for its quorum
        or does not fit any more. While it waits for victims, it need not fit.
        """
        reservation = cycle.reservation
        self._ledger.reserve(reservation, pods)
        if reservation.committed:
            return True
        fits = cycle.stage is CycleStage.PREEMPTING
        if not fits:
            self._ledger.forget_victims(reservation)
            fits = find_misfit(cycle.group, reservation, pods, self._store, beside=self._ledger) is None
        if fits and not reservation.misses_quorum(pods.keys()):
            return True
        self._ledger.unreserve(reservation.group)
        return False

    def _make_cycle(
        self, group: PodGroup, reservation: Reservation, bound: Collection[Pod], pods: Mapping[str, Pod]
    ) -> BindingCycle:
        now, runs = self._context.clock(), {pod.uid for pod in bound}
        preempts = self._has_victims(reservation)
        stage = CycleStage.PREEMPTING if preempts else CycleStage.GATHERING
        waves = merge_waves(self._find_waves(reservation, pods), pods, self._store.members.leaf_of)
        cycle = BindingCycle(
            group,
            reservation,
            started=now,
            progressed=now,
            stage=CycleStage.BINDING if reservation.committed else stage,
            open_slots=OpenSlots(waves),
            preempted=bool(reservation.victims),
            # Also those of deleted members: no more victims are to be evicted for these.
            evicted_for={uid: slot for uid, slot in reservation.slots.items() if preempts and uid not in runs},
            from_earlier_term=True,
        )
        if reservation.victims and not preempts:
            cycle.note_eviction_sent(self._store.list_foreign(reservation.nodes))
        return cycle

    def _find_waves(self, reservation: Reservation, pods: Mapping[str, Pod]) -> tuple[tuple[str, ...], ...]:
        """Return the waves of a record's plan: tuples of member UIDs that kube-scheduler may try in any order.

        A wave is tried once the waves before it are assumed. They are computed again, as a record does not have them.
        Empty for a committed record.
        """
        if reservation.committed:
            return ()
        members = tuple(pods.values())
        nodes = {uid: slot.node for uid, slot in reservation.slots.items() if uid in pods}
        priority = min(member.priority for member in members)
        return restore_waves(self._store.snapshots.take(priority, members), members, nodes)

    def _find_group(self, reservation: Reservation) -> PodGroup | None:
        """Return the PodGroup of a record; None if it is gone, or another PodGroup has its name now.

        A committed record outlives its PodGroup, as its members have to be bound. Then return a made-up PodGroup, with
        the committed members as its minCount and the topology key of the record's domain.
        """
        found = self._store.groups.get(reservation.group)
        if found is not None and found.uid == reservation.group_uid:
            return found
        if not reservation.committed:
            return None
        key = self._find_topology_key(reservation) if reservation.domain else None
        return PodGroup(reservation.group, reservation.group_uid, Policy(len(reservation.committed)), key)

    def _find_topology_key(self, reservation: Reservation) -> str:
        """Return the topology key of a record's domain, guessed from the node labels: the record has no key.

        It is a label key that has the domain as its value on all nodes of the record. If there are several, any one
        keeps the gang together. "" if there is none. No node has a label with the key "", so no other node counts as
        part of the domain, and every member keeps its planned node.
        """
        nodes = (self._store.nodes.get(slot.node) for slot in reservation.slots.values())
        labels = [node.labels.items() for node in nodes if node is not None]
        shared = set(labels[0]).intersection(*labels) if labels else set()
        return min((key for key, value in shared if value == reservation.domain), default="")
