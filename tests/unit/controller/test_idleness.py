"""The longest time for which an idle controller may keep its Lease."""

import math

import pytest

from controller.process import BLIND_SECONDS, STUCK_SECONDS, IdleError, Idleness
from tests.support.clock import Clock

DAY = 86_400


class Scene:
    """A controller that has just got the Lease, and is looked at each second."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.blind_since = math.inf
        self.has_work = False
        self.idleness = Idleness(lambda: self.blind_since, lambda: self.has_work, self.clock)

    def go_on(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            self.idleness.check()

    def given_up_after(self) -> float:
        """Return after how many seconds the Lease is given up; infinity for more than a day."""
        begun = self.clock()
        try:
            self.go_on(DAY)
        except IdleError:
            return self.clock() - begun
        return math.inf


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_controller_with_nothing_to_do_keeps_it(scene: Scene) -> None:
    assert scene.given_up_after() == math.inf


def test_one_that_finishes_something_now_and_then_keeps_it(scene: Scene) -> None:
    scene.has_work = True
    for _ in range(10):
        scene.go_on(int(STUCK_SECONDS) - 1)
        scene.idleness.record_progress()


def test_one_that_has_work_and_finishes_none_gives_it_up(scene: Scene) -> None:
    scene.go_on(DAY)
    scene.has_work = True
    assert scene.given_up_after() == STUCK_SECONDS


def test_the_time_in_which_there_was_nothing_to_do_does_not_count(scene: Scene) -> None:
    scene.has_work = True
    scene.go_on(int(STUCK_SECONDS) - 1)
    scene.has_work = False
    scene.go_on(1)
    scene.has_work = True
    assert scene.given_up_after() == STUCK_SECONDS


def test_one_to_which_no_changes_come_gives_it_up_although_it_knows_of_no_work(scene: Scene) -> None:
    scene.blind_since = scene.clock()
    assert scene.given_up_after() == BLIND_SECONDS


def test_one_that_sees_again_in_time_keeps_it(scene: Scene) -> None:
    scene.blind_since = scene.clock()
    scene.go_on(int(BLIND_SECONDS) - 1)
    scene.blind_since = math.inf
    assert scene.given_up_after() == math.inf


def test_a_look_of_many_writes_counts_from_the_last_of_them(scene: Scene) -> None:
    scene.has_work = True
    for _ in range(100):
        scene.go_on(10)
        scene.idleness.record_progress()
    assert scene.given_up_after() == STUCK_SECONDS
