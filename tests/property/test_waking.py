"""A gang that waits is planned as soon as it fits: by the change itself, whichever object it is of, and by no timer.

Whether it fits is what a process says that was just started, and has been told the same objects.
"""

import asyncio
from collections import Counter
from random import Random

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from extender.options import BackfillMode, PreemptionMode
from tests.support.changing import Change, Theme, World
from tests.support.extender_harness import GANG, Harness
from tests.support.rules import run_deferred_work

_CHANGES = 10
"""The largest number of changes in a story, which ends with the plan."""

sources = st.integers(0, 1 << 32).map(Random)


def start() -> Harness:
    """A process that knows nothing yet, keeps no room and evicts no pods. Its clock stands still."""
    return Harness(backfill=BackfillMode.OFF, preemption=PreemptionMode.OFF)


async def looks(harness: Harness) -> bool:
    """Return whether the gang is planned after one look, once all effects of the changes are in the Store."""
    run_deferred_work(harness.store)
    harness.schedule_groups()
    await harness.run_tasks()
    return harness.ledger.of_group(GANG) is not None


async def would_fit(world: World) -> bool:
    harness = start()
    world.fill_store(harness.store)
    fits = await looks(harness)
    await harness.close()
    return fits


async def draw_waiting(random: Random, theme: Theme) -> World | None:
    """Draw a world in which the gang does not fit; None if it fits after every change."""
    world = World(random, theme)
    for _ in range(_CHANGES):
        if not await would_fit(world):
            return world
        world.change()
    return None


async def tell(random: Random, theme: Theme) -> Change | None:
    """Change the world until the gang is planned; the change after which it was, None if it never fitted."""
    world = await draw_waiting(random, theme)
    if world is None:
        return None
    harness = start()
    world.fill_store(harness.store)
    assert not await looks(harness)
    for _ in range(_CHANGES):
        change = world.change()
        world.apply(harness.store, change)
        planned, fits = await looks(harness), await would_fit(world)
        assert planned == fits, (change, harness.groups.states[GANG].verdict)
        if planned:
            await harness.close()
            return change
    await harness.close()
    return None


@pytest.mark.parametrize("theme", Theme)
@given(random=sources)
def test_a_gang_is_planned_by_the_change_after_which_it_fits(theme: Theme, random: Random) -> None:
    change = asyncio.run(tell(random, theme))
    event("it never fits" if change is None else change.sort)


EXPECTED = {
    Theme.PLAIN: {"put node", "put pod", "drop pod"},
    Theme.INTERPOD: {"put node", "put pod", "drop pod", "drop node", "put namespace"},
    Theme.VOLUMES: {"put volume", "put volume claim", "put storage class"},
    Theme.DEVICES: {"put slice", "put device class", "put device claim"},
    Theme.EXTENDED: {"put node", "drop pod"},
    Theme.FEATURES: {"put node", "drop node"},
}
"""Changes by which gangs are planned in the stories of each theme, if there are enough of these."""


@pytest.mark.full
@pytest.mark.parametrize("theme", Theme)
def test_in_some_stories_each_of_these_changes_is_what_the_gang_has_waited_for(theme: Theme) -> None:
    sorts = Counter(change.sort for seed in range(200) if (change := asyncio.run(tell(Random(seed), theme))))  # noqa: S311
    assert sorts.keys() >= EXPECTED[theme]
