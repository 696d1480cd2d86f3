"""The slot that is kept for a dead member is not given away, whatever the priority of who wants it."""

from serried.api.names import GroupKey
from serried.api.verdict import Reason
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members

HIGH = 100
URGENT = GroupKey("default", "urgent")


async def lose_member(world: Harness) -> None:
    """Gang g of low priority has lost the member that filled n1, and runs on n2, which is too small for others."""
    world.add(node("n1").cpu(4), node("n2").cpu(1), gang(2))
    await world.add(members(1)[0].cpu(4).on("n1"), members(2)[1].on("n2")).run_until_idle()
    world.delete("m0")
    await world.run_until_idle()
    assert [vacancy.pod.node for vacancy in world.store.vacancies] == ["n1"]


async def come(world: Harness) -> None:
    """A gang of one of high priority takes a whole large node."""
    urgent: PodBuilder = pod("u0").cpu(4).scheduler(SCHEDULER).in_group("urgent").priority(HIGH)
    await world.add(pod_group("urgent").gang(1).priority(HIGH), urgent).run_until_idle()


async def bind(world: Harness) -> str:
    """Bind the urgent gang. Return its node."""
    world.bind("u0")
    await world.run_until_idle()
    return world.node_of("u0")


async def test_a_higher_gang_that_lacks_only_this_room_waits_until_it_is_free_and_evicts_nobody(
    world: Harness,
) -> None:
    await lose_member(world)
    await come(world)
    await world.pass_time(60.0)
    await world.pass_time(59.0)
    assert set(world.reasons(URGENT)) == {Reason.NO_CAPACITY}
    assert world.ledger.of_group(URGENT) is None
    await world.pass_time(1.0)
    assert await bind(world) == "n1"
    assert world.reasons(URGENT)[-1] is Reason.SCHEDULED
    assert not world.api.list_evicted()


async def test_a_higher_gang_evicts_others_and_leaves_the_slot_to_the_replacement(world: Harness) -> None:
    await world.add(node("n3").cpu(4), pod("other").cpu(4).on("n3").priority(0)).run_until_idle()
    await lose_member(world)
    await come(world)
    assert world.api.list_evicted() == ["other"]
    world.delete("other")
    await world.run_until_idle()
    assert await bind(world) == "n3"
    await world.add(members(3)[2].cpu(4)).run_until_idle()
    world.bind("m2")
    await world.run_until_idle()
    assert world.node_of("m2") == "n1"
    assert world.reasons(GANG)[-1] is Reason.SCHEDULED
