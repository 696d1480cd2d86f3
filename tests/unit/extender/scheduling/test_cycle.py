"""A cycle and its members change by verbs, and by no step that is not drawn."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import extender
from extender.core.scheduling.binding_cycle import BindingCycle, CycleStage
from extender.core.scheduling.cycle_member import Member, MemberStage
from serried.api.names import GroupKey, IllegalTransition
from serried.api.reservation import Reservation, Slot
from tests.support.extender_harness import gang


def make_cycle(*uids: str, need: int = 2) -> BindingCycle:
    slots = {uid: Slot(uid, uid, "n1") for uid in uids}
    group = gang(need).value()
    return BindingCycle(
        group, Reservation(GroupKey("default", "g"), group.uid, "", need, slots), started=0.0, progressed=0.0
    )


def stage_of(cycle: BindingCycle, uid: str = "a") -> MemberStage:
    return cycle.member(uid).stage


@pytest.fixture
def cycle() -> BindingCycle:
    return make_cycle("a", "b")


class TestTheQuorum:
    async def test_counts_members_at_bind_and_members_bound_each_once(self) -> None:
        cycle = make_cycle("a", "b", "c", need=2)
        cycle.open_call("a", 1.0)
        assert not cycle.quorum_at_bind()
        cycle.mark_bound("a", 1.0)
        assert not cycle.quorum_at_bind()
        cycle.open_call("b", 2.0)
        assert cycle.quorum_at_bind()

    def test_is_out_of_reach_when_slots_and_bound_members_are_too_few(self, cycle: BindingCycle) -> None:
        assert not cycle.out_of_reach()
        cycle.reservation.remove_slot("a")
        assert cycle.out_of_reach()
        cycle.mark_bound("a", 1.0)
        assert not cycle.out_of_reach()


class TestTheWayOfAMember:
    async def test_leads_from_filter_over_its_bind_call_to_its_binding(self, cycle: BindingCycle) -> None:
        assert stage_of(cycle) is MemberStage.WAITING
        cycle.mark_unschedulable("a")
        assert stage_of(cycle) is MemberStage.UNSCHEDULABLE
        cycle.mark_filtered("a", 1.0)
        assert stage_of(cycle) is MemberStage.FILTERED
        call = cycle.open_call("a", 2.0)
        assert stage_of(cycle) is MemberStage.AT_BIND
        cycle.start_sending("a")
        assert stage_of(cycle) is MemberStage.SENDING
        cycle.mark_bound("a", 3.0)
        assert (stage_of(cycle), call.result(), set(cycle.at_bind)) == (MemberStage.BOUND, "", set())

    async def test_may_begin_at_its_bind_call_if_an_earlier_cycle_has_answered_filter(
        self, cycle: BindingCycle
    ) -> None:
        cycle.open_call("a", 1.0)
        cycle.close_call("a", "no")
        assert stage_of(cycle) is MemberStage.WAITING

    async def test_leads_back_to_filter_when_its_call_is_closed(self, cycle: BindingCycle) -> None:
        cycle.mark_filtered("a", 1.0)
        call = cycle.open_call("a", 1.0)
        cycle.close_call("a", "no")
        assert (stage_of(cycle), call.result()) == (MemberStage.FILTERED, "no")

    def test_leads_back_from_filter_when_its_slot_is_moved_or_its_node_is_missing(self, cycle: BindingCycle) -> None:
        cycle.mark_filtered("a", 1.0)
        cycle.mark_not_offered("a")
        assert (stage_of(cycle), cycle.member("a").not_offered) == (MemberStage.WAITING, True)
        cycle.mark_filtered("a", 2.0)
        cycle.mark_moved("a")
        assert (stage_of(cycle), cycle.member("a").not_offered) == (MemberStage.WAITING, False)

    def test_a_member_put_aside_stays_so_when_it_is_nominated_or_its_node_is_missing(self, cycle: BindingCycle) -> None:
        cycle.mark_unschedulable("a")
        cycle.mark_nominated("a")
        cycle.mark_not_offered("a")
        assert stage_of(cycle) is MemberStage.UNSCHEDULABLE

    async def test_a_member_at_bind_is_not_put_aside_by_older_news(self, cycle: BindingCycle) -> None:
        cycle.open_call("a", 1.0)
        cycle.mark_unschedulable("a")
        assert stage_of(cycle) is MemberStage.AT_BIND

    async def test_a_bound_member_goes_nowhere_whatever_is_heard_of_it(self, cycle: BindingCycle) -> None:
        cycle.mark_bound("a", 1.0)
        cycle.mark_unschedulable("a")
        cycle.mark_filtered("a", 2.0)
        cycle.mark_moved("a")
        cycle.mark_bound_elsewhere("a", "elsewhere")
        assert (stage_of(cycle), set(cycle.bound)) == (MemberStage.BOUND, {"a"})

    async def test_a_member_that_others_bound_to_another_node_fails_its_call_and_is_no_progress(
        self, cycle: BindingCycle
    ) -> None:
        call = cycle.open_call("a", 1.0)
        cycle.mark_bound_elsewhere("a", "elsewhere")
        assert (call.result(), cycle.progressed, set(cycle.bound)) == ("elsewhere", 1.0, {"a"})


class TestABindCall:
    async def test_that_is_newer_replaces_the_older_one_which_fails(self, cycle: BindingCycle) -> None:
        old = cycle.open_call("a", 1.0)
        new = cycle.open_call("a", 2.0)
        assert old.result() == "replaced by a newer bind call of the same pod"
        assert not new.done()
        assert cycle.member("a").call is new

    async def test_that_is_abandoned_leaves_the_barrier_and_its_member_is_filtered_no_longer(
        self, cycle: BindingCycle
    ) -> None:
        cycle.mark_filtered("a", 1.0)
        call = cycle.open_call("a", 1.0)
        cycle.changed.clear()
        cycle.abandon_call("a", call)
        assert (stage_of(cycle), set(cycle.at_bind)) == (MemberStage.WAITING, set())
        assert cycle.member("a").filtered_at is None
        assert (cycle.first_reached_at, cycle.changed.is_set()) == (None, True)

    async def test_that_is_older_leaves_the_newer_one_alone_when_it_is_abandoned(self, cycle: BindingCycle) -> None:
        old = cycle.open_call("a", 1.0)
        new = cycle.open_call("a", 2.0)
        cycle.abandon_call("a", old)
        assert cycle.member("a").call is new

    async def test_and_a_binding_are_progress_and_nothing_else_is(self, cycle: BindingCycle) -> None:
        cycle.open_call("a", 5.0)
        assert cycle.progressed == 5.0
        cycle.close_call("a", "no")
        assert cycle.progressed == 5.0
        cycle.mark_bound("b", 7.0)
        assert cycle.progressed == 7.0

    async def test_fails_with_all_the_others_when_the_cycle_ends(self, cycle: BindingCycle) -> None:
        calls = [cycle.open_call(uid, 1.0) for uid in ("a", "b")]
        cycle.end("serried: over")
        assert [call.result() for call in calls] == ["serried: over", "serried: over"]
        assert cycle.over
        assert cycle.changed.is_set()


class TestAMemberThatIsSent:
    @pytest.fixture
    async def sent(self, cycle: BindingCycle) -> BindingCycle:
        cycle.mark_filtered("a", 1.0)
        self.call = cycle.open_call("a", 1.0)
        cycle.start_sending("a")
        return cycle

    async def test_is_at_bind_again_when_its_binding_fails(self, sent: BindingCycle) -> None:
        sent.stop_sending("a")
        assert (stage_of(sent), self.call.done()) == (MemberStage.AT_BIND, False)

    async def test_is_sent_on_when_the_scheduler_hangs_up_and_waits_when_that_fails(self, sent: BindingCycle) -> None:
        sent.abandon_call("a", self.call)
        assert (stage_of(sent), set(sent.at_bind)) == (MemberStage.SENDING, set())
        sent.stop_sending("a")
        assert stage_of(sent) is MemberStage.WAITING

    async def test_is_sent_on_when_a_newer_call_comes_which_is_its_own_when_that_fails(
        self, sent: BindingCycle
    ) -> None:
        sent.abandon_call("a", self.call)
        newer = sent.open_call("a", 2.0)
        assert stage_of(sent) is MemberStage.SENDING
        sent.stop_sending("a")
        assert (stage_of(sent), sent.member("a").call) == (MemberStage.AT_BIND, newer)

    async def test_stays_bound_if_the_watch_says_so_before_the_answer(self, sent: BindingCycle) -> None:
        sent.mark_bound("a", 2.0)
        sent.stop_sending("a")
        assert (stage_of(sent), self.call.result()) == (MemberStage.BOUND, "")

    async def test_may_not_be_sent_twice(self, sent: BindingCycle) -> None:
        with pytest.raises(IllegalTransition, match="Sending cannot be Sending"):
            sent.start_sending("a")


class TestASlotThatMoves:
    @pytest.mark.parametrize(
        ("steps", "free"),
        [
            pytest.param([], True, id="of a member that waits, is free"),
            pytest.param(["filter"], True, id="of one that is filtered, is free"),
            pytest.param(["call"], False, id="of one at bind, is fixed"),
            pytest.param(["call", "send", "hang up"], False, id="of one that is being sent, is fixed"),
            pytest.param(["bound"], False, id="of one that is bound, is fixed"),
            pytest.param(["commit"], False, id="of one that is committed, is fixed"),
            pytest.param(["drop"], False, id="that is given back, is nobody's"),
        ],
    )
    async def test_is_free_while_nothing_names_it(self, cycle: BindingCycle, steps: list[str], *, free: bool) -> None:
        for step in steps:
            match step:
                case "filter":
                    cycle.mark_filtered("a", 1.0)
                case "call":
                    call = cycle.open_call("a", 1.0)
                case "send":
                    cycle.start_sending("a")
                case "hang up":
                    cycle.abandon_call("a", call)
                case "bound":
                    cycle.mark_bound("a", 1.0)
                case "commit":
                    cycle.reservation.commit({"a"})
                case "drop":
                    cycle.reservation.remove_slot("a")
        assert cycle.may_move("a") is free


class TestWhatIsNotDrawn:
    async def test_a_bound_member_opens_no_call(self, cycle: BindingCycle) -> None:
        cycle.mark_bound("a", 1.0)
        with pytest.raises(IllegalTransition, match="Bound cannot be AtBind"):
            cycle.open_call("a", 2.0)
        assert (set(cycle.at_bind), cycle.progressed) == (set(), 1.0)

    async def test_a_cycle_that_is_over_takes_no_call(self, cycle: BindingCycle) -> None:
        cycle.end("over")
        with pytest.raises(IllegalTransition, match="is over and cannot take a bind call"):
            cycle.open_call("a", 2.0)
        assert stage_of(cycle) is MemberStage.WAITING

    def test_nobody_is_sent_without_a_call(self, cycle: BindingCycle) -> None:
        with pytest.raises(IllegalTransition, match="Waiting cannot be Sending"):
            cycle.start_sending("a")

    def test_what_was_not_sent_has_no_answer(self, cycle: BindingCycle) -> None:
        with pytest.raises(IllegalTransition, match="a was not being sent"):
            cycle.stop_sending("a")

    @pytest.mark.parametrize(
        ("at", "to"),
        [
            pytest.param(CycleStage.RECORDING, CycleStage.COMMITTING, id="no commit without a record"),
            pytest.param(CycleStage.GATHERING, CycleStage.BINDING, id="no Binding without a commit"),
            pytest.param(CycleStage.BINDING, CycleStage.GATHERING, id="no way back from the commit"),
            pytest.param(CycleStage.GATHERING, CycleStage.GATHERING, id="no stage twice"),
            pytest.param(CycleStage.BINDING, CycleStage.ENDED, id="no end but the verb of its own"),
        ],
    )
    def test_a_cycle_takes_its_steps_in_order(self, at: CycleStage, to: CycleStage) -> None:
        made = make_cycle("a")
        cycle = BindingCycle(made.group, made.reservation, started=0.0, progressed=0.0, stage=at)
        with pytest.raises(IllegalTransition):
            cycle.enter(to)
        assert cycle.stage is at

    def test_nobody_writes_to_a_cycle_or_a_member_but_their_own_modules(self) -> None:
        assert list(find_writes()) == []


def find_writes() -> Iterator[str]:
    """Assignments to fields of cycles and members outside of their modules, by the names that those have there."""
    names = {field.name for kind in (BindingCycle, Member) for field in fields(kind)}
    for path in sorted(Path(extender.__file__).parent.rglob("*.py")):
        if path.name == "binding_cycle.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in names:
                owner = ast.unparse(node.value).rpartition(".")[2]
                if owner in {"cycle", "member", "mate"}:
                    yield f"{path.name}:{node.lineno}"
