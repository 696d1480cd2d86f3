"""A group that goes whole says so before any of its pods does, and before anybody is evicted."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from serried.api.names import Disruption, GroupKey
from tests.support.builders import pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness, RecordingMetrics, gang, members, small_nodes

HIGH = 100


class SlowStatus(RecordingMetrics):
    """The condition of a group is written once somebody lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.allowed = asyncio.Event()

    async def mark_preempted(self, group: GroupKey, text: str) -> None:
        self.asked.append(str(group))
        await self.allowed.wait()
        await super().mark_preempted(group, text)


@pytest.fixture
async def status() -> SlowStatus:
    return SlowStatus()


@pytest.fixture
async def world(status: SlowStatus) -> AsyncIterator[Harness]:
    made = Harness(heard=status)
    yield made
    await made.close()


def list_writes(world: Harness) -> list[str]:
    """Return the verbs of the writes to pods."""
    return [call.verb for call in world.api.calls if call.verb in ("mark", "evict", "delete")]


async def test_conditions_of_groups_and_then_of_pods_and_then_evictions(world: Harness, status: SlowStatus) -> None:
    world.add(*small_nodes(2), pod_group("v").gang(2).disruption(Disruption.ALL))
    world.add(*(pod(f"v{i}").cpu(2).on(f"n{i + 1}").scheduler(SCHEDULER).in_group("v") for i in range(2)))
    await world.add(gang(1).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(1))).run_until_idle()
    assert (status.asked, list_writes(world)) == (["default/v"], [])
    status.allowed.set()
    await world.run_until_idle()
    assert [name for name, _ in status.preempted] == ["default/v"]
    assert list_writes(world) == ["mark", "mark", "delete", "delete"]
