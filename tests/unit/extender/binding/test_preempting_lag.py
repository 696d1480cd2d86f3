"""kube-scheduler may see the end of victims later than we do: what it does not offer until then is not refused."""

import pytest

from extender.core.protocol import Hold, Steer
from extender.core.scheduling.binding_cycle import CycleStage
from serried.api.names import Key
from serried.api.verdict import Reason
from tests.support.builders import pod
from tests.support.extender_harness import Harness, gang, members, small_nodes

HIGH = 100
LAG = 5.0


@pytest.fixture
async def freed(world: Harness) -> Harness:
    """A gang of two that has just been given the node of its only victim, and is nominated there."""
    world.api.graceful.add(Key("default", "low"))
    world.start_nominating()
    world.add(*small_nodes(1), pod("low").cpu(2).on("n1"))
    await world.add(gang(2).priority(HIGH), *(each.priority(HIGH) for each in members(2))).run_until_idle()
    world.delete("low")
    await world.run_until_idle()
    assert world.binding_cycle().stage is CycleStage.GATHERING
    assert world.pod("m0").nominated == "n1"
    return world


async def offer_nothing(world: Harness, times: int = 1) -> None:
    """kube-scheduler tries a member, and finds no node but that which others still use."""
    for _ in range(times):
        assert world.service.filter(world.pod("m0"), []) == Hold()
        await world.run_tasks()


async def test_a_list_without_the_planned_node_just_after_their_end_refuses_nothing(freed: Harness) -> None:
    await offer_nothing(freed, times=3)
    assert Reason.PLAN_OUTDATED not in freed.reasons()
    assert [freed.filter(name) for name in ("m0", "m1")] == [Steer("n1"), Steer("n1")]


async def test_one_that_lost_its_nomination_meanwhile_is_nominated_again(freed: Harness) -> None:
    await offer_nothing(freed)
    freed.erase_nomination("m0")
    before = len(freed.api.list_calls("nominate"))
    await offer_nothing(freed)
    assert len(freed.api.list_calls("nominate")) == before + 1


async def test_one_that_keeps_its_nomination_is_woken_only_once(freed: Harness) -> None:
    before = len(freed.api.calls)
    await offer_nothing(freed, times=3)
    assert [call.verb for call in freed.api.calls[before:]] == ["activate"]


async def test_a_list_without_it_later_is_a_refusal(freed: Harness) -> None:
    await offer_nothing(freed)
    await freed.pass_time(LAG)
    await offer_nothing(freed)
    await freed.run_until_idle()
    assert Reason.PLAN_OUTDATED in freed.reasons()
