"""The slots of a plan that members may take, and their order: the drawing in `core.scheduling.open_slots`, told."""

import itertools
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.scheduling.open_slots import OpenSlots, Wave, merge_waves
from serried.api.pod import Pod
from serried.api.reservation import Slot
from tests.support.builders import PodBuilder, pod


def build_open_slots(*waves: Sequence[str], any_order: bool = False) -> OpenSlots:
    """Return waves of members with names of one letter. The first one is an ``any_order`` wave, or none is."""
    return OpenSlots([Wave(list(wave), any_order=any_order and not place) for place, wave in enumerate(waves)])


def slots(**nodes: str) -> dict[str, Slot]:
    """Slots by member."""
    return {uid: Slot(uid, uid, node) for uid, node in nodes.items()}


def list_open(found: OpenSlots, among: str) -> str:
    return "".join(uid for uid in among if not found.is_closed(uid))


def test_without_waves_every_slot_is_open_and_no_order_is_kept() -> None:
    found = build_open_slots()
    assert list_open(found, "abc") == "abc"
    assert not found.has_waves
    assert not found.waits_for_mates("a")


def test_later_slots_are_closed_until_all_before_them_are_taken_or_gone() -> None:
    found, taken = build_open_slots("ab", "c", "d"), {"a"}
    assert list_open(found, "abcd") == "ab"
    assert found.open_next(taken.__contains__) == ()
    taken.add("b")
    assert found.open_next(taken.__contains__) == ["c"]
    assert list_open(found, "abcd") == "abc"
    assert found.waits_for_mates("d")


def test_the_last_wave_ends_the_order() -> None:
    found = build_open_slots("a")
    assert found.open_next(lambda _: True) == ()
    assert not found.has_waves


def test_in_any_order_open_slots_come_in_the_plans_order_and_taken_ones_last() -> None:
    found = build_open_slots("abc", any_order=True)
    found.note_taken("a")
    assert list(found.open_wave) == ["b", "c", "a"]


def test_members_that_exchange_slots_come_when_the_other_one_would_have() -> None:
    found = build_open_slots("abc", any_order=True)
    found.exchange("a", "c")
    assert list(found.open_wave) == ["c", "b", "a"]


def test_of_the_members_that_were_offered_none_one_at_a_time_is_chosen() -> None:
    found, here = build_open_slots("abc", any_order=True), {"a", "b", "c"}
    found.add_missed("b")
    found.add_missed("a")
    assert found.choose_missed(here) == "b"
    assert [found.waits_for_mates(uid) for uid in "ab"] == [True, False]
    assert found.choose_missed(here) == "", "it has not come yet"
    found.note_taken("b")
    assert found.choose_missed(here) == "a"


def test_one_that_was_chosen_and_has_lost_its_slot_keeps_no_other_waiting() -> None:
    found = build_open_slots("abc", any_order=True)
    found.add_missed("b")
    found.add_missed("a")
    assert found.choose_missed({"a", "b", "c"}) == "b"
    assert found.choose_missed({"a", "c"}) == "a"


def test_a_member_comes_first_if_no_earlier_slot_is_on_its_node() -> None:
    found, planned = build_open_slots("ab", "c"), slots(a="n1", b="n2", c="n1")
    assert [found.is_first_on_node(uid, planned) for uid in "abc"] == [True, True, False]


@pytest.mark.parametrize(
    ("keys", "waves", "expected"),
    [
        pytest.param((), [], True, id="room is left over"),
        pytest.param(None, [], False, id="room is scarce"),
        pytest.param((), ["ab"], False, id="room is left over and members decide about each other"),
    ],
)
def test_any_node_does(keys: tuple[str, ...] | None, waves: list[str], *, expected: bool) -> None:
    assert OpenSlots([Wave(list(wave)) for wave in waves], keys).any_node is expected


def test_nothing_does_but_the_planned_nodes_once_room_is_found_to_be_scarce() -> None:
    found = OpenSlots(equivalence_keys=())
    found.require_planned_nodes()
    assert not found.any_node


def build(*members: PodBuilder) -> dict[str, Pod]:
    return {each.value().uid: each.value() for each in members}


LARGE = pod("l").uid("l").cpu(4)
SMALL = [pod(uid).uid(uid).cpu(1) for uid in "abcd"]


@pytest.mark.parametrize(
    ("waves", "expected"),
    [
        pytest.param(["ab", "cd"], [("abcd", True)], id="alike members of waves that follow each other share one"),
        pytest.param(["ab"], [("ab", False)], id="one wave alone keeps each to its own slot"),
        pytest.param(["a", "l", "b"], [("a", False), ("l", False), ("b", False)], id="another kind between them"),
        pytest.param(["al", "bc"], [("al", False), ("bc", False)], id="a wave of two kinds"),
    ],
)
def test_waves_are_arranged(waves: list[str], expected: list[tuple[str, bool]]) -> None:
    found = merge_waves(waves, build(LARGE, *SMALL), lambda _: "")
    assert [("".join(wave.uids), wave.any_order) for wave in found] == expected


def test_members_of_two_pod_groups_share_no_wave() -> None:
    found = merge_waves(["a", "b"], build(*SMALL), lambda uid: uid)
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
    found, taken = OpenSlots([Wave(list(wave)) for wave in waves]), list[str]()
    for _ in waves:
        for uid in order:
            if uid not in taken and not found.is_closed(uid):
                taken.append(uid)
                found.note_taken(uid)
            found.open_next(taken.__contains__)
    assert_in_order(taken, waves)
    assert not found.has_waves


def assert_in_order(taken: Collection[str], waves: Sequence[Sequence[str]]) -> None:
    """Assert that no member was taken before any member of an earlier wave."""
    wave_of = {uid: place for place, wave in enumerate(waves) for uid in wave}
    places = [wave_of[uid] for uid in taken]
    assert places == sorted(places)
    assert len(places) == len(wave_of)
