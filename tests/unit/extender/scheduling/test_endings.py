"""Ends of cycles that are part of no other story."""

import pytest

from extender.core.scheduling.scheduling_cycle import CycleEndings
from tests.support.extender_harness import Harness, gang, members, small_nodes

pytestmark = pytest.mark.core


async def test_the_end_of_an_old_cycle_leaves_the_room_of_the_next_one_alone(world: Harness) -> None:
    """A surplus Binding of the old cycle may still be on its way when the Lease lapses."""
    endings = CycleEndings(world.core.context, world.queue)
    await world.add(*small_nodes(3), gang(2), *members(2)).run_until_idle()
    old = world.binding_cycle()
    calls = [world.bind("m0"), world.bind("m1")]
    await world.run_until_idle()
    assert old.over
    assert not any(call.waiting for call in calls)

    await world.add(*members(1, first=2)).run_until_idle()
    assert world.binding_cycle() is not old
    endings.hand_over(old)
    assert world.binding_cycle().reservation in list(world.ledger)
