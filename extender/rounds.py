"""How rounds end: given up before anything was sent, over with all members bound, or left to the next leader."""

from collections.abc import Callable

from extender.gang import Gang
from extender.queue import Queue
from extender.round import Round
from extender.steering import Steering
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.model.group import Key
from serried.model.plan import Ask
from serried.model.verdict import Reason, Verdict
from serried.plan.backoff import backoff

_RETRY_SECONDS = 60.0
_FREE_ATTEMPTS = 3


class Rounds:
    """Ends the rounds of ``gangs``, the conductor's own map. Every method is synchronous.

    ``say`` publishes how a group stands, ``wake`` has the conductor look at it again.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        steering: Steering,
        queue: Queue,
        gangs: dict[Key, Gang],
        clock: Callable[[], float],
        say: Callable[[Key, Verdict], None],
        wake: Callable[[], None],
    ) -> None:
        self._store, self._ledger, self._steering, self._queue = store, ledger, steering, queue
        self._gangs, self._clock, self._say, self._wake = gangs, clock, say, wake

    def abort(self, round_: Round, verdict: Verdict) -> None:
        """End a round that has not committed: all its waiting calls fail together, everything is given back."""
        size = len(round_.reservation.slots)
        self._close(round_, f"serried: {verdict.reason}")
        gang, now = self._gangs[round_.reservation.group], self._clock()
        gang.attempts += 1
        if verdict.reason is Reason.RECORD_FAILED:
            gang.retry_at = gang.not_before = now + backoff(gang.attempts, size)
        elif verdict.reason is Reason.NO_CAPACITY:
            # Each alone finds a node, all together do not: only the scheduler knows when there will be more.
            gang.not_before = now + backoff(gang.attempts, size)
        elif verdict.reason is Reason.DEADLINE_EXCEEDED:
            self._put_aside(round_)
            gang.not_before = now + backoff(gang.attempts, size)
            gang.retry_at = max(gang.not_before, now + _RETRY_SECONDS)
        elif verdict.reason is Reason.PLAN_OUTDATED and gang.attempts > _FREE_ATTEMPTS:
            # Outdated once is bad luck and is planned anew at once; again and again is something that we do not see.
            gang.not_before = now + backoff(gang.attempts - _FREE_ATTEMPTS, size)
        self._say(round_.reservation.group, verdict)
        self._look_again(round_)

    def withdraw(self, round_: Round, verdict: Verdict) -> None:
        """End a round that may have committed, but of which no Binding was sent: it is as if it had not."""
        round_.reservation.committed = frozenset()
        self.abort(round_, verdict)

    def finish(self, round_: Round) -> None:
        """End a round whose members are bound, as far as they still exist."""
        self._close(round_, "serried: the round is over")
        gang = self._gangs[round_.reservation.group]
        gang.attempts, gang.started = 0, gang.started or bool(round_.reservation.committed)
        self._look_again(round_)

    def leave(self, round_: Round) -> None:
        """End a round without a word and without a write: it is the next leader's."""
        uids = round_.reservation.slots.keys() | round_.stamped
        round_.end("serried: this instance does not lead any more")
        self._detach(round_)
        self._steering.release(uids, [])

    def leave_all(self) -> None:
        """End every round like that."""
        for gang in self._gangs.values():
            if gang.round is not None:
                self.leave(gang.round)

    def _put_aside(self, round_: Round) -> None:
        waiting = self._store.stand(round_.reservation.group).waiting
        self._queue.put_aside(round_.reservation.group, Ask(waiting, 1, round_.group.topology_key, round_.pinned))

    def _look_again(self, round_: Round) -> None:
        self._store.touched.add(round_.reservation.group)
        self._wake()

    def _close(self, round_: Round, error: str) -> None:
        uids = round_.reservation.slots.keys() | round_.stamped
        round_.end(error)
        self._detach(round_)
        pods = (self._store.pods.get(uid) for uid in round_.stamped - round_.bound)
        self._steering.release(uids, [pod for pod in pods if pod is not None and pod.pending])

    def _detach(self, round_: Round) -> None:
        key = round_.reservation.group
        self._ledger.release(key)
        gang = self._gangs.setdefault(key, Gang(self._clock()))
        if gang.round is round_:
            gang.round = None
            gang.not_before = 0.0  # a pause of members that wanted to join it says nothing of the gang
