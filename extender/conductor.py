"""Decides which group is planned when, and begins, tends and ends rounds.

The watches change the Store; ``wake`` says that something did. A pass takes the touched groups in queue order and
considers each: synchronously, from the state at that instant, so that no await lies between reading the state and
reserving in it. Effects (record, stamps, Bindings, conditions) are left to the round's task and the writers.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from extender.gang import (
    Gang,
    Mending,
    adjust_need,
    ask_for,
    describe_claims,
    find_conflict,
    find_opening,
    find_shortage,
    find_taken,
    is_foreign,
    is_suspended,
    make_reservation,
)
from extender.moves import Moves
from extender.queue import Queue
from extender.repairs import USUAL, Repairs, Rules
from extender.round import Round
from extender.steering import Steering
from extender.voices import Voice, Watcher
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.cluster.vacancies import Vacancy
from serried.model.group import Key, PodGroup
from serried.model.plan import Ask, Plan
from serried.model.pod import Phase, Pod
from serried.model.preference import NO_PREFERENCE
from serried.model.verdict import Reason, Verdict
from serried.plan.backoff import backoff
from serried.plan.order import Waiting
from serried.plan.quorum import Standing
from serried.plan.tree import plan_group

log = logging.getLogger(__name__)

_TICK = 0.5
_UNKNOWN_SECONDS = 10.0
_RETRY_SECONDS = 60.0
_CONFLICT_SECONDS = 30.0
_ERROR_SECONDS = 10.0
_FREE_ATTEMPTS = 3


class Conductor:
    """The one owner of Gangs and rounds. Every method but ``run`` is synchronous.

    ``drive`` starts the task of a new round (extender.driver). ``held`` are the pods that filter has turned away,
    so that those which turn out to need no gang can be woken.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        steering: Steering,
        queue: Queue,
        voice: Voice,
        watcher: Watcher,
        clock: Callable[[], float],
        job_unknown_deadline: float = 30.0,
        rules: Rules = USUAL,
    ) -> None:
        self.store, self.ledger, self.steering, self.queue = store, ledger, steering, queue
        self.gangs: dict[Key, Gang] = {}
        self.held: dict[str, float] = {}
        self.active = False
        self.drive: Callable[[Round], Coroutine[Any, Any, None]] = _undriven
        self._voice, self._watcher, self.clock = voice, watcher, clock
        self.repairs = Repairs(store, clock, voice, watcher, rules)
        self._job_unknown_deadline = job_unknown_deadline
        self.moves = Moves(store, ledger, steering, self.repairs, self.gangs, self._plan, self._is_asleep, clock)
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- the loop ----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something changed: look again."""
        self._wake.set()

    async def run(self) -> None:
        """Consider groups until cancelled."""
        loop = asyncio.get_running_loop()
        tick, rest_until = loop.time(), 0.0
        while True:
            try:
                async with asyncio.timeout(_TICK):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            if not self.active:
                # A new term looks at every group; pods without one may still have to be let go then.
                self.store.touched.clear()
                self.store.orphaned &= self.store.pods.keys()
                self.repairs.end_term(self.gangs.values())
                continue
            now = loop.time()
            due = self._take_touched()
            if now >= rest_until:
                due |= self._take_woken()
            if now - tick >= _TICK:
                tick = now
                due |= self._tick()
            await self._pass(due)
            # Plans that fail again and again may take a tenth of the loop at most: filter is served by it, too.
            rest_until = loop.time() + min(1.0, 10 * (loop.time() - now))

    async def _pass(self, due: set[Key]) -> None:
        for key in self.in_turn(due):
            try:
                self.consider(key)
            except Exception:
                log.exception("considering a group failed", extra={"podGroup": str(key)})
                if key in self.gangs:
                    self.gangs[key].retry_at = self.clock() + _ERROR_SECONDS
            await asyncio.sleep(0)

    def _take_touched(self) -> set[Key]:
        touched, self.store.touched = self.store.touched, set()
        orphaned, self.store.orphaned = self.store.orphaned, set()
        for uid in orphaned:
            if self.store.group_of(uid) is None:
                self._let_go(uid)
        return touched

    def _take_woken(self) -> set[Key]:
        return {key for key in self.queue.take_woken() if key in self.gangs and self.gangs[key].round is None}

    def _tick(self) -> set[Key]:
        """What has to be seen to from time to time; the groups whose time has come."""
        now = self.clock()
        self.queue.review()
        for key, gang in list(self.gangs.items()):
            if gang.round is not None and gang.round.steers:
                self.steering.kick_idle(gang.round)
            elif gang.verdict is not None and gang.verdict.reason is Reason.JOB_UNKNOWN:
                self.consider(key)
            if (work := self.repairs.review(key, gang)) is not None:
                self.spawn(work)
        self.store.touched.update(self.store.vacancies.groups())  # their time passes without any change
        # Held before its Job or its own object was known here, or while the caches were filled: it is no gang's.
        for uid in [uid for uid in self.held if uid in self.store.pods and self.store.group_of(uid) is None]:
            self._let_go(uid)
        self.held = {uid: since for uid, since in self.held.items() if self._still_held(uid, now - since)}
        return {
            key
            for key, gang in self.gangs.items()
            if gang.round is None and (0 < gang.not_before <= now or gang.retry_at <= now)
        }

    def _still_held(self, uid: str, seconds: float) -> bool:
        # A pod that we do not know yet may be news to our watch only; one that stays unknown is gone.
        pod = self.store.pods.get(uid)
        return seconds < _UNKNOWN_SECONDS if pod is None else pod.pending

    def in_turn(self, due: set[Key]) -> list[Key]:
        """These groups in the order in which they are looked at."""
        return [waiting.group for waiting in self.queue.order(self.describe(key) for key in due)]

    def describe(self, key: Key) -> Waiting:
        """A group as the queue sees it."""
        gang = self.gangs.get(key)
        # A member that has just ended counts at once: whoever was looked at first would get the room.
        broken = (gang is not None and gang.broken_since is not None) or key in self.store.vacancies
        return self.queue.describe(key, gang.quorum_since if gang is not None else None, broken=broken)

    # --- one group ---------------------------------------------------------------------------------------------

    def consider(self, key: Key) -> None:
        """Look at one group and do what its state asks for."""
        members, group = self.store.members(key), self.store.groups.get(key)
        self.repairs.note_filled()
        if not members and group is None:
            self._forget(key)
            return
        if group is not None and group.parent is not None:
            self._forget(key)  # its members are its tree's
            return
        gang = self.gangs.setdefault(key, Gang(self.clock()))
        if gang.round is None and is_foreign(group, members, self.store):
            self._drop(key)
            return
        verdict = self._tend(gang, group) if gang.round else self._assess(key, gang, group, members)
        if verdict is not None:
            self.say(key, verdict)

    def say(self, key: Key, verdict: Verdict) -> None:
        """Record and publish how a group stands."""
        gang = self.gangs.get(key)
        if gang is not None and gang.verdict != verdict:
            gang.verdict = verdict
            self._voice.say(key, verdict)

    def _forget(self, key: Key) -> None:
        gang = self.gangs.get(key)
        if gang is None:
            return
        if gang.round is not None and not gang.round.reservation.committed:
            self.abort(gang.round, Verdict(Reason.POD_GROUP_MISSING))
        if gang.round is None:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        self.queue.leave(key)
        self.store.vacancies.close_group(key)
        del self.gangs[key]

    def _assess(self, key: Key, gang: Gang, group: PodGroup | None, members: list[Pod]) -> Verdict | None:
        if group is None or group.deleting:
            self.repairs.forget(gang)
            return self._assess_missing(key, gang, members)
        standing = self.store.stand(key)
        if not group.policy.is_gang and group.topology_key is None:
            for pod in standing.waiting:
                self._let_go(pod.uid)
            return Verdict(Reason.SCHEDULED, have=standing.placed) if standing.placed else None
        mending = self.repairs.settle(gang, group, standing)
        return self.repairs.judge(gang, group, standing, self._advance(gang, group, standing, mending))

    def _advance(self, gang: Gang, group: PodGroup, standing: Standing, mending: Mending) -> Verdict | None:
        shortage = find_shortage(group, standing, mending)
        if shortage is not None or not standing.waiting:
            self.queue.leave(group.key)
        quiet = shortage is not None and not standing.waiting and not standing.gated
        if quiet and (group.scheduled or (gang.verdict is None and is_suspended(group, self.store))):
            return None  # nobody waits: it ran, and its pods are going one by one, or none are wanted yet
        if shortage is not None:
            gang.quorum_since = None
            return shortage
        if gang.quorum_since is None:
            gang.quorum_since = self.clock()
        if not standing.waiting:
            return find_conflict(group, standing, self.store.nodes) or Verdict(Reason.SCHEDULED, have=standing.placed)
        return self._try(gang, group, standing, mending)

    def _assess_missing(self, key: Key, gang: Gang, members: list[Pod]) -> Verdict | None:
        if not any(pod.pending for pod in members):
            return None
        if not self.store.lacks_owner(key):
            gang.passed = False
            obstacle, gap = self.store.obstacle_to(key), self.store.forest.find_gap(key)
            return Verdict(Reason.API_MISSING if obstacle else Reason.POD_GROUP_MISSING, detail=obstacle or gap)
        if not gang.passed and self.clock() - gang.first_seen > self._job_unknown_deadline:
            # A pod whose Job does not exist is on its way to garbage collection; holding it longer helps nobody.
            gang.passed = True
            for pod in members:
                self._let_go(pod.uid)
        return Verdict(Reason.JOB_UNKNOWN)

    def _try(self, gang: Gang, group: PodGroup, standing: Standing, mending: Mending) -> Verdict | None:
        now = self.clock()
        if now < gang.not_before:
            return None
        tried = (
            tuple((pod.uid, pod.shape) for pod in standing.waiting),
            standing.placed,
            (group.policy, group.tree),
            mending,
        )
        gang.not_before = 0.0
        if group.key in self.queue.backlog and gang.tried == tried and now < gang.retry_at:
            return None
        gang.retry_at, gang.tried = math.inf, tried
        excluded = gang.exclusions(standing.waiting, now, self.store.nodes)
        opening = find_opening(group, now - (now if gang.quorum_since is None else gang.quorum_since))
        ask = ask_for(group, standing, excluded, self.store.nodes, opening, mending, gang.home)
        if isinstance(ask, Verdict):
            self.queue.leave(group.key)
            gang.retry_at = now + _CONFLICT_SECONDS  # a label of a full node is no room: nobody wakes the group for it
            return ask
        ask = replace(ask, taken=find_taken(group, self.store, self.ledger))
        place = self.describe(group.key)
        answer = self.queue.plan(place, ask, partial(self.repairs.answer, plan=self._plan))
        if isinstance(answer, Verdict):
            gang.retry_at = now + min(opening.next_in, _RETRY_SECONDS / 2 if excluded else math.inf)
            return answer
        self._begin(gang, group, ask, answer, self.queue.closed_to(place, ask))
        claims = describe_claims(ask.members, self.store)
        return Verdict(Reason.PLANNED, need=ask.need or len(answer.nodes), detail=claims)

    def _plan(self, ask: Ask, leaving: Iterable[Vacancy] = ()) -> Plan | Verdict:
        start = self.clock()
        answer = plan_group(self.store.view(ask.priority, ask.members, leaving), ask, self.store.capacity)
        outcome = answer.reason.value if isinstance(answer, Verdict) else "Planned"
        self._watcher.planned(outcome, self.clock() - start)
        return answer

    def _begin(self, gang: Gang, group: PodGroup, ask: Ask, plan: Plan, closed: frozenset[str]) -> None:
        now = self.clock()
        pods = {pod.uid: pod for pod in ask.members if pod.uid in plan.nodes}
        reservation = make_reservation(group, ask, plan, self.store)
        self.ledger.hold(reservation, pods)
        if ask.need:
            self.repairs.move_out(plan)
        # Every member of a tree has a domain of its own, which an offered node may not be in.
        plain = group.preference == NO_PREFERENCE and group.tree is None
        loose = plain and self.steering.leaves_loose(plan)
        round_ = Round(group, reservation, now, now, loose=loose, closed=closed)
        round_.asleep.update(uid for uid, pod in pods.items() if self._is_asleep(pod))
        self.start(gang, round_)

    def _is_asleep(self, pod: Pod) -> bool:
        return pod.unschedulable or pod.uid in self.held

    def start(self, gang: Gang, round_: Round) -> None:
        """Give a round whose reservation is held to its task."""
        gang.round = round_
        self.queue.backlog.leave(round_.reservation.group)
        self.spawn(self.drive(round_))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background, kept from the garbage collector until it is done."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End every round's task where it stands, as a killed process would: the records say what follows."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- a group in a round ------------------------------------------------------------------------------------

    def _tend(self, gang: Gang, group: PodGroup | None) -> Verdict | None:
        round_ = gang.round
        if round_ is None:
            return None
        committed = bool(round_.reservation.committed)
        if not committed and (group is None or group.deleting or group.uid != round_.group.uid):
            self.abort(round_, Verdict(Reason.POD_GROUP_MISSING))
            return None
        for uid in list(round_.reservation.slots):
            self._tend_member(round_, uid)
        for uid in round_.calls.keys() - round_.reservation.slots.keys():
            round_.close_call(uid, "serried: the pod has no slot any more")
        if group is not None and not committed and round_.reservation.need:
            adjust_need(round_, group, self.store)
        if group is not None and round_.steers:
            # Not for a group that is gone: what was committed is all that it gets.
            self.moves.refill(gang, round_, group)
        round_.changed.set()
        if committed:
            failure = next((text for uid, text in round_.failures.items() if uid in round_.reservation.slots), "")
            need = len(round_.reservation.committed)
            return Verdict(Reason.BINDING, have=len(round_.bound), need=need, detail=failure)
        return None

    def _tend_member(self, round_: Round, uid: str) -> None:
        pod, slot = self.store.pods.get(uid), round_.reservation.slots[uid]
        if pod is None or pod.deleting or pod.phase is not Phase.ACTIVE:
            self.moves.drop(round_, uid, "the pod is being deleted")
        elif uid not in round_.reservation.committed and self.store.group_of(uid) != round_.reservation.group:
            self.moves.drop(round_, uid, "the pod has left the group")
        elif pod.node == slot.node and uid not in round_.bound:
            round_.mark_bound(uid, self.clock())
        elif pod.node and pod.node != slot.node:
            round_.bound.add(uid)
            self.moves.drop(round_, uid, f"the pod is bound to {pod.node}")
        elif pod.unschedulable and uid not in round_.asleep and uid not in round_.confirmed:
            round_.asleep.add(uid)
            if round_.steers and uid not in round_.stamped:
                self.steering.steer(round_, [uid])

    def round_of(self, uid: str) -> Round | None:
        """The round in which a pod has a slot."""
        reservation = self.ledger.of_pod(uid)
        gang = self.gangs.get(reservation.group) if reservation is not None else None
        return gang.round if gang is not None else None

    def refuse(self, uid: str, node: str) -> None:
        """The scheduler knows that a member's planned node will not do: move that slot, or plan the gang anew.

        A member that the quorum does not need just loses its slot. Nothing happens if the plan is another by now.
        """
        round_, pod = self.round_of(uid), self.store.pods.get(uid)
        if round_ is None or pod is None or uid in round_.reservation.committed or uid in round_.sending:
            return
        if round_.reservation.slots[uid].node != node:
            return
        self.gangs[round_.reservation.group].refuse(pod.shape, node, self.clock(), self.store.nodes)
        round_.close_call(uid, f"serried: the scheduler refused {node}")
        if self.moves.replace(round_, pod):
            return
        self.moves.drop(round_, uid, f"the scheduler refused {node}")
        if round_.out_of_reach() and not self.moves.leave_out(round_, round_.reservation.slots):
            detail = f"the scheduler refused node {node} for {pod.name}"
            self.abort(round_, Verdict(Reason.PLAN_OUTDATED, detail=detail))

    def note_failure(self, round_: Round, uid: str, error: str) -> None:
        """A committed member's Binding was refused, and is tried again: the group's reason says so meanwhile."""
        slot = round_.reservation.slots.get(uid)
        if slot is not None:
            round_.failures[uid] = f"the Binding of {slot.name} failed and is tried again: {error}"
            self.store.touched.add(round_.reservation.group)
            self.wake()

    # --- the end of a round ------------------------------------------------------------------------------------

    def abort(self, round_: Round, verdict: Verdict) -> None:
        """End a round that has not committed: all its waiting calls fail together, everything is given back."""
        size = len(round_.reservation.slots)
        self._close(round_, f"serried: {verdict.reason}")
        gang = self.gangs[round_.reservation.group]
        gang.attempts += 1
        if verdict.reason is Reason.RECORD_FAILED:
            gang.retry_at = gang.not_before = self.clock() + backoff(gang.attempts, size)
        elif verdict.reason is Reason.DEADLINE_EXCEEDED:
            self._put_aside(round_)
            gang.not_before = self.clock() + backoff(gang.attempts, size)
            gang.retry_at = max(gang.not_before, self.clock() + _RETRY_SECONDS)
        elif verdict.reason is Reason.PLAN_OUTDATED and gang.attempts > _FREE_ATTEMPTS:
            # Outdated once is bad luck and is planned anew at once; again and again is something that we do not see.
            gang.not_before = self.clock() + backoff(gang.attempts - _FREE_ATTEMPTS, size)
        self.say(round_.reservation.group, verdict)
        self.store.touched.add(round_.reservation.group)
        self.wake()

    def _put_aside(self, round_: Round) -> None:
        waiting = self.store.stand(round_.reservation.group).waiting
        self.queue.put_aside(round_.reservation.group, Ask(waiting, 1, round_.group.topology_key, round_.pinned))

    def finish(self, round_: Round) -> None:
        """End a round whose members are bound, as far as they still exist."""
        self._close(round_, "serried: the round is over")
        gang = self.gangs[round_.reservation.group]
        gang.attempts, gang.started = 0, gang.started or bool(round_.reservation.committed)
        self.store.touched.add(round_.reservation.group)
        self.wake()

    def _close(self, round_: Round, error: str) -> None:
        key = round_.reservation.group
        uids = round_.reservation.slots.keys() | round_.stamped
        round_.end(error)
        self.ledger.release(key)
        pods = (self.store.pods.get(uid) for uid in round_.stamped - round_.bound)
        self.steering.release(uids, [pod for pod in pods if pod is not None and pod.pending])
        gang = self.gangs.setdefault(key, Gang(self.clock()))
        if gang.round is round_:
            gang.round = None

    def _let_go(self, uid: str) -> None:
        # The pod belongs to no gang (any more): the scheduler must hear of it, or it waits for its 5 minute flush.
        pod = self.store.pods.get(uid)
        was_held = self.held.pop(uid, None) is not None
        if pod is not None and pod.pending and (was_held or pod.held_by_gate):
            self.steering.wake(pod)


async def _undriven(_: Round) -> None:
    raise RuntimeError("no driver is set")
