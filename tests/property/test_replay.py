"""A decision that is made again from its file is the one that the live extender made, whatever the cluster is like."""

import asyncio
from random import Random

from hypothesis import event, given, settings
from hypothesis import strategies as st

from extender.look.cluster import take_capture
from extender.look.decide import Decision, Match, compare, decide, find_recorded
from extender.look.snapshot import Capture, compress, read_snapshot, write_snapshot
from serried.api.level import NATIVE
from serried.api.names import GroupKey
from serried.ops.steps import finish
from tests.support.examples import scale
from tests.support.extender_harness import GANG, Harness
from tests.support.random_clusters import draw_gang, draw_running_workloads

RANDOMS = st.randoms(use_true_random=False)


@settings(max_examples=scale(80))
@given(source=RANDOMS)
def test_what_the_live_extender_decides_next_is_decided_again(source: Random) -> None:
    capture, group, live = asyncio.run(play(source))
    found = decide(read_again(capture), group)
    event("planned" if found.nodes else str(found.verdict and found.verdict.reason))
    event(f"victims: {bool(found.victims)}")
    assert found == live


@settings(max_examples=scale(30))
@given(source=RANDOMS)
def test_what_was_decided_last_is_recorded_and_decided_again(source: Random) -> None:
    capture, group = asyncio.run(play_on(source))
    recorded = find_recorded(capture, group)
    assert recorded is not None
    assert compare(recorded, decide(read_again(capture), group)) in {Match.EQUAL, Match.OTHER_NUMBERS}


@settings(max_examples=scale(30))
@given(source=RANDOMS)
def test_a_file_has_all_that_was_taken(source: Random) -> None:
    capture, _, _ = asyncio.run(play(source))
    plain = b"".join(write_snapshot(capture))
    assert read_snapshot(plain) == read_snapshot(b"".join(compress(write_snapshot(capture)))) == capture
    assert b"of a pod" not in plain


async def play(source: Random) -> tuple[Capture, GroupKey, Decision]:
    """A cluster at some moment, the gang that came last, and what the live extender decides on it then."""
    world = await begin(source)
    group = come(source, world)
    capture = finish(take_capture(world.core, NATIVE, group))
    world.group_scheduler.consider(group)
    live = find_recorded(finish(take_capture(world.core, NATIVE, group)), group)
    await world.close()
    assert live is not None
    return capture, group, live


async def play_on(source: Random) -> tuple[Capture, GroupKey]:
    """A cluster right after the gang that came last was decided on."""
    world = await begin(source)
    group = come(source, world)
    world.group_scheduler.consider(group)
    capture = finish(take_capture(world.core, NATIVE, group))
    await world.close()
    return capture, group


async def begin(source: Random) -> Harness:
    """A cluster in which something has happened already."""
    world = Harness(spare_seconds=source.choice([0.0, 1e9]))
    world.add(*draw_running_workloads(source))
    for place in range(source.randint(0, 2)):
        world.add(*draw_gang(source, f"early{place}"))
        await world.run_until_idle()
    if source.random() < 0.3:
        running = sorted(pod.name for pod in world.store.pods.values() if pod.bound)
        if running:
            world.delete(source.choice(running))
    await world.pass_time(source.choice([0.0, 5.0, 90.0]))
    return world


def come(source: Random, world: Harness) -> GroupKey:
    """Add the last gang. Return the key under which it is scheduled."""
    world.add(*draw_gang(source, GANG.name))
    return next(key for key in world.store.groups if key.name == GANG.name)


def read_again(capture: Capture) -> Capture:
    """Return the capture after it was written to a file and read again."""
    found = read_snapshot(b"".join(write_snapshot(capture)))
    assert isinstance(found, Capture)
    return found
