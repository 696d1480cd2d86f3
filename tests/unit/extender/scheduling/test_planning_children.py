"""Children that come to grief: no answer is lost, none is believed too late, and gangs that plan short go on."""

import asyncio
import errno
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from extender.core.scheduling import planning_tasks as module
from extender.options import BackfillMode, PreemptionMode
from serried.api.names import GroupKey
from serried.api.verdict import Reason
from serried.ops.fork import Child, ForkedChild, fork
from tests.support.builders import RACK, Builder, PodBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members

SMALL = GroupKey("default", "h")


class Forks:
    """Children for a harness: those that have begun, and what becomes of the next ones instead of their work."""

    def __init__(self) -> None:
        self.begun: list[ForkedChild] = []
        self.instead: Callable[[], Any] | None = None
        self.refused: OSError | None = None

    def __call__(self, work: Callable[[], Any], cpu_seconds: float) -> Child:
        if self.refused is not None:
            raise self.refused
        child = fork(self.instead or work, cpu_seconds)
        assert isinstance(child, ForkedChild)
        self.begun.append(child)
        return child


def is_there(child: ForkedChild) -> bool:
    return Path(f"/proc/{child.pid}").exists()


def choosy(index: int) -> PodBuilder:
    """A member that is never looked up straight, as it asks a node for thousands of things."""
    values = ["a", *(f"no-{index}-{number}" for number in range(5_000))]
    wanted = {"matchExpressions": [{"key": RACK, "operator": "In", "values": values}]}
    return pod(f"m{index}").cpu(1).node_affinity(wanted).scheduler(SCHEDULER).in_group("g")


def odd() -> list[Builder]:
    return [gang(3).topology(), *map(choosy, range(3))]


def small() -> list[Builder]:
    return [pod_group("h").gang(2), *[each.in_group("h") for each in members(2, first=100)]]


@pytest.fixture
def forks() -> Forks:
    return Forks()


@pytest.fixture
async def world(forks: Forks) -> AsyncIterator[Harness]:
    made = Harness(fork=forks, backfill=BackfillMode.OFF, preemption=PreemptionMode.OFF)
    yield made.add(*[node(f"{rack}{place}").cpu(4).rack(rack) for rack in "ab" for place in range(2)])
    await made.close()


async def until(world: Harness, happens: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not happens():
            world.schedule_groups()
            await asyncio.sleep(0.002)


def is_planned(world: Harness, group: GroupKey = GANG) -> bool:
    return group in world.groups.states and world.groups.states[group].cycle is not None


def hang() -> None:
    while True:
        time.sleep(60)


def swell() -> None:
    raise MemoryError


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def end_in_vain(world: Harness, said: str) -> None:
    """The gang waits, says why, and is asked about again after a pause; others are planned all the same."""
    world.add(*odd())
    await until(world, lambda: Reason.PLAN_UNFINISHED in world.reasons())
    assert said in world.heard.verdicts[-1][1].detail
    assert world.groups.states[GANG].entry.backoff_until > world.clock()
    world.add(*small()).schedule_groups()
    assert is_planned(world, SMALL)
    assert not is_planned(world)


async def recover(world: Harness) -> None:
    """The next try has its plan."""
    world.clock.advance(61)
    await until(world, lambda: is_planned(world))
    assert world.reasons()[-1] is Reason.PLANNED


async def test_a_child_that_is_killed_is_followed_by_another_one(world: Harness, forks: Forks) -> None:
    forks.instead = die
    await end_in_vain(world, "the planning process was ended by SIGKILL")
    forks.instead = None
    await recover(world)
    assert not any(map(is_there, forks.begun))


async def test_so_is_one_that_runs_out_of_memory(world: Harness, forks: Forks) -> None:
    forks.instead = swell
    await end_in_vain(world, "the planning process ran out of memory")
    forks.instead = None
    await recover(world)


async def test_one_that_hangs_is_ended(world: Harness, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HANG_SECONDS", 0.1)
    monkeypatch.setattr(module, "_HANG_FACTOR", 0.0)
    forks.instead = hang
    await end_in_vain(world, "the planning process has not answered")
    await until(world, lambda: not is_there(forks.begun[0]))
    forks.instead = None
    monkeypatch.setattr(module, "_HANG_SECONDS", 5.0)
    await recover(world)


async def test_where_no_process_can_be_had_only_gangs_that_need_one_wait(world: Harness, forks: Forks) -> None:
    forks.refused = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    await end_in_vain(world, "Serried could not start the planning process: Resource temporarily unavailable")
    pauses = []
    for _ in range(4):
        pauses.append(world.groups.states[GANG].entry.backoff_until - world.clock())
        tries = len(world.heard.plans)
        world.clock.advance(pauses[-1] + 1)
        await until(world, lambda tries=tries: len(world.heard.plans) > tries)  # type: ignore[misc]
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 4 * pauses[0]
    forks.refused = None
    await recover(world)


async def test_a_search_and_a_forecast_without_a_child_are_in_vain_and_their_gang_still_says_why_it_waits(
    forks: Forks,
) -> None:
    world = Harness(fork=forks)
    world.add(*[node(f"a{place}").cpu(2).rack("a") for place in range(2)])
    world.add(*[pod(f"x{place}").cpu(2).on(f"a{place}") for place in range(2)])
    world.add(gang(3).topology().priority(100), *[choosy(index).priority(100) for index in range(3)])
    await until(world, lambda: len(forks.begun) == 1)
    forks.instead = die
    await until(world, lambda: len(forks.begun) == 3)
    await until(world, lambda: not len(world.core.planning_tasks))
    assert world.reasons()[-1] is Reason.NO_DOMAIN_FITS
    forks.instead = None
    for _ in range(20):
        await world.pass_time(61)
        await asyncio.sleep(0.05)
        if is_planned(world):
            break
    assert is_planned(world)
    assert world.binding_cycle().waits_for_victims
    await world.close()


async def test_the_answer_for_a_term_that_has_ended_is_not_heard(world: Harness, forks: Forks) -> None:
    forks.instead = hang
    world.add(*odd()).schedule_groups()
    await until(world, lambda: len(forks.begun) == 1)
    world.core.end_term()
    assert not len(world.core.planning_tasks)
    await until(world, lambda: not is_there(forks.begun[0]))
    assert len(world.ledger) == 0
    forks.instead = None
    world.term.active = True
    world.add(odd()[0])
    await until(world, lambda: is_planned(world))
    assert len(forks.begun) == 2


async def test_nor_is_one_that_comes_in_the_moment_in_which_the_lease_is_lost(world: Harness, forks: Forks) -> None:
    world.add(*odd()).schedule_groups()
    await until(world, lambda: len(forks.begun) == 1)
    while not forks.begun[0].answer.done():  # noqa: ASYNC110 - another process ends
        await asyncio.sleep(0)
    world.core.end_term()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not is_planned(world)
    assert len(world.ledger) == 0


async def test_a_gang_that_is_gone_takes_its_child_with_it(world: Harness, forks: Forks) -> None:
    forks.instead = hang
    world.add(*odd()).schedule_groups()
    await until(world, lambda: len(forks.begun) == 1)
    for name in ("m0", "m1", "m2"):
        world.delete(name)
    world.store.drop_group(GANG)
    await until(world, lambda: not is_there(forks.begun[0]))
    assert not len(world.core.planning_tasks)


async def test_what_a_child_has_planned_is_not_taken_where_the_room_is_gone(world: Harness, forks: Forks) -> None:
    world.add(*odd()).schedule_groups()
    await until(world, lambda: len(forks.begun) == 1)
    world.add(*[pod(f"x{place}").cpu(4).on(f"a{place}") for place in range(2)])
    await until(world, lambda: Reason.NO_DOMAIN_FITS in world.reasons())
    assert not is_planned(world)
