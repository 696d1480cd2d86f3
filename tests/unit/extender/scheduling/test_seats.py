"""The seats of a plan that are open, and their order: the drawing in `core.scheduling.seats`, told."""

import itertools
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.scheduling.seats import Seats, Wave, arrange
from serried.api.pod import Pod
from serried.api.reservation import Slot
from tests.support.builders import PodBuilder, pod


def seats(*waves: Sequence[str], in_turn: bool = False) -> Seats:
    """Seats of members with names of one letter, wave after wave; the first wave is taken in turn, or none is."""
    return Seats([Wave(list(wave), in_turn=in_turn and not place) for place, wave in enumerate(waves)])


def slots(**nodes: str) -> dict[str, Slot]:
    """Slots by member."""
    return {uid: Slot(uid, uid, node) for uid, node in nodes.items()}


def list_open(found: Seats, among: str) -> str:
    return "".join(uid for uid in among if not found.is_closed(uid))


def test_without_waves_every_seat_is_open_and_no_order_is_kept() -> None:
    found = seats()
    assert list_open(found, "abc") == "abc"
    assert not found.in_order
    assert not found.waits("a")


def test_later_seats_are_closed_until_all_before_them_are_taken_or_gone() -> None:
    found, taken = seats("ab", "c", "d"), {"a"}
    assert list_open(found, "abcd") == "ab"
    assert found.open_next(taken.__contains__) == ()
    taken.add("b")
    assert found.open_next(taken.__contains__) == ["c"]
    assert list_open(found, "abcd") == "abc"
    assert found.waits("d")


def test_the_last_wave_ends_the_order() -> None:
    found = seats("a")
    assert found.open_next(lambda _: True) == ()
    assert not found.in_order


def test_seats_in_turn_are_asked_for_in_the_plans_order_and_the_taken_ones_last() -> None:
    found = seats("abc", in_turn=True)
    found.note_taken("a")
    assert list(found.open_wave) == ["b", "c", "a"]


def test_members_that_change_seats_come_when_the_other_one_would_have() -> None:
    found = seats("abc", in_turn=True)
    found.exchange("a", "c")
    assert list(found.open_wave) == ["c", "b", "a"]


def test_of_the_members_that_were_offered_none_one_at_a_time_is_called() -> None:
    found, here = seats("abc", in_turn=True), {"a", "b", "c"}
    found.miss("b")
    found.miss("a")
    assert found.call(here) == "b"
    assert [found.waits(uid) for uid in "ab"] == [True, False]
    assert found.call(here) == "", "it has not come yet"
    found.note_taken("b")
    assert found.call(here) == "a"


def test_one_that_was_called_and_has_lost_its_slot_keeps_no_other_waiting() -> None:
    found = seats("abc", in_turn=True)
    found.miss("b")
    found.miss("a")
    assert found.call({"a", "b", "c"}) == "b"
    assert found.call({"a", "c"}) == "a"


def test_a_member_comes_first_if_no_earlier_seat_is_on_its_node() -> None:
    found, planned = seats("ab", "c"), slots(a="n1", b="n2", c="n1")
    assert [found.comes_first(uid, planned) for uid in "abc"] == [True, True, False]


@pytest.mark.parametrize(
    ("keys", "waves", "expected"),
    [
        pytest.param((), [], True, id="room is left over"),
        pytest.param(None, [], False, id="room is scarce"),
        pytest.param((), ["ab"], False, id="room is left over and members decide about each other"),
    ],
)
def test_any_node_does(keys: tuple[str, ...] | None, waves: list[str], *, expected: bool) -> None:
    assert Seats([Wave(list(wave)) for wave in waves], keys).any_node is expected


def test_nothing_does_but_the_planned_nodes_once_room_is_found_to_be_scarce() -> None:
    found = Seats(spare_keys=())
    found.keep_to_slots()
    assert not found.any_node


def build(*members: PodBuilder) -> dict[str, Pod]:
    return {each.value().uid: each.value() for each in members}


LARGE = pod("l").uid("l").cpu(4)
SMALL = [pod(uid).uid(uid).cpu(1) for uid in "abcd"]


@pytest.mark.parametrize(
    ("waves", "expected"),
    [
        pytest.param(["ab", "cd"], [("abcd", True)], id="alike members of waves that follow each other share one"),
        pytest.param(["ab"], [("ab", False)], id="one wave alone keeps each to its own seat"),
        pytest.param(["a", "l", "b"], [("a", False), ("l", False), ("b", False)], id="another kind between them"),
        pytest.param(["al", "bc"], [("al", False), ("bc", False)], id="a wave of two kinds"),
    ],
)
def test_waves_are_arranged(waves: list[str], expected: list[tuple[str, bool]]) -> None:
    found = arrange(waves, build(LARGE, *SMALL), lambda _: "")
    assert [("".join(wave.uids), wave.in_turn) for wave in found] == expected


def test_members_of_two_pod_groups_share_no_wave() -> None:
    found = arrange(["a", "b"], build(*SMALL), lambda uid: uid)
    assert [wave.uids for wave in found] == [["a"], ["b"]]


@st.composite
def orders(draw: st.DrawFn) -> tuple[list[list[str]], list[str]]:
    """Waves of a few members, and an order in which kube-scheduler tries all of them, again and again."""
    uids = draw(st.permutations("abcdef"))
    cuts = sorted(draw(st.sets(st.integers(1, 5))))
    edges = [0, *cuts, len(uids)]
    return [list(uids[a:b]) for a, b in itertools.pairwise(edges)], list(draw(st.permutations("abcdef")))


@given(orders())
def test_whatever_the_order_of_tries_every_wave_is_taken_after_those_before_it(
    drawn: tuple[list[list[str]], list[str]],
) -> None:
    waves, order = drawn
    found, taken = Seats([Wave(list(wave)) for wave in waves]), list[str]()
    for _ in waves:
        for uid in order:
            if uid not in taken and not found.is_closed(uid):
                taken.append(uid)
                found.note_taken(uid)
            found.open_next(taken.__contains__)
    assert_in_order(taken, waves)
    assert not found.in_order


def assert_in_order(taken: Collection[str], waves: Sequence[Sequence[str]]) -> None:
    """Assert that no member was taken before any member of an earlier wave."""
    wave_of = {uid: place for place, wave in enumerate(waves) for uid in wave}
    places = [wave_of[uid] for uid in taken]
    assert places == sorted(places)
    assert len(places) == len(wave_of)
