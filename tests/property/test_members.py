"""The members of a binding cycle against a model that knows them by independent facts: the stages are what these say.

Everything that kube-scheduler, the watch and our own writes can tell comes in any order, also late and twice. What the
drawings in `extender.core.scheduling.binding_cycle` do not have must raise, and change nothing.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extender.core.scheduling.binding_cycle import BindingCycle, CycleStage
from extender.core.scheduling.cycle_member import MemberStage
from serried.api.group import PodGroup, Policy
from serried.api.names import GroupKey, IllegalTransition
from serried.api.reservation import Reservation, Slot

GROUP = GroupKey("default", "g")
PARTS = {"a": "left", "b": "left", "c": "right"}
UIDS = st.sampled_from(sorted(PARTS))
_LIFE = 8
"""A cycle may end when so much has happened: before, there is little to see."""

NEXT = {
    CycleStage.RECORDING: (CycleStage.PREEMPTING, CycleStage.GATHERING, CycleStage.BINDING),
    CycleStage.PREEMPTING: (CycleStage.GATHERING,),
    CycleStage.GATHERING: (CycleStage.COMMITTING,),
    CycleStage.COMMITTING: (CycleStage.BINDING,),
    CycleStage.BINDING: (),
    CycleStage.ENDED: (),
}


@dataclass
class Facts:
    """The facts about one member, each by itself."""

    aside: bool = False
    filtered: bool = False
    sending: bool = False
    bound: bool = False
    call: asyncio.Future[str] | None = None
    older: list[asyncio.Future[str]] = field(default_factory=list)
    hung_up: list[asyncio.Future[str]] = field(default_factory=list)

    @property
    def stage(self) -> MemberStage:
        """The last of the stages that the facts allow."""
        facts = {
            MemberStage.BOUND: self.bound,
            MemberStage.SENDING: self.sending,
            MemberStage.AT_BIND: self.call is not None,
            MemberStage.UNSCHEDULABLE: self.aside,
            MemberStage.FILTERED: self.filtered,
        }
        return next((stage for stage, holds in facts.items() if holds), MemberStage.WAITING)

    @property
    def before_bind(self) -> bool:
        return self.stage in (MemberStage.WAITING, MemberStage.UNSCHEDULABLE, MemberStage.FILTERED)

    def lose_call(self) -> None:
        """Treat the call as closed: it was answered, or the caller hung up."""
        if self.call is not None:
            self.older.append(self.call)
            self.call = None


class MemberMachine(RuleBasedStateMachine):
    """Random histories of one cycle."""

    @initialize(tree=st.booleans(), need=st.integers(0, 3), at_once=st.booleans())
    def begin(self, tree: bool, need: int, at_once: bool) -> None:  # noqa: FBT001 - drawn
        self.loop = asyncio.Runner()
        slots = {uid: Slot(uid, uid, "n1", part if tree else "") for uid, part in PARTS.items()}
        parts = {"left": need // 2, "right": need - need // 2} if tree else {}
        reservation = Reservation(GROUP, "g", "", need, slots, parts=parts)
        self.cycle = BindingCycle(PodGroup(GROUP, "g", Policy(need)), reservation, started=0.0, progressed=0.0)
        if at_once:
            self.cycle.enter(CycleStage.BINDING)
        self.facts = {uid: Facts() for uid in PARTS}
        self.slots, self.now = slots, 0.0

    def teardown(self) -> None:
        if hasattr(self, "cycle"):
            self.end()
            self.nobody_waits_for_an_answer_that_never_comes()
            self.loop.close()

    # --- what the scheduler does -------------------------------------------------------------------------------

    @rule(uid=UIDS)
    def reject(self, uid: str) -> None:
        facts = self.facts[uid]
        facts.aside = facts.aside or facts.before_bind
        self.cycle.mark_unschedulable(uid)

    @rule(uid=UIDS)
    def filter(self, uid: str) -> None:
        self.facts[uid].filtered, self.facts[uid].aside = True, False
        self.cycle.mark_filtered(uid, self._tick())

    @rule(uid=UIDS)
    def miss_its_node(self, uid: str) -> None:
        self.facts[uid].filtered = False
        self.cycle.mark_not_offered(uid)
        assert self.cycle.member(uid).not_offered

    @rule(uid=UIDS)
    def call(self, uid: str) -> None:
        facts = self.facts[uid]
        with self._raising(facts.bound or self.cycle.over) as legal:
            call = self.loop.run(self._open(uid))
        if legal:
            facts.lose_call()
            facts.call, facts.aside = call, False
            assert all(older.done() or older in facts.hung_up for older in facts.older)

    async def _open(self, uid: str) -> asyncio.Future[str]:
        return self.cycle.open_call(uid, self._tick())

    @precondition(lambda self: self._find_at_bind())
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        self._hang_up(data.draw(st.sampled_from(self._find_at_bind())))

    @precondition(lambda self: self._find_at_bind())
    @rule(data=st.data())
    def hang_up_and_call_again(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(self._find_at_bind()))
        self._hang_up(uid)
        self.call(uid)

    def _hang_up(self, uid: str) -> None:
        facts = self.facts[uid]
        call = facts.call
        assert call is not None
        facts.hung_up.append(call)
        facts.lose_call()
        facts.filtered = False
        self.cycle.abandon_call(uid, call)
        assert not call.done()
        assert bool(self._find_at_bind()) is (self.cycle.first_reached_at is not None)

    @precondition(lambda self: any(facts.older for facts in self.facts.values()))
    @rule(data=st.data())
    def hang_up_an_older_call(self, data: st.DataObject) -> None:
        older = [(uid, call) for uid, facts in self.facts.items() for call in facts.older]
        self.cycle.abandon_call(*data.draw(st.sampled_from(older)))

    def _find_at_bind(self) -> list[str]:
        return [uid for uid, facts in self.facts.items() if facts.call is not None]

    # --- what we do --------------------------------------------------------------------------------------------

    @rule(uid=UIDS)
    def nominate(self, uid: str) -> None:
        self.cycle.mark_nominated(uid)

    @rule(uid=UIDS)
    def move(self, uid: str) -> None:
        self.facts[uid].filtered = False
        self.cycle.mark_moved(uid)
        assert not self.cycle.member(uid).not_offered

    @rule(uid=UIDS)
    def close_call(self, uid: str) -> None:
        call = self.facts[uid].call
        self.facts[uid].lose_call()
        self.cycle.close_call(uid, "no")
        assert call is None or call.result() == "no"

    @precondition(lambda self: self._find_at_bind())
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        self.send_anybody(data.draw(st.sampled_from(self._find_at_bind())))

    @rule(uid=UIDS)
    def send_anybody(self, uid: str) -> None:
        facts = self.facts[uid]
        with self._raising(facts.stage is not MemberStage.AT_BIND or self.cycle.over) as legal:
            self.cycle.start_sending(uid)
        facts.sending = facts.sending or legal

    @rule(uid=UIDS)
    def hear_the_answer(self, uid: str) -> None:
        facts = self.facts[uid]
        with self._raising(not facts.sending and not facts.bound):
            self.cycle.stop_sending(uid)
        facts.sending = False

    @rule(uid=UIDS)
    def bind(self, uid: str) -> None:
        call = self._bind(uid)
        self.cycle.mark_bound(uid, self._tick())
        assert call is None or call.result() == ""
        assert self.cycle.progressed == self.now

    @rule(uid=UIDS)
    def bind_elsewhere(self, uid: str) -> None:
        before, call = self.cycle.progressed, self._bind(uid)
        self.cycle.mark_bound_elsewhere(uid, "elsewhere")
        assert call is None or call.result() == "elsewhere"
        assert self.cycle.progressed == before

    def _bind(self, uid: str) -> asyncio.Future[str] | None:
        call = self.facts[uid].call
        self.facts[uid].lose_call()
        self.facts[uid].bound = True
        return call

    @rule(uid=UIDS, kept=st.booleans())
    def change_slots(self, uid: str, kept: bool) -> None:  # noqa: FBT001 - drawn
        if kept:
            self.cycle.reservation.set_slot(self.slots[uid])
        elif uid in self.cycle.reservation.slots:
            self.cycle.reservation.remove_slot(uid)

    @rule(stage=st.sampled_from(CycleStage))
    def enter(self, stage: CycleStage) -> None:
        with self._raising(stage not in NEXT[self.cycle.stage]):
            self.cycle.enter(stage)

    @precondition(lambda self: not self.cycle.over and self.now > _LIFE)
    @rule()
    def end(self) -> None:
        open_ = [facts.call for facts in self.facts.values() if facts.call is not None]
        for facts in self.facts.values():
            facts.lose_call()
        self.cycle.end("over")
        assert [call.result() for call in open_] == ["over"] * len(open_)

    # --- what must hold ----------------------------------------------------------------------------------------

    @invariant()
    def each_member_is_where_the_facts_say(self) -> None:
        for uid, facts in self.facts.items():
            member = self.cycle.member(uid)
            assert member.stage is facts.stage
            assert (member.filtered_at is not None) is facts.filtered
            assert member.call is facts.call
            assert self.cycle.may_move(uid) is (facts.before_bind and uid in self.cycle.reservation.slots)

    @invariant()
    def counters_agree_with_the_records(self) -> None:
        assert self.cycle.at_bind == {uid for uid, facts in self.facts.items() if facts.call is not None}
        assert self.cycle.bound == {uid for uid, facts in self.facts.items() if facts.bound}
        reservation, present = self.cycle.reservation, self.cycle.at_bind | self.cycle.bound
        assert self.cycle.quorum_at_bind() is not reservation.misses_quorum(present)
        kept = reservation.slots.keys() | self.cycle.bound
        assert self.cycle.out_of_reach() is (not kept or reservation.misses_quorum(kept))

    @invariant()
    def nobody_waits_for_an_answer_that_never_comes(self) -> None:
        for facts in self.facts.values():
            assert facts.call is None or not facts.call.done()
            assert all(call.done() for call in facts.older if call not in facts.hung_up)

    @invariant()
    def the_scheduler_was_there_while_a_call_is_open(self) -> None:
        assert not self.cycle.at_bind or self.cycle.first_reached_at is not None

    # --- how it is checked -------------------------------------------------------------------------------------

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    @contextmanager
    def _raising(self, illegal: bool) -> Iterator[bool]:  # noqa: FBT001 - what the model says
        """Expect a step to be illegal, and then to change nothing; yields whether it is legal."""
        before = self._photograph()
        if not illegal:
            yield True
            return
        with pytest.raises(IllegalTransition):
            yield False
        assert self._photograph() == before

    def _photograph(self) -> object:
        cycle, members = self.cycle, sorted(self.facts)
        told = [copy(cycle.member(uid)) for uid in members]
        return cycle.stage, cycle.progressed, cycle.first_reached_at, cycle.idle_seconds, told, set(cycle.at_bind)


TestMembers = MemberMachine.TestCase
