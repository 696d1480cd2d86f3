"""Events between the first eviction and the end of the last victim."""

from collections.abc import Callable

import pytest

from extender.core.protocol import Steer
from serried.api.names import Key
from serried.api.verdict import Reason
from tests.support.builders import PodBuilder, pod
from tests.support.extender_harness import Harness, gang, members, small_nodes
from tests.support.fake_api import budget_refusal

HIGH = 100
TIMEOUT = 600.0


def leave(each: PodBuilder) -> PodBuilder:
    return each


async def preempt(world: Harness, *victims: PodBuilder, hold: Callable[[PodBuilder], PodBuilder] = leave) -> None:
    """A gang of as many members as there are victims, each on a node of its own, is to get these nodes."""
    count = len(victims)
    world.start_nominating()
    world.add(*small_nodes(count), *victims, gang(count).priority(HIGH))
    await world.add(*(hold(each.cpu(2).priority(HIGH)) for each in members(count))).run_until_idle()


def low(index: int) -> PodBuilder:
    return pod(f"low{index}").cpu(2).on(f"n{index}")


def end_gracefully(world: Harness, *indexes: int) -> None:
    world.api.graceful.update(Key("default", f"low{index}") for index in indexes)


async def test_the_room_of_the_first_is_kept_while_the_last_is_not_evicted_yet(world: Harness) -> None:
    world.api.hold("delete")
    await preempt(world, low(1), low(2))
    world.delete("low1")
    await world.run_until_idle()
    assert {world.pod(name).nominated for name in ("m0", "m1")} == {"n1", "n2"}


async def test_victims_with_a_long_grace_get_it_before_anybody_gives_up(world: Harness) -> None:
    end_gracefully(world, 1, 2)
    await preempt(world, low(1).grace_period(3600), low(2))
    await world.pass_time(3600 + TIMEOUT - 1)
    assert Reason.VICTIMS_REMAIN not in world.reasons()
    await world.pass_time(2)
    assert Reason.VICTIMS_REMAIN in world.reasons()


async def test_nobody_else_goes_when_a_node_that_was_freed_is_cordoned(world: Harness) -> None:
    world.api.add_budget()
    world.api.fail("evict", budget_refusal())
    end_gracefully(world, 1, 2)
    await preempt(world, low(1), low(2))
    assert world.pod("low2").deleting
    world.delete("low2")
    asked = world.api.list_evicted()
    world.add(small_nodes(2)[1].cordoned())
    await world.pass_time(6)
    assert world.api.list_evicted() == asked
    assert Reason.PLAN_OUTDATED in world.reasons()
    assert world.pod("low1").disruption == ""


async def test_nobody_says_that_it_goes_after_the_stage_has_failed(
    world: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect of ours")

    world.api.hold("mark")
    await preempt(world, low(1), low(2))
    monkeypatch.setattr(type(world.binding_cycle()), "note_eviction_sent", fail)
    world.api.release("mark")
    await world.run_until_idle()
    assert [world.pod(f"low{index}").disruption for index in (1, 2)] == ["", ""]
    assert not world.api.list_evicted()


@pytest.mark.parametrize(
    ("hold", "verb"),
    [
        pytest.param(leave, "activate", id="held by filter"),
        pytest.param(PodBuilder.gate, "ungate", id="held by its gate"),
    ],
)
async def test_one_write_wakes_a_member_that_is_nominated_already(
    world: Harness, hold: Callable[[PodBuilder], PodBuilder], verb: str
) -> None:
    end_gracefully(world, 1, 2)
    await preempt(world, low(1), low(2), hold=hold)
    before = len(world.api.calls)
    for name in ("low1", "low2"):
        world.delete(name)
    await world.run_until_idle()
    written = [call.verb for call in world.api.calls[before:] if call.resource == "pods"]
    assert written == [verb, verb]
    assert isinstance(world.filter("m0"), Steer)
