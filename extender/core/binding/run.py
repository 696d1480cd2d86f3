"""The task of one binding cycle: nominate, gather the quorum at bind, commit, bind.

`CycleRunner.carry_out` starts `CycleRunner.drive` for each `StartCycle` effect; `drive` runs until the cycle has ended.
Only a plan with victims is recorded before its commit (docs/decisions/0041-two-writes-a-gang.md).

At each await the cluster may change or the process may die. Then, by the stage of the cycle:

- RECORDING: no member is nominated or bound. A restart finds no record, or a planned one that it may drop.
- PREEMPTING: the record names the victims. A restart continues with those that are left.
- GATHERING: no member is bound. A restart plans anew, or takes up a recorded plan, or drops it.
- COMMITTING: the write of the record is done or not. Only reading it back decides, never the error of the write.
- BINDING: the record says Committed, so a restart rolls forward, whatever was sent. A commit of which no Binding was
  sent, and that would leave an incomplete gang, is withdrawn instead. For a commit of an earlier term the API server
  says what was sent (`committed`).
- ENDED with the record still there: nothing depends on the record, and the next leader deletes it.
- At any stage the Lease may be lost. Then the cycle ends here without a write, and the next leader continues.
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
from serried.cluster.usage import UsageSource
from serried.kube.errors import ApiError
from serried.kube.retry import Attempts, Backoff
from serried.ops.log import name_group

log = logging.getLogger(__name__)

_ROLL_FORWARD = Backoff(first=0.2, cap=5.0)

_LONGEST_QUEUE = 1800.0
"""The seconds after which a gang that kube-scheduler has not reached is given up: it is not in its queue."""

_CHECK_SECONDS = 0.25
"""The shortest time between two checks of a deadline that is postponed again and again."""

_BETWEEN_BURSTS_SECONDS = 0.5
"""The seconds by which a burst of Bindings outlasts its last write: the next gang may be about to bind."""


class _CommitCheck:
    """Checks the whole commit once more right before its first Binding is sent.

    A member may have waited long for its turn to be sent. So the first one that asks for the permit asks for all
    members, in the same step in which it is sent. If the answer is no, it holds for the others, too, until the cycle's
    task checks the commit again. Once a Binding was sent each member is sent on its own.
    """

    def __init__(self, cycle: BindingCycle, ask: Callable[[BindingCycle], Refusal | None]) -> None:
        self._cycle = cycle
        self._ask = ask
        self._refusal: Refusal | None = None

    @property
    def refused(self) -> bool:
        """True if the check has failed and no Binding was sent."""
        return self._refusal is not None and not self._cycle.binding_sent

    def refuse(self) -> Refusal | None:
        """Return why no Binding may be sent; None if they may, or if one was sent."""
        if not self.refused:
            self._refusal = self._ask(self._cycle)
        return self._refusal


@dataclass(slots=True, eq=False)
class CycleRunner:
    """Runs the tasks of binding cycles, and carries out the effects of decisions. One instance per core.

    A group may have shorter deadlines than the configured ones. The total deadline counts from when kube-scheduler has
    reached the first member. The deadline without progress leaves out time that kube-scheduler spends on other pods
    (decision 20).
    """

    _context: Context
    _group_scheduler: GroupScheduler
    _cycle_updates: CycleUpdates
    _effects: Effects
    _records: Records
    _binder: Binder
    _earlier: EarlierBindings
    burst: WriteBurst = field(init=False)
    """The context around writes of Bindings; it is on while members are being bound, and for a moment after."""

    _permit: Permit = field(init=False)
    finished: FinishedRecords = field(init=False)
    """The records that are not needed any more and wait to be deleted."""

    def __post_init__(self) -> None:
        context = self._context
        self._permit = Permit(context)
        self.finished = FinishedRecords(
            self._records, self._effects.spawn, context.clock, lambda: len(context.ledger) > 0
        )
        self.burst = WriteBurst(context.clock, _BETWEEN_BURSTS_SECONDS, math.inf)

    def carry_out(self) -> None:
        """Carry out the effects in the outbox. To be called right after each decision."""
        for effect in self._context.outbox.drain():
            try:
                self._carry_out(effect)
            except Exception:
                # The effects behind it must still run: a cycle that is not started would hold its room for ever.
                text = "an internal error stopped one effect of a decision; the other effects are carried out"
                log.exception(text, extra={"effect": type(effect).__name__})

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, StartCycle):
            self._effects.spawn(self.drive(effect.cycle))
        else:
            self._effects.carry_out(effect)

    def end_term(self) -> frozenset[str]:
        """End all tasks without a write, because another instance may lead from now on.

        Return the UIDs of pods whose activation was dropped.
        """
        self.carry_out()
        self.finished.end_term()
        return self._effects.end_term()

    async def end_record(self, reservation: Reservation) -> None:
        """Delete the record of a reservation whose cycle has ended. Return once it is deleted or replaced.

        A record that a restart would only delete waits until no gang is binding. The end of the term ends the attempts.
        """
        if self._is_finished(reservation):
            await self.finished.remove_later(reservation)
        else:
            await self.finished.remove(reservation)

    def _is_finished(self, reservation: Reservation) -> bool:
        """Return whether a record is not needed: it is committed and no member of the group is pending."""
        members = self._context.store.members.iterate(reservation.group)
        return bool(reservation.committed) and not any(pod.pending for pod in members)

    async def drive(self, cycle: BindingCycle) -> None:
        """Run a cycle from its present stage to its end. Never raises but for cancellation."""
        try:
            while not cycle.over:
                await self._run_safely(cycle)
        finally:
            self.finished.note_cycle_end()
            if cycle.over and self._context.term.leads():
                await self.end_record(cycle.reservation)

    async def _run_safely(self, cycle: BindingCycle) -> None:
        try:
            await self._run(cycle)
        except Exception:
            log.exception("an internal error stopped the binding of a gang", extra=name_group(cycle.reservation.group))
            self.carry_out()  # effects put before the failure
            if cycle.reservation.committed:
                await asyncio.sleep(_ROLL_FORWARD.cap)  # `drive` tries again: a commit is only rolled forward
            elif not cycle.over:
                self._give_up(cycle, Verdict(Reason.PLAN_OUTDATED, detail="internal error, see the log"))

    async def _run(self, cycle: BindingCycle) -> None:
        await self.finished.remove_of(cycle.reservation.group)  # the record of the gang's former members
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
            await self._bind_remaining(cycle)

    async def _record(self, cycle: BindingCycle) -> None:
        if cycle.reservation.need == 0 and not cycle.waits_for_victims:
            # The quorum is bound already: each member is bound when it comes, and needs no record.
            cycle.enter(CycleStage.BINDING)
            self._effects.nominate(cycle)
            return
        try:
            if cycle.waits_for_victims:
                await self._records.write(cycle.group, cycle.reservation)
            else:  # no victims end for this plan, so after a restart another plan does as well
                self._records.check_size(cycle.group, cycle.reservation)
        except ApiError as error:
            self._give_up(cycle, Verdict(Reason.RECORD_FAILED, detail=str(error)))
            return
        if not cycle.over:
            cycle.enter(CycleStage.PREEMPTING if cycle.waits_for_victims else CycleStage.GATHERING)

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
        self._reassign_after_eviction(cycle)
        if not cycle.over:
            cycle.enter(CycleStage.GATHERING)
            self._cycle_updates.note_victims_ended(cycle)

    def _reassign_after_eviction(self, cycle: BindingCycle) -> None:
        """Give each member whose slot is not valid after the evictions another slot, or drop the member."""
        for uid in list(cycle.reservation.slots):
            pod = self._context.store.pods.get(uid)
            misfit = self._permit.find_misfit(cycle, uid)
            if misfit is not None:
                cycle.close_call(uid, f"serried: {misfit}")
            if misfit is None or (
                pod is not None and pod.pending and self._cycle_updates.reassignments.reassign(cycle, pod)
            ):
                continue
            self._cycle_updates.reassignments.drop(cycle, uid, misfit)
        self.carry_out()

    def _give_up(self, cycle: BindingCycle, verdict: Verdict) -> None:
        """End a cycle of which no Binding was sent.

        If this instance does not lead, the next leader continues with it.
        """
        if cycle.over:
            return
        if self._context.term.leads():
            self._cycle_updates.endings.withdraw(cycle, verdict)
        else:
            self._cycle_updates.endings.hand_over(cycle)
        self.carry_out()

    async def _gather(self, cycle: BindingCycle) -> None:
        while not cycle.over:
            verdict = self._find_failure(cycle)
            if not self._context.term.leads():
                self._cycle_updates.endings.hand_over(cycle)
            elif verdict is not None:
                self._cycle_updates.endings.abort(cycle, verdict)
            self.carry_out()
            if cycle.over:
                return
            if not cycle.quorum_at_bind():
                await self._wait(cycle, max(self._context.clock() + _CHECK_SECONDS, self._deadline(cycle)))
            elif self._still_ready(cycle):
                cycle.enter(CycleStage.COMMITTING)
                return

    def _still_ready(self, cycle: BindingCycle) -> bool:
        # Checks the cache again, because members or PodGroup may be deleted. No await follows before the commit.
        self._group_scheduler.consider(cycle.reservation.group)
        self.carry_out()
        return not cycle.over and cycle.quorum_at_bind()

    def _find_failure(self, cycle: BindingCycle) -> Verdict | None:
        reservation = cycle.reservation
        if cycle.out_of_reach() and not self._cycle_updates.reassignments.drop_incomplete_groups(
            cycle, reservation.slots
        ):
            return Verdict(Reason.PLAN_OUTDATED, detail="planned members were deleted, or have lost their slots")
        if cycle.quorum_at_bind() or self._context.clock() <= self._deadline(cycle):
            return None
        self._context.groups.activity.count_idle(cycle)  # may postpone the deadline; checks every member
        late = self._context.clock() > self._deadline(cycle)
        if late and not self._cycle_updates.reassignments.drop_incomplete_groups(cycle, cycle.at_bind):
            return Verdict(Reason.DEADLINE_EXCEEDED, have=len(cycle.at_bind), need=reservation.need)
        return None

    def _deadline(self, cycle: BindingCycle) -> float:
        """Return the loop time at which the cycle is late if kube-scheduler stays idle until then.

        Before kube-scheduler reaches a gang, only the ledger holds its room. From the first assumed member on
        kube-scheduler holds room, too, and a bind call is open that must be answered before its timeout of 15 minutes.
        Time in which kube-scheduler prepares an assumed member postpones the deadline up to that timeout.
        """
        total, idle = (
            min(self._context.options.barrier_seconds, cycle.group.timeout),
            min(self._context.options.barrier_idle_seconds, cycle.group.timeout),
        )
        longest = min(max(total, LONGEST_PREBIND_SECONDS), total + cycle.assumed_seconds, cycle.group.timeout)
        latest = cycle.started + _LONGEST_QUEUE if cycle.first_reached_at is None else cycle.first_reached_at + longest
        return min(latest, cycle.idle_counted_until + idle - cycle.late_seconds)

    async def _wait(self, cycle: BindingCycle, deadline: float) -> None:
        cycle.changed.clear()
        try:
            async with asyncio.timeout(max(0.01, deadline - self._context.clock())):
                await cycle.changed.wait()
        except TimeoutError:
            pass

    async def _commit(self, cycle: BindingCycle) -> None:
        reservation = cycle.reservation
        chosen = reservation.committed or frozenset(cycle.at_bind)  # committed already if an earlier write failed
        if not chosen:
            cycle.enter(CycleStage.BINDING)
            return
        refusal = self._permit.refuse_all(cycle, chosen)
        if refusal is not None:
            self._give_up(cycle, Verdict(Reason.PLAN_OUTDATED, detail=refusal.text))
            return
        # Until the answer neither abort nor deadline may end the cycle: the record may be written already.
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
        """Return whether the commit was written although the answer was an error.

        Reads the record until the API server answers. Returns False if the term ends before.
        """
        text = "the write that commits a gang was answered with an error; reading whether it was done"
        log.warning(text, extra=name_group(cycle.group.key) | {"err": str(error)})
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
                await self._recheck_commit(cycle)
                if cycle.over:
                    return
            first = _CommitCheck(cycle, self._refuse_commit)
            await asyncio.gather(*(self._roll_forward(cycle, uid, first) for uid in left))
        if committed and not cycle.over:
            self._context.metrics.burst(self._context.clock() - start, len(committed))

    def _list_left(self, cycle: BindingCycle) -> list[str]:
        """Return the UIDs of committed members that are still to be bound, but for those that others replace."""
        left = cycle.reservation.committed & cycle.reservation.slots.keys() - cycle.bound
        return [uid for uid in left if not self._is_replaced(cycle, uid)]

    def _is_replaced(self, cycle: BindingCycle, uid: str) -> bool:
        """Return whether a member's Binding has failed and the quorum is bound without it, so that it may be left out.

        The member then counts as one beyond the quorum.
        """
        return bool(cycle.member(uid).failure) and self._permit.is_complete_without(cycle, uid)

    async def _recheck_commit(self, cycle: BindingCycle) -> None:
        """Check the whole commit again before its first Binding, and give the cycle up if it is not valid any more.

        The commit may have taken long, or may be an earlier term's. No member is bound yet, or the API server is asked.
        So this is the last moment at which the whole gang can be planned again on other nodes.
        """
        refusal = self._refuse_commit(cycle)
        if refusal is not None and cycle.from_earlier_term:
            # The earlier term may have ended while it sent Bindings that this cache does not show yet.
            await self._earlier.ask(cycle)
            refusal = self._refuse_commit(cycle)
        if refusal is not None:
            self._give_up(cycle, Verdict(Reason.PLAN_OUTDATED, detail=refusal.text))

    def _refuse_commit(self, cycle: BindingCycle) -> Refusal | None:
        """Return why no Binding of the commit may be sent; None if they may, or once one was sent."""
        if cycle.over or cycle.binding_sent:
            return None
        reservation = cycle.reservation
        return self._permit.refuse_all(cycle, [uid for uid in reservation.committed if uid in reservation.slots])

    async def _roll_forward(self, cycle: BindingCycle, uid: str, first: _CommitCheck) -> None:
        """Bind one committed member, with retries until it is bound or dropped.

        Before the first Binding of the commit was sent, return at the first refusal: the whole commit is checked again.
        After it, return once the quorum is bound without this member.
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
            text = "could not bind a member of a committed gang; trying again"
            log.warning(text, extra={"uid": uid, "err": sent.error})
            self._cycle_updates.note_failure(cycle, uid, sent.error)
            self._send_spares(cycle, uid)
            await attempts.rest()
            if self._is_replaced(cycle, uid):
                cycle.close_call(uid, f"serried: {sent.error}")
                return
            self._reassign_committed(cycle, uid)

    def _send_spares(self, cycle: BindingCycle, uid: str) -> None:
        """Send members beyond the commit if they complete the quorum in place of a member that cannot be bound."""
        spares = (cycle.at_bind & cycle.reservation.slots.keys()) - cycle.reservation.committed
        if spares and cycle.binding_sent and self._permit.is_complete_without(cycle, uid, spares):
            self._send_alone(cycle, cycle.calling & spares)

    def _send_alone(self, cycle: BindingCycle, uids: Iterable[str]) -> None:
        """Start a task for each member that is at bind and needs no quorum, which sends its Binding."""
        for uid in list(uids):
            cycle.start_sending(uid)
            self._effects.spawn(self.bind_surplus(cycle, uid))

    def _reassign_committed(self, cycle: BindingCycle, uid: str) -> None:
        """Move a committed member to another node of its domain if its slot is not valid any more."""
        pod, slot = self._context.store.pods.get(uid), cycle.reservation.slots.get(uid)
        if cycle.over or pod is None or slot is None or not pod.pending:
            return  # the slot may belong to the next cycle by now
        if not cycle.binding_sent:
            return  # the whole commit is checked again, and may still be given up
        refusal = self._permit.refuse(cycle, uid, slot.node)
        if refusal is not None and refusal.obstacle is Obstacle.SLOT:
            if not self._cycle_updates.reassignments.reassign(cycle, pod):
                self._cycle_updates.reassignments.displace_mate(cycle, pod)
            self.carry_out()

    async def send(
        self, cycle: BindingCycle, uid: str, refuse_commit: Callable[[], Refusal | None] = lambda: None
    ) -> Sent:
        """Send the Binding of one member if the permit allows it, and update the cycle from the answer.

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
        """Return the annotations and the labels that a member's Binding writes."""
        store, slot = self._context.store, cycle.reservation.slots[uid]
        gang = describe_gang(cycle.group, store.level)
        told = describe_slot(store.members.rank_of(uid), cycle.reservation.domain, gang)
        labels = describe_label(store.pods.get(uid), cycle.group.key.leaf(slot.part))
        return (told | {LABELLED: "true"}) if labels else told, labels

    async def _bind_remaining(self, cycle: BindingCycle) -> None:
        """Wait for the members beyond the quorum, and bind each when it comes. None of them has to come."""
        while not cycle.over:
            if not self._context.term.leads():
                self._cycle_updates.endings.hand_over(cycle)
                self.carry_out()
                return
            idle = self._is_idle(cycle)
            # The watch shows the bound members one by one. One unseen member is found faster than all are checked.
            if not cycle.has_unseen(self._is_pending) and (idle or cycle.is_done()):
                self._cycle_updates.endings.finish(cycle)
                self.carry_out()
                return
            self._send_alone(cycle, cycle.calling & cycle.reservation.slots.keys())
            await self._wait(
                cycle,
                max(
                    self._context.clock() + _CHECK_SECONDS,
                    cycle.progressed + self._context.options.barrier_idle_seconds,
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
        # Until the watch shows a member bound or deleted its slot must stay, or the member would be planned again.
        pod = self._context.store.pods.get(uid)
        return pod is not None and pod.pending

    async def bind_surplus(self, cycle: BindingCycle, uid: str) -> None:
        """Bind a member that needs no quorum and is in stage SENDING. Its call gets the result."""
        member = cycle.member(uid)
        call = member.call
        if call is None or uid not in cycle.reservation.slots:
            cycle.stop_sending(uid)
            return
        try:
            sent = await self._send_assumed(cycle, uid)
        except Exception:
            log.exception("could not bind a member because of an internal error", extra={"uid": uid})
            sent = Sent(BindOutcome.FAILED, "internal error, see the extender's log")
        finally:
            cycle.stop_sending(uid)
        if sent.outcome in (BindOutcome.FAILED, BindOutcome.REFUSED) and member.call is call:
            cycle.close_call(uid, f"serried: {sent.error}")
        if sent.refusal is not None:
            self._reassign_refused(cycle, uid, sent.refusal)

    def _reassign_refused(self, cycle: BindingCycle, uid: str, refusal: Refusal) -> None:
        """Give a member whose Binding was refused by the permit another slot, or drop it. It needs no quorum."""
        if refusal.obstacle is Obstacle.TERM:
            self._cycle_updates.endings.hand_over(cycle)
            self.carry_out()
            return
        pod = self._context.store.pods.get(uid)
        if uid not in cycle.reservation.slots or cycle.over:
            return
        movable = refusal.obstacle is Obstacle.SLOT and pod is not None and pod.pending
        if pod is None or not movable or not self._cycle_updates.reassignments.reassign(cycle, pod):
            self._cycle_updates.reassignments.drop(cycle, uid, refusal.text)
        self.carry_out()

    async def _send_assumed(self, cycle: BindingCycle, uid: str) -> Sent:
        """Send a Binding as ``send`` does, with a claim on the room until the answer or the watch replaces it."""
        # Without a commit the cycle may end and release the slot while the Binding is being sent.
        store, stands = self._context.store, False
        if (pod := store.pods.get(uid)) is not None:
            store.occupancy.add_usage(uid, UsageSource.ASSUMED, cycle.reservation.slots[uid].node, pod.shape.requests)
        try:
            sent = await self.send(cycle, uid)
            stands = sent.outcome is BindOutcome.BOUND
        finally:
            if not stands or uid not in store.pods:
                store.occupancy.release(uid, UsageSource.ASSUMED)
        return sent
