"""The mixed load of the placement bench: who comes and goes, and what is said of those who waited."""

import pytest

from bench.placement.turns import RACKS, Course, GangWait, Turn, make_turns, render_mixed, summarize

NODES, CPUS = 100, 32


def drawn(seed: int, count: int = 12) -> list[Turn]:
    return list(make_turns(count, NODES, CPUS, seed))


def test_a_seed_says_all_of_a_load() -> None:
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_plain_pods_ask_for_half_of_all_cpus_at_any_time_and_a_quarter_of_them_ends_each_turn() -> None:
    running: dict[str, int] = {}
    for number, turn in enumerate(drawn(3)):
        assert len(turn.ending) == round(len(running) / 4)
        for name in turn.ending:
            del running[name]
        assert not running.keys() & turn.coming.keys()
        running |= turn.coming
        assert sum(running.values()) == pytest.approx(NODES * CPUS / 2, abs=16), number


def test_no_gang_asks_for_more_than_a_rack_and_together_they_ask_for_a_fifth_of_all_cpus() -> None:
    turns = drawn(4, 300)
    assert {turn.share for turn in turns} == {0.33, 0.67, 1.0}
    for turn in turns:
        assert turn.members * turn.cpu <= NODES * CPUS / RACKS
        assert turn.members * turn.cpu == pytest.approx(turn.share * NODES * CPUS / RACKS, abs=turn.cpu)
    asked = 3 * sum(turn.members * turn.cpu for turn in turns) / len(turns)
    assert asked == pytest.approx(0.2 * NODES * CPUS, rel=0.1)


COURSES = [
    Course(0, 0, 100, (0, 1), (GangWait("g0", 1.0, None, None), GangWait("g1", 0.5, 0, 1.0)), (0.1, 0.3)),
    Course(2, 0, 100, (4, 3), (GangWait("g0", 1.0, 0, 2.0), GangWait("g1", 0.5, 1, 7.0)), (0.2, 0.2)),
    Course(2, 1, 100, (5, 6), (GangWait("g0", 1.0, 1, 4.0),), (0.2, 0.4)),
]


def test_a_gang_that_never_ran_has_waited_to_the_end() -> None:
    without, _ = summarize(COURSES)
    half, whole = without["gangs"]
    assert without["all_gangs"] == {"gangs": 2, "ran": 1, "at_once": 1, "turns_waited": 1, "seconds": 1.0}
    assert whole == {"share": 1.0, "gangs": 1, "ran": 0, "at_once": 0, "turns_waited": 2, "seconds": None}
    assert half == {"share": 0.5, "gangs": 1, "ran": 1, "at_once": 1, "turns_waited": 0, "seconds": 1.0}


def test_plays_with_the_same_weight_are_one_row() -> None:
    _, scored = summarize(COURSES)
    assert (scored["weight"], scored["plays"], scored["whole_racks"], scored["fewest_whole_racks"]) == (2, 2, 4.5, 3)
    assert scored["gangs"][1] == {
        "share": 1.0,
        "gangs": 2,
        "ran": 2,
        "at_once": 1,
        "turns_waited": 0.5,
        "seconds": 3.0,
    }
    assert scored["plain_p50"] == 0.2


def test_the_table_has_a_line_for_each_weight() -> None:
    lines = render_mixed(summarize(COURSES)).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert render_mixed([]) == ""
