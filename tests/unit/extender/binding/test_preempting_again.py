"""An evicted gang comes back, and never evicts the gang that it was evicted for, however long it waits."""

from serried.api.names import GroupKey
from serried.api.verdict import Reason
from tests.support.builders import PodBuilder, pod, pod_group
from tests.support.extender_harness import DAY, GANG, SCHEDULER, Harness, gang, members, small_nodes

HIGH = 100
LOW = GroupKey("default", "low")


def low(name: str) -> PodBuilder:
    """The one member of a gang of low priority; it fills a node."""
    return pod(name).cpu(2).scheduler(SCHEDULER).in_group("low").priority(0)


async def bind(world: Harness, group: GroupKey, name: str) -> None:
    """A gang of one has its room, and is bound."""
    assert world.ledger.of_group(group) is not None
    world.bind(name)
    await world.run_until_idle()
    assert world.node_of(name) == "n1"


async def test_of_two_gangs_the_low_one_goes_once_and_never_evicts_the_high_one(world: Harness) -> None:
    await world.add(*small_nodes(1), pod_group("low").gang(1).priority(0), low("low0")).run_until_idle()
    await bind(world, LOW, "low0")
    await world.add(gang(1).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(1))).run_until_idle()
    assert world.api.list_evicted() == ["low0"]
    world.delete("low0")
    await world.add(low("low1")).run_until_idle()
    await bind(world, GANG, "m0")
    # Each day that it waits it counts with a higher priority in the queue, up to the highest there is.
    for _ in range(60):
        await world.pass_time(DAY / 10)
    assert world.api.list_evicted() == ["low0"]
    assert world.node_of("m0") == "n1"
    assert world.reasons(LOW)[-1] is Reason.NO_CAPACITY
