"""A member is replaced while victims end: its replacement gets the slot, and no victim ended in vain."""

from extender.core.binding.records import Records
from extender.core.protocol import Steer
from extender.core.scheduling.binding_cycle import CycleStage
from serried.api.names import Key
from serried.api.pod import PREEMPTION_PREFIX
from serried.api.reservation import Reservation, Slot, Victim, decode_reservation
from serried.api.verdict import Reason
from tests.support.builders import PodBuilder, pod
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes
from tests.support.fake_api import budget_refusal, error

HIGH = 100


def urgent(*numbers: int) -> list[PodBuilder]:
    return [members(1, first=number)[0].cpu(2).priority(HIGH) for number in numbers]


async def start(world: Harness) -> None:
    """A gang of two needs both nodes; those that run there end gracefully."""
    world.api.graceful.update(Key("default", f"low{i}") for i in (1, 2))
    world.add(*small_nodes(2), *(pod(f"low{i}").cpu(2).on(f"n{i}") for i in (1, 2)))
    world.start_nominating()
    await world.add(gang(2).priority(HIGH), *urgent(0, 1)).run_until_idle()
    assert world.binding_cycle().eviction_sent


async def end(world: Harness, *names: str) -> None:
    for name in names:
        world.delete(name)
    await world.run_until_idle()


def list_recorded(world: Harness) -> set[str]:
    record = decode_reservation(world.api.records[GANG.object_key])
    assert record is not None
    return {slot.name for slot in record.slots.values()}


async def test_gets_the_slot_and_the_gang_is_bound_whole(world: Harness) -> None:
    await start(world)
    node = world.binding_cycle().reservation.slots["pod-m0"].node
    world.delete("m0")
    await world.run_until_idle()
    await world.add(*urgent(2)).run_until_idle()
    assert world.binding_cycle().reservation.slots["pod-m2"].node == node == world.pod("m2").nominated
    assert list_recorded(world) == {"m1", "m2"}
    await end(world, "low1", "low2")
    assert world.binding_cycle().stage is CycleStage.GATHERING
    assert all(isinstance(world.filter(name), Steer) for name in ("m1", "m2"))
    calls = [world.bind("m1"), world.bind("m2")]
    await world.run_until_idle()
    assert [call.error for call in calls] == ["", ""]
    assert Reason.PLAN_OUTDATED not in world.reasons()
    assert world.nothing_reserved


async def test_gets_the_slot_also_when_it_comes_after_the_last_victim_has_ended(world: Harness) -> None:
    await start(world)
    world.delete("m0")
    await end(world, "low1", "low2")
    assert world.binding_cycle().stage is CycleStage.PREEMPTING
    await world.pass_time(20)
    await world.add(*urgent(2)).run_until_idle()
    assert world.binding_cycle().stage is CycleStage.GATHERING
    assert world.binding_cycle().reservation.slots.keys() == {"pod-m1", "pod-m2"}


async def test_is_not_waited_for_for_ever(world: Harness) -> None:
    await start(world)
    world.delete("m0")
    await end(world, "low1")
    await world.pass_time(31)
    assert Reason.PLAN_OUTDATED in world.reasons()
    assert world.nothing_reserved


async def test_that_asks_for_more_than_there_is_gets_nothing(world: Harness) -> None:
    await start(world)
    world.delete("m0")
    await world.add(*(each.cpu(3) for each in urgent(2))).run_until_idle()
    assert world.binding_cycle().reservation.slots.keys() == {"pod-m1"}


async def test_nobody_is_evicted_as_long_as_one_is_missing_or_not_in_the_record(world: Harness) -> None:
    world.api.add_budget()
    world.api.fail("evict", budget_refusal())
    await start(world)
    world.delete("m0")
    await world.pass_time(6)
    assert world.api.list_evicted() == ["low1", "low2"]
    world.api.hold("replace")
    await world.add(*urgent(2)).run_until_idle()
    await world.pass_time(6)
    assert world.api.list_evicted() == ["low1", "low2"]
    world.api.release("replace")
    await world.run_until_idle()
    assert world.api.list_evicted() == ["low1", "low2", "low1"]


async def test_nobody_else_is_evicted_if_one_is_deleted_under_the_evictions(world: Harness) -> None:
    """Evictions are sent 64 at a time."""
    world.api.graceful.update(Key("default", f"low{i}") for i in range(1, 81))
    world.add(*small_nodes(80), *(pod(f"low{i}").cpu(2).on(f"n{i}") for i in range(1, 81)))
    world.api.hold("delete")
    await world.add(gang(80).priority(HIGH), *urgent(*range(80))).run_until_idle()
    world.delete("m0")
    world.api.release("delete")
    await world.run_until_idle()
    assert len(world.api.list_evicted()) == 64
    await world.add(*urgent(80)).run_until_idle()
    await world.pass_time(6)
    assert len(set(world.api.list_evicted())) == 80


async def test_is_written_again_if_the_record_could_not_be(world: Harness) -> None:
    await start(world)
    world.delete("m0")
    world.api.fail("replace", error(500))
    await world.add(*urgent(2)).run_until_idle()
    await world.pass_time(6)
    assert len(world.api.list_calls("replace")) == 2
    assert list_recorded(world) == {"m1", "m2"}


async def test_before_the_first_eviction_nobody_is_waited_for(world: Harness) -> None:
    world.api.hold("mark")
    world.add(*small_nodes(2), *(pod(f"low{i}").cpu(2).on(f"n{i}") for i in (1, 2)))
    await world.add(gang(2).priority(HIGH), *urgent(0, 1)).run_until_idle()
    world.delete("m0")
    await world.run_until_idle()
    world.api.release("mark")
    await world.run_until_idle()
    assert not world.api.list_evicted()
    assert world.nothing_reserved


async def test_gets_the_slot_also_of_a_record_of_an_earlier_term(world: Harness) -> None:
    said = f"{PREEMPTION_PREFIX}PodGroup default/g"
    world.api.graceful.add(Key("default", "low2"))
    world.add(*small_nodes(2), pod("low2").cpu(2).on("n2").disrupted(message=said))
    world.add(gang(2).priority(HIGH), *urgent(0, 1))
    slots = {f"pod-m{i}": Slot(f"pod-m{i}", f"m{i}", f"n{i + 1}") for i in range(2)}
    victims = [Victim(f"pod-low{i}", "default", f"low{i}") for i in (1, 2)]
    left = Reservation(GANG, "podgroup-g", "", 2, slots, victims=victims)
    await Records(world.api.client(), "v1", "earlier").write(gang(2).value(), left)
    await world.recovery.recover()
    await world.run_tasks()
    world.delete("m0")
    await world.run_until_idle()
    await world.add(*urgent(2)).run_until_idle()
    assert world.binding_cycle().reservation.slots["pod-m2"].node == "n1"
    assert list_recorded(world) == {"m1", "m2"}
