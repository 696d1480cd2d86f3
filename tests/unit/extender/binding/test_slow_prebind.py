"""Members for which kube-scheduler prepares volumes or devices between filter and bind (PreBind): minutes of silence.

kube-scheduler waits up to 10 minutes for the bindingConditions of a claim. Natively members wait for each other before
PreBind, so it is in nobody's time-out there.
"""

import pytest

from extender.core.protocol import Steer
from extender.core.scheduling.binding_cycle import CycleStage
from serried.api.verdict import Reason
from tests.support.builders import node, pod, pod_group
from tests.support.composites import composite
from tests.support.devices import rejection_message
from tests.support.extender_harness import Harness, gang, members, small_nodes
from tests.unit.extender.binding.test_run import plan


async def wait(world: Harness, seconds: int) -> None:
    """Let the seconds pass in ten steps, in which kube-scheduler makes no call."""
    for _ in range(10):
        await world.pass_time(seconds / 10)


@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize("seconds", [90, 400, 600])
async def test_a_gang_whose_devices_take_minutes_is_bound_at_the_first_try(
    world: Harness, size: int, seconds: int
) -> None:
    await world.add(*[node(f"n{index}").cpu(1) for index in range(size)], gang(size), *members(size)).run_until_idle()
    answers = {name: world.filter(name) for name in (f"m{index}" for index in range(size))}
    await wait(world, seconds)
    calls = [world.bind(name, answer.node) for name, answer in answers.items() if isinstance(answer, Steer)]
    await world.run_until_idle()
    assert [call.error for call in calls] == [""] * size
    assert Reason.DEADLINE_EXCEEDED not in world.reasons()


async def test_mates_at_bind_wait_for_it(world: Harness) -> None:
    await plan(world)
    first, answer = world.bind("m0"), world.filter("m1")
    assert isinstance(answer, Steer)
    await wait(world, 500)
    assert first.waiting
    second = world.bind("m1", answer.node)
    await world.run_until_idle()
    assert [first.error, second.error] == ["", ""]


async def test_after_a_quarter_of_an_hour_the_gang_gives_its_room_back(world: Harness) -> None:
    await plan(world)
    first = world.bind("m0")
    world.filter("m1")
    await wait(world, 890)
    assert first.waiting
    await wait(world, 20)
    assert first.error == "serried: DeadlineExceeded"
    assert world.nothing_reserved


async def test_a_member_that_is_refused_meanwhile_is_not_being_prepared(world: Harness) -> None:
    await plan(world)
    first = world.bind("m0")
    world.filter("m1")
    world.mark_unschedulable("m1", rejection_message("12 node(s) had no licence free"))
    world.sync_pods()
    for _ in range(70):
        await world.pass_time(1)
    assert first.error.startswith("serried: ")


async def test_one_that_kube_scheduler_has_not_come_to_is_late_as_ever(world: Harness) -> None:
    await plan(world)
    first = world.bind("m0")
    await wait(world, 70)
    assert first.error == "serried: DeadlineExceeded"


async def test_a_member_beyond_the_quorum_keeps_its_slot_while_it_is_prepared(world: Harness) -> None:
    await world.add(*[each.cpu(1) for each in small_nodes(3)], gang(2), *members(3)).run_until_idle()
    late = world.filter("m2")
    assert isinstance(late, Steer)
    calls = [world.bind("m0"), world.bind("m1")]
    await world.run_until_idle()
    assert [call.error for call in calls] == ["", ""]
    await wait(world, 300)
    assert world.binding_cycle().stage is CycleStage.BINDING
    call = world.bind("m2", late.node)
    await world.run_until_idle()
    assert (call.error, world.node_of("m2")) == ("", late.node)


class TestABindCallOfAnEarlierPlan:
    """The plan was given up while the member was being prepared, and its gang is planned again."""

    async def begin(self, world: Harness, *others: str) -> None:
        """m1 is being prepared on n2; by now it is planned on n3, as pods of these names came to n2 and went."""
        await world.add(*small_nodes(3, 1), gang(2), *members(2)).run_until_idle()
        assert world.filter("m1", "n2") == Steer("n2")
        world.add(pod("passing").cpu(1).on("n2"))
        await world.run_until_idle()
        cycle = world.binding_cycle()
        world.core.cycle_updates.handle_rejected_node("pod-m1", "n2")
        await world.run_until_idle()
        assert world.binding_cycle() is cycle
        assert cycle.reservation.slots["pod-m1"].node == "n3"
        world.groups.states[cycle.reservation.group].refusals.excluded.clear()

    async def test_is_taken_back_where_the_room_is_still_free(self, world: Harness) -> None:
        await self.begin(world)
        world.delete("passing")
        await world.run_until_idle()
        calls = [world.bind("m1", "n2"), world.bind("m0")]
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]
        assert world.node_of("m1") == "n2"

    async def test_fails_where_the_room_is_in_use(self, world: Harness) -> None:
        await self.begin(world)
        call = world.bind("m1", "n2")
        await world.run_until_idle()
        assert call.error == "serried: default/m1 is planned on n3, not on n2: kube-scheduler tries the pod again"

    async def test_fails_where_the_node_was_refused(self, world: Harness) -> None:
        await self.begin(world)
        world.delete("passing")
        await world.run_until_idle()
        state = world.groups.states[world.binding_cycle().reservation.group]
        state.refusals.exclude_node(world.pod("m1").shape, "n2", world.store)
        call = world.bind("m1", "n2")
        await world.run_until_idle()
        assert "planned on n3" in call.error

    async def test_fails_outside_of_the_gangs_domain(self, world: Harness) -> None:
        racks = [node(f"{name}{rack}").cpu(1).rack(f"r{rack}") for rack in range(2) for name in "ab"]
        await world.add(*racks, gang(2).topology(), *members(2)).run_until_idle()
        other = next(each for each in ("r0", "r1") if each != world.binding_cycle().reservation.domain)
        call = world.bind("m1", f"a{other[1:]}")
        await world.run_until_idle()
        assert "is planned on" in call.error

    async def test_fails_for_a_member_of_a_tree(self, world: Harness) -> None:
        world.add(*[node(f"{name}{rack}").cpu(1).rack(f"r{rack}") for rack in range(2) for name in "xy"])
        tree = composite("t").gang(1)
        leaf = pod_group("a").gang(2).topology().child_of("t")
        await world.add(tree, leaf, *[each.in_group("a") for each in members(2)]).run_until_idle()
        slots = world.ledger.slot_of("pod-m0"), world.ledger.slot_of("pod-m1")
        assert slots[0] is not None
        assert slots[1] is not None
        other = "x1" if slots[1].node.endswith("0") else "x0"
        late = world.bind("m1", other)
        await world.run_until_idle()
        assert "is planned on" in late.error
        calls = [world.bind("m0", slots[0].node), world.bind("m1", slots[1].node)]
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]

    async def test_gets_a_member_without_a_slot_back_into_the_gang(self, world: Harness) -> None:
        await world.add(*small_nodes(3, 1), gang(2), *members(3)).run_until_idle()
        answer = world.filter("m2")
        assert isinstance(answer, Steer)
        cycle = world.binding_cycle()
        world.core.cycle_updates.reassignments.drop(cycle, "pod-m2", "its slot was given up")
        assert "pod-m2" not in cycle.reservation.slots
        cycle.note_late("pod-m2", world.pod("m2").shape)
        calls = [world.bind("m2", answer.node), world.bind("m0")]
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]

    async def test_fails_while_the_gang_has_no_plan(self, world: Harness) -> None:
        await plan(world)
        world.filter("m1", "n2")
        world.delete("m0")
        await world.run_until_idle()
        call = world.bind("m1", "n2")
        await world.run_until_idle()
        assert "no node is planned for" in call.error
