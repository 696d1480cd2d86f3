"""The task of one round: record, steer, gather the quorum at bind, commit, bind, and what follows.

Each await is a place where the world can change, or where this process can die. What holds then:

- while recording: nothing is stamped or bound; a restart finds no record, or a planned one that it may drop;
- while gathering: the record says Planned, so a restart takes the plan up again or drops it; nothing is bound;
- while committing: the compare-and-swap is either done or not; only a read-back decides, never the error we got;
- while binding: the record says Committed, so every restart rolls forward, whatever was sent already; one of which
  nothing was sent, and that would leave a half gang, is withdrawn instead;
- anywhere: the Lease may be lost. Then the round ends here without a write, and the next leader goes on.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from extender.binding import Binder, Outcome, Sent, describe_slot
from extender.conductor import Conductor
from extender.permit import Obstacle, Refusal
from extender.records import Records
from extender.round import Round, Stage
from serried.cluster.occupancy import Hand
from serried.kube.errors import ApiError
from serried.model.group import Key
from serried.model.verdict import Reason, Verdict

log = logging.getLogger(__name__)

_ROLL_FORWARD_BASE, _ROLL_FORWARD_CAP = 0.2, 5.0

_LONGEST_QUEUE = 1800.0
"""Seconds: a gang to which the scheduler has not come by then was not in its queue."""

_LOOK_SECONDS = 0.25
"""A deadline that is put off again and again is not looked at more often."""


class Meter(Protocol):
    """Told of bursts, for the metrics."""

    def burst(self, seconds: float, members: int) -> None:
        """The Bindings of one commit have all been answered."""

    def bound(self, outcome: str) -> None:
        """One Binding has this outcome."""


class Driver:
    """Drives rounds.

    ``total`` and ``idle`` are the deadlines of the barrier, in seconds; a group may have shorter ones. ``total`` counts
    from when the scheduler has come to the first member, ``idle`` without what it spends on others (decision 20).
    """

    def __init__(
        self,
        conductor: Conductor,
        records: Records,
        binder: Binder,
        meter: Meter,
        clock: Callable[[], float],
        total: float = 300.0,
        idle: float = 60.0,
    ) -> None:
        self._conductor, self._records, self._binder = conductor, records, binder
        self._meter, self._clock = meter, clock
        self._total, self._idle = total, idle

    async def drive(self, round_: Round) -> None:
        """Run a round from wherever it stands to its end. Never raises but for cancellation."""
        try:
            while not round_.over:
                await self._run_safely(round_)
        finally:
            if round_.over and self._conductor.leads():
                await self._remove_record(round_)

    async def _run_safely(self, round_: Round) -> None:
        try:
            await self._run(round_)
        except Exception:
            log.exception("a round failed", extra={"podGroup": str(round_.reservation.group)})
            if round_.reservation.committed:
                await asyncio.sleep(_ROLL_FORWARD_CAP)  # and again: after a commit there is no way back
            elif not round_.over:
                self._give_up(round_, Verdict(Reason.PLAN_OUTDATED, detail="internal error, see the log"))

    async def _run(self, round_: Round) -> None:
        if round_.stage is Stage.RECORDING:
            await self._record(round_)
        if round_.stage is Stage.GATHERING:
            self._conductor.steering.steer(round_, list(round_.reservation.slots))
            await self._gather(round_)
        if round_.stage is Stage.COMMITTING:
            await self._commit(round_)
        if round_.stage is Stage.BINDING:
            await self._bind_committed(round_)
            await self._drain(round_)

    async def _record(self, round_: Round) -> None:
        if round_.reservation.need == 0:
            # The quorum stands: each member binds as it comes, there is nothing that could be left half done.
            round_.stage = Stage.BINDING
            self._conductor.steering.steer(round_, list(round_.reservation.slots))
            return
        try:
            await self._records.write(round_.group, round_.reservation)
        except ApiError as error:
            self._give_up(round_, Verdict(Reason.RECORD_FAILED, detail=str(error)))
            return
        if not round_.over:
            round_.stage = Stage.GATHERING

    def _give_up(self, round_: Round, verdict: Verdict) -> None:
        """End a round of which no Binding was sent; what another instance may see by now is left to that one."""
        if round_.over:
            return
        if self._conductor.leads():
            self._conductor.rounds.withdraw(round_, verdict)
        else:
            self._conductor.rounds.leave(round_)

    async def _gather(self, round_: Round) -> None:
        while not round_.over:
            verdict = self._judge(round_)
            if not self._conductor.leads():
                self._conductor.rounds.leave(round_)
            elif verdict is not None:
                self._conductor.rounds.abort(round_, verdict)
            elif not round_.quorum_at_bind():
                await self._wait(round_, max(self._clock() + _LOOK_SECONDS, self._deadline(round_)))
            elif self._still_ready(round_):
                round_.stage = Stage.COMMITTING
                return

    def _still_ready(self, round_: Round) -> bool:
        # The newest cache once more, without an await from here to the commit: members and group may have gone.
        self._conductor.consider(round_.reservation.group)
        return not round_.over and round_.quorum_at_bind()

    def _judge(self, round_: Round) -> Verdict | None:
        reservation = round_.reservation
        if round_.out_of_reach() and not self._conductor.moves.leave_out(round_, reservation.slots):
            return Verdict(Reason.PLAN_OUTDATED, detail="a planned member was deleted")
        if round_.quorum_at_bind():
            return None
        self._conductor.steering.watch(round_)
        late = self._clock() > self._deadline(round_)
        if late and not self._conductor.moves.leave_out(round_, round_.calls):
            return Verdict(Reason.DEADLINE_EXCEEDED, have=len(round_.calls), need=reservation.need)
        return None

    def _deadline(self, round_: Round) -> float:
        """When the round will be late, if the scheduler has nothing else to do until then; loop seconds.

        Before the scheduler has come to it, a gang has its room in the ledger alone. From the first member on the
        scheduler keeps room, too, and a bind call is open that must be answered before its time-out (15 minutes).
        """
        total, idle = min(self._total, round_.group.timeout), min(self._idle, round_.group.timeout)
        latest = round_.started + _LONGEST_QUEUE if round_.met is None else round_.met + total
        return min(latest, round_.looked + idle - round_.idled)

    async def _wait(self, round_: Round, deadline: float) -> None:
        round_.changed.clear()
        try:
            async with asyncio.timeout(max(0.01, deadline - self._clock())):
                await round_.changed.wait()
        except TimeoutError:
            pass

    async def _commit(self, round_: Round) -> None:
        reservation = round_.reservation
        chosen = reservation.committed or frozenset(round_.calls)  # the first, if writing it broke off
        if not chosen:
            round_.stage = Stage.BINDING
            return
        refusal = self._conductor.permit.refuse_all(round_, chosen)
        if refusal is not None:
            self._give_up(round_, Verdict(Reason.PLAN_OUTDATED, detail=refusal.text))
            return
        # From here to the answer neither abort nor deadline may touch the round: the swap may be done already.
        reservation.committed = chosen
        try:
            await self._records.write(round_.group, reservation)
        except ApiError as error:
            if not await self._was_committed(round_, error):
                self._give_up(round_, Verdict(Reason.RECORD_FAILED, detail=str(error)))
                return
        if not round_.over:  # the Lease may have been lost meanwhile
            round_.stage = Stage.BINDING

    async def _was_committed(self, round_: Round, error: ApiError) -> bool:
        """Whether the swap happened although its answer was an error.

        Asks until the API server says; no, if the term ends before.
        """
        log.warning("commit answered with an error", extra={"podGroup": str(round_.group.key), "err": str(error)})
        pause = _ROLL_FORWARD_BASE
        while self._conductor.leads():
            try:
                return await self._records.is_committed(round_.reservation)
            except ApiError:
                await asyncio.sleep(pause)
                pause = min(_ROLL_FORWARD_CAP, pause * 2)
        return False

    async def _bind_committed(self, round_: Round) -> None:
        start = self._clock()
        committed = round_.reservation.committed
        if committed and not round_.begun:
            self._look_again(round_)
        if committed and not round_.over:
            await asyncio.gather(*(self._roll_forward(round_, uid) for uid in committed))
            self._meter.burst(self._clock() - start, len(committed))

    def _look_again(self, round_: Round) -> None:
        """The newest cache once more before the first Binding: the commit took its time, or is an earlier term's.

        Nobody is bound yet. So this is the last moment at which the whole gang can still be given up, and planned anew
        on nodes that the scheduler is asked about.
        """
        reservation = round_.reservation
        uids = [uid for uid in reservation.committed if uid in reservation.slots]
        refusal = self._conductor.permit.refuse_all(round_, uids)
        if refusal is not None:
            self._give_up(round_, Verdict(Reason.PLAN_OUTDATED, detail=refusal.text))

    async def _roll_forward(self, round_: Round, uid: str) -> None:
        """Bind one committed member, however long it takes: once one of them is sent there is no way back."""
        pause = _ROLL_FORWARD_BASE
        while uid in round_.reservation.slots and uid not in round_.bound and not round_.over:
            sent = await self.send(round_, uid)
            if sent.outcome not in (Outcome.FAILED, Outcome.REFUSED):
                return
            void = sent.refusal is not None and sent.refusal.obstacle is not Obstacle.SLOT
            if void or not self._conductor.leads():
                # Only as long as nothing was sent is the gang itself asked for: nobody of it is bound.
                self._give_up(round_, Verdict(Reason.PLAN_OUTDATED, detail=sent.error))
                return
            log.warning("a committed member could not be bound yet", extra={"uid": uid, "err": sent.error})
            self._conductor.note_failure(round_, uid, sent.error)
            await asyncio.sleep(pause)
            pause = min(_ROLL_FORWARD_CAP, pause * 2)
            self._mend(round_, uid)

    def _mend(self, round_: Round, uid: str) -> None:
        # The slot itself may have become impossible (its node is gone): the member keeps its domain, not its node.
        pod, slot = self._conductor.store.pods.get(uid), round_.reservation.slots.get(uid)
        if pod is None or slot is None or not pod.pending:
            return
        refusal = self._conductor.permit.refuse(round_, uid, slot.node)
        if refusal is not None and refusal.obstacle is Obstacle.SLOT:
            self._conductor.moves.replace(round_, pod)

    async def send(self, round_: Round, uid: str) -> Sent:
        """Send one member's Binding, if the door lets it, and settle what its answer means for the round."""
        slot = round_.reservation.slots[uid]
        node, pod = slot.node, Key(round_.group.key.namespace, slot.name)
        told = describe_slot(self._conductor.store.rank_of(uid), round_.reservation.domain)

        def ask() -> Refusal | None:
            refusal = self._conductor.permit.refuse(round_, uid, node)
            round_.begun = round_.begun or (refusal is None and uid in round_.reservation.committed)
            return refusal

        sent = await self._binder.bind(pod, uid, node, told, ask)
        self._meter.bound(sent.outcome.value)
        if sent.outcome is Outcome.BOUND:
            round_.mark_bound(uid, self._clock())
        elif sent.outcome in (Outcome.LOST, Outcome.ELSEWHERE):
            if sent.outcome is Outcome.ELSEWHERE:
                round_.bound.add(uid)
            self._conductor.moves.drop(round_, uid, sent.error)
        return sent

    async def _drain(self, round_: Round) -> None:
        """Wait for the members beyond the quorum: each binds as it comes, none has to."""
        while not round_.over:
            if not self._conductor.leads():
                self._conductor.rounds.leave(round_)
                return
            waiting = round_.reservation.slots.keys() - round_.bound
            idle = self._clock() - round_.progressed > self._idle
            if idle or not (waiting or self._unseen(round_)):
                self._conductor.rounds.finish(round_)
                return
            for uid in (waiting & round_.calls.keys()) - round_.sending:
                round_.sending.add(uid)
                self._conductor.spawn(self.bind_surplus(round_, uid))
            await self._wait(round_, round_.progressed + self._idle)

    def _unseen(self, round_: Round) -> bool:
        # Until our own watch shows a member bound, its slot must stay: it would be planned a second time.
        pods = (self._conductor.store.pods.get(uid) for uid in round_.bound)
        return any(pod is not None and pod.pending for pod in pods)

    async def bind_surplus(self, round_: Round, uid: str) -> None:
        """Bind a member that needs no quorum and is in ``sending``; its call gets the answer, good or bad."""
        call = round_.calls.get(uid)
        if call is None or uid not in round_.reservation.slots:
            round_.sending.discard(uid)
            return
        try:
            sent = await self._send_assumed(round_, uid)
        except Exception:
            log.exception("a member could not be bound", extra={"uid": uid})
            sent = Sent(Outcome.FAILED, "internal error, see the extender's log")
        finally:
            round_.sending.discard(uid)
        if sent.outcome in (Outcome.FAILED, Outcome.REFUSED) and round_.calls.get(uid) is call:
            round_.close_call(uid, f"serried: {sent.error}")
        if sent.refusal is not None:
            self._take_back(round_, uid, sent.refusal)
        round_.changed.set()  # a newer call of it may have come meanwhile

    def _take_back(self, round_: Round, uid: str, refusal: Refusal) -> None:
        """A member that needs no quorum may not be bound to its slot: it gets another one, or none."""
        if refusal.obstacle is Obstacle.TERM:
            self._conductor.rounds.leave(round_)
            return
        pod = self._conductor.store.pods.get(uid)
        if uid not in round_.reservation.slots or round_.over:
            return
        movable = refusal.obstacle is Obstacle.SLOT and pod is not None and pod.pending
        if pod is None or not movable or not self._conductor.moves.replace(round_, pod):
            self._conductor.moves.drop(round_, uid, refusal.text)

    async def _send_assumed(self, round_: Round, uid: str) -> Sent:
        """As ``send``; the room counts until the answer, or else the watch, says more."""
        # No commit keeps the round until then: it may end, and give the slot back, while the Binding is on its way.
        store, stands = self._conductor.store, False
        if (pod := store.pods.get(uid)) is not None:
            store.occupancy.claim(uid, Hand.ASSUMED, round_.reservation.slots[uid].node, pod.shape.requests)
        try:
            sent = await self.send(round_, uid)
            stands = sent.outcome is Outcome.BOUND
        finally:
            if not stands or uid not in store.pods:
                store.occupancy.release(uid, Hand.ASSUMED)
        return sent

    async def _remove_record(self, round_: Round) -> None:
        pause = _ROLL_FORWARD_BASE
        while True:
            try:
                return await self._records.remove(round_.reservation)
            except ApiError as error:
                # If it stays, the next write of this group replaces it, or its owner reference takes it away.
                log.warning(
                    "cannot delete a Reservation yet", extra={"podGroup": str(round_.group.key), "err": str(error)}
                )
            await asyncio.sleep(pause)
            pause = min(_ROLL_FORWARD_CAP, pause * 2)
