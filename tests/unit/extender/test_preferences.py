"""A gang that prefers a level waits for it as long as it says, and no longer."""

from serried.decode.preferences import PREFERRED_TOPOLOGY
from serried.model.verdict import Reason
from serried.testing.builders import RACK, PodGroupBuilder, node
from tests.unit.extender.world import GANG, World, gang, members


def patient(seconds: int) -> PodGroupBuilder:
    return gang(3).annotation(PREFERRED_TOPOLOGY, f"{RACK}={seconds}s")


def racks(world: World) -> World:
    return world.add(*(node(f"n{place}").cpu(2).rack(f"r{place}") for place in range(3)))


async def test_it_steps_up_when_its_wait_is_over_though_nothing_else_happens(world: World) -> None:
    await racks(world).add(patient(30), *members(3)).go()
    verdict = world.conductor.gangs[GANG].verdict
    assert verdict is not None
    assert (verdict.reason, verdict.key) == (Reason.NO_DOMAIN_FITS, RACK)
    await world.pass_time(29)
    assert world.conductor.gangs[GANG].round is None
    await world.pass_time(1)
    assert len({slot.node for slot in world.round().reservation.slots.values()}) == 2


async def test_room_in_one_rack_ends_the_wait(world: World) -> None:
    await racks(world).add(patient(3600), *members(3)).go()
    await world.add(node("n9").cpu(3).rack("r9")).go()
    assert {slot.node for slot in world.round().reservation.slots.values()} == {"n9"}


async def test_members_of_a_gang_with_a_preference_are_never_loose(world: World) -> None:
    await racks(world).add(node("n9").cpu(30).rack("r9"), patient(0), *members(3)).go()
    assert not world.round().loose
