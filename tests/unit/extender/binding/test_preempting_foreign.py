"""Pods of another scheduler: they would take the room that victims leave, so nobody goes for it in vain."""

from collections.abc import AsyncIterator

import pytest

from extender.core.protocol import Pass, Steer
from extender.features.preemption.search import find_preemption
from extender.options import PREEMPTION_TIMEOUT_SECONDS
from serried.api.names import Disruption, Key
from serried.api.verdict import Reason
from serried.plan.eviction import NoVictims
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes

HIGH = 100
OTHER = "default-scheduler"
FOREIGN = "another scheduler serves these pods, and would take the freed resources"
CONTESTED = "pods of another scheduler wait, and would take the freed resources"
NO_CPU = "0/2 nodes are available: 2 Insufficient cpu. preemption: not helpful"
NO_GPU = "0/2 nodes are available: 2 Insufficient example.com/gpu. preemption: not helpful"
NO_CLAIM = '0/2 nodes are available: persistentvolumeclaim "data" not found. preemption: not helpful'


def running(name: str, node: str, cpus: int = 2) -> PodBuilder:
    return pod(name).cpu(cpus).on(node)


def waiting(name: str, cpus: int = 2, message: str = NO_CPU) -> PodBuilder:
    """A pod that another scheduler has tried in vain."""
    return pod(name).cpu(cpus).scheduler(OTHER).unschedulable(message=message)


async def want_two_nodes(world: Harness) -> Harness:
    """A gang of two comes whose members listen on the same port of their hosts."""
    world.add(gang(2).priority(HIGH), *(each.cpu(2).host_port(80).priority(HIGH) for each in members(2)))
    world.start_nominating()
    await world.run_until_idle()
    return world


def ended(world: Harness) -> list[str]:
    return [call.name for call in world.api.calls if call.verb in ("delete", "evict") and call.name.startswith("low")]


class TestPodsOfAnotherScheduler:
    async def test_are_no_victims_and_the_reason_says_how_many_and_why(self, world: Harness) -> None:
        world.add(*small_nodes(2), *(running(f"low{i}", f"n{i}").scheduler(OTHER) for i in (1, 2)))
        await want_two_nodes(world)
        assert not ended(world)
        (_, said) = world.heard.verdicts[-1]
        assert said.reason is Reason.NO_CAPACITY
        assert said.detail.endswith(f"preemption would help, but 2 pods may not be evicted: {FOREIGN}")
        found = find_preemption(world.groups.states[GANG])
        assert isinstance(found, NoVictims)
        assert (found.protections, found.protected) == ((FOREIGN,), 2)

    async def test_stay_where_pods_of_ours_can_go_instead(self, world: Harness) -> None:
        foreign = [running(f"other{i}", f"n{i}").scheduler(OTHER) for i in (1, 2)]
        world.add(*small_nodes(4), *foreign, *(running(f"low{i}", f"n{i}") for i in (3, 4)))
        await want_two_nodes(world)
        assert sorted(ended(world)) == ["low3", "low4"]

    async def test_keep_the_whole_group_that_one_of_them_is_a_member_of(self, world: Harness) -> None:
        both = [running("low1", "n1").in_group("low"), running("low2", "n2").in_group("low")]
        group = pod_group("low").gang(2).disruption(Disruption.ALL)
        world.add(*small_nodes(4), group, both[0], both[1].scheduler(OTHER))
        world.add(running("low3", "n3"), running("fixed", "n4").priority(HIGH))
        await want_two_nodes(world)
        assert not ended(world)


@pytest.fixture
async def beside() -> AsyncIterator[Harness]:
    """A harness with one kube-scheduler that has both profiles."""
    made = Harness(other_profiles=(OTHER,))
    yield made
    await made.close()


class TestPodsOfAnotherProfileOfOurScheduler:
    async def test_go_because_it_keeps_their_room_for_nominated_pods(self, beside: Harness) -> None:
        beside.add(*small_nodes(2), *(running(f"low{i}", f"n{i}").scheduler(OTHER) for i in (1, 2)), waiting("rival"))
        await want_two_nodes(beside)
        assert sorted(ended(beside)) == ["low1", "low2"]

    async def test_are_no_gangs_of_ours(self, beside: Harness) -> None:
        beside.add(*small_nodes(2), gang(1), *(each.scheduler(OTHER) for each in members(1)))
        await beside.run_until_idle()
        assert beside.filter("m0") == Pass()
        assert not beside.reasons()


def test_what_runs_and_is_no_victim_of_ours_is_counted(world: Harness) -> None:
    """A pod of another scheduler that runs; not: of ours, of a DaemonSet, of the system, one that waits."""
    world.add(running("foreign", "n1").scheduler(OTHER), running("ours", "n1"), waiting("rival"))
    world.add(running("daemon", "n1").scheduler(OTHER).controlled_by("DaemonSet", "d"))
    world.add(running("dns", "n1").scheduler(OTHER).priority(2_000_000_000))
    assert world.store.running_elsewhere == 1
    world.delete("foreign")
    assert world.store.running_elsewhere == 0


RIVALS = [
    pytest.param(waiting("rival"), False, id="waits for room"),
    pytest.param(waiting("rival", message="no room"), False, id="waits, in words of its own"),
    pytest.param(waiting("rival", message=NO_CLAIM), True, id="waits for its volume"),
    pytest.param(waiting("rival", message=NO_GPU).request("example.com/gpu", 0), False, id="waits for a device"),
    pytest.param(waiting("rival", cpus=3), True, id="is too large for these nodes"),
    pytest.param(waiting("rival").node_selector("disk", "ssd"), True, id="may not go there"),
    pytest.param(pod("rival").cpu(2).scheduler("nobody"), True, id="was never tried"),
    pytest.param(pod("rival").cpu(2).unschedulable(message=NO_CPU), True, id="is ours"),
]


@pytest.mark.parametrize(("rival", "go"), RIVALS)
async def test_pods_of_ours_go_unless_a_pod_of_another_scheduler_would_take_their_room(
    world: Harness,
    rival: PodBuilder,
    go: bool,  # noqa: FBT001
) -> None:
    world.add(*small_nodes(2), *(running(f"low{i}", f"n{i}") for i in (1, 2)), rival)
    await want_two_nodes(world)
    assert bool(ended(world)) is go
    if not go:
        assert CONTESTED in world.heard.verdicts[-1][1].detail


@pytest.mark.parametrize("verb", ["rehearse", "mark"])
async def test_nobody_goes_if_such_a_pod_comes_before_the_first_eviction(world: Harness, verb: str) -> None:
    world.add(*small_nodes(2), *(running(f"low{i}", f"n{i}") for i in (1, 2)))
    world.api.hold(verb)
    await want_two_nodes(world)
    world.add(waiting("rival"))
    world.api.release(verb)
    await world.run_until_idle()
    assert not ended(world)
    assert Reason.PLAN_OUTDATED in world.reasons()
    assert CONTESTED in world.heard.verdicts[-1][1].detail


async def test_a_pod_of_another_scheduler_is_no_rival_any_more_once_it_is_placed(world: Harness) -> None:
    world.add(waiting("rival"), waiting("like-it"))
    assert list(world.store.rivals.values()) == [2]
    world.add(waiting("like-it").on("n1"))
    assert list(world.store.rivals.values()) == [1]
    world.delete("rival")
    assert not world.store.rivals


async def test_they_go_when_that_pod_has_gone(world: Harness) -> None:
    world.add(*small_nodes(2), *(running(f"low{i}", f"n{i}") for i in (1, 2)), waiting("rival"))
    await want_two_nodes(world)
    assert not ended(world)
    world.delete("rival")
    await world.pass_time(61)
    assert sorted(ended(world)) == ["low1", "low2"]


async def let_another_be_faster(world: Harness) -> list[str]:
    """Evict one of three pods on each node, and let another scheduler take both places. Return the victims."""
    world.add(*small_nodes(2, cpus=6), *(running(f"low{i}", f"n{1 + i % 2}") for i in range(6)))
    await want_two_nodes(world)
    first = sorted(ended(world))
    assert len(first) == 2
    for name in first:
        world.delete(name)
    world.add(*(running(f"thief-{name}", name).scheduler(OTHER) for name in ("n1", "n2")))
    await world.run_until_idle()
    return first


async def try_on(world: Harness, minutes: int) -> None:
    """kube-scheduler goes on with the members, and is offered what is free."""
    for _ in range(minutes):
        for name in ("m0", "m1"):
            if not world.node_of(name) and isinstance(world.filter(name), Steer):
                world.bind(name)
        await world.pass_time(60)


async def test_room_that_was_taken_once_is_not_made_a_second_time(world: Harness) -> None:
    first = await let_another_be_faster(world)
    await try_on(world, 120)
    assert sorted(ended(world)) == first
    taken = (
        "on 2 nodes pods of another scheduler took the resources that evictions had freed, so Serried evicts no "
        "more pods there"
    )
    assert world.heard.verdicts[-1][1].detail.endswith(taken)


async def test_the_gang_gets_it_when_they_have_gone_who_took_it(world: Harness) -> None:
    first = await let_another_be_faster(world)
    await try_on(world, 10)
    assert sorted(ended(world)) == first
    world.delete("thief-n1")
    world.delete("thief-n2")
    await try_on(world, 10)
    assert {world.node_of("m0"), world.node_of("m1")} == {"n1", "n2"}
    assert sorted(ended(world)) == first


async def test_a_pod_that_has_always_run_there_has_taken_nothing(world: Harness) -> None:
    """Each node has a pod of another scheduler's DaemonSet. One of ours is faster than the gang, and ends soon."""
    world.add(*small_nodes(2, cpus=3), *(running(f"low{i}", f"n{i}") for i in (1, 2)))
    world.add(*(running(f"proxy{i}", f"n{i}", cpus=1).scheduler(OTHER) for i in (1, 2)))
    await want_two_nodes(world)
    assert sorted(ended(world)) == ["low1", "low2"]
    for i in (1, 2):
        world.delete(f"low{i}")
        world.add(running(f"faster{i}", f"n{i}").priority(2 * HIGH))
    await world.run_until_idle()
    await try_on(world, 2)
    for i in (1, 2):
        world.delete(f"faster{i}")
        world.add(running(f"low-again{i}", f"n{i}"))
    await try_on(world, 10)
    assert sorted(ended(world)) == ["low-again1", "low-again2", "low1", "low2"]


async def want_more(world: Harness) -> Harness:
    """A gang of one runs on n1; a member beyond its quorum wants room on n2, and pods of ours on n2 go for it."""
    world.add(*small_nodes(1), node("n2").cpu(4), *(running(f"low{i}", "n2") for i in (1, 2)))
    world.add(gang(1).priority(HIGH), members(1)[0].cpu(2).priority(HIGH).on("n1"))
    await world.add(members(1, first=1)[0].cpu(2).priority(HIGH)).run_until_idle()
    return world


async def lose_to_another(world: Harness) -> list[str]:
    """Let another scheduler take the room of the victim as soon as it is free. Return the victim."""
    first = ended(world)
    assert len(first) == 1
    world.delete(first[0])
    await world.run_until_idle()
    await world.add(running("thief", "n2").scheduler(OTHER)).run_until_idle()
    await world.pass_time(61)
    return first


async def test_room_is_made_once_for_members_beyond_the_quorum_too(world: Harness) -> None:
    await want_more(world)
    first = await lose_to_another(world)
    for _ in range(40):
        await world.pass_time(60)
    assert ended(world) == first


async def test_a_member_that_finds_free_room_tells_nothing_of_room_that_was_taken(world: Harness) -> None:
    await want_more(world)
    first = await lose_to_another(world)
    await world.add(node("n3").cpu(1), members(1, first=2)[0].cpu(1).priority(HIGH)).run_until_idle()
    assert isinstance(world.filter("m2"), Steer)
    world.bind("m2")
    for _ in range(40):
        await world.pass_time(60)
    assert world.node_of("m2") == "n3"
    assert world.groups.states[GANG].refusals.failed_preemptions == 1
    assert ended(world) == first


async def test_from_a_member_that_got_its_place_nobody_has_taken_it(world: Harness) -> None:
    """One of two members beyond the quorum is bound; a pod of another scheduler takes what is left beside it."""
    world.add(
        node("n1").cpu(2), *(node(f"n{i}").cpu(3) for i in (2, 3)), *(running(f"low{i}", f"n{i}") for i in (2, 3))
    )
    world.add(gang(1).priority(HIGH), members(1)[0].cpu(2).priority(HIGH).on("n1"))
    await world.add(*(each.cpu(2).priority(HIGH) for each in members(2, first=1))).run_until_idle()
    for name in ended(world):
        world.delete(name)
    await world.run_until_idle()
    place = world.binding_cycle().reservation.slots["pod-m1"].node
    assert isinstance(world.filter("m1"), Steer)
    world.bind("m1")
    await world.run_until_idle()
    await world.add(running("small", place, cpus=1).scheduler(OTHER)).run_until_idle()
    await world.pass_time(61)
    assert world.groups.states[GANG].refusals.failed_preemptions == 1
    assert not world.groups.states[GANG].refusals.find_taken_by_others(world.clock(), world.store)


async def test_room_that_its_victims_never_left_was_taken_by_nobody(world: Harness) -> None:
    """Each node has a pod of another scheduler, and one of ours that does not end in time."""
    world.api.graceful.update(Key("default", f"low{i}") for i in (1, 2))
    world.add(*small_nodes(2, cpus=4), *(running(f"low{i}", f"n{i}") for i in (1, 2)))
    world.add(*(running(f"foreign{i}", f"n{i}").scheduler(OTHER) for i in (1, 2)))
    await want_two_nodes(world)
    await world.pass_time(PREEMPTION_TIMEOUT_SECONDS + 31)
    assert Reason.VICTIMS_REMAIN in world.reasons()
    assert not world.groups.states[GANG].refusals.find_taken_by_others(world.clock(), world.store)
