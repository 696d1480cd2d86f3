import pytest

from controller.loop import INVALID_SECONDS, PROBE_SECONDS, Retries, WorkQueue
from serried.kube.errors import ApiError, Forbidden, Invalid
from serried.kube.retry import Backoff
from serried.kube.wire import Failure


class RetryHarness:
    """A queue with long backoffs and a clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue: WorkQueue[str] = WorkQueue(lambda: self.now, lambda: 0.0, str, Backoff(first=60.0, cap=60.0))
        self.retries: Retries[str] = Retries(self.queue, lambda: self.now)

    def refuse(self, *tasks: str, kind: type[ApiError] = Forbidden) -> list[int | None]:
        return [self.retries.record_failure(task, kind("POST /x", Failure(403))) for task in tasks]

    def taken(self) -> list[str]:
        found = []
        while (task := self.queue.try_get()) is not None:
            found.append(task)
            self.queue.done(task)
        return found


@pytest.fixture
def world() -> RetryHarness:
    return RetryHarness()


def test_a_refused_task_waits_for_its_backoff(world: RetryHarness) -> None:
    assert world.refuse("a") == [1]
    assert world.taken() == []
    world.now = 60.0
    assert world.taken() == ["a"]


def test_one_after_the_other_is_tried_out_of_turn(world: RetryHarness) -> None:
    world.refuse("a", "b")
    tried = []
    for _ in range(3):
        world.retries.retry_oldest()
        tried += world.taken()
    assert tried == ["a", "b", "a"]


def test_when_one_succeeds_all_are_tried_at_once(world: RetryHarness) -> None:
    world.refuse("a", "b", "c")
    world.retries.record_success("b", wrote=True)
    assert world.taken() == ["a", "c"]
    world.retries.record_success("a", wrote=True)
    assert world.taken() == []
    world.refuse("a")
    world.now = PROBE_SECONDS
    world.retries.record_success("a", wrote=True)
    assert world.taken() == ["c"]


def test_a_success_without_a_write_says_nothing_about_the_api(world: RetryHarness) -> None:
    world.refuse("a", "b")
    world.retries.record_success("a", wrote=False)
    assert world.taken() == []


def test_a_task_that_was_never_refused_wakes_nobody(world: RetryHarness) -> None:
    world.refuse("a")
    world.retries.record_success("other", wrote=True)
    assert world.taken() == []


def blame(world: RetryHarness, task: str) -> None:
    """The task is invalid twice, while another one succeeds."""
    world.refuse(task, kind=Invalid)
    world.now += 60.0
    assert world.taken() == [task]
    world.retries.record_success("good", wrote=True)
    assert world.refuse(task, kind=Invalid) == [None]


def test_what_is_wrong_while_others_succeed_is_left_alone(world: RetryHarness) -> None:
    blame(world, "bad")
    assert len(world.retries) == 0
    world.retries.retry_oldest()
    world.now += INVALID_SECONDS - 1
    assert world.taken() == []


def test_but_not_for_ever_as_a_policy_may_have_refused_it(world: RetryHarness) -> None:
    for _ in range(3):
        blame(world, "bad")
        world.now += INVALID_SECONDS
        assert world.taken() == ["bad"]


def test_and_its_own_change_comes_first(world: RetryHarness) -> None:
    blame(world, "bad")
    world.queue.add("bad")
    assert world.taken() == ["bad"]


def test_what_is_wrong_for_all_is_tried_again(world: RetryHarness) -> None:
    world.refuse("a", kind=Invalid)
    world.now = 1.0
    assert world.refuse("a", kind=Invalid) == [2]
