"""The task of one binding cycle: nominate, gather the quorum at bind, commit, bind.

The scheduling code requests a cycle by the effect `StartCycle`. `CycleRunner.carry_out` then starts
`CycleRunner.drive`, which runs until the cycle has ended. Only a plan with victims is recorded before its commit
(docs/decisions/0041-two-writes-a-gang.md).

At each await the cluster may change or the process may die. Then, by the stage of the cycle:

- RECORDING: no member is nominated or bound. A restart finds no record, or a planned one that it may drop.
- PREEMPTING: the record names the victims. A restart continues to evict the remaining ones.
- GATHERING: no member is bound. A restart plans the gang anew; if there is a recorded plan, it continues or drops it.
- COMMITTING: the record is written as Committed, or not yet. After an error only reading it back shows which.
- BINDING: the record says Committed, so a restart binds the members, whatever was sent before. There is one exception:
  if no Binding was sent yet, and binding the rest would leave an incomplete gang, the commit is withdrawn. For a commit
  of an earlier term the API server says what was bound (`committed`).
- ENDED, and the record still exists: nothing depends on the record, and the next leader deletes it.
- At any stage the Lease may be lost. Then the cycle ends here without a write, and the next leader continues.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from extender.core.binding.binder import Binder, BindOutcome, BindResult, format_gang, make_annotations, make_labels
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
from serried.api.names import LABELLED_BY_BINDING, Key
from serried.api.reservation import Reservation
from serried.api.verdict import Reason, Verdict
from serried.cluster.usage import UsageSource
from serried.kube.errors import ApiError
from serried.kube.retry import Attempts, Backoff
from serried.ops.log import name_group

log = logging.getLogger(__name__)

_ROLL_FORWARD = Backoff(first=0.2, cap=5.0)

_LONGEST_QUEUE_SECONDS = 1800.0
"""After how many seconds a cycle is given up if kube-scheduler has sent no filter or bind call for any member.

The members cannot be in kube-scheduler's queue then.
"""

_CHECK_SECONDS = 0.25
"""The shortest time in seconds between two checks of whether a cycle has exceeded its deadline.

A deadline that has nearly come may be postponed again and again, and would else be checked all the time.
"""

_BETWEEN_BURSTS_SECONDS = 0.5
"""For how many seconds after its last Binding a burst of Bindings counts as going on, so that less urgent writes wait.

The next gang may be about to bind.
"""


class _CommitCheck:
    """Checks all members of a commit once more right before the first of their Bindings is sent.

    Only a limited number of Bindings is in flight at a time, so a Binding may wait long before it is sent. The first
    one of a commit that is about to be sent therefore checks whether all members may be bound (``ask``, which returns
    a refusal if not), without an await between check and request. If the check fails, no Binding is sent until the
    cycle's task has checked the commit again. Once one Binding was sent, each other member is checked on its own.
    """

    def __init__(self, cycle: BindingCycle, ask: Callable[[BindingCycle], Refusal | None]) -> None:
        self._cycle = cycle
        self._ask = ask
        self._refusal: Refusal | None = None

    @property
    def refused(self) -> bool:
        """True if the check has failed, and no Binding of the commit was sent."""
        return self._refusal is not None and not self._cycle.binding_sent

    def refuse(self) -> Refusal | None:
        """Check the commit, unless that has failed before. Return why no Binding may be sent.

        None if Bindings may be sent, or if one was sent already.
        """
        if not self.refused:
            self._refusal = self._ask(self._cycle)
        return self._refusal


@dataclass(slots=True, eq=False)
class CycleRunner:
    """Runs the tasks of binding cycles, and carries out what the scheduling code has requested. One instance per core.

    A cycle has two deadlines to gather its quorum; a PodGroup may shorten them. The total one counts from
    kube-scheduler's first filter or bind call for a member. The other counts from the last progress, without the time
    that kube-scheduler spends on other pods (docs/decisions/0020-deadlines-count-idle-time.md).
    """

    _context: Context
    _group_scheduler: GroupScheduler
    _cycle_updates: CycleUpdates
    _effects: Effects
    _records: Records
    _binder: Binder
    _earlier: EarlierBindings
    burst: WriteBurst = field(init=False)
    """A context manager around writes of Bindings. It is on while members are being bound, and for a moment after.

    While it is on, less urgent writes such as Events are delayed.
    """

    _permit: Permit = field(init=False)
    finished_records: FinishedRecords = field(init=False)
    """Deletes records that are not needed any more."""

    def __post_init__(self) -> None:
        context = self._context
        self._permit = Permit(context)
        self.finished_records = FinishedRecords(
            self._records, self._effects.spawn, context.clock, lambda: len(context.ledger) > 0
        )
        self.burst = WriteBurst(context.clock, _BETWEEN_BURSTS_SECONDS, math.inf)

    def carry_out(self) -> None:
        """Carry out all effects in the outbox, i.e. the writes and tasks that the scheduling code has requested.

        Call it right after each call of that code. Writes are started here, not awaited.
        """
        for effect in self._context.outbox.drain():
            try:
                self._carry_out(effect)
            except Exception:
                # The effects after it must still run: a cycle that is not started would keep its slots for ever.
                text = "an internal error stopped one effect of a decision; the other effects are carried out"
                log.exception(text, extra={"effect": type(effect).__name__})

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, StartCycle):
            self._effects.spawn(self.drive(effect.cycle))
        else:
            self._effects.carry_out(effect)

    def end_term(self) -> frozenset[str]:
        """Cancel all tasks and writes, because another instance may lead from now on.

        Return the UIDs of the pods that were to be activated, i.e. tried by kube-scheduler, and were not yet.
        """
        self.carry_out()
        self.finished_records.end_term()
        return self._effects.end_term()

    async def delete_record(self, reservation: Reservation) -> None:
        """Delete the record of a reservation whose cycle has ended, now or later; never raise ApiError.

        A record that a restart would only delete waits until no gang is being bound. Any other record is deleted now,
        so that a restart does not continue it. Failures are tried again in the background until the term ends.
        """
        if self._is_finished(reservation):
            await self.finished_records.remove_later(reservation)
        else:
            await self.finished_records.remove(reservation)

    def _is_finished(self, reservation: Reservation) -> bool:
        """Return whether a restart would only delete a record: it is committed and no member of the gang is pending."""
        members = self._context.store.members.iterate(reservation.group)
        return bool(reservation.committed) and not any(pod.pending for pod in members)

    async def drive(self, cycle: BindingCycle) -> None:
        """Run a cycle from its present stage, such as GATHERING or BINDING, to its end.

        Then delete its record, if this instance still leads.

        An internal error is logged, and does not end the task; only cancellation does.
        """
        try:
            while not cycle.over:
                await self._run_safely(cycle)
        finally:
            self.finished_records.note_cycle_end()
            if cycle.over and self._context.term.leads():
                await self.delete_record(cycle.reservation)

    async def _run_safely(self, cycle: BindingCycle) -> None:
        try:
            await self._run(cycle)
        except Exception:
            log.exception("an internal error stopped the binding of a gang", extra=name_group(cycle.reservation.group))
            self.carry_out()  # effects put before the failure
            if cycle.reservation.committed:
                await asyncio.sleep(_ROLL_FORWARD.cap)  # `drive` tries again: a commit is only rolled forward
            elif not cycle.over:
                self._give_up(cycle, Verdict(Reason.PLAN_OUTDATED, detail="internal error, see the extender's log"))

    async def _run(self, cycle: BindingCycle) -> None:
        await self.finished_records.remove_waiting_of(
            cycle.reservation.group
        )  # the record of the gang's former members
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
            # The quorum is bound already: each member is bound at its bind call, and needs no record.
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
        """Give each member whose slot does not fit any more after the evictions another slot.

        If there is none, drop the member from the cycle, so that it waits for another plan.
        """
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
        """End a cycle, and release its slots. ``verdict`` is the reason to report.

        While this instance leads, it is called only before a Binding of the commit was sent. If this instance no longer
        leads, end the cycle here without a write: the next leader continues it.
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
            return Verdict(Reason.PLAN_OUTDATED, detail="planned members were deleted, or lost their planned nodes")
        if cycle.quorum_at_bind() or self._context.clock() <= self._deadline(cycle):
            return None
        self._context.groups.activity.count_idle(cycle)  # may postpone the deadline; checks every member
        late = self._context.clock() > self._deadline(cycle)
        if late and not self._cycle_updates.reassignments.drop_incomplete_groups(cycle, cycle.at_bind):
            return Verdict(Reason.DEADLINE_EXCEEDED, have=len(cycle.at_bind), need=reservation.need)
        return None

    def _deadline(self, cycle: BindingCycle) -> float:
        """Return the loop time at which the cycle exceeds its deadline if kube-scheduler stays idle until then.

        Before kube-scheduler has tried any member, only the ledger reserves resources, so the deadline is long. Once
        the first member is assumed, kube-scheduler reserves resources, too, and its bind call must be answered before
        its timeout of 15 minutes. Time in which kube-scheduler works on an assumed member, between filter and bind,
        postpones the deadline, but not beyond that timeout.
        """
        total, idle = (
            min(self._context.options.barrier_seconds, cycle.group.timeout),
            min(self._context.options.barrier_idle_seconds, cycle.group.timeout),
        )
        longest = min(max(total, LONGEST_PREBIND_SECONDS), total + cycle.assumed_seconds, cycle.group.timeout)
        latest = (
            cycle.started + _LONGEST_QUEUE_SECONDS
            if cycle.first_reached_at is None
            else cycle.first_reached_at + longest
        )
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
        """Return whether the record was written as Committed although the write was answered with ``error``.

        Read the record again until the API server answers. Return False if the term ends before.
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
        while not cycle.over and (left := self._list_unbound(cycle)):
            if committed and not cycle.binding_sent:
                await self._recheck_commit(cycle)
                if cycle.over:
                    return
            commit_check = _CommitCheck(cycle, self._refuse_commit)
            await asyncio.gather(*(self._roll_forward(cycle, uid, commit_check) for uid in left))
        if committed and not cycle.over:
            self._context.metrics.burst(self._context.clock() - start, len(committed))

    def _list_unbound(self, cycle: BindingCycle) -> list[str]:
        """Return the UIDs of committed members that are still to be bound.

        Members whose Binding has failed are left out once the quorum is bound without them.
        """
        left = cycle.reservation.committed & cycle.reservation.slots.keys() - cycle.bound
        return [uid for uid in left if not self._is_replaced(cycle, uid)]

    def _is_replaced(self, cycle: BindingCycle, uid: str) -> bool:
        """Return whether a member's Binding has failed, but the quorum is bound without it.

        Then the commit need not wait for it: it is treated like a member beyond the quorum.
        """
        return bool(cycle.member(uid).failure) and self._permit.is_complete_without(cycle, uid)

    async def _recheck_commit(self, cycle: BindingCycle) -> None:
        """Check all members of the commit again before the first Binding. Give the cycle up if one may not be bound.

        The write of the commit may have taken long, or an earlier term may have written it. As far as this
        cache knows, no Binding was sent yet. If the check refuses a commit of an earlier term, the API server is asked
        which members that term has bound, and the check is repeated. This is the last moment at which the whole gang
        can still be planned again on other nodes.
        """
        refusal = self._refuse_commit(cycle)
        if refusal is not None and cycle.from_earlier_term:
            # The earlier term may have ended while it sent Bindings that this cache does not show yet.
            await self._earlier.read_bound(cycle)
            refusal = self._refuse_commit(cycle)
        if refusal is not None:
            self._give_up(cycle, Verdict(Reason.PLAN_OUTDATED, detail=refusal.text))

    def _refuse_commit(self, cycle: BindingCycle) -> Refusal | None:
        """Return why no Binding of the commit may be sent; None if they may be, or once one was sent."""
        if cycle.over or cycle.binding_sent:
            return None
        reservation = cycle.reservation
        return self._permit.refuse_all(cycle, [uid for uid in reservation.committed if uid in reservation.slots])

    async def _roll_forward(self, cycle: BindingCycle, uid: str, commit_check: _CommitCheck) -> None:
        """Bind one committed member (UID), with retries until it is bound or dropped.

        While no Binding of the commit was sent, return when ``commit_check`` or the check of this member (`Permit`)
        refuses the Binding, as the caller then checks the whole commit again. Afterwards, also return once the quorum
        is bound without this member.
        """
        attempts = Attempts(_ROLL_FORWARD)
        while uid in cycle.reservation.slots and uid not in cycle.bound and not cycle.over and not commit_check.refused:
            sent = await self.send(cycle, uid, commit_check.refuse)
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
            self._send_substitutes(cycle, uid)
            await attempts.rest()
            if self._is_replaced(cycle, uid):
                cycle.close_call(uid, f"serried: {sent.error}")
                return
            self._reassign_committed(cycle, uid)

    def _send_substitutes(self, cycle: BindingCycle, uid: str) -> None:
        """Bind members that are not part of the commit if they complete the quorum in place of the member ``uid``.

        They have open bind calls. The Binding of ``uid`` fails at the moment, and is still retried.
        """
        substitutes = (cycle.at_bind & cycle.reservation.slots.keys()) - cycle.reservation.committed
        if substitutes and cycle.binding_sent and self._permit.is_complete_without(cycle, uid, substitutes):
            self._send_without_commit(cycle, cycle.calling & substitutes)

    def _send_without_commit(self, cycle: BindingCycle, uids: Iterable[str]) -> None:
        """Start one task per member (UID) that sends its Binding. The members are at bind, and need no commit."""
        for uid in list(uids):
            cycle.start_sending(uid)
            self._effects.spawn(self.bind_surplus(cycle, uid))

    def _reassign_committed(self, cycle: BindingCycle, uid: str) -> None:
        """Move a committed member (UID) to another node of its domain if it may not be bound to its slot any more.

        If there is no free node, it may take the node of a member that is not committed. Does nothing before a Binding
        of the commit was sent, as the whole commit is checked again then.
        """
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
    ) -> BindResult:
        """Send the Binding of one member (UID) if it still may be bound, and update the cycle from the answer.

        Right before the request, ``refuse_commit`` and then `Permit` (Serried's own check of the slot, the PodGroup,
        the quorum and the term) are called. If one of them returns a refusal, the Binding is not sent. Return the
        outcome; never raise ApiError.
        """
        slot = cycle.reservation.slots[uid]
        node, pod = slot.node, Key(cycle.group.key.namespace, slot.name)

        def check_permit() -> Refusal | None:
            refusal = refuse_commit() or self._permit.refuse(cycle, uid, node)
            if refusal is None and uid in cycle.reservation.committed:
                cycle.note_binding_sent()
            return refusal

        annotations, labels = self._describe(cycle, uid)
        with self.burst:
            sent = await self._binder.bind(pod, uid, node, annotations, check_permit, labels)
        self._context.metrics.bound(sent.outcome.value, pod.namespace)
        if sent.outcome is BindOutcome.BOUND:
            cycle.mark_bound(uid, self._context.clock())
        elif sent.outcome in (BindOutcome.LOST, BindOutcome.ELSEWHERE):
            self._drop(cycle, uid, sent)
        return sent

    def _drop(self, cycle: BindingCycle, uid: str, sent: BindResult) -> None:
        if sent.outcome is BindOutcome.ELSEWHERE:
            cycle.mark_bound_elsewhere(uid, f"serried: {sent.error}")
        self._cycle_updates.reassignments.drop(cycle, uid, sent.error)
        self.carry_out()

    def _describe(self, cycle: BindingCycle, uid: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the annotations, and the labels, that a member's Binding writes to its pod."""
        store, slot = self._context.store, cycle.reservation.slots[uid]
        gang = format_gang(cycle.group, store.level)
        annotations = make_annotations(store.members.rank_of(uid), cycle.reservation.domain, gang)
        labels = make_labels(store.pods.get(uid), cycle.group.key.leaf(slot.part))
        return (annotations | {LABELLED_BY_BINDING: "true"}) if labels else annotations, labels

    async def _bind_remaining(self, cycle: BindingCycle) -> None:
        """Wait for bind calls of members beyond the quorum, and bind each at once. Then finish the cycle.

        The cycle ends when all members are bound, or no more bind calls are expected. Members that are not bound by
        then wait for another plan.
        """
        while not cycle.over:
            if not self._context.term.leads():
                self._cycle_updates.endings.hand_over(cycle)
                self.carry_out()
                return
            idle = self._expects_no_member(cycle)
            # The watch shows the bound members one by one. One unseen member is found faster than all are checked.
            if not cycle.has_unseen(self._is_pending) and (idle or cycle.is_done()):
                self._cycle_updates.endings.finish(cycle)
                self.carry_out()
                return
            self._send_without_commit(cycle, cycle.calling & cycle.reservation.slots.keys())
            await self._wait(
                cycle,
                max(
                    self._context.clock() + _CHECK_SECONDS,
                    cycle.progressed + self._context.options.barrier_idle_seconds,
                ),
            )

    def _expects_no_member(self, cycle: BindingCycle) -> bool:
        """Return whether no bind call is expected any more, as the last progress is too long ago.

        Too long is more than the idle deadline (``--barrier-idle``). While kube-scheduler has assumed a member or a
        bind call is open, it must also be more than LONGEST_PREBIND_SECONDS.
        """
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
        """Bind a member (UID) beyond the quorum, which needs no commit, and answer its open bind call.

        If Serried's own check before the Binding (`Permit`) refuses it, the member gets another slot or is dropped. The
        caller has called `BindingCycle.start_sending` for the member before.
        """
        member = cycle.member(uid)
        call = member.call
        if call is None or uid not in cycle.reservation.slots:
            cycle.stop_sending(uid)
            return
        try:
            sent = await self._send_assumed(cycle, uid)
        except Exception:
            log.exception("could not bind a member because of an internal error", extra={"uid": uid})
            sent = BindResult(BindOutcome.FAILED, "internal error, see the extender's log")
        finally:
            cycle.stop_sending(uid)
        if sent.outcome in (BindOutcome.FAILED, BindOutcome.REFUSED) and member.call is call:
            cycle.close_call(uid, f"serried: {sent.error}")
        if sent.refusal is not None:
            self._reassign_refused(cycle, uid, sent.refusal)

    def _reassign_refused(self, cycle: BindingCycle, uid: str, refusal: Refusal) -> None:
        """Give a member beyond the quorum another slot, or drop it, because ``refusal`` says that it may not be bound.

        If the reason is that this instance no longer leads, end the cycle here without a write.
        """
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

    async def _send_assumed(self, cycle: BindingCycle, uid: str) -> BindResult:
        """Send a Binding as ``send`` does, and count the member's resources as used on its node meanwhile.

        Without a commit, the cycle may end and release the slot while the Binding is being sent. After a success the
        resources stay counted until the watch shows the pod bound.
        """
        store, sent_successfully = self._context.store, False
        if (pod := store.pods.get(uid)) is not None:
            store.occupancy.add_usage(uid, UsageSource.ASSUMED, cycle.reservation.slots[uid].node, pod.shape.requests)
        try:
            sent = await self.send(cycle, uid)
            sent_successfully = sent.outcome is BindOutcome.BOUND
        finally:
            if not sent_successfully or uid not in store.pods:
                store.occupancy.release(uid, UsageSource.ASSUMED)
        return sent
