"""A plain pod that kube-scheduler has ended pods for is woken if there is room for it and nothing happens."""

import pytest

from extender.core.protocol import Candidate
from tests.support.builders import PodBuilder, pod
from tests.support.extender_harness import SCHEDULER, Harness, gang, members, small_nodes
from tests.support.volumes import volume_claim


@pytest.fixture
async def left(world: Harness) -> Harness:
    """A member has waited at bind on the only node, and was deleted: its call has failed."""
    await world.add(*small_nodes(1), gang(2), *members(2)).run_until_idle()
    call = world.bind("m0")
    await world.run_tasks()
    world.delete("m0")
    await world.run_until_idle()
    assert call.error
    return world


def preemptor() -> PodBuilder:
    """A pod that takes the whole node, and that kube-scheduler has nominated to it."""
    return pod("p").scheduler(SCHEDULER).cpu(2).priority(1).nominated("n1")


async def fail_bind(world: Harness, node: str) -> None:
    """The other member has no slot any more, since its gang has ended."""
    call = world.bind("m1", node)
    await world.run_tasks()
    assert call.error


async def test_it_is_woken_when_there_has_been_room_for_longer_than_a_backoff_may_last(left: Harness) -> None:
    await left.add(preemptor()).run_until_idle()
    await left.pass_time(10)
    assert not left.is_requeued("p", "n1")
    await left.pass_time(1)
    assert left.is_requeued("p", "n1")


async def test_it_is_woken_though_it_is_seen_to_be_nominated_only_later(left: Harness) -> None:
    await left.pass_time(10)
    await left.add(preemptor()).run_until_idle()
    await left.pass_time(11)
    assert left.is_requeued("p", "n1")


async def test_it_is_left_alone_until_its_last_victim_is_gone(left: Harness) -> None:
    await left.add(pod("other").cpu(1).on("n1"), preemptor()).run_until_idle()
    await left.pass_time(12)
    assert not left.is_requeued("p", "n1")
    left.delete("other")
    await left.run_until_idle()
    await left.pass_time(11)
    assert left.is_requeued("p", "n1")


async def test_it_is_left_alone_while_a_victim_ends_that_takes_none_of_its_room(left: Harness) -> None:
    # One that holds a host port, say. Without its nomination the pod would look for other victims.
    await left.add(pod("other").cpu(0).on("n1").deleting(), preemptor()).run_until_idle()
    await left.pass_time(15)
    assert not left.is_requeued("p", "n1")


async def test_it_is_woken_beside_a_pod_that_stays(left: Harness) -> None:
    await left.add(pod("other").cpu(0).on("n1"), preemptor()).run_until_idle()
    await left.pass_time(11)
    assert left.is_requeued("p", "n1")


async def test_it_is_woken_again_if_that_was_too_early(left: Harness) -> None:
    await left.add(preemptor()).run_until_idle()
    await left.pass_time(11)
    await left.pass_time(10)
    assert left.count_requeues("p", "n1") == 1
    await left.pass_time(1)
    assert left.count_requeues("p", "n1") == 2


async def test_it_is_not_woken_again_by_every_review_while_its_nomination_is_seen_yet(left: Harness) -> None:
    await left.add(preemptor()).run_until_idle()
    for _ in range(4):
        left.clock.advance(5)
        left.schedule_groups()
    await left.run_tasks()
    assert left.count_requeues("p", "n1") == 1


async def test_of_many_a_few_are_woken_at_a_time(left: Harness) -> None:
    names = [f"p{i}" for i in range(9)]
    await left.add(*(pod(name).scheduler(SCHEDULER).nominated("n1") for name in names)).run_until_idle()
    left.clock.advance(11)
    left.schedule_groups()
    await left.run_tasks()
    assert sum(left.is_requeued(name, "n1") for name in names) == 8
    left.schedule_groups()
    await left.run_tasks()
    assert all(left.is_requeued(name, "n1") for name in names)


async def test_it_is_not_woken_again_for_what_happens_on_the_node_much_later(left: Harness) -> None:
    await left.add(preemptor()).run_until_idle()
    await left.pass_time(11)
    await left.pass_time(31)
    await fail_bind(left, "n1")
    await left.pass_time(1)
    await left.pass_time(12)
    assert left.count_requeues("p", "n1") == 1


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(preemptor().nominated("").on("n1"), id="it runs"),
        pytest.param(preemptor().nominated("n2"), id="it has victims on another node"),
        pytest.param(preemptor().nominated("").deleting(), id="it goes"),
    ],
)
async def test_it_is_not_woken_again_once_something_has_happened(left: Harness, later: PodBuilder) -> None:
    await left.add(*small_nodes(2), preemptor()).run_until_idle()
    await left.pass_time(11)
    await left.add(later).run_until_idle()
    await left.pass_time(12)
    assert left.count_requeues("p", "n1") == 1


async def test_the_time_on_another_node_does_not_count(left: Harness) -> None:
    await left.add(*small_nodes(2), preemptor()).run_until_idle()
    await left.pass_time(10)
    await fail_bind(left, "n2")
    await left.add(preemptor().nominated("n2")).run_until_idle()
    await left.pass_time(10)
    assert not left.is_requeued("p", "n2")
    await left.pass_time(1)
    assert left.is_requeued("p", "n2")


async def test_the_time_of_an_earlier_term_does_not_count(left: Harness) -> None:
    await left.add(preemptor()).run_until_idle()
    await left.pass_time(10)
    left.group_scheduler.drop_queued()
    await fail_bind(left, "n1")
    await left.pass_time(5)
    assert not left.is_requeued("p", "n1")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(preemptor().scheduler("another"), id="a pod of another scheduler"),
        pytest.param(preemptor().on("n1"), id="a pod that runs"),
        pytest.param(preemptor().deleting(), id="a pod that is going"),
        pytest.param(preemptor().nominated("n2"), id="a pod nominated to a node where no member waited"),
        pytest.param(preemptor().in_group("other"), id="a member of a gang that waits"),
        pytest.param(preemptor().cpu(3), id="a pod for which there is no room"),
        pytest.param(preemptor().node_selector("disk", "ssd"), id="a pod that the node does not admit"),
        pytest.param(
            preemptor().with_field([{"name": "c", "resourceClaimName": "gpu"}], "spec", "resourceClaims"),
            id="a pod that may wait for its devices",
        ),
    ],
)
async def test_nobody_else_is_woken(left: Harness, other: PodBuilder) -> None:
    await left.add(*small_nodes(2), other).run_until_idle()
    await left.pass_time(15)
    assert not left.is_requeued("p", "n1")


async def test_a_pod_that_may_wait_for_its_volume_is_left_alone(left: Harness) -> None:
    # kube-scheduler nominates it too, and has chosen the node.
    left.store.put_object(volume_claim("c").value())
    await left.add(preemptor().mounting("c")).run_until_idle()
    await left.pass_time(15)
    assert not left.is_requeued("p", "n1")


async def test_a_pod_whose_volume_is_there_is_woken(left: Harness) -> None:
    left.store.put_object(volume_claim("c").bound_to("v").value())
    await left.add(preemptor().mounting("c")).run_until_idle()
    await left.pass_time(11)
    assert left.is_requeued("p", "n1")


async def test_it_is_woken_though_its_victim_was_gone_before_its_bind_call_came(world: Harness) -> None:
    await world.add(*small_nodes(1), pod("m").scheduler(SCHEDULER)).run_until_idle()
    call = world.bind("m", "n1")
    world.delete("m")
    await world.run_tasks()
    assert call.error
    await world.add(preemptor()).run_until_idle()
    await world.pass_time(11)
    assert world.is_requeued("p", "n1")


async def test_it_is_woken_though_its_victim_was_no_member(world: Harness) -> None:
    # kube-scheduler tried it once more before it saw the victim go, asked for the same one, and nothing followed.
    await world.add(*small_nodes(1), pod("v").cpu(2).on("n1"), pod("p").cpu(2).priority(1)).run_until_idle()
    assert world.service.preempt(world.pod("p"), [Candidate("n1", (world.pod("v").uid,))])
    world.delete("v")
    await world.add(preemptor()).run_until_idle()
    await world.pass_time(11)
    assert world.is_requeued("p", "n1")


async def test_a_node_is_not_looked_at_for_ever(left: Harness) -> None:
    await left.pass_time(31)
    await left.add(preemptor()).run_until_idle()
    await left.pass_time(15)
    assert not left.is_requeued("p", "n1")


async def test_a_pod_nominated_to_where_nobody_has_left_bind_or_was_to_go_is_not_woken(world: Harness) -> None:
    await world.add(*small_nodes(1), preemptor()).run_until_idle()
    await world.pass_time(15)
    assert not world.is_requeued("p", "n1")
