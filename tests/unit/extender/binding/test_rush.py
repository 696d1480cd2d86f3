"""When Events of type Normal wait for evictions."""

import pytest

from extender.binding.evictions import Rush
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rush(clock: Clock) -> Rush:
    return Rush(clock)


def test_there_is_none_as_long_as_nobody_is_evicted(rush: Rush) -> None:
    assert not rush.is_on()


def test_it_lasts_until_shortly_after_the_last_writer_has_ended(rush: Rush, clock: Clock) -> None:
    with rush:
        with rush:
            assert rush.is_on()
        clock.advance(3)
        assert rush.is_on()
    clock.advance(1.9)
    assert rush.is_on()
    clock.advance(0.2)
    assert not rush.is_on()


def test_it_ends_after_half_a_minute_whoever_writes(rush: Rush, clock: Clock) -> None:
    with rush:
        clock.advance(29)
        with rush:
            assert rush.is_on()
        clock.advance(2)
        assert not rush.is_on()


def test_whoever_writes_on_does_not_begin_another_one(rush: Rush, clock: Clock) -> None:
    for _ in range(4):
        with rush:
            clock.advance(10)
    with rush:
        assert not rush.is_on()


def test_the_next_one_lasts_as_long_again(rush: Rush, clock: Clock) -> None:
    with rush:
        clock.advance(40)
    clock.advance(10)
    with rush:
        clock.advance(29)
        assert rush.is_on()


def test_it_lasts_while_one_victim_after_the_other_ends(rush: Rush, clock: Clock) -> None:
    with rush:
        pass
    for _ in range(10):
        clock.advance(1.9)
        assert rush.is_on()
        rush.prolong()
    clock.advance(2.1)
    assert not rush.is_on()


def test_victims_that_end_later_begin_no_other_one(rush: Rush, clock: Clock) -> None:
    with rush:
        pass
    clock.advance(3)
    rush.prolong()
    assert not rush.is_on()
