"""Blind processes: a list or watch was lost, and has not been answered for a while."""

import pytest

from tests.chaos.excuses import SIGHT
from tests.chaos.mishaps import Request
from tests.chaos.sight import Sight
from tests.support.clock import Clock

PODS, PODS_WATCH = Request("GET", "/api/v1/pods"), Request("GET", "/api/v1/pods?watch=true&resourceVersion=7")
NODES = Request("GET", "/api/v1/nodes?watch=true")


class Scene:
    def __init__(self) -> None:
        self.clock = Clock()
        self.sight = Sight(self.clock)
        self.noted: list[tuple[str, str]] = []

    def look(self, after: float = 0.0) -> None:
        self.clock.advance(after)
        self.sight.look(lambda note, about: self.noted.append((note, about)))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_watch_that_is_there_again_at_once_is_not_told(scene: Scene) -> None:
    scene.sight.lose(PODS_WATCH)
    scene.look(0.5)
    scene.sight.gain(PODS_WATCH)
    scene.look(10)
    assert scene.noted == []


def test_it_is_told_once_from_a_second_on_and_until_the_last_kind_is_shown_again(scene: Scene) -> None:
    scene.sight.lose(PODS_WATCH)
    scene.sight.lose(NODES)
    for _ in range(3):
        scene.look(1.1)
    scene.sight.gain(NODES)
    scene.look()
    assert scene.noted == [("fall", SIGHT)]
    scene.sight.gain(PODS)  # a list shows it, too
    scene.look()
    assert scene.noted == [("fall", SIGHT), ("rise", SIGHT)]


def test_one_that_is_refused_again_is_lost_since_the_first_time(scene: Scene) -> None:
    scene.sight.lose(PODS_WATCH)
    scene.clock.advance(0.9)
    scene.sight.lose(PODS)
    scene.look(0.2)
    assert scene.noted == [("fall", SIGHT)]


@pytest.mark.parametrize(
    "request_", [Request("POST", "/api/v1/namespaces/a/pods/p/binding"), Request("GET", "/api/v1/namespaces/a/pods/p")]
)
def test_a_write_and_one_object_are_no_sight(scene: Scene, request_: Request) -> None:
    scene.sight.lose(request_)
    scene.look(5)
    assert scene.noted == []
