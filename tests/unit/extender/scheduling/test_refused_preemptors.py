"""A plain pod that got no victims because a gang was just being bound is woken once that is over."""

import pytest

from extender.core.protocol import Candidate
from serried.api.names import Key
from tests.support.builders import pod
from tests.support.extender_harness import Harness, gang, members, small_nodes


@pytest.fixture
async def refused(world: Harness) -> Harness:
    """The first of two members waits at bind, and a pod of higher priority was refused its node for that."""
    await world.add(*small_nodes(2), gang(2), *members(2), pod("p").cpu(2).priority(1)).run_until_idle()
    world.bind("m0")
    await world.run_tasks()
    assert not ask(world)
    return world


def ask(world: Harness) -> object:
    return world.service.preempt(world.pod("p"), [Candidate(world.node_of("m0") or "n1", (world.pod("m0").uid,))])


async def test_it_is_left_alone_while_the_gang_is_on_its_way(refused: Harness) -> None:
    await refused.pass_time(5)
    assert not refused.is_requeued("p", "n1")


async def test_it_is_woken_when_the_gang_is_bound_and_gets_its_victim(refused: Harness) -> None:
    refused.bind("m1")
    await refused.run_until_idle()
    await refused.pass_time(1)
    assert refused.is_requeued("p", "n1")
    assert ask(refused)


async def test_it_is_woken_when_the_gang_has_given_up(refused: Harness) -> None:
    await refused.pass_time(400)
    assert refused.is_requeued("p", "n1")


async def test_it_does_not_end_the_member_that_was_turned_away_before_kube_scheduler_knows(refused: Harness) -> None:
    uid = refused.pod("m0").uid
    await refused.pass_time(400)
    assert not refused.service.preempt(refused.pod("p"), [Candidate("n1", (uid,))])


async def test_it_is_woken_though_only_kube_scheduler_has_seen_it_yet(world: Harness) -> None:
    await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
    world.bind("m0")
    await world.run_tasks()
    unseen = pod("p").cpu(2).priority(1)
    assert not world.service.preempt(unseen.value(), [Candidate("n1", (world.pod("m0").uid,))])
    world.api.pods[Key("default", "p")] = unseen.raw()
    world.bind("m1")
    await world.run_until_idle()
    await world.pass_time(1)
    assert world.is_requeued("p", "n1")


async def test_it_is_not_woken_for_what_it_was_given_meanwhile(refused: Harness) -> None:
    assert refused.service.preempt(refused.pod("p"), [Candidate("n1", ("stranger",))])
    refused.bind("m1")
    await refused.run_until_idle()
    await refused.pass_time(1)
    assert not refused.is_requeued("p", "n1")


async def test_nobody_is_woken_who_runs_or_is_gone(refused: Harness) -> None:
    refused.add(pod("p").cpu(2).priority(1).on("n1"))
    refused.bind("m1")
    await refused.run_until_idle()
    await refused.pass_time(1)
    assert not refused.is_requeued("p", "n1")


async def test_a_pod_that_no_gang_stands_in_the_way_of_is_none_to_wake(world: Harness) -> None:
    await world.add(*small_nodes(1), pod("v").priority(2).on("n1"), pod("p").cpu(2).priority(1)).run_until_idle()
    assert not world.service.preempt(world.pod("p"), [Candidate("n1", (world.pod("v").uid,))])
    await world.pass_time(5)
    assert not world.is_requeued("p", "n1")
