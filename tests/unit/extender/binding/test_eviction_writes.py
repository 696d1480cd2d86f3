"""Events of type Normal wait while evictions are sent, for half a minute at most."""

import pytest

from extender.core.scheduling.effects import WriteBurst
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def eviction_writes(clock: Clock) -> WriteBurst:
    return WriteBurst(clock, aftermath=2.0, longest=30.0)


def test_there_is_none_as_long_as_nobody_is_evicted(eviction_writes: WriteBurst) -> None:
    assert not eviction_writes.is_on()


def test_it_lasts_until_shortly_after_the_last_writer_has_ended(eviction_writes: WriteBurst, clock: Clock) -> None:
    with eviction_writes:
        with eviction_writes:
            assert eviction_writes.is_on()
        clock.advance(3)
        assert eviction_writes.is_on()
    clock.advance(1.9)
    assert eviction_writes.is_on()
    clock.advance(0.2)
    assert not eviction_writes.is_on()


def test_it_ends_after_half_a_minute_for_any_writer(eviction_writes: WriteBurst, clock: Clock) -> None:
    with eviction_writes:
        clock.advance(29)
        with eviction_writes:
            assert eviction_writes.is_on()
        clock.advance(2)
        assert not eviction_writes.is_on()


def test_a_writer_that_continues_does_not_begin_another_one(eviction_writes: WriteBurst, clock: Clock) -> None:
    for _ in range(4):
        with eviction_writes:
            clock.advance(10)
    with eviction_writes:
        assert not eviction_writes.is_on()


def test_the_next_one_lasts_as_long_again(eviction_writes: WriteBurst, clock: Clock) -> None:
    with eviction_writes:
        clock.advance(40)
    clock.advance(10)
    with eviction_writes:
        clock.advance(29)
        assert eviction_writes.is_on()


def test_it_lasts_while_one_victim_after_the_other_ends(eviction_writes: WriteBurst, clock: Clock) -> None:
    with eviction_writes:
        pass
    for _ in range(10):
        clock.advance(1.9)
        assert eviction_writes.is_on()
        eviction_writes.prolong()
    clock.advance(2.1)
    assert not eviction_writes.is_on()


def test_victims_that_end_later_begin_no_other_one(eviction_writes: WriteBurst, clock: Clock) -> None:
    with eviction_writes:
        pass
    clock.advance(3)
    eviction_writes.prolong()
    assert not eviction_writes.is_on()
