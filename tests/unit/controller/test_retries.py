import pytest

from controller.queue import WorkQueue
from controller.retries import PROBE_SECONDS, Retries
from serried.kube.errors import ApiError, Forbidden, Invalid
from serried.kube.wire import Failure
from serried.model.backoff import Backoff


class RetryHarness:
    """A queue with long backoffs and a clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue: WorkQueue[str] = WorkQueue(lambda: self.now, lambda: 0.0, Backoff(first=60.0, cap=60.0))
        self.retries: Retries[str] = Retries(self.queue, lambda: self.now)

    def refuse(self, *tasks: str, kind: type[ApiError] = Forbidden) -> list[int | None]:
        return [self.retries.refuse(task, kind("POST /x", Failure(403))) for task in tasks]

    def taken(self) -> list[str]:
        found = []
        while (task := self.queue.take()) is not None:
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
        world.retries.probe()
        tried += world.taken()
    assert tried == ["a", "b", "a"]


def test_when_one_succeeds_all_are_tried_at_once(world: RetryHarness) -> None:
    world.refuse("a", "b", "c")
    world.retries.accept("b", wrote=True)
    assert world.taken() == ["a", "c"]
    world.retries.accept("a", wrote=True)
    assert world.taken() == []
    world.refuse("a")
    world.now = PROBE_SECONDS
    world.retries.accept("a", wrote=True)
    assert world.taken() == ["c"]


def test_a_success_without_a_write_says_nothing_about_the_api(world: RetryHarness) -> None:
    world.refuse("a", "b")
    world.retries.accept("a", wrote=False)
    assert world.taken() == []


def test_a_task_that_was_never_refused_wakes_nobody(world: RetryHarness) -> None:
    world.refuse("a")
    world.retries.accept("other", wrote=True)
    assert world.taken() == []


def test_what_is_wrong_while_others_succeed_waits_for_its_own_change(world: RetryHarness) -> None:
    world.refuse("bad", kind=Invalid)
    world.now = 1.0
    world.retries.accept("good", wrote=True)
    assert world.refuse("bad", kind=Invalid) == [None]
    world.now = 1000.0
    assert world.taken() == ["bad"]  # the backoff of the first refusal
    assert len(world.retries) == 0
    world.retries.probe()
    assert world.taken() == []


def test_what_is_wrong_for_all_is_tried_again(world: RetryHarness) -> None:
    world.refuse("a", kind=Invalid)
    world.now = 1.0
    assert world.refuse("a", kind=Invalid) == [2]
