"""Storms: a scheduler, users, watches and an API server that do anything at any time, in seeded random order.

Two things must hold. While it lasts, no Binding is sent to a gang that is not up yet unless a commit that names the
pod is durable. When it is over, every gang whose members exist is bound, and nothing is left behind.
"""

from collections.abc import AsyncIterator

import pytest

from tests.support.memory import read_memory
from tests.support.storm import GANGS, SIZE, Storm, take_no_pause


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    take_no_pause(monkeypatch)


@pytest.fixture
async def storm(request: pytest.FixtureRequest) -> AsyncIterator[Storm]:
    made = Storm(request.param)
    yield made
    await made.world.close()


@pytest.mark.parametrize("storm", range(12), indirect=True)
async def test_after_the_storm_every_gang_is_bound_and_nothing_is_left(storm: Storm) -> None:
    await storm.rage()
    await storm.calm_down()
    assert storm.broken == []
    assert {gang: storm.bound(gang) for gang in GANGS} == dict.fromkeys(GANGS, SIZE)
    assert storm.world.nothing_reserved
    assert not any(call.waiting for call in storm.calls.values())
    left = read_memory(storm.world.nominator)
    assert (left["open"], left["sent"]) == ({}, {})
    assert not storm.world.core.held
