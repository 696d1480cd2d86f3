"""A gang that prefers a level waits for it as long as it says, and no longer."""

from serried.api.names import GroupKey
from serried.api.preference import EXCLUSIVE, PREFERRED_TOPOLOGY
from serried.api.verdict import Reason
from tests.support.builders import RACK, PodGroupBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members


def patient(seconds: int) -> PodGroupBuilder:
    return gang(3).annotation(PREFERRED_TOPOLOGY, f"{RACK}={seconds}s")


def racks(world: Harness) -> Harness:
    return world.add(*(node(f"n{place}").cpu(2).rack(f"r{place}") for place in range(3)))


async def test_it_steps_up_when_its_wait_is_over_though_nothing_else_happens(world: Harness) -> None:
    await racks(world).add(patient(30), *members(3)).run_until_idle()
    verdict = world.groups.states[GANG].verdict
    assert verdict is not None
    assert (verdict.reason, verdict.key) == (Reason.NO_DOMAIN_FITS, RACK)
    await world.pass_time(29)
    assert world.groups.states[GANG].cycle is None
    await world.pass_time(1)
    assert len({slot.node for slot in world.binding_cycle().reservation.slots.values()}) == 2


async def test_room_in_one_rack_ends_the_wait(world: Harness) -> None:
    await racks(world).add(patient(3600), *members(3)).run_until_idle()
    await world.add(node("n9").cpu(3).rack("r9")).run_until_idle()
    assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} == {"n9"}


async def test_members_of_a_gang_with_a_preference_are_never_given_any_node(world: Harness) -> None:
    await racks(world).add(node("n9").cpu(30).rack("r9"), patient(0), *members(3)).run_until_idle()
    assert not world.binding_cycle().open_slots.any_node


class TestExclusive:
    """Gangs that share no rack with each other, on two racks with room for both in either."""

    OTHER = GroupKey("default", "other")

    def cluster(self, world: Harness) -> Harness:
        return world.add(*(node(f"n{place}").cpu(4).rack(f"r{place}") for place in range(2)))

    def alone(self, name: str = "g") -> PodGroupBuilder:
        return pod_group(name).gang(2).topology().annotation(EXCLUSIVE, "true")

    def rack(self, world: Harness, key: GroupKey) -> str:
        return world.binding_cycle(key).reservation.domain

    async def test_two_of_them_are_in_two_racks_and_a_third_waits(self, world: Harness) -> None:
        others = [pod(f"o{place}").cpu(1).scheduler(SCHEDULER).in_group("other") for place in range(2)]
        thirds = [pod(f"t{place}").cpu(1).scheduler(SCHEDULER).in_group("third") for place in range(2)]
        await self.cluster(world).add(self.alone(), self.alone("other"), *members(2), *others).run_until_idle()
        assert {self.rack(world, GANG), self.rack(world, self.OTHER)} == {"r0", "r1"}
        await world.add(self.alone("third"), *thirds).run_until_idle()
        verdict = world.groups.states[GroupKey("default", "third")].verdict
        assert verdict is not None
        kept = "Serried keeps 1 node of r0 for default/third, and cannot tell when the gang will fit"
        detail = f"2 more domains are used exclusively by other gangs; 4 members fit into the whole cluster; {kept}"
        assert (verdict.reason, verdict.detail) == (Reason.NO_DOMAIN_FITS, detail)

    async def test_one_that_waits_takes_the_rack_of_the_one_that_ends(self, world: Harness) -> None:
        others = [pod(f"o{place}").cpu(1).scheduler(SCHEDULER).in_group("other") for place in range(2)]
        running = [each.on(f"n{place}") for place, each in enumerate(members(2))]
        first, second = self.alone(), pod_group("second").gang(1).topology().annotation(EXCLUSIVE, "true")
        held = pod("s0").cpu(1).scheduler(SCHEDULER).in_group("second").on("n1")
        await self.cluster(world).add(first, second, running[0], held, self.alone("other"), *others).run_until_idle()
        assert self.OTHER in world.queue.unschedulable
        world.delete("s0")
        world.store.drop_group(GroupKey("default", "second"))
        await world.run_until_idle()
        assert self.rack(world, self.OTHER) == "r1"

    async def test_a_gang_that_says_nothing_goes_anywhere(self, world: Harness) -> None:
        others = [pod(f"o{place}").cpu(1).scheduler(SCHEDULER).in_group("other") for place in range(2)]
        await self.cluster(world).add(self.alone(), *members(2)).run_until_idle()
        await world.add(pod_group("other").gang(2).topology(), *others).run_until_idle()
        assert self.rack(world, self.OTHER) == self.rack(world, GANG)
