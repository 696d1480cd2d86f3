"""Evicted pods return, and evictions never form a circle: every history comes to rest.

Each run has hundreds of turns, on clusters that have room for some of those who want it.
"""

from collections.abc import AsyncIterator
from itertools import pairwise
from random import Random

import pytest

from serried.api.names import Disruption
from serried.api.verdict import Reason
from tests.support.atomicity import AtomicityCheck
from tests.support.churn import NODE_CPU, Churn, LongHarness, Owner
from tests.support.extender_harness import Harness

LEVELS = (0, 10, 20, 100)
TOP = LEVELS[-1]
NODES = 6
OWNERS = 14
SEEDS = (0, 2, 3, 5)


IN_VAIN = frozenset({Reason.PLAN_OUTDATED, Reason.VICTIMS_REMAIN, Reason.DEADLINE_EXCEEDED})


@pytest.fixture
async def world() -> AsyncIterator[Harness]:
    made = LongHarness()
    yield made
    await made.close()


def draw_owner(source: Random, name: str) -> Owner:
    """Plain pods or a gang; a gang of its own size, mode and way to come back."""
    priority = source.choice(LEVELS[:-1])
    if source.random() < 0.4:
        return Owner(name, priority, size=source.randint(1, 4), cpu=source.randint(1, 2))
    size = source.randint(1, 4)
    return Owner(
        name,
        priority,
        size=size,
        cpu=source.choice((1, 2, NODE_CPU)),
        min_count=source.randint(1, size),
        mode=source.choice(list(Disruption)),
        confined=source.random() < 0.3,
        anew=source.random() < 0.5,
        pod_priority=source.choice((None, max(priority, source.choice(LEVELS[:-1])))),
    )


def list_top(source: Random) -> list[Owner]:
    """Return owners of the highest priority, for which there is room once all other pods have ended."""
    gang = Owner("top-gang", TOP, size=3, cpu=2, min_count=3, mode=source.choice(list(Disruption)), anew=True)
    return [gang, Owner("top-plain", TOP, size=2, cpu=1)]


@pytest.mark.parametrize("seed", SEEDS)
async def test_who_is_ended_comes_back_and_yet_it_comes_to_rest(world: Harness, seed: int) -> None:
    churn = Churn(world, NODES, seed)
    check = AtomicityCheck(churn)
    source = churn.source
    for number in range(OWNERS):
        churn.add_owner(draw_owner(source, f"o{number}"))
        await check.run(source.randint(1, 6))
        if number % 4 == 3:
            churn.remove_owner(source.choice(list(churn.owners)))
    for owner in list_top(source):
        churn.add_owner(owner)
        await check.run(source.randint(1, 6))
    await check.run(60)
    rest = churn.turn
    await check.run(60)
    assert len(churn.evictions) >= 3, "a run in which nothing happens shows nothing"
    assert all(each.priorities[0] > each.priorities[1] for each in churn.evictions)
    assert not find_turns(churn)
    assert not [each for each in churn.evictions if each.turn > rest]
    assert all(churn.is_served(owner.name) for owner in list_top(source))
    assert not check.kept_members
    assert not check.bound_without_quorum
    assert check.preemptors
    assert check.evicted_whole
    for name in churn.owners:
        paid = 1 + churn.count_losses(name) + count_failures(world, name)
        assert churn.preemptions[name] <= paid, f"{name} evicts without having lost anything"


async def test_room_that_others_take_all_the_time_is_freed_ever_more_rarely(world: Harness) -> None:
    """The pods have a lower priority than their gang: kube-scheduler gives the room to the victims' replacements."""
    churn = Churn(world, 1, seed=0)
    churn.add_owner(Owner("middle", 10, size=4, cpu=1))
    await churn.run(2)
    churn.add_owner(Owner("gang", 20, size=1, cpu=4, min_count=1, pod_priority=0))
    await churn.run(8 * 60, seconds=60.0)
    assert not churn.is_served("gang")
    # After 30 s, then after twice as long each time, but never less often than every 32 minutes.
    assert 6 + 8 * 60 // 32 - 3 <= churn.preemptions["gang"] <= 6 + 8 * 60 // 32


def find_turns(churn: Churn) -> set[tuple[str, str]]:
    """The pairs of owners of whom each was ended for the other."""
    pairs = {(each.preemptor, each.victim) for each in churn.evictions}
    return {(one, other) for one, other in pairs if (other, one) in pairs}


def count_failures(world: Harness, name: str) -> int:
    """Return how often room was freed in vain for an owner's gang, which pauses longer after each time."""
    told = [verdict.reason for group, verdict in world.heard.verdicts if group.name.rpartition("-")[0] == name]
    said = [reason for reason in told if reason is not Reason.PLANNED]
    return sum(before is Reason.PREEMPTING and after in IN_VAIN for before, after in pairwise(said))
