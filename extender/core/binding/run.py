"""The task of one cycle: steer, gather the quorum at bind, commit, bind, and what follows.

Only a plan with victims is recorded before its commit (docs/decisions/0041-two-writes-a-gang.md).

Each await is a place where the world can change, or where this process can die. What holds then:

- while recording: nobody is nominated or bound; a restart finds no record, or a planned one that it may drop;
- while preempting: the record names the victims; a restart goes on with those that are left (`preempting`);
- while gathering: nothing is bound; a restart plans anew, or takes a recorded plan up again, or drops it;
- while committing: the record's write is either done or not; only a read-back decides, never the error we got;
- while binding: the record says Committed, so every restart rolls forward, whatever was sent already; one of which
  nothing was sent, and that would leave a half gang, is withdrawn instead (of an earlier term's, the API server says
  what was sent: `earlier`);
- while its record is left at the end: nothing depends on it, and the next leader deletes it;
- anywhere: the Lease may be lost. Then the cycle ends here without a write, and the next leader goes on.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from extender.core.binding.binder import Binder, BindOutcome, Sent, describe_gang, describe_label, describe_slot
from extender.core.binding.committed import EarlierBindings
from extender.core.binding.effects import Effects
from extender.core.binding.records import FinishedRecords, Records
from extender.core.feature import Feature
from extender.core.scheduling.activity import LONGEST_PREBIND_SECONDS
from extender.core.scheduling.binding_cycle import BindingCycle, CycleStage
from extender.core.scheduling.cycle_updates import CycleUpdates
from extender.core.scheduling.effects import Context, Effect, StartCycle, WriteBurst
from extender.core.scheduling.group_scheduler import GroupScheduler
from extender.core.scheduling.permit import Obstacle, Permit, Refusal
from serried.api.names import LABELLED, Key
from serried.api.reservation import Reservation
from serried.api.verdict import Reason, Verdict
from serried.cluster.usage import ClaimKind
from serried.kube.errors import ApiError
from serried.kube.retry import Attempts, Backoff
from serried.ops.log import name_group

log = logging.getLogger(__name__)

_ROLL_FORWARD = Backoff(first=0.2, cap=5.0)

_LONGEST_QUEUE = 1800.0
"""Seconds: a gang to which the scheduler has not come by then was not in its queue."""

_LOOK_SECONDS = 0.25
"""A deadline that is put off again and again is not looked at more often."""

_BETWEEN_BURSTS_SECONDS = 0.5
"""Whoever waits for the end of a burst waits so much longer: the next gang may be about to come."""


class _First:
    """The last question before the first Binding of a commit leaves: whether all of them may still be sent.

    The member that comes to the permit first asks it for all, in the step in which it is sent: it may have waited long
    for its turn. The others go by that no until the next look, unless a Binding is known meanwhile: then each goes on.
    """

    def __init__(self, cycle: BindingCycle, ask: Callable[[BindingCycle], Refusal | None]) -> None:
        self._cycle = cycle
        self._ask = ask
        self._refusal: Refusal | None = None

    @property
    def refused(self) -> bool:
        """Whether it has been a no, and nothing was sent."""
        return self._refusal is not None and not self._cycle.binding_sent

    def refuse(self) -> Refusal | None:
        """Why nothing may be sent; None if it may, or if something was."""
        if not self.refused:
            self._refusal = self._ask(self._cycle)
        return self._refusal


@dataclass(slots=True, eq=False)
class CycleRunner:
    """Drives cycles, and carries out what decisions ask for.

    A group may have shorter deadlines than the barrier's. The one in all counts from when the scheduler has come to the
    first member, the one without progress leaves out what it spends on others (decision 20).
    """

    _context: Context
    _group_scheduler: GroupScheduler
    _cycle_updates: CycleUpdates
    _effects: Effects
    _records: Records
    _binder: Binder
    _earlier: EarlierBindings
    burst: WriteBurst = field(init=False)
    """Whether Bindings of members are on their way, or were a moment ago."""

    _permit: Permit = field(init=False)
    finished: FinishedRecords = field(init=False)
    """The records that nobody needs any more."""

    def __post_init__(self) -> None:
        context = self._context
        self._permit = Permit(context)
        self.finished = FinishedRecords(
            self._records, self._effects.spawn, context.clock, lambda: len(context.ledger) > 0
        )
        self.burst = WriteBurst(context.clock, _BETWEEN_BURSTS_SECONDS, math.inf)

    def carry_out(self) -> None:
        """Carry out what decisions have asked for since the last call: to be called right after each of them."""
        for effect in self._context.outbox.take():
            try:
                self._carry_out(effect)
            except Exception:
                # It must not take those behind it with it: a cycle that is not started would hold its room for ever.
                log.exception("an effect failed", extra={"effect": type(effect).__name__})

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, StartCycle):
            self._effects.spawn(self.drive(effect.cycle))
        else:
            self._effects.carry_out(effect)

    def end_term(self) -> frozenset[str]:
        """Another instance may lead from now on: every task ends where it stands, and nothing more is written.

        The UIDs of the pods that are not activated any more.
        """
        self.carry_out()
        self.finished.end_term()
        return self._effects.end_term()

    async def end_record(self, reservation: Reservation) -> None:
        """Delete the record of a reservation that nobody drives, however long it takes: until it is gone, or replaced.

        One that a restart would only delete waits until no gang is bound. Nothing more happens at the end of the term.
        """
        if self._is_finished(reservation):
            await self.finished.remove_later(reservation)
        else:
            await self.finished.remove(reservation)

    def _is_finished(self, reservation: Reservation) -> bool:
        """Whether a record is of no use: its members are bound, or gone. Who has lost its slot may still be named."""
        members = self._context.store.members.iterate(reservation.group)
        return bool(reservation.committed) and not any(pod.pending for pod in members)

    async def drive(self, cycle: BindingCycle) -> None:
        """Run a cycle from wherever it stands to its end. Never raises but for cancellation."""
        try:
            while not cycle.over:
                await self._run_safely(cycle)
        finally:
            self.finished.look_again()
            if cycle.over and self._context.term.leads():
                await self.end_record(cycle.reservation)

    async def _run_safely(self, cycle: BindingCycle) -> None:
        try:
            await self._run(cycle)
        except Exception:
            log.exception("a binding cycle failed", extra=name_group(cycle.reservation.group))
            self.carry_out()  # what was decided before it failed
            if cycle.reservation.committed:
                await asyncio.sleep(_ROLL_FORWARD.cap)  # and again: after a commit there is no way back
            elif not cycle.over:
                self._give_up(cycle, Verdict(Reason.PLAN_OUTDATED, detail="internal error, see the log"))

    async def _run(self, cycle: BindingCycle) -> None:
        await self.finished.remove_of(cycle.reservation.group)  # of the members that the gang had before
        if cycle.stage is CycleStage.RECORDING:
            await self._record(cycle)
        if cycle.stage is CycleStage.PREEMPTING:
            await self._preempt(cycle)
        if cycle.stage is CycleStage.GATHERING:
            self._effects.nominate(cycle)
            await self._gather(cycle)
        if cycle.stage is CycleStage.COMMITTING:
            await self._commit(cycle)
        if cycle.stage is CycleStage.BINDING:
            await self._bind_committed(cycle)
            await self._drain(cycle)

    async def _record(self, cycle: BindingCycle) -> None:
        if cycle.reservation.need == 0 and not cycle.preempts:
            # The quorum stands: each member binds as it comes, there is nothing that could be left half done.
            cycle.enter(CycleStage.BINDING)
            self._effects.nominate(cycle)
            return
        try:
            if cycle.preempts:
                await self._records.write(cycle.group, cycle.reservation)
            else:  # nobody ends for this plan: after a restart another one does as well
                self._records.check_size(cycle.group, cycle.reservation)
        except ApiError as error:
            self._give_up(cycle, Verdict(Reason.RECORD_FAILED, detail=str(error)))
            return
        if not cycle.over:
            cycle.enter(CycleStage.PREEMPTING if cycle.preempts else CycleStage.GATHERING)

    async def _preempt(self, cycle: BindingCycle) -> None:
        verdict: Verdict | None = None
        for feature in self._context.features[Feature.pre_bind]:
            verdict = verdict or await feature.pre_bind(cycle)
        if cycle.over:
            return
        if verdict is not None or not self._context.term.leads():
            self._give_up(cycle, verdict or Verdict(Reason.PLAN_OUTDATED))
            return
        self._context.ledger.forget_victims(cycle.reservation)
        cycle.note_victims_gone(self._context.clock())
        self._mend_plan(cycle)
        if not cycle.over:
            cycle.enter(CycleStage.GATHERING)
            self._cycle_updates.note_room(cycle)

    def _mend_plan(self, cycle: BindingCycle) -> None:
        """The victims have taken their time: whoever's slot does not do any more gets another one, or none."""
        for uid in list(cycle.reservation.slots):
            pod = self._context.store.pods.get(uid)
            misfit = self._permit.find_misfit(cycle, uid)
            if misfit is not None:
                cycle.close_call(uid, f"serried: {misfit}")
            if misfit is None or (
                pod is not None and pod.pending and self._cycle_updates.reassignments.replace(cycle, pod)
            ):
                continue
            self._cycle_updates.reassignments.drop(cycle, uid, misfit)
        self.carry_out()

    def _give_up(self, cycle: BindingCycle, verdict: Verdict) -> None:
        """End a cycle of which no Binding was sent; what another instance may see by now is left to that one."""
        if cycle.over:
            return
        if self._context.term.leads():
            self._cycle_updates.endings.withdraw(cycle, verdict)
        else:
            self._cycle_updates.endings.leave(cycle)
        self.carry_out()

    async def _gather(self, cycle: BindingCycle) -> None:
        while not cycle.over:
            verdict = self._judge(cycle)
            if not self._context.term.leads():
                self._cycle_updates.endings.leave(cycle)
            elif verdict is not None:
                self._cycle_updates.endings.abort(cycle, verdict)
            self.carry_out()
            if cycle.over:
                return
            if not cycle.quorum_at_bind():
                await self._wait(cycle, max(self._context.clock() + _LOOK_SECONDS, self._deadline(cycle)))
            elif self._still_ready(cycle):
                cycle.enter(CycleStage.COMMITTING)
                return

    def _still_ready(self, cycle: BindingCycle) -> bool:
        # The newest cache once more, without an await from here to the commit: members and group may have gone.
        self._group_scheduler.consider(cycle.reservation.group)
        self.carry_out()
        return not cycle.over and cycle.quorum_at_bind()

    def _judge(self, cycle: BindingCycle) -> Verdict | None:
        reservation = cycle.reservation
        if cycle.out_of_reach() and not self._cycle_updates.reassignments.leave_out(cycle, reservation.slots):
            return Verdict(Reason.PLAN_OUTDATED, detail="planned members were deleted, or have lost their slots")
        if cycle.quorum_at_bind() or self._context.clock() <= self._deadline(cycle):
            return None
        self._context.groups.activity.count_idle(cycle)  # which puts the deadline off, by a look at every member
        late = self._context.clock() > self._deadline(cycle)
        if late and not self._cycle_updates.reassignments.leave_out(cycle, cycle.at_bind):
            return Verdict(Reason.DEADLINE_EXCEEDED, have=len(cycle.at_bind), need=reservation.need)
        return None

    def _deadline(self, cycle: BindingCycle) -> float:
        """When the cycle will be late, if the scheduler has nothing else to do until then; loop seconds.

        Before the scheduler has come to it, a gang has its room in the ledger alone. From the first member on the
        scheduler keeps room, too, and a bind call is open that must be answered before its time-out (15 minutes). Time
        in which the scheduler prepares an assumed member puts the deadline off until then.
        """
        total, idle = (
            min(self._context.options.barrier_seconds, cycle.group.timeout),
            min(self._context.options.barrier_idle_seconds, cycle.group.timeout),
        )
        longest = min(max(total, LONGEST_PREBIND_SECONDS), total + cycle.assumed_seconds, cycle.group.timeout)
        latest = cycle.started + _LONGEST_QUEUE if cycle.reached is None else cycle.reached + longest
        return min(latest, cycle.idle_counted + idle - cycle.late_seconds)

    async def _wait(self, cycle: BindingCycle, deadline: float) -> None:
        cycle.changed.clear()
        try:
            async with asyncio.timeout(max(0.01, deadline - self._context.clock())):
                await cycle.changed.wait()
        except TimeoutError:
            pass

    async def _commit(self, cycle: BindingCycle) -> None:
        reservation = cycle.reservation
        chosen = reservation.committed or frozenset(cycle.at_bind)  # the first, if writing it broke off
        if not chosen:
            cycle.enter(CycleStage.BINDING)
            return
        refusal = self._permit.refuse_all(cycle, chosen)
        if refusal is not None:
            self._give_up(cycle, Verdict(Reason.PLAN_OUTDATED, detail=refusal.text))
            return
        # From here to the answer neither abort nor deadline may touch the cycle: the swap may be done already.
        self._context.ledger.commit(reservation, chosen)
        try:
            await self._records.write(cycle.group, reservation)
        except ApiError as error:
            if not await self._was_committed(cycle, error):
                self._give_up(cycle, Verdict(Reason.RECORD_FAILED, detail=str(error)))
                return
        if not cycle.over:  # the Lease may have been lost meanwhile
            cycle.enter(CycleStage.BINDING)

    async def _was_committed(self, cycle: BindingCycle, error: ApiError) -> bool:
        """Whether the swap happened although its answer was an error.

        Asks until the API server says; no, if the term ends before.
        """
        log.warning("commit answered with an error", extra=name_group(cycle.group.key) | {"err": str(error)})
        async for _ in Attempts(_ROLL_FORWARD):
            if not self._context.term.leads():
                break
            try:
                return await self._records.is_committed(cycle.reservation)
            except ApiError:
                continue
        return False

    async def _bind_committed(self, cycle: BindingCycle) -> None:
        start = self._context.clock()
        committed = cycle.reservation.committed
        while not cycle.over and (left := self._list_left(cycle)):
            if committed and not cycle.binding_sent:
                await self._look_again(cycle)
                if cycle.over:
                    return
            first = _First(cycle, self._refuse_commit)
            await asyncio.gather(*(self._roll_forward(cycle, uid, first) for uid in left))
        if committed and not cycle.over:
            self._context.metrics.burst(self._context.clock() - start, len(committed))

    def _list_left(self, cycle: BindingCycle) -> list[str]:
        """The members of the commit that are still to be bound, but those in whose place others are."""
        left = cycle.reservation.committed & cycle.reservation.slots.keys() - cycle.bound
        return [uid for uid in left if not self._is_replaced(cycle, uid)]

    def _is_replaced(self, cycle: BindingCycle, uid: str) -> bool:
        """Whether a member's Binding is refused, and the quorum is bound without it: then it is one beyond it."""
        return bool(cycle.member(uid).failure) and self._permit.stands_without(cycle, uid)

    async def _look_again(self, cycle: BindingCycle) -> None:
        """The newest cache once more before the first Binding: the commit took its time, or is an earlier term's.

        Nobody is bound yet, or the API server is asked whether somebody is. So this is the last moment at which the
        whole gang can still be given up, and planned anew on nodes that the scheduler is asked about.
        """
        refusal = self._refuse_commit(cycle)
        if refusal is not None and cycle.taken_up:
            # That term may have ended in its burst, and our cache may not show it yet.
            await self._earlier.ask(cycle)
            refusal = self._refuse_commit(cycle)
        if refusal is not None:
            self._give_up(cycle, Verdict(Reason.PLAN_OUTDATED, detail=refusal.text))

    def _refuse_commit(self, cycle: BindingCycle) -> Refusal | None:
        """Why no Binding of the commit may be sent; None if they may, or if it is rolled forward by now."""
        if cycle.over or cycle.binding_sent:
            return None
        reservation = cycle.reservation
        return self._permit.refuse_all(cycle, [uid for uid in reservation.committed if uid in reservation.slots])

    async def _roll_forward(self, cycle: BindingCycle, uid: str, first: _First) -> None:
        """Bind one committed member, however long it takes: once one of them is sent there is no way back.

        Before that it is left as soon as it is refused: then the whole commit is looked at again. After it, once the
        quorum is bound without it.
        """
        attempts = Attempts(_ROLL_FORWARD)
        while uid in cycle.reservation.slots and uid not in cycle.bound and not cycle.over and not first.refused:
            sent = await self.send(cycle, uid, first.refuse)
            if sent.outcome not in (BindOutcome.FAILED, BindOutcome.REFUSED):
                return
            if not self._context.term.leads():
                self._give_up(cycle, Verdict(Reason.PLAN_OUTDATED, detail=sent.error))
                return
            if sent.refusal is not None and not cycle.binding_sent:
                return
            log.warning("a committed member could not be bound yet", extra={"uid": uid, "err": sent.error})
            self._cycle_updates.note_failure(cycle, uid, sent.error)
            self._send_spares(cycle, uid)
            await attempts.rest()
            if self._is_replaced(cycle, uid):
                cycle.close_call(uid, f"serried: {sent.error}")
                return
            self._mend(cycle, uid)

    def _send_spares(self, cycle: BindingCycle, uid: str) -> None:
        """The Binding of a committed member is refused: if those beyond the commit can take its place, they do."""
        spares = (cycle.at_bind & cycle.reservation.slots.keys()) - cycle.reservation.committed
        if spares and cycle.binding_sent and self._permit.stands_without(cycle, uid, spares):
            self._send_alone(cycle, cycle.calling & spares)

    def _send_alone(self, cycle: BindingCycle, uids: Iterable[str]) -> None:
        """Send the Bindings of members that call and need no quorum, each with a task of its own."""
        for uid in list(uids):
            cycle.start_sending(uid)
            self._effects.spawn(self.bind_surplus(cycle, uid))

    def _mend(self, cycle: BindingCycle, uid: str) -> None:
        # The slot itself may have become impossible (its node is gone): the member keeps its domain, not its node.
        pod, slot = self._context.store.pods.get(uid), cycle.reservation.slots.get(uid)
        if cycle.over or pod is None or slot is None or not pod.pending:
            return  # its slot may be that of the next cycle by now
        if not cycle.binding_sent:
            return  # nobody is half of a gang yet: the whole commit is asked for again, and given up if it has to be
        refusal = self._permit.refuse(cycle, uid, slot.node)
        if refusal is not None and refusal.obstacle is Obstacle.SLOT:
            if not self._cycle_updates.reassignments.replace(cycle, pod):
                self._cycle_updates.reassignments.displace(cycle, pod)
            self.carry_out()

    async def send(
        self, cycle: BindingCycle, uid: str, refuse_commit: Callable[[], Refusal | None] = lambda: None
    ) -> Sent:
        """Send one member's Binding, if the permit lets it, and settle what its answer means for the cycle.

        ``refuse_commit`` is asked before the permit is.
        """
        slot = cycle.reservation.slots[uid]
        node, pod = slot.node, Key(cycle.group.key.namespace, slot.name)

        def ask() -> Refusal | None:
            refusal = refuse_commit() or self._permit.refuse(cycle, uid, node)
            if refusal is None and uid in cycle.reservation.committed:
                cycle.note_binding_sent()
            return refusal

        told, labels = self._describe(cycle, uid)
        with self.burst:
            sent = await self._binder.bind(pod, uid, node, told, ask, labels)
        self._context.metrics.bound(sent.outcome.value, pod.namespace)
        if sent.outcome is BindOutcome.BOUND:
            cycle.mark_bound(uid, self._context.clock())
        elif sent.outcome in (BindOutcome.LOST, BindOutcome.ELSEWHERE):
            self._drop(cycle, uid, sent)
        return sent

    def _drop(self, cycle: BindingCycle, uid: str, sent: Sent) -> None:
        if sent.outcome is BindOutcome.ELSEWHERE:
            cycle.mark_bound_elsewhere(uid, f"serried: {sent.error}")
        self._cycle_updates.reassignments.drop(cycle, uid, sent.error)
        self.carry_out()

    def _describe(self, cycle: BindingCycle, uid: str) -> tuple[dict[str, str], dict[str, str]]:
        """The annotations and the labels that a member's Binding writes."""
        store, slot = self._context.store, cycle.reservation.slots[uid]
        gang = describe_gang(cycle.group, store.level)
        told = describe_slot(store.members.rank_of(uid), cycle.reservation.domain, gang)
        labels = describe_label(store.pods.get(uid), cycle.group.key.leaf(slot.part))
        return (told | {LABELLED: "true"}) if labels else told, labels

    async def _drain(self, cycle: BindingCycle) -> None:
        """Wait for the members beyond the quorum: each binds as it comes, none has to."""
        while not cycle.over:
            if not self._context.term.leads():
                self._cycle_updates.endings.leave(cycle)
                self.carry_out()
                return
            idle = self._is_idle(cycle)
            # A burst's news come one by one: whoever is not shown bound yet is found at once, the whole gang is not.
            if not cycle.has_unseen(self._is_pending) and (idle or cycle.is_done()):
                self._cycle_updates.endings.finish(cycle)
                self.carry_out()
                return
            self._send_alone(cycle, cycle.calling & cycle.reservation.slots.keys())
            await self._wait(
                cycle,
                max(
                    self._context.clock() + _LOOK_SECONDS, cycle.progressed + self._context.options.barrier_idle_seconds
                ),
            )

    def _is_idle(self, cycle: BindingCycle) -> bool:
        """Return whether no member beyond the quorum is expected any more."""
        waited = self._context.clock() - cycle.progressed
        if waited <= self._context.options.barrier_idle_seconds:
            return False
        coming = cycle.calling or self._context.groups.activity.has_assumed(cycle)
        return waited > LONGEST_PREBIND_SECONDS or not coming

    def _is_pending(self, uid: str) -> bool:
        # Until our own watch shows a member bound, or gone, its slot must stay, however long the watch is silent: it
        # would be planned a second time.
        pod = self._context.store.pods.get(uid)
        return pod is not None and pod.pending

    async def bind_surplus(self, cycle: BindingCycle, uid: str) -> None:
        """Bind a member that needs no quorum and is SENDING; its call gets the answer, good or bad."""
        member = cycle.member(uid)
        call = member.call
        if call is None or uid not in cycle.reservation.slots:
            cycle.stop_sending(uid)
            return
        try:
            sent = await self._send_assumed(cycle, uid)
        except Exception:
            log.exception("a member could not be bound", extra={"uid": uid})
            sent = Sent(BindOutcome.FAILED, "internal error, see the extender's log")
        finally:
            cycle.stop_sending(uid)
        if sent.outcome in (BindOutcome.FAILED, BindOutcome.REFUSED) and member.call is call:
            cycle.close_call(uid, f"serried: {sent.error}")
        if sent.refusal is not None:
            self._take_back(cycle, uid, sent.refusal)

    def _take_back(self, cycle: BindingCycle, uid: str, refusal: Refusal) -> None:
        """A member that needs no quorum may not be bound to its slot: it gets another one, or none."""
        if refusal.obstacle is Obstacle.TERM:
            self._cycle_updates.endings.leave(cycle)
            self.carry_out()
            return
        pod = self._context.store.pods.get(uid)
        if uid not in cycle.reservation.slots or cycle.over:
            return
        movable = refusal.obstacle is Obstacle.SLOT and pod is not None and pod.pending
        if pod is None or not movable or not self._cycle_updates.reassignments.replace(cycle, pod):
            self._cycle_updates.reassignments.drop(cycle, uid, refusal.text)
        self.carry_out()

    async def _send_assumed(self, cycle: BindingCycle, uid: str) -> Sent:
        """As ``send``; the room counts until the answer, or else the watch, says more."""
        # No commit keeps the cycle until then: it may end, and give the slot back, while the Binding is on its way.
        store, stands = self._context.store, False
        if (pod := store.pods.get(uid)) is not None:
            store.occupancy.claim(uid, ClaimKind.ASSUMED, cycle.reservation.slots[uid].node, pod.shape.requests)
        try:
            sent = await self.send(cycle, uid)
            stands = sent.outcome is BindOutcome.BOUND
        finally:
            if not stands or uid not in store.pods:
                store.occupancy.release(uid, ClaimKind.ASSUMED)
        return sent
