"""Pods that have just started are spared, but only from gangs of the next higher priority (`--preemption-spare`)."""

from collections.abc import AsyncIterator

import pytest

from serried.api.names import Disruption, write_time
from tests.support.builders import PodBuilder, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness, gang, members, small_nodes

HIGH = 100
MIDDLE = 10
LOW = 0


@pytest.fixture
async def world() -> AsyncIterator[Harness]:
    made = Harness(spare_seconds=600.0)
    yield made
    await made.close()


def running(name: str, node: str, priority: int, ago: int) -> PodBuilder:
    """A pod that fills its node, and has started so many seconds before the story begins."""
    started = write_time(Harness().wall_time() - ago)
    return pod(name).cpu(2).on(node).priority(priority).started(started)


async def come(world: Harness) -> None:
    """A gang of one of high priority needs a node."""
    await world.add(gang(1).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(1))).run_until_idle()


async def test_what_has_just_started_one_level_below_is_spared_where_others_will_do(world: Harness) -> None:
    """A pod of a level below theirs runs beside them, and its eviction would not help."""
    small = running("small", "n3", LOW, ago=10).cpu(1)
    world.add(*small_nodes(2), *small_nodes(3, cpus=1)[2:], small)
    world.add(running("young", "n1", MIDDLE, ago=599), running("old", "n2", MIDDLE, ago=601))
    await come(world)
    assert world.api.list_evicted() == ["old"]


async def test_what_has_just_started_two_levels_below_is_not_spared(world: Harness) -> None:
    world.add(*small_nodes(2), running("young", "n1", LOW, ago=10), running("old", "n2", MIDDLE, ago=10_000))
    await come(world)
    assert world.api.list_evicted() == ["young"]


async def test_where_nothing_else_will_do_it_goes_all_the_same(world: Harness) -> None:
    await come(world.add(*small_nodes(1), running("young", "n1", MIDDLE, ago=10)))
    assert world.api.list_evicted() == ["young"]


def whole(name: str, *pods: PodBuilder) -> list[PodBuilder]:
    """The members of a gang of mode all."""
    return [each.scheduler(SCHEDULER).in_group(name) for each in pods]


@pytest.mark.parametrize(
    ("newest", "evicted"),
    [
        pytest.param(10, ["w0", "w1", "w2"], id="its newest pod has just started, so a larger gang goes"),
        pytest.param(601, ["v0", "v1"], id="its newest pod has run for long, so the smaller gang goes"),
    ],
)
async def test_a_gang_is_spared_by_the_start_of_its_newest_pod(world: Harness, newest: int, evicted: list[str]) -> None:
    world.add(*small_nodes(5), *(pod_group(name).gang(2).disruption(Disruption.ALL) for name in "vw"))
    world.add(*whole("v", running("v0", "n1", LOW, ago=10_000), running("v1", "n2", LOW, ago=newest)))
    world.add(*whole("w", *(running(f"w{i}", f"n{i + 3}", LOW, ago=10_000) for i in range(3))))
    await come(world)
    assert sorted(world.api.list_evicted()) == evicted
