"""Decides which group is planned when, and begins, tends and ends cycles.

The watches change the Store; ``wake`` says that something did. A pass takes the touched groups in queue order and
considers each: synchronously, from the state at that instant, so that no await lies between reading the state and
reserving in it. Effects (record, stamps, Bindings, conditions) are left to the cycle's task and the writers.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from extender.binding.nominator import Nominator
from extender.scheduling.checks import (
    describe_claims,
    find_conflict,
    find_shortage,
    find_taken,
    is_foreign,
    is_suspended,
)
from extender.scheduling.cycle import BindingCycle
from extender.scheduling.endings import CycleEndings
from extender.scheduling.group_state import GroupState, Mending
from extender.scheduling.held import HeldPods
from extender.scheduling.moves import Moves
from extender.scheduling.offers import Offers
from extender.scheduling.permit import Permit
from extender.scheduling.planning import Planning
from extender.scheduling.queue import Queue
from extender.scheduling.repairs import USUAL, Repairs, Rules
from extender.scheduling.requests import build_request, find_opening
from extender.scheduling.slots import adjust_need, make_reservation
from extender.scheduling.studies import Unfinished
from extender.scheduling.voices import StatusSink
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.metrics import ExtenderMetrics
from serried.model.group import GroupKey, PodGroup
from serried.model.plan import Plan, PlanRequest
from serried.model.pod import Phase, Pod
from serried.model.preference import NO_PREFERENCE
from serried.model.verdict import Reason, Verdict
from serried.observe.log import name_group
from serried.plan.order import Waiting
from serried.plan.quorum import GroupMembers

log = logging.getLogger(__name__)

_TICK = 0.5
_EXCLUDED_SECONDS = 30.0
_CONFLICT_SECONDS = 30.0
_ERROR_SECONDS = 10.0


class GroupScheduler:
    """The one owner of Gangs and cycles. Every method but ``run`` is synchronous.

    ``drive`` starts the task of a new cycle (extender.binding.run). ``held`` are the pods that filter has turned away,
    so that those which turn out to need no gang can be woken. ``active`` is whether this term looks at groups at all,
    ``obstacle`` says why it cannot plan any of them yet; ``adopting`` is whether it is just taking over what earlier
    terms have left. ``holds_lease`` is asked whether the term has not run out by now.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        nominator: Nominator,
        queue: Queue,
        voice: StatusSink,
        metrics: ExtenderMetrics,
        clock: Callable[[], float],
        job_unknown_deadline: float = 30.0,
        rules: Rules = USUAL,
    ) -> None:
        self.store, self.ledger, self.nominator, self.queue = store, ledger, nominator, queue
        self.gangs: dict[GroupKey, GroupState] = {}
        self.held = HeldPods(store.pods)
        self.active, self.adopting, self.obstacle = False, False, ""
        self.holds_lease: Callable[[], bool] = _always
        self.permit = Permit(store, self.leads)
        self.drive: Callable[[BindingCycle], Coroutine[Any, Any, None]] = _undriven
        self._voice, self._metrics, self.clock = voice, metrics, clock
        self.repairs = Repairs(store, clock, voice, metrics, rules)
        self.cycles = CycleEndings(store, ledger, nominator, queue, self.gangs, clock, self.say, self.wake)
        self._job_unknown_deadline = job_unknown_deadline
        self.planning = Planning(store, queue.studies, self.gangs, metrics, clock, self.wake, self.spawn)
        at_once = self.planning.plan_at_once
        self.moves = Moves(
            store, ledger, nominator, self.repairs, self.permit, self.gangs, at_once, self._is_asleep, clock
        )
        self.offers = Offers(store, self.moves, self.gangs, clock, self.wake)
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- terms -------------------------------------------------------------------------------------------------

    def leads(self) -> bool:
        """Whether this instance may write at this moment."""
        return (self.active or self.adopting) and self.holds_lease()

    def end_term(self) -> None:
        """Another instance may lead from now on: all that goes on here ends, and nothing is written about it.

        The records say what follows: the next leader takes up what was planned and rolls forward what was committed.
        """
        self.active, self.adopting, self.obstacle = False, False, ""
        self.cycles.leave_all()
        self.repairs.end_term(self.gangs.values())
        for gang in self.gangs.values():
            gang.verdict = None  # it may not be told yet, or another instance may say otherwise
        self.queue.studies.clear()
        self.nominator.end_term()
        for task in self._tasks:
            task.cancel()

    # --- the loop ----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something changed: look again."""
        self._wake.set()

    @property
    def plans(self) -> bool:
        """Whether groups are looked at, and planned."""
        return self.active and not self.obstacle

    def meet_obstacle(self, what: str) -> None:
        """What keeps this term from planning, a phrase; "" for nothing (any more). Every group is looked at again."""
        if self.obstacle and not what:
            self.repairs.end_term(self.gangs.values())  # what was promised before was not known yet
        self.obstacle = what
        self.store.touched.update(self.store.groups, self.store.members.groups(), self.gangs)
        self.wake()

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
                self.queue.studies.clear()
                continue
            now, self.planning.vain = loop.time(), 0.0
            due = self._take_touched()
            if now >= rest_until:
                due |= self._take_woken()
            if now - tick >= _TICK:
                tick = now
                due |= self._tick()
            await self._pass(due)
            # Plans that fail again and again may take a tenth of the loop at most: filter is served by it, too.
            rest_until = max(rest_until, loop.time() + 10 * self.planning.vain)

    async def _pass(self, due: set[GroupKey]) -> None:
        for key in self.in_turn(due):
            if not self.active:
                return  # the term has ended between two groups
            try:
                self.consider(key)
            except Exception:
                log.exception("considering a group failed", extra=name_group(key))
                if key in self.gangs:
                    self.gangs[key].retry_at = self.clock() + _ERROR_SECONDS
            await asyncio.sleep(0)

    def _take_touched(self) -> set[GroupKey]:
        touched, self.store.touched = self.store.touched, set()
        orphaned, self.store.orphaned = self.store.orphaned, set()
        for uid in orphaned:
            if self.store.members.group_of(uid) is None:
                self._let_go(uid)
        return touched

    def _take_woken(self) -> set[GroupKey]:
        return {key for key in self.queue.take_woken() if key in self.gangs and self.gangs[key].cycle is None}

    def _tick(self) -> set[GroupKey]:
        """What has to be seen to from time to time; the groups whose time has come."""
        now = self.clock()
        self.queue.review()
        for key, gang in list(self.gangs.items()):
            if gang.cycle is not None and gang.cycle.steers:
                self.nominator.kick_idle(gang.cycle)
                self.nominator.watch(gang.cycle)
            elif gang.verdict is not None and gang.verdict.reason is Reason.JOB_UNKNOWN and not gang.passed:
                self.consider(key)
            if not self.obstacle and (work := self.repairs.review(key, gang)) is not None:
                self.spawn(work)
        self.store.touched.update(self.store.vacancies.groups())  # their time passes without any change
        # Held before its Job or its own object was known here, or while the caches were filled: it is no gang's.
        self.held.review(now)
        for uid in [uid for uid in self.held if self.store.members.group_of(uid) is None]:
            self._let_go(uid)
        return {key for key, gang in self.gangs.items() if self.planning.is_due(gang)}

    def in_turn(self, due: set[GroupKey]) -> list[GroupKey]:
        """These groups in the order in which they are looked at."""
        return [waiting.group for waiting in self.queue.order(self.describe(key) for key in due)]

    def describe(self, key: GroupKey) -> Waiting:
        """A group as the queue sees it."""
        gang = self.gangs.get(key)
        # A member that has just ended counts at once: whoever was looked at first would get the room.
        broken = (gang is not None and gang.broken_since is not None) or key in self.store.vacancies
        return self.queue.describe(key, gang.quorum_since if gang is not None else None, broken=broken)

    # --- one group ---------------------------------------------------------------------------------------------

    def consider(self, key: GroupKey) -> None:
        """Look at one group and do what its state asks for."""
        group = self.store.groups.get(key)
        self.repairs.note_filled()
        if group is None and not self.store.members.of_group(key):
            self._forget(key)
            return
        if group is not None and group.parent is not None:
            self._forget(key)  # its members are its tree's
            return
        gang = self.gangs.setdefault(key, GroupState(self.clock()))
        if gang.cycle is not None:  # whose members are looked at one by one there
            verdict = self._tend(gang)
        else:
            members = self.store.members.of_group(key)
            if is_foreign(group, members, self.store):
                self._drop(key)
                return
            verdict = self._assess(key, gang, group, members)
        if verdict is not None:
            self.say(key, verdict)

    def say(self, key: GroupKey, verdict: Verdict) -> None:
        """Record and publish how a group stands."""
        gang = self.gangs.get(key)
        if gang is not None and gang.verdict != verdict:
            gang.verdict = verdict
            self._voice.say(key, verdict)

    def _forget(self, key: GroupKey) -> None:
        gang = self.gangs.get(key)
        if gang is None:
            return
        if gang.cycle is not None and not gang.cycle.reservation.committed:
            self.cycles.abort(gang.cycle, Verdict(Reason.POD_GROUP_MISSING))
        if gang.cycle is None:
            self._drop(key)

    def _drop(self, key: GroupKey) -> None:
        self.queue.leave(key)
        self.store.vacancies.close_group(key)
        del self.gangs[key]

    def _assess(self, key: GroupKey, gang: GroupState, group: PodGroup | None, members: list[Pod]) -> Verdict | None:
        if group is None or group.deleting:
            self.repairs.forget(gang)
            return self._assess_missing(key, gang, members)
        group_members = self.store.members.classify(key)
        if not group.policy.is_gang and group.topology_key is None:
            for pod in group_members.waiting:
                self._let_go(pod.uid)
            return Verdict(Reason.SCHEDULED, have=group_members.placed) if group_members.placed else None
        mending = self.repairs.settle(gang, group, group_members)
        return self.repairs.judge(gang, group, group_members, self._advance(gang, group, group_members, mending))

    def _advance(
        self, gang: GroupState, group: PodGroup, group_members: GroupMembers, mending: Mending
    ) -> Verdict | None:
        shortage = find_shortage(group, group_members, self.store, mending)
        if shortage is not None or not group_members.waiting:
            self.queue.leave(group.key)
        quiet = shortage is not None and not (group_members.waiting or group_members.gated or group_members.refused)
        if quiet and (group.scheduled or (gang.verdict is None and is_suspended(group, self.store))):
            return None  # nobody waits: it ran, and its pods are going one by one, or none are wanted yet
        if shortage is not None:
            if not group_members.refused:  # those exist: the gang keeps its place in the queue
                gang.quorum_since = None
            return shortage
        if gang.quorum_since is None:
            gang.quorum_since = self.clock()
        if not group_members.waiting:
            return find_conflict(group, group_members, self.store.nodes) or Verdict(
                Reason.SCHEDULED, have=group_members.placed
            )
        if self.obstacle:
            self.queue.leave(group.key)
            return Verdict(Reason.RECORDS_UNREADABLE, detail=self.obstacle)
        return self._try(gang, group, group_members, mending)

    def _assess_missing(self, key: GroupKey, gang: GroupState, members: list[Pod]) -> Verdict | None:
        if not any(pod.pending for pod in members):
            return None
        if not self.store.lacks_owner(key):
            gang.passed = False
            obstacle, gap = self.store.obstacle_to(key), self.store.forest.find_gap(key)
            return Verdict(Reason.API_MISSING if obstacle else Reason.POD_GROUP_MISSING, detail=obstacle or gap)
        if not gang.passed and self.clock() - gang.first_seen > self._job_unknown_deadline:
            # A pod whose Job does not exist is on its way to garbage collection; holding it longer helps nobody.
            gang.passed = True
        if gang.passed:
            for pod in members:
                self._let_go(pod.uid)
        return Verdict(Reason.JOB_UNKNOWN)

    def _try(self, gang: GroupState, group: PodGroup, group_members: GroupMembers, mending: Mending) -> Verdict | None:
        now = self.clock()
        if now < gang.not_before:
            return self.queue.foresee(self.describe(group.key))
        tried = (
            tuple((pod.uid, pod.shape) for pod in group_members.waiting),
            (group_members.placed, len(group_members.terminating)),
            (group.policy, group.tree),
            mending,
        )
        gang.not_before = 0.0
        if group.key in self.queue.backlog and gang.tried == tried and now < gang.retry_at:
            return self.queue.foresee(self.describe(group.key))
        gang.retry_at, gang.tried = math.inf, tried
        excluded = gang.exclusions(group_members.waiting, now, self.store.nodes)
        opening = find_opening(group, now - (now if gang.quorum_since is None else gang.quorum_since))
        ask = build_request(group, group_members, excluded, self.store.nodes, opening, mending, gang.home)
        if isinstance(ask, Verdict):
            self.queue.leave(group.key)
            gang.retry_at = now + _CONFLICT_SECONDS  # a label of a full node is no room: nobody wakes the group for it
            return ask
        ask = replace(ask, taken=find_taken(group, self.store, self.ledger))
        ask = ask.avoiding(gang.unoffered(ask.members, now, self.store.nodes))
        place = self.describe(group.key)
        try:
            answer = self.queue.plan(place, ask, partial(self.repairs.answer, plan=self.planning.plan))
        except Unfinished:
            return self.planning.describe_wait(gang, ask)  # and again when it is there
        if isinstance(answer, Verdict):
            gang.retry_at = now + min(opening.next_in, _EXCLUDED_SECONDS if excluded or ask.closed else math.inf)
            self.planning.rest(gang, group.key, answer)
            return answer
        self.queue.studies.settle(group.key)
        self._begin(gang, group, ask, answer, self.queue.closed_to(place, ask))
        claims = describe_claims(ask.members, self.store)
        return Verdict(Reason.PLANNED, need=ask.need or len(answer.nodes), detail=claims)

    def _begin(self, gang: GroupState, group: PodGroup, ask: PlanRequest, plan: Plan, closed: frozenset[str]) -> None:
        now = self.clock()
        pods = {pod.uid: pod for pod in ask.members if pod.uid in plan.nodes}
        reservation = make_reservation(group, ask, plan, self.store)
        self.ledger.reserve(reservation, pods)
        if ask.need:
            self.repairs.move_out(plan)
        # Every member of a tree has a domain of its own, which an offered node may not be in.
        plain = group.preference == NO_PREFERENCE and group.tree is None
        loose = plain and self.nominator.leaves_loose(plan)
        cycle = BindingCycle(group, reservation, now, now, loose=loose, closed=closed)
        cycle.asleep.update(uid for uid, pod in pods.items() if self._is_asleep(pod))
        self.start(gang, cycle)

    def _is_asleep(self, pod: Pod) -> bool:
        return pod.unschedulable or pod.uid in self.held

    def start(self, gang: GroupState, cycle: BindingCycle) -> None:
        """Give a cycle whose reservation is held to its task."""
        gang.cycle = cycle
        self.queue.backlog.leave(cycle.reservation.group)
        self.spawn(self.drive(cycle))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background, kept from the garbage collector until it is done."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work in the background failed", exc_info=error)

    async def close(self) -> None:
        """End every cycle's task where it stands, as a killed process would: the records say what follows."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- a group in a cycle ------------------------------------------------------------------------------------

    def _tend(self, gang: GroupState) -> Verdict | None:
        cycle = gang.cycle
        if cycle is None:
            return None
        committed, group = bool(cycle.reservation.committed), self.permit.find_group(cycle)
        if not committed and group is None:
            self.cycles.abort(cycle, Verdict(Reason.POD_GROUP_MISSING))
            return None
        if (refusal := self.offers.drop_refused(cycle)) is not None:
            self.cycles.abort(cycle, refusal)
            return None
        for uid in list(cycle.reservation.slots):
            self._tend_member(cycle, uid)
        if group is None:
            # What was committed is all that a group gets that is gone, or that was made anew under its name.
            self.moves.drop_surplus(cycle, "its PodGroup is gone, or was made anew")
        else:
            self._tend_quorum(gang, cycle, group)
        for uid in cycle.calls.keys() - cycle.reservation.slots.keys():
            cycle.close_call(uid, "serried: the pod has no slot any more")
        cycle.changed.set()
        if committed:
            failure = next((text for uid, text in cycle.failures.items() if uid in cycle.reservation.slots), "")
            need = len(cycle.reservation.committed)
            return Verdict(Reason.BINDING, have=len(cycle.bound), need=need, detail=failure)
        return None

    def _tend_quorum(self, gang: GroupState, cycle: BindingCycle, group: PodGroup) -> None:
        reservation = cycle.reservation
        if reservation.need and not reservation.committed:
            adjust_need(cycle, group, self.store, self.ledger)
        elif not reservation.need and self.permit.count_missing(cycle, group):
            # It was planned for a gang that stands. Whoever has no slot of its own waits for the others now.
            self.moves.drop_surplus(cycle, "its gang is below its quorum by now")
        if cycle.steers and not self.obstacle:
            self.moves.refill(gang, cycle, group)

    def _tend_member(self, cycle: BindingCycle, uid: str) -> None:
        pod, slot = self.store.pods.get(uid), cycle.reservation.slots[uid]
        if pod is None or pod.deleting or pod.phase is not Phase.ACTIVE:
            self.moves.drop(cycle, uid, "the pod is being deleted")
        elif uid not in cycle.reservation.committed and self.store.members.group_of(uid) != cycle.reservation.group:
            self.moves.drop(cycle, uid, "the pod has left the group")
        elif pod.node == slot.node and uid not in cycle.bound:
            cycle.mark_bound(uid, self.clock())
        elif pod.node and pod.node != slot.node:
            cycle.bound.add(uid)
            self.moves.drop(cycle, uid, f"the pod is bound to {pod.node}")
        elif pod.unschedulable and uid not in cycle.asleep and uid not in cycle.confirmed:
            cycle.asleep.add(uid)
            if cycle.steers and uid not in cycle.stamped:
                self.nominator.nominate(cycle, [uid])

    def cycle_of(self, uid: str) -> BindingCycle | None:
        """The cycle in which a pod has a slot."""
        reservation = self.ledger.of_pod(uid)
        gang = self.gangs.get(reservation.group) if reservation is not None else None
        return gang.cycle if gang is not None else None

    def refuse(self, uid: str, node: str) -> None:
        """The scheduler knows that a member's planned node will not do: move that slot, or plan the gang anew.

        A member that the quorum does not need just loses its slot. Nothing happens if the plan is another by now.
        """
        cycle, pod = self.cycle_of(uid), self.store.pods.get(uid)
        if cycle is None or pod is None or uid in cycle.reservation.committed or uid in cycle.sending:
            return
        if cycle.reservation.slots[uid].node != node:
            return
        self.gangs[cycle.reservation.group].refuse(pod.shape, node, self.clock(), self.store.nodes)
        self.offers.close(cycle, pod)
        cycle.close_call(uid, f"serried: the scheduler refused {node}")
        if self.moves.replace(cycle, pod):
            return
        self.moves.drop(cycle, uid, f"the scheduler refused {node}")
        if cycle.reservation.committed:
            return  # a member beyond the quorum; those that are committed are only ever rolled forward
        if cycle.out_of_reach() and not self.moves.leave_out(cycle, cycle.reservation.slots):
            detail = f"the scheduler refused node {node} for {pod.name}"
            self.cycles.abort(cycle, Verdict(Reason.PLAN_OUTDATED, detail=detail))

    def note_failure(self, cycle: BindingCycle, uid: str, error: str) -> None:
        """A committed member's Binding was refused, and is tried again: the group's reason says so meanwhile."""
        slot = cycle.reservation.slots.get(uid)
        if slot is not None:
            cycle.failures[uid] = f"the Binding of {slot.name} failed and is tried again: {error}"
            self.store.touched.add(cycle.reservation.group)
            self.wake()

    def _let_go(self, uid: str) -> None:
        # The pod belongs to no gang (any more): the scheduler must hear of it, or it waits for its 5 minute flush.
        pod = self.store.pods.get(uid)
        was_held = self.held.forget(uid)
        if pod is not None and pod.pending and (was_held or pod.held_by_gate):
            self.nominator.wake(pod)


def _always() -> bool:
    return True


async def _undriven(_: BindingCycle) -> None:
    raise RuntimeError("no driver is set")
