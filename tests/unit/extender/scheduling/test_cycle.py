from extender.scheduling.cycle import BindingCycle
from serried.model.group import GroupKey
from serried.model.reservation import Reservation, Slot
from tests.support.extender_harness import gang


def make_round(*uids: str, need: int = 2) -> BindingCycle:
    slots = {uid: Slot(uid, uid, "n1") for uid in uids}
    group = gang(need).value()
    return BindingCycle(
        group, Reservation(GroupKey("default", "g"), group.uid, "", need, slots), started=0.0, progressed=0.0
    )


async def test_the_quorum_counts_members_at_bind_and_members_bound_each_once() -> None:
    cycle = make_round("a", "b", "c", need=2)
    cycle.open_call("a", 1.0)
    assert not cycle.quorum_at_bind()
    cycle.bound.add("a")
    assert not cycle.quorum_at_bind()
    cycle.open_call("b", 2.0)
    assert cycle.quorum_at_bind()


async def test_a_newer_call_replaces_the_older_one_which_fails() -> None:
    cycle = make_round("a", "b")
    old = cycle.open_call("a", 1.0)
    new = cycle.open_call("a", 2.0)
    assert old.result() == "replaced by a newer bind call of the same pod"
    assert not new.done()
    assert cycle.calls == {"a": new}


async def test_an_abandoned_call_leaves_the_barrier_and_its_member_is_no_longer_confirmed() -> None:
    cycle = make_round("a", "b")
    call = cycle.open_call("a", 1.0)
    cycle.confirmed["a"] = 1.0
    cycle.changed.clear()
    cycle.abandon_call("a", call)
    assert (cycle.calls, cycle.confirmed, cycle.changed.is_set()) == ({}, {}, True)


async def test_abandoning_an_older_call_leaves_the_newer_one_alone() -> None:
    cycle = make_round("a", "b")
    old = cycle.open_call("a", 1.0)
    new = cycle.open_call("a", 2.0)
    cycle.abandon_call("a", old)
    assert cycle.calls == {"a": new}


async def test_progress_is_a_call_or_a_binding_and_nothing_else() -> None:
    cycle = make_round("a", "b")
    cycle.open_call("a", 5.0)
    assert cycle.progressed == 5.0
    cycle.close_call("a", "no")
    assert cycle.progressed == 5.0
    cycle.mark_bound("b", 7.0)
    assert cycle.progressed == 7.0


async def test_a_bound_member_has_its_call_answered_with_success() -> None:
    cycle = make_round("a", "b")
    call = cycle.open_call("a", 1.0)
    cycle.mark_bound("a", 2.0)
    assert call.result() == ""
    assert cycle.calls == {}


async def test_the_end_fails_all_open_calls_with_one_text() -> None:
    cycle = make_round("a", "b")
    calls = [cycle.open_call(uid, 1.0) for uid in ("a", "b")]
    cycle.end("serried: over")
    assert [call.result() for call in calls] == ["serried: over", "serried: over"]
    assert cycle.over
    assert cycle.changed.is_set()


async def test_the_quorum_is_out_of_reach_when_slots_and_bound_members_are_too_few() -> None:
    cycle = make_round("a", "b", need=2)
    assert not cycle.out_of_reach()
    cycle.reservation.drop("a")
    assert cycle.out_of_reach()
    cycle.bound.add("a")
    assert not cycle.out_of_reach()
