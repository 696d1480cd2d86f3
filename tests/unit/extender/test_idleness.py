"""The time for which a scheduler may keep its Lease beside an extender that does not plan."""

import math

import pytest

from extender.lead.leadership import Idleness
from tests.support.clock import Clock

PATIENCE = 60.0


class Scene:
    """An extender that is looked at each second."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.leads = False
        self.refused = -math.inf
        self.planned = -math.inf
        self.synced = True
        self._idleness = Idleness(
            lambda: self.leads, lambda: self.refused, lambda: self.planned, lambda: self.synced, self.clock
        )

    def probe(self) -> bool:
        return self._idleness.may_keep_leading()

    def ends_after(self) -> float:
        """Return the seconds until the scheduler is to be ended; infinity for more than a day."""
        return next((second for second in range(86_400) if not self._probe_at(second)), math.inf)

    def pass_to_the_other(self) -> None:
        self.leads = False
        self.clock.advance(1)
        assert self.probe()

    def _probe_at(self, second: int) -> bool:
        self.clock.advance(1 if second else 0)
        return self.probe()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_leader_that_never_plans_is_ended_after_a_minute(scene: Scene) -> None:
    scene.leads = True
    assert scene.ends_after() == PATIENCE


def test_a_standby_never_is(scene: Scene) -> None:
    assert scene.ends_after() == math.inf


def test_the_time_as_a_standby_does_not_count(scene: Scene) -> None:
    scene.probe()
    scene.clock.advance(3600)
    scene.probe()
    scene.leads = True
    assert scene.ends_after() == PATIENCE


def test_a_leader_that_plans_goes_on(scene: Scene) -> None:
    scene.leads = True
    for _ in range(600):
        scene.clock.advance(1)
        scene.planned = scene.clock()
        assert scene.probe()


def test_one_that_stops_planning_is_ended_a_minute_after_that(scene: Scene) -> None:
    scene.leads = True
    scene.probe()
    scene.clock.advance(3600)
    scene.planned = scene.clock()
    assert scene.probe()
    assert scene.ends_after() == PATIENCE


def test_one_that_plans_again_in_time_is_not(scene: Scene) -> None:
    scene.leads = True
    scene.ends_after()
    assert not scene.probe()
    scene.planned = scene.clock()
    assert scene.probe()


def test_plans_from_caches_that_do_not_follow_the_cluster_any_more_are_none(scene: Scene) -> None:
    scene.leads = True
    scene.planned = scene.clock()
    assert scene.probe()
    scene.synced = False
    for _ in range(int(PATIENCE)):
        assert scene.probe()
        scene.clock.advance(1)
        scene.planned = scene.clock()
    assert not scene.probe()
    scene.synced = True
    assert scene.probe()


def test_two_slow_pairs_do_not_hand_the_lease_to_and_fro_for_ever(scene: Scene) -> None:
    """Each turn is twice as long as the one before it, up to an hour."""
    turns = []
    for _ in range(8):
        scene.leads = True
        turns.append(scene.ends_after())
        scene.pass_to_the_other()
    assert turns == [60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_after_a_turn_with_plans_patience_is_as_at_first(scene: Scene) -> None:
    scene.leads = True
    scene.ends_after()
    scene.pass_to_the_other()
    scene.leads = True
    scene.probe()
    scene.planned = scene.clock()
    scene.probe()
    assert scene.ends_after() == PATIENCE


def test_a_scheduler_that_calls_leads_although_its_extender_cannot_see_the_lease(scene: Scene) -> None:
    for _ in range(7):
        scene.refused = scene.clock()
        for _ in range(10):
            assert scene.probe() or scene.clock() - 1000.0 >= PATIENCE
            scene.clock.advance(1)
    assert not scene.probe()


def test_a_call_from_the_end_of_a_turn_is_soon_forgotten(scene: Scene) -> None:
    scene.leads = True
    scene.planned = scene.clock()
    scene.probe()
    scene.leads = False
    scene.refused = scene.clock()
    assert scene.ends_after() == math.inf
