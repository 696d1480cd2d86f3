"""Storms: a scheduler, users, watches and an API server that do anything at any time, in seeded random order.

Two things must hold. While it lasts, no Binding is sent to a gang that is not up yet unless a commit that names the
pod is durable. When it is over, every gang whose members exist is bound, and nothing is left behind.
"""

from collections.abc import AsyncIterator

import pytest

from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.cycle_member import MemberStage
from extender.core.scheduling.cycle_updates import CycleUpdates
from extender.core.scheduling.group import GroupState
from serried.api.verdict import Verdict
from tests.support.memory import read_memory
from tests.support.storm import GANGS, SIZE, Storm, retry_without_delay


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    retry_without_delay(monkeypatch)


@pytest.fixture
async def storm(request: pytest.FixtureRequest) -> AsyncIterator[Storm]:
    made = Storm(request.param)
    yield made
    await made.world.close()


@pytest.mark.parametrize("storm", range(12), indirect=True)
async def test_after_the_storm_every_gang_is_bound_and_nothing_is_left(storm: Storm) -> None:
    await storm.run_random_actions()
    await storm.recover()
    assert storm.violations == []
    assert {gang: storm.bound(gang) for gang in GANGS} == dict.fromkeys(GANGS, SIZE)
    assert storm.world.nothing_reserved
    assert not any(call.waiting for call in storm.calls.values())
    left = read_memory(storm.world.nominator)
    assert (left["open"], left["sent"]) == ({}, {})
    assert not storm.world.core.groups.held


def describe(cycle: BindingCycle) -> tuple[object, ...]:
    """Return the parts of a cycle that a look at its members may change, except which of them are unschedulable."""
    return dict(cycle.reservation.slots), dict(cycle.late), {*cycle.at_bind}, {*cycle.bound}, cycle.stage


@pytest.mark.parametrize("storm", range(20, 24), indirect=True)
async def test_groups_that_were_not_looked_at_had_not_changed(storm: Storm, monkeypatch: pytest.MonkeyPatch) -> None:
    tended = []
    update = CycleUpdates.update

    def update_twice(cycle_updates: CycleUpdates, state: GroupState) -> Verdict | None:
        verdict, cycle = update(cycle_updates, state), state.cycle
        if cycle is not None:
            pods, found = storm.world.store.pods, describe(cycle)
            waiting = [uid for uid in cycle.reservation.slots if cycle.member(uid).stage is MemberStage.WAITING]
            assert not [uid for uid in waiting if pods[uid].unschedulable], "put aside, and nobody has noticed"
            cycle.check_all_members()
            assert update(cycle_updates, state) == verdict
            assert describe(cycle) == found
            tended.append(cycle)
        return verdict

    monkeypatch.setattr(CycleUpdates, "update", update_twice)
    await storm.run_random_actions()
    await storm.recover()
    assert len(tended) > len({id(cycle) for cycle in tended}), "a storm in which nothing is looked at again"
