"""Members beyond minCount get the room of others as plain pods would: after their gang, and at no gang's cost."""

from collections.abc import Callable

import pytest

from extender.core.protocol import Steer
from extender.core.scheduling.binding_cycle import CycleStage
from extender.features.preemption.search import find_preemption
from extender.options import EvictionMethod
from serried.api.names import Disruption, GroupKey, Key
from serried.api.verdict import Reason
from serried.plan.eviction import Blocker, NoVictims
from tests.support.builders import RACK, Builder, PodBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.fake_api import budget_refusal

HIGH = 100


def urgent(count: int, first: int = 0) -> list[PodBuilder]:
    """Members of high priority, each of which fills a node."""
    return [each.cpu(2).priority(HIGH) for each in members(count, first)]


def running(name: str, node: str) -> PodBuilder:
    """A pod of low priority that fills its node."""
    return pod(name).cpu(2).on(node)


def full(world: Harness, count: int) -> Harness:
    """Every node is taken by one plain pod, low1, low2, ..."""
    return world.add(*small_nodes(count), *(running(f"low{place}", f"n{place}") for place in range(1, count + 1)))


def stands(world: Harness, *nodes: str, waiting: int = 1) -> Harness:
    """The gang runs on these nodes; so many more of its members wait."""
    world.add(gang(len(nodes)).priority(HIGH))
    world.add(*(each.on(name) for each, name in zip(urgent(len(nodes)), nodes, strict=True)))
    return world.add(*urgent(waiting, len(nodes)))


async def come_to_bind(world: Harness) -> None:
    """Victims are gone, and kube-scheduler takes every member that has a slot to its bind call; the watches follow."""
    await end(world)
    for reservation in world.ledger:
        for slot in [] if reservation.victims else list(reservation.slots.values()):
            if not world.node_of(slot.name):
                world.filter(slot.name)
                world.bind(slot.name)
    await world.run_until_idle()
    await world.run_until_idle()


async def end(world: Harness) -> None:
    """Delete the pods that were evicted."""
    known = {each.name for each in world.store.pods.values()}
    for name in known.intersection(world.api.list_evicted()):
        world.delete(name)
    await world.run_until_idle()


def evicted(world: Harness) -> list[str]:
    return sorted(world.api.list_evicted())


async def test_first_the_gang_then_the_others_by_further_evictions(world: Harness) -> None:
    await full(world, 4).add(gang(3).priority(HIGH), *urgent(4)).run_until_idle()
    assert len(evicted(world)) == 3
    for _ in range(3):
        await come_to_bind(world)
    assert evicted(world) == ["low1", "low2", "low3", "low4"]
    assert all(world.node_of(f"m{place}") for place in range(4))
    assert world.nothing_reserved


async def test_many_late_members_get_room_together(world: Harness) -> None:
    world.add(*small_nodes(4), *(running(f"low{place}", f"n{place}") for place in (2, 3, 4)))
    await stands(world, "n1", waiting=3).run_until_idle()
    assert evicted(world) == ["low2", "low3", "low4"]
    await come_to_bind(world)
    assert all(world.node_of(f"m{place}") for place in range(4))


async def test_only_as_many_as_others_can_make_room_for(world: Harness) -> None:
    world.add(*small_nodes(3), running("low2", "n2"), running("peer", "n3").priority(HIGH))
    await stands(world, "n1", waiting=2).run_until_idle()
    assert evicted(world) == ["low2"]


async def test_the_members_of_a_basic_group_follow_the_first_into_its_rack(world: Harness) -> None:
    world.add(*(node(name).rack(name[0]).cpu(2) for name in ("a1", "a2", "b1", "b2", "b3")))
    world.add(*(running(f"low-{name}", name) for name in ("a2", "b1", "b2", "b3")))
    world.add(pod_group("g").topology(RACK).priority(HIGH), urgent(1)[0].on("a1"), *urgent(2, 1))
    await world.run_until_idle()
    assert evicted(world) == ["low-a2"]


def in_low(name: str, on: str) -> PodBuilder:
    return running(name, on).scheduler(SCHEDULER).in_group("low")


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([pod_group("low").gang(2), in_low("v2", "n2"), in_low("v3", "n3")], id="that has no more"),
        pytest.param([pod_group("low").gang(3), in_low("v2", "n2"), in_low("v3", "n3")], id="that is being mended"),
        pytest.param(
            [pod_group("low").gang(1).disruption(Disruption.ALL), in_low("v2", "n2"), in_low("v3", "n3")],
            id="that goes whole",
        ),
    ],
)
async def test_no_gang_breaks_for_them(world: Harness, others: list[Builder]) -> None:
    world.add(*small_nodes(3), *others)
    await stands(world, "n1").run_until_idle()
    assert not evicted(world)
    found = find_preemption(world.groups.states[GANG])
    assert isinstance(found, NoVictims)
    assert found.blocker is Blocker.PROTECTION
    assert any("beyond minCount" in verdict.detail for key, verdict in world.heard.verdicts if key == GANG)


async def test_what_a_gang_can_spare_goes_and_no_more(world: Harness) -> None:
    world.add(*small_nodes(4), pod_group("low").gang(2), *(in_low(f"v{place}", f"n{place}") for place in (2, 3, 4)))
    await stands(world, "n1", waiting=3).run_until_idle()
    assert len(evicted(world)) == 1
    await come_to_bind(world)
    await come_to_bind(world)
    assert len(evicted(world)) == 1


async def test_who_has_the_same_priority_stays(world: Harness) -> None:
    await stands(world.add(*small_nodes(2), running("peer", "n2").priority(HIGH)), "n1").run_until_idle()
    assert not evicted(world)
    assert "beyond" not in world.heard.verdicts[-1][1].detail


@pytest.mark.parametrize("method", [EvictionMethod.EVICTION, EvictionMethod.DELETION])
async def test_no_gang_breaks_whatever_budgets_count(method: EvictionMethod) -> None:
    world = Harness(preempt_by=method)
    world.add(*small_nodes(2), pod_group("low").gang(1), in_low("v2", "n2"))
    await stands(world, "n1").run_until_idle()
    assert not evicted(world)
    await world.close()


def lose_member(world: Harness) -> None:
    """The elastic gang of low priority loses another member, and can spare none by now."""
    (victim,) = (each.name for each in world.binding_cycle().reservation.victims.values())
    name = next(each for each in ("v2", "v3", "v4") if each != victim)
    world.delete(name)
    world.add(running("peer", f"n{name[1:]}").priority(HIGH))


def lose_surplus(world: Harness) -> None:
    """Delete a member for which other pods were to be evicted."""
    world.delete("m2")


@pytest.mark.parametrize(
    ("minimum", "change", "left"),
    [
        pytest.param(2, lose_member, 0, id="as it would break a gang by now"),
        pytest.param(1, lose_surplus, 1, id="for one that is gone"),
    ],
)
async def test_nobody_goes_any_more(world: Harness, minimum: int, change: Callable[[Harness], None], left: int) -> None:
    world.api.hold("rehearse")
    low = [in_low(f"v{place}", f"n{place}") for place in (2, 3, 4)]
    await stands(world.add(*small_nodes(4), pod_group("low").gang(minimum), *low), "n1", waiting=2).run_until_idle()
    assert len(world.binding_cycle().reservation.victims) == 3 - minimum
    change(world)
    world.api.release("rehearse")
    await world.run_until_idle()
    assert len(evicted(world)) == left


async def begin(world: Harness, *nodes: str) -> Harness:
    """Two members beyond the quorum wait for victims that end gracefully."""
    world.api.graceful.update(Key("default", f"low{place}") for place in (2, 3))
    world.add(*small_nodes(3), running("low2", "n2"), running("low3", "n3"))
    await stands(world, "n1", waiting=2).run_until_idle()
    assert world.binding_cycle().stage is CycleStage.PREEMPTING
    assert evicted(world) == ["low2", "low3"]
    return world


async def test_their_room_is_held_while_the_victims_end(world: Harness) -> None:
    await begin(world)
    world.delete("low2")
    await world.add(
        pod_group("other").gang(1), pod("o0").cpu(2).scheduler(SCHEDULER).in_group("other")
    ).run_until_idle()
    assert world.ledger.of_group(GroupKey("default", "other")) is None
    await come_to_bind(world)
    await come_to_bind(world)
    assert sorted(world.node_of(name) for name in ("m1", "m2")) == ["n2", "n3"]


async def test_if_their_gang_falls_below_its_quorum_it_goes_first(world: Harness) -> None:
    await begin(world)
    world.delete("m0")
    await world.add(*urgent(1, 3)).run_until_idle()
    assert Reason.PLAN_OUTDATED in world.reasons()
    await come_to_bind(world)
    await come_to_bind(world)
    await come_to_bind(world)
    assert sorted(world.node_of(name) for name in ("m1", "m2", "m3")) == ["n1", "n2", "n3"]
    assert evicted(world) == ["low2", "low3"]


async def test_a_restart_goes_on_with_them(world: Harness) -> None:
    await begin(world)
    world.delete("low2")
    await world.run_tasks()
    world.core.end_term()
    world.term.active = True
    await world.recovery.recover()
    await world.run_until_idle()
    assert world.binding_cycle().waits_for_victims
    await come_to_bind(world)
    await come_to_bind(world)
    assert evicted(world) == ["low2", "low3"]
    assert sorted(world.node_of(name) for name in ("m1", "m2")) == ["n2", "n3"]


async def lose_one(world: Harness) -> str:
    """A budget keeps one of two victims. Then the member is deleted for which it was to go; the name of its mate."""
    world.api.add_budget()
    world.api.graceful.add(Key("default", "low2"))
    world.api.reject("evict", Key("default", "low3"), budget_refusal())
    world.add(*small_nodes(3), running("low2", "n2"), running("low3", "n3"))
    await stands(world, "n1", waiting=2).run_until_idle()
    assert world.binding_cycle().eviction_sent
    lost = next(slot.name for slot in world.binding_cycle().reservation.slots.values() if slot.node == "n3")
    world.delete(lost)
    await world.run_until_idle()
    world.api.recover()
    return "m1" if lost == "m2" else "m2"


async def see_mate_bound_alone(world: Harness, mate: str) -> None:
    """The victim that was told to end has ended; the other one is let off."""
    world.delete("low2")
    await world.run_until_idle()
    assert world.pod("low3").disruption == ""
    assert isinstance(world.filter(mate), Steer)
    world.bind(mate)
    await world.run_until_idle()
    assert world.node_of(mate) == "n2"


def asked(world: Harness, name: str) -> int:
    return world.api.list_evicted().count(name)


async def test_nobody_goes_for_one_that_is_gone_after_the_first_eviction(world: Harness) -> None:
    mate = await lose_one(world)
    before = asked(world, "low3")
    for _ in range(7):
        await world.pass_time(5)
    assert asked(world, "low3") == before
    await see_mate_bound_alone(world, mate)
    assert asked(world, "low3") == before


async def test_somebody_goes_for_one_that_comes_in_its_place(world: Harness) -> None:
    mate = await lose_one(world)
    before = asked(world, "low3")
    await world.pass_time(20)
    await world.add(*urgent(1, 3)).run_until_idle()
    await world.pass_time(5)
    assert asked(world, "low3") == before + 1
    await come_to_bind(world)
    assert (world.node_of("m3"), world.node_of(mate)) == ("n3", "n2")


async def test_after_a_restart_nobody_goes_for_one_that_is_gone(world: Harness) -> None:
    mate = await lose_one(world)
    before = asked(world, "low3")
    world.core.end_term()
    world.term.active = True
    await world.recovery.recover()
    await world.run_until_idle()
    await see_mate_bound_alone(world, mate)
    assert asked(world, "low3") == before


async def test_after_a_restart_before_the_first_eviction_only_who_is_needed_goes(world: Harness) -> None:
    world.api.hold("mark")
    world.add(*small_nodes(3), running("low2", "n2"), running("low3", "n3"))
    await stands(world, "n1", waiting=2).run_until_idle()
    world.delete("m2")
    world.core.end_term()
    world.api.release("mark")
    world.term.active = True
    await world.recovery.recover()
    await world.run_until_idle()
    assert len(evicted(world)) == 1


async def test_who_goes_in_vain_does_not_go_again_soon(world: Harness) -> None:
    """kube-scheduler never brings the member to bind, and a controller replaces the victim."""
    world.add(*small_nodes(2), running("low0", "n2"))
    await stands(world, "n1").run_until_idle()
    await end(world)
    world.add(running("low1", "n2"))
    for _ in range(15):
        await world.pass_time(5)
    assert world.ledger.of_group(GANG) is None
    assert evicted(world) == ["low0"]
    await world.pass_time(30)
    assert evicted(world) == ["low0", "low1"]


async def test_nobody_goes_where_their_room_was_taken_meanwhile(world: Harness) -> None:
    world.api.hold("rehearse")
    await stands(full(world, 3), "n4", waiting=2).run_until_idle()
    world.add(running("peer", "n2").priority(HIGH))
    world.api.release("rehearse")
    await world.run_until_idle()
    assert evicted(world) == ["low1", "low3"]


async def test_members_of_a_basic_group_go_as_plain_pods_do(world: Harness) -> None:
    world.add(*small_nodes(2), pod_group("low").topology(), in_low("v2", "n2"))
    await stands(world, "n1").run_until_idle()
    assert evicted(world) == ["v2"]


async def test_one_that_is_refused_costs_its_own_slot_and_no_plan_is_outdated(world: Harness) -> None:
    await stands(world.add(*small_nodes(2)), "n1").run_until_idle()
    for _ in range(2):
        world.filter("m1", "n9")
        await world.run_tasks()
    assert Reason.PLAN_OUTDATED not in world.reasons()
