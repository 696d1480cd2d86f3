import asyncio

import pytest

from controller.loop import WorkQueue
from serried.kube.retry import Backoff
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_queue(clock: Clock, spread: float = 0.0) -> WorkQueue[str]:
    return WorkQueue(clock, lambda: spread, namespace_of, Backoff(first=1.0, cap=10.0))


def namespace_of(key: str) -> str:
    """Return the part of a key before the slash; "" without one."""
    return key.rpartition("/")[0]


def take_all(queue: WorkQueue[str]) -> list[str]:
    keys = []
    while (key := queue.try_get()) is not None:
        keys.append(key)
        queue.done(key)
    return keys


async def test_a_key_waits_once_and_keys_come_in_their_order(clock: Clock) -> None:
    queue = make_queue(clock)
    for key in ("a", "b", "a"):
        queue.add(key)
    assert take_all(queue) == ["a", "b"]
    assert queue.idle


async def test_the_key_of_a_namespace_does_not_wait_behind_thousands_of_another(clock: Clock) -> None:
    queue = make_queue(clock)
    flood = [f"a/{number}" for number in range(5000)]
    for key in flood:
        queue.add(key)
    queue.add("b/1")
    taken = take_all(queue)
    assert taken.index("b/1") == 1
    assert [key for key in taken if key != "b/1"] == flood


async def test_delayed_keys_of_a_namespace_do_not_hold_up_another_when_they_come_back(clock: Clock) -> None:
    queue = make_queue(clock)
    for number in range(1000):
        queue.add_after(f"a/{number}", 1)
    queue.add_after("b/1", 2)
    clock.advance(3)
    assert take_all(queue).index("b/1") == 1


async def test_namespaces_take_turns_for_the_keys_that_came_while_they_were_worked_on(clock: Clock) -> None:
    queue = make_queue(clock)
    for key in ("a/1", "a/2", "a/3"):
        queue.add(key)
    assert queue.try_get() == "a/1"
    queue.add("a/1")
    queue.add("b/1")
    queue.done("a/1")
    assert len(queue) == 4
    assert take_all(queue) == ["a/2", "b/1", "a/3", "a/1"]
    assert queue.idle


async def test_a_key_added_while_worked_on_comes_again_but_never_twice_at_a_time(clock: Clock) -> None:
    queue = make_queue(clock)
    queue.add("a")
    assert queue.try_get() == "a"
    queue.add("a")
    queue.add("a")
    assert queue.try_get() is None
    queue.done("a")
    assert take_all(queue) == ["a"]


async def test_a_failed_key_comes_again_after_doubling_delays_up_to_the_cap(clock: Clock) -> None:
    queue = make_queue(clock)
    for count, delay in enumerate([1.0, 2.0, 4.0, 8.0, 10.0, 10.0], start=1):
        queue.add("a")
        assert queue.try_get() == "a"
        assert queue.add_rate_limited("a") == count
        queue.done("a")
        assert queue.next_delay() == delay
        clock.advance(delay - 0.01)
        assert queue.try_get() is None
        clock.advance(0.02)
        assert take_all(queue) == ["a"]


async def test_a_key_that_succeeded_starts_anew(clock: Clock) -> None:
    queue = make_queue(clock)
    queue.add_rate_limited("a")
    queue.add_rate_limited("a")
    queue.forget("a")
    assert queue.add_rate_limited("a") == 1


async def test_failures_of_one_key_do_not_delay_another(clock: Clock) -> None:
    queue = make_queue(clock)
    queue.add_rate_limited("a")
    queue.add("b")
    assert take_all(queue) == ["b"]


@pytest.mark.parametrize(("spread", "delay"), [(0.0, 8.0), (0.5, 6.0), (0.999999, 4.000004)])
async def test_jitter_takes_up_to_half(spread: float, delay: float, clock: Clock) -> None:
    queue = make_queue(clock, spread)
    for _ in range(3):
        queue.add_rate_limited("a")
        clock.advance(10.0)
        assert take_all(queue) == ["a"]
    queue.add_rate_limited("a")
    assert queue.next_delay() == pytest.approx(delay)


async def test_a_delayed_key_comes_in_time(clock: Clock) -> None:
    queue = make_queue(clock)
    queue.add_after("late", 5)
    queue.add_after("soon", 1)
    assert queue.next_delay() == 1
    clock.advance(6)
    assert take_all(queue) == ["soon", "late"]
    assert queue.next_delay() is None


async def test_workers_are_woken_by_a_new_key(clock: Clock) -> None:
    queue = make_queue(clock)
    workers = [asyncio.create_task(queue.get()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add("a")
    queue.add("b")
    assert set(await asyncio.gather(*workers)) == {"a", "b"}


async def test_a_waiting_worker_is_woken_when_a_delay_ends() -> None:
    loop = asyncio.get_running_loop()
    queue: WorkQueue[str] = WorkQueue(loop.time, lambda: 0.0, namespace_of)
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add_after("a", 0.01)
    assert await asyncio.wait_for(worker, 5) == "a"


async def test_a_worker_that_is_cancelled_at_the_moment_of_its_waking_ends(clock: Clock) -> None:
    queue = make_queue(clock)
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker


def test_of_several_delays_of_a_key_the_first_to_end_counts_and_only_that() -> None:
    now = 0.0
    queue: WorkQueue[str] = WorkQueue(lambda: now, lambda: 0.0, namespace_of)
    for delay in (5.0, 2.0, 9.0, 2.0):
        queue.add_after("a", delay)
    now = 2.0
    assert queue.try_get() == "a"
    queue.done("a")
    now = 100.0
    assert queue.try_get() is None
