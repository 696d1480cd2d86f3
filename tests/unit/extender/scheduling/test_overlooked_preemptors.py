"""A plain pod for which kube-scheduler ended members at bind is woken if there is room for it and nothing happens."""

import pytest

from tests.support.builders import PodBuilder, pod
from tests.support.extender_harness import SCHEDULER, Harness, gang, members, small_nodes


@pytest.fixture
async def left(world: Harness) -> Harness:
    """A member has waited at bind on the only node, and was deleted: its call has failed."""
    await world.add(*small_nodes(1), gang(2), *members(2)).go()
    call = world.bind("m0")
    await world.settle()
    world.delete("m0")
    await world.go()
    assert call.error
    return world


def preemptor() -> PodBuilder:
    """A pod that takes the whole node, and that kube-scheduler has nominated to it."""
    return pod("p").scheduler(SCHEDULER).cpu(2).priority(1).nominated("n1")


async def test_it_is_woken_when_there_has_been_room_for_a_second(left: Harness) -> None:
    await left.add(preemptor()).go()
    assert not left.is_requeued("p", "n1")
    await left.pass_time(1)
    assert left.is_requeued("p", "n1")


async def test_it_is_woken_though_it_is_seen_to_be_nominated_only_later(left: Harness) -> None:
    await left.pass_time(10)
    await left.add(preemptor()).go()
    await left.pass_time(1)
    assert left.is_requeued("p", "n1")


async def test_it_is_left_alone_until_its_last_victim_is_gone(left: Harness) -> None:
    await left.add(pod("other").cpu(1).on("n1"), preemptor()).go()
    await left.pass_time(5)
    assert not left.is_requeued("p", "n1")
    left.delete("other")
    await left.go()
    await left.pass_time(1)
    assert left.is_requeued("p", "n1")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(preemptor().scheduler("another"), id="a pod of another scheduler"),
        pytest.param(preemptor().on("n1"), id="a pod that runs"),
        pytest.param(preemptor().deleting(), id="a pod that is going"),
        pytest.param(preemptor().nominated("n2"), id="a pod nominated to a node where no member waited"),
        pytest.param(preemptor().in_group("other"), id="a member of a gang that waits"),
        pytest.param(preemptor().cpu(3), id="a pod for which there is no room"),
        pytest.param(preemptor().selecting("disk", "ssd"), id="a pod that the node does not admit"),
    ],
)
async def test_nobody_else_is_woken(left: Harness, other: PodBuilder) -> None:
    await left.add(*small_nodes(2), other).go()
    await left.pass_time(5)
    assert not left.is_requeued("p", "n1")


async def test_a_node_is_not_looked_at_for_ever(left: Harness) -> None:
    await left.pass_time(31)
    await left.add(preemptor()).go()
    await left.pass_time(5)
    assert not left.is_requeued("p", "n1")


async def test_a_pod_nominated_to_where_nobody_has_left_bind_is_not_woken(world: Harness) -> None:
    await world.add(*small_nodes(1), preemptor()).go()
    await world.pass_time(5)
    assert not world.is_requeued("p", "n1")
