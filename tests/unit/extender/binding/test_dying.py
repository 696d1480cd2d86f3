"""The process dies before any one of its calls of the API, from the plan of a preemption to the last Binding."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from extender.core.protocol import Steer
from serried.api.names import Key
from tests.support.builders import pod
from tests.support.extender_harness import SCHEDULER, Harness, gang, members, small_nodes
from tests.support.fake_api import Call, FakeApi

HIGH = 100
VICTIMS = ("low1", "low2")


class Mortal(FakeApi):
    """An API server that answers so many calls and then none, as its caller is dead by then."""

    def __init__(self, left: float) -> None:
        super().__init__()
        self.left = left
        self.graceful.update(Key("default", name) for name in VICTIMS)

    async def _do(self, call: Call, change: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left < 0:
            await asyncio.Event().wait()
        return await super()._do(call, change)


def begin(api: FakeApi) -> Harness:
    """A process that sees what is there by now."""
    world = Harness(api=api)
    world.add(*small_nodes(3), gang(2).priority(HIGH))
    world.sync_pods()
    return world


async def run(world: Harness) -> None:
    """The story from plan to Bindings, as far as the process lives."""
    world.start_nominating()
    await world.run_until_idle()
    for pod_key in [key for key, raw in world.api.pods.items() if "deletionTimestamp" in raw["metadata"]]:
        world.delete(pod_key.name)
    await world.run_until_idle()
    waiting = [name for name in ("m0", "m1") if not world.node_of(name)]
    steered = [name for name in waiting if isinstance(world.filter(name), Steer)]
    for name in steered:
        world.bind(name)
    await world.run_until_idle()


def fill(api: FakeApi) -> None:
    """Three nodes are taken, and a gang of higher priority wants two; the third pod is of equal priority."""
    for name, node, priority in (("low1", "n1", 0), ("low2", "n2", 0), ("equal", "n3", HIGH)):
        api.pods[Key("default", name)] = pod(name).cpu(2).on(node).priority(priority).scheduler(SCHEDULER).raw()
    for member in members(2):
        api.pods[Key("default", member.value().name)] = member.cpu(2).priority(HIGH).raw()


def let_alone(_: FakeApi) -> None:
    """Leave the API server as it is: no budget selects a victim."""


@pytest.mark.parametrize(
    "guard",
    [pytest.param(let_alone, id="no budget"), pytest.param(FakeApi.add_budget, id="a budget")],
)
@pytest.mark.parametrize("calls", range(24))
async def test_a_process_that_dies_at_any_call_ends_nobody_twice_and_the_gang_is_bound_whole(
    calls: int, guard: Callable[[FakeApi], None]
) -> None:
    api = Mortal(calls)
    guard(api)
    fill(api)
    first = begin(api)
    await run(first)
    await first.close()
    bound = [name for name in ("m0", "m1") if first.node_of(name)]
    ending = {key.name for key, raw in api.pods.items() if "deletionTimestamp" in raw["metadata"]}
    done = len(api.list_evicted())

    api.left = float("inf")
    second = begin(api)
    await second.recovery.recover()
    await second.run_tasks()
    assert ending.isdisjoint(api.list_evicted()[done:])
    await run(second)
    await second.pass_time(61)
    await run(second)
    assert {second.node_of("m0"), second.node_of("m1")} == {"n1", "n2"}, bound
    assert set(api.list_evicted()) == set(VICTIMS)
    assert "equal" in {key.name for key in api.pods}
    await second.pass_time(120)
    assert not api.records
    await second.close()
