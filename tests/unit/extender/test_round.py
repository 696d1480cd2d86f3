from extender.round import Round
from serried.model.group import Key
from serried.model.reservation import Reservation, Slot
from tests.unit.extender.world import gang


def make_round(*uids: str, need: int = 2) -> Round:
    slots = {uid: Slot(uid, uid, "n1") for uid in uids}
    group = gang(need).value()
    return Round(group, Reservation(Key("default", "g"), group.uid, "", need, slots), started=0.0, progressed=0.0)


async def test_the_quorum_counts_members_at_bind_and_members_bound_each_once() -> None:
    round_ = make_round("a", "b", "c", need=2)
    round_.open_call("a", 1.0)
    assert not round_.quorum_at_bind()
    round_.bound.add("a")
    assert not round_.quorum_at_bind()
    round_.open_call("b", 2.0)
    assert round_.quorum_at_bind()


async def test_a_newer_call_replaces_the_older_one_which_fails() -> None:
    round_ = make_round("a", "b")
    old = round_.open_call("a", 1.0)
    new = round_.open_call("a", 2.0)
    assert old.result() == "replaced by a newer bind call of the same pod"
    assert not new.done()
    assert round_.calls == {"a": new}


async def test_an_abandoned_call_leaves_the_barrier_and_its_member_is_no_longer_confirmed() -> None:
    round_ = make_round("a", "b")
    call = round_.open_call("a", 1.0)
    round_.confirmed["a"] = 1.0
    round_.changed.clear()
    round_.abandon_call("a", call)
    assert (round_.calls, round_.confirmed, round_.changed.is_set()) == ({}, {}, True)


async def test_abandoning_an_older_call_leaves_the_newer_one_alone() -> None:
    round_ = make_round("a", "b")
    old = round_.open_call("a", 1.0)
    new = round_.open_call("a", 2.0)
    round_.abandon_call("a", old)
    assert round_.calls == {"a": new}


async def test_progress_is_a_call_or_a_binding_and_nothing_else() -> None:
    round_ = make_round("a", "b")
    round_.open_call("a", 5.0)
    assert round_.progressed == 5.0
    round_.close_call("a", "no")
    assert round_.progressed == 5.0
    round_.mark_bound("b", 7.0)
    assert round_.progressed == 7.0


async def test_a_bound_member_has_its_call_answered_with_success() -> None:
    round_ = make_round("a", "b")
    call = round_.open_call("a", 1.0)
    round_.mark_bound("a", 2.0)
    assert call.result() == ""
    assert round_.calls == {}


async def test_the_end_fails_all_open_calls_with_one_text() -> None:
    round_ = make_round("a", "b")
    calls = [round_.open_call(uid, 1.0) for uid in ("a", "b")]
    round_.end("serried: over")
    assert [call.result() for call in calls] == ["serried: over", "serried: over"]
    assert round_.over
    assert round_.changed.is_set()


async def test_the_quorum_is_out_of_reach_when_slots_and_bound_members_are_too_few() -> None:
    round_ = make_round("a", "b", need=2)
    assert not round_.out_of_reach()
    del round_.reservation.slots["a"]
    assert round_.out_of_reach()
    round_.bound.add("a")
    assert not round_.out_of_reach()
