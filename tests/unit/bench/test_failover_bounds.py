"""Failovers: their computed bounds, and the report on the measured ones."""

from dataclasses import replace
from threading import Event
from typing import cast

import pytest

from bench.failover.__main__ import BOUND_SECONDS, Lane, find_defects, order_ways, summarize
from bench.failover.bounds import Pace, bounds, read_pace
from bench.failover.pods import Probe
from bench.failover.prober import Worker
from bench.failover.rolling import BoundHistory, Load, Rolled
from bench.failover.run import Strike
from bench.failover.ways import WAYS
from bench.failover.witness import Witness
from extender.lead.pair import PATIENCE_SECONDS, REUSE_SECONDS


def test_each_way_is_over_in_time_by_the_numbers_that_are_shipped() -> None:
    found = bounds(read_pace())
    assert set(found) == set(WAYS)
    assert max(found.values()) < BOUND_SECONDS


def test_a_probe_that_takes_longer_to_fail_would_be_too_slow_where_the_race_for_the_lease_is_lost() -> None:
    slow = Pace(15.0, 1.0, Probe("/livez", 1, period=2.0), Probe("/livez/pair", 1, period=2.0, timeout=2.0, failures=4))
    assert bounds(slow)["frozen"] > BOUND_SECONDS
    assert bounds(slow)["loop"] > BOUND_SECONDS


def test_an_extender_tells_of_its_pair_before_the_probe_gives_up_and_anew_each_time() -> None:
    probe = read_pace().liveness
    assert probe.timeout > PATIENCE_SECONDS
    assert probe.period > REUSE_SECONDS


class TestProbe:
    @pytest.fixture
    def worker(self) -> Worker:
        return Worker(Probe("/livez", 1, period=2.0, failures=3))

    def test_is_due_at_once_and_then_once_a_period(self, worker: Worker) -> None:
        assert [now for now in range(1, 9) if worker.is_due(float(now))] == [1, 3, 5, 7]

    def test_that_took_long_is_followed_by_one_at_once_not_by_all_that_were_missed(self, worker: Worker) -> None:
        begin = 100.0
        worker.is_due(begin)
        assert worker.is_due(begin + 9.0)
        assert not worker.is_due(begin + 9.9)
        assert worker.is_due(begin + 10.0)

    def test_fails_after_so_many_in_a_row(self, worker: Worker) -> None:
        told = [worker.has_failed(passed=passed) for passed in (False, False, True, False, False, False)]
        assert told == [False, False, False, False, False, True]

    def test_that_is_not_there_is_never_due_and_never_fails(self) -> None:
        worker = Worker(None)
        assert not worker.is_due(1000.0)
        assert not any(worker.has_failed(passed=False) for _ in range(10))


def seen(way: str, first: float, *defects: str) -> Strike:
    return Strike(way, first, first + 1.0, 0.5, leader_changed=True, defects=defects)


def test_a_row_has_the_middle_and_the_slowest_of_few() -> None:
    (row,) = summarize([seen("node", first) for first in (3.0, 1.0, 2.0)], ["node", "loop"], {"node": 18.66})
    assert (row["strikes"], row["first_p50"], row["first_p99"], row["first_bound"]) == (3, 2.0, 3.0, 18.7)
    assert (row["whole_p99"], row["half_longest"], row["leader_changed"]) == (4.0, 0.5, 3)


def test_of_two_hundred_the_99th_percentile_leaves_two_out() -> None:
    (row,) = summarize([seen("node", float(number)) for number in range(1, 201)], ["node"], {"node": 1.0})
    assert row["first_p99"] == 198.0


def test_what_is_late_bound_twice_or_never_is_a_defect() -> None:
    lanes = [
        Lane(0, [seen("loop", 20.1), seen("node", 20.0)], failures=["frozen: 0 of 4 members are bound"]),
        Lane(1, [seen("both", 1.0, "pod p was on a, then on b")]),
    ]
    assert find_defects(lanes) == [
        "frozen: 0 of 4 members are bound",
        "both: pod p was on a, then on b",
        "loop: the first Binding after 20.1 s",
    ]


def test_so_is_a_gang_that_is_bound_in_part_for_longer_than_a_failover_may_take() -> None:
    strikes = [replace(seen("both", 1.0), half=20.1), replace(seen("both", 1.0), half=20.0)]
    updates = [Rolled(3, 1.0, 1.0, 20.2), Rolled(3, 1.0, 1.0, 1.0)]
    assert find_defects([Lane(0, strikes, rolled=updates)]) == [
        "both: a gang was bound in part for 20.1 s",
        "rolling update: a gang was bound in part for 20.2 s",
    ]


def test_control_planes_begin_with_different_ways_and_come_to_all() -> None:
    ways = list(WAYS)
    orders = [order_ways(ways, 2, lane) for lane in range(3)]
    assert len({each[0] for each in orders}) == 3
    assert all(sorted(each) == sorted(ways * 2) for each in orders)


class Refusing:
    """Creates no gang."""

    def __init__(self) -> None:
        self.asked = Event()

    def create(self, gang: str, size: int) -> None:
        self.asked.set()
        raise OSError(f"{gang} of {size} is refused")


def test_an_update_whose_load_cannot_come_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.failover.rolling._INTERVAL_SECONDS", 0.0)
    refusing = Refusing()
    load = Load(cast("Witness", refusing))
    load.begin()
    refusing.asked.wait(10)
    with pytest.raises(OSError, match="load0 of 4 is refused"):
        load.end()


def test_of_a_rolling_update_the_slowest_gang_is_told_and_the_longest_pause() -> None:
    seen = BoundHistory()
    seen.record({"a": 4, "b": 1}, 10.0)
    seen.record({"a": 4, "b": 3}, 11.0)
    seen.record({"a": 4, "b": 4, "c": 4}, 12.5)
    rolled = seen.summarize({"a": 9.0, "b": 9.5, "c": 12.0}, ["pod p was made anew"])
    assert (rolled.gangs, rolled.slowest, rolled.pause, rolled.half) == (3, 3.0, 2.5, 1.0)
    assert rolled.defects == ("pod p was made anew",)
