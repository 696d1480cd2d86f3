"""Victims that stay after all: who goes with them stays, too; and nobody is a victim before the records are read."""

import pytest

from extender.core.binding.records import Records
from extender.features.preemption.search import find_preemption
from serried.api.names import PREEMPTED, Disruption, Key
from serried.api.reservation import Reservation, Slot, Victim
from serried.api.verdict import Reason
from tests.support.builders import PodBuilder, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.fake_api import budget_refusal, error

HIGH = 100
VICTIMS = ("v0", "v1")


def victim(index: int) -> PodBuilder:
    """A member of gang v, on a node of its own that it fills."""
    return pod(f"v{index}").cpu(2).on(f"n{index + 1}").scheduler(SCHEDULER).in_group("v")


def fill(world: Harness) -> Harness:
    """Gang v of mode all runs on both nodes, and gang g of higher priority wants one of them."""
    world.api.graceful.update(Key("default", name) for name in VICTIMS)
    world.add(*small_nodes(2), pod_group("v").gang(2).disruption(Disruption.ALL), victim(0), victim(1))
    return world.add(gang(1).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(1)))


def list_ended(world: Harness) -> list[str]:
    return world.api.list_evicted()


async def withdraw(world: Harness) -> None:
    """The gang that the victims were to go for is gone."""
    world.delete("m0")
    world.store.drop_group(GANG)
    world.schedule_groups()
    await world.run_tasks()


async def test_a_gang_that_goes_between_conditions_and_evictions_takes_nobody_with_it(world: Harness) -> None:
    world.api.hold("mark")
    await fill(world).run_until_idle()
    world.store.put_pod(victim(0).disrupted().value())  # written and seen, the other one's is on its way
    await withdraw(world)
    world.store.put_pod(victim(0).disrupted().label("seen", "again").value())
    world.schedule_groups()
    await world.run_tasks()
    world.api.release("mark")
    await world.run_until_idle()
    assert list_ended(world) == []
    assert [world.pod(name).disruption for name in VICTIMS] == ["", ""]


async def test_a_victim_that_stayed_takes_its_gang_with_it_when_another_scheduler_preempts_it(world: Harness) -> None:
    world.api.hold("mark")
    await fill(world).run_until_idle()
    await withdraw(world)
    world.api.release("mark")
    await world.run_until_idle()
    world.add(victim(0).disrupted().deleting())
    await world.run_until_idle()
    assert list_ended(world) == ["v1"]


async def test_a_half_that_is_evicted_by_then_takes_the_other_half_with_it(world: Harness) -> None:
    world.api.add_budget()
    world.api.fail("evict", budget_refusal())
    await fill(world).run_until_idle()
    assert list_ended(world) == ["v0", "v1"]
    assert "deletionTimestamp" not in world.api.pods[Key("default", "v0")]["metadata"]
    await withdraw(world)
    await world.run_until_idle()
    assert list_ended(world) == ["v0", "v1", "v0"]
    assert "deletionTimestamp" in world.api.pods[Key("default", "v0")]["metadata"]


class TestARecordOfAnEarlierTerm:
    """The record's victims have the condition, and none of them has been evicted."""

    async def leave(self, world: Harness) -> None:
        fill(world).add(*(victim(index).disrupted() for index in range(2)))
        victims = [Victim(f"pod-{name}", "default", name, "v") for name in VICTIMS]
        slots = {"pod-m0": Slot("pod-m0", "m0", "n1")}
        left = Reservation(GANG, "podgroup-g", "", 1, slots, victims=victims)
        await Records(world.api.client(), "v1", "earlier").write(gang(1).value(), left)

    async def test_is_dropped_with_what_it_has_said_if_the_gang_is_gone(self, world: Harness) -> None:
        await self.leave(world)
        world.delete("m0")
        world.store.drop_group(GANG)
        await world.recovery.recover()
        world.schedule_groups()  # the watch still shows the conditions
        await world.run_until_idle()
        assert list_ended(world) == []
        assert [world.pod(name).disruption for name in VICTIMS] == ["", ""]
        assert world.heard.spared == ["default/v"]
        assert not world.api.records

    async def test_says_nothing_as_long_as_it_cannot_be_read(self, world: Harness) -> None:
        await self.leave(world)
        world.group_scheduler.set_obstacle("the CRD is missing")
        await world.run_until_idle()
        assert list_ended(world) == []
        await world.recovery.recover()
        world.group_scheduler.set_obstacle("")
        await world.run_until_idle()
        assert sorted(list_ended(world)) == ["v0", "v1"]


FOR_THE_GANG = "serried: preempted by PodGroup default/g of higher priority"
BY_SCHEDULER = "default-scheduler: preempting to accommodate a higher priority pod"


class TestARecordThatWentWithItsGang:
    """An earlier term has said of victims that they go, and died; garbage collection took the record meanwhile."""

    def leave(self, world: Harness, message: str = FOR_THE_GANG) -> Harness:
        return fill(world).add(*(victim(index).disrupted(message=message) for index in range(2)))

    async def recover(self, world: Harness) -> None:
        world.delete("m0")
        world.store.drop_group(GANG)
        await world.recovery.recover()
        world.schedule_groups()  # the watch still shows the conditions
        await world.run_until_idle()

    async def test_takes_nobody_with_it(self, world: Harness) -> None:
        self.leave(world)
        await self.recover(world)
        assert list_ended(world) == []
        assert [world.pod(name).disruption for name in VICTIMS] == ["", ""]
        assert world.heard.spared == ["default/v"]

    async def test_takes_the_other_half_with_it_if_one_of_them_ends(self, world: Harness) -> None:
        self.leave(world).add(victim(0).disrupted(message=FOR_THE_GANG).deleting())
        await self.recover(world)
        assert list_ended(world) == ["v1"]

    async def test_leaves_alone_what_others_say(self, world: Harness) -> None:
        self.leave(world, BY_SCHEDULER)
        await self.recover(world)
        assert list_ended(world) == []
        assert [world.pod(name).disruption for name in VICTIMS] == [PREEMPTED, PREEMPTED]

    async def test_leaves_the_victims_of_other_records_alone(self, world: Harness) -> None:
        self.leave(world)
        victims = [Victim(f"pod-{name}", "default", name, "v") for name in VICTIMS]
        slots = {"pod-m0": Slot("pod-m0", "m0", "n1")}
        left = Reservation(GANG, "podgroup-g", "", 1, slots, victims=victims)
        await Records(world.api.client(), "v1", "earlier").write(gang(1).value(), left)
        world.api.hold("rehearse")
        await world.recovery.recover()
        await world.run_tasks()
        assert [world.pod(name).disruption for name in VICTIMS] == [PREEMPTED, PREEMPTED]

    async def test_takes_nobody_with_it_if_the_conditions_cannot_be_taken_back(self, world: Harness) -> None:
        self.leave(world)
        world.api.fail("mark", error(500), error(500))
        await self.recover(world)
        await world.pass_time(61)
        assert list_ended(world) == []


class TestWithoutTheRecords:
    async def test_nobody_is_looked_for(self, world: Harness) -> None:
        world.group_scheduler.set_obstacle("the CRD is missing")
        await fill(world).run_until_idle()
        await world.pass_time(61)
        assert world.reasons() == [Reason.RECORDS_UNREADABLE]
        assert (world.heard.searches, world.api.list_calls("rehearse"), list_ended(world)) == ([], [], [])
        world.group_scheduler.set_obstacle("")
        await world.run_until_idle()
        assert sorted(list_ended(world)) == ["v0", "v1"]

    async def test_what_an_earlier_term_was_looking_for_is_not_found_by_the_next(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("serried.plan.limit._UNITS_PER_CHECK", 1)
        world = Harness(stopwatch=Ticking())
        fill(world).schedule_groups()
        assert world.groups.states[GANG].cycle is None
        world.core.end_term()
        world.term.active = True
        world.group_scheduler.set_obstacle("the CRD is missing")
        for _ in range(20):
            await world.run_until_idle()
        assert find_preemption(world.groups.states[GANG]) is None
        assert list_ended(world) == []
        await world.close()

    async def test_nobody_follows_a_disrupted_member_until_they_are_read(self, world: Harness) -> None:
        world.group_scheduler.set_obstacle("the CRD is missing")
        world.add(*small_nodes(2), pod_group("v").gang(2).disruption(Disruption.ALL), victim(1))
        await world.add(victim(0).disrupted().deleting()).run_until_idle()
        assert list_ended(world) == []
        world.group_scheduler.set_obstacle("")
        await world.run_until_idle()
        assert list_ended(world) == ["v1"]


class Ticking:
    """A stopwatch that shows so much more each time that nothing runs straight through."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 0.004
        return self._now


async def test_the_nomination_that_an_earlier_term_has_written_goes_with_the_gang_that_is_given_up(
    world: Harness,
) -> None:
    """The leader died while its victims ended; the next one found the nomination where it would have written it."""
    world.start_nominating()
    fill(world).add(members(1)[0].cpu(2).priority(HIGH).nominated("n1"))
    left = Reservation(
        GANG,
        "podgroup-g",
        "",
        1,
        {"pod-m0": Slot("pod-m0", "m0", "n1")},
        victims=[Victim(f"pod-{name}", "default", name, "v") for name in VICTIMS],
    )
    await Records(world.api.client(), "v1", "earlier").write(gang(1).value(), left)
    await world.recovery.recover()
    await world.run_until_idle()
    assert world.binding_cycle().waits_for_victims
    assert list_ended(world)
    world.store.drop_group(GANG)
    await world.run_until_idle()
    assert world.pod("m0").nominated == ""
