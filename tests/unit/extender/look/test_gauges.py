"""The gauges on `/metrics` agree with the state."""

import pytest

from extender.look.routes import describe_gang, measure_held, measure_waits
from serried.api.level import FALLBACK
from serried.api.names import write_time
from serried.api.verdict import Reason
from serried.ops.metrics import ReservedResources
from tests.support.builders import CompatibleGroupBuilder, PodGroupBuilder, compatible_group, pod, pod_group
from tests.support.extender_harness import EPOCH, GANG, SCHEDULER, Harness, gang, members, small_nodes


@pytest.fixture
async def world() -> Harness:
    return Harness()


def held(world: Harness) -> ReservedResources:
    cycles = [state.cycle for state in world.groups.states.values() if state.cycle is not None]
    return measure_held(world.ledger, world.store, cycles, world.clock())


async def test_a_planned_gang_holds_room_that_nobody_uses(world: Harness) -> None:
    await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
    world.clock.advance(7.0)
    found = held(world)
    assert found.phases == {"Planned": 1}
    assert (found.bound, found.waiting) == (0, 2)
    assert found.idle["cpu"] == sum(dict(world.pod(name).shape.requests)["cpu"] for name in ("m0", "m1")) / 1000
    assert found.oldest_seconds == 7.0
    await world.close()


async def test_without_reservations_nothing_is_held(world: Harness) -> None:
    await world.add(*small_nodes(1), gang(2), *members(1)).run_until_idle()
    assert held(world) == ReservedResources()


async def test_a_gang_waits_as_long_as_it_has_pods_and_does_not_run(world: Harness) -> None:
    await world.add(*small_nodes(2), gang(3), *members(2), pod_group("without-pods").gang(2)).run_until_idle()
    await world.add(
        pod_group("runs").gang(1), pod("r0").cpu(1).scheduler(SCHEDULER).in_group("runs").on("n1")
    ).run_until_idle()
    await world.pass_time(40.0)
    await world.add(gang(3), *members(3)).run_until_idle()
    assert world.reasons() == [Reason.QUORUM_MISSING, Reason.PLANNED]
    assert measure_waits(world.groups.states, world.store, world.clock()) == {"default": [40.0]}
    await world.close()


async def test_a_gang_that_waited_before_this_leader_began_waits_since_its_pods_were_made(world: Harness) -> None:
    made = write_time(EPOCH + world.clock() - 300)
    await world.add(*small_nodes(1), gang(2), *(member.created(made) for member in members(2))).run_until_idle()
    world.clock.advance(40)
    assert measure_waits(world.groups.states, world.store, world.clock()) == {"default": [340.0]}


GROUPS = {
    "of a Job": (pod_group("g").gang(2).controlled_by("Job", "j"), ("fallback", "Job")),
    "of a kind that a tenant has invented": (pod_group("g").gang(2).controlled_by("Mine", "m"), ("fallback", "other")),
    "of nobody": (pod_group("g").gang(2), ("fallback", "")),
    "of somebody who does not control it": (pod_group("g").gang(2).owned_by("Job", "j"), ("fallback", "")),
    "of scheduler-plugins": (compatible_group("g").gang(2), ("compatible", "")),
}


@pytest.mark.parametrize(("builder", "labels"), GROUPS.values(), ids=GROUPS)
def test_a_gang_counts_by_level_and_owner(
    builder: PodGroupBuilder | CompatibleGroupBuilder, labels: tuple[str, str]
) -> None:
    assert describe_gang(builder.value(), FALLBACK) == labels


async def test_the_time_with_a_reason_counts_when_the_next_one_comes(world: Harness) -> None:
    await world.add(*small_nodes(1), gang(2), *members(1)).run_until_idle()
    await world.pass_time(30.0)
    await world.add(*members(2)).run_until_idle()
    assert (Reason.QUORUM_MISSING.value, 30.0) in world.heard.waits
    assert world.reasons(GANG)[0] is Reason.QUORUM_MISSING


async def test_the_time_to_start_counts_from_the_first_sight(world: Harness) -> None:
    await world.add(*small_nodes(2), gang(2), *members(1)).run_until_idle()
    await world.pass_time(30.0)
    await world.add(*members(2)).run_until_idle()
    calls = [world.bind("m0"), world.bind("m1")]
    await world.run_until_idle()
    assert [call.error for call in calls] == ["", ""]
    assert world.heard.starts == [30.0]
    await world.close()
