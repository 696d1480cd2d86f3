"""Effects of a group's priority, and of a PriorityClass that does not exist."""

import pytest

from extender.core.scheduling.binding_cycle import CycleStage
from serried.api.level import FALLBACK, NATIVE, ApiLevel
from serried.api.names import GroupKey
from serried.api.verdict import Reason, Verdict
from tests.support.builders import PodBuilder, PodGroupBuilder, pod, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.priorities import priority_class

pytestmark = pytest.mark.core

SOON = GroupKey("default", "soon")
HIGH = priority_class("high", 1000)


def naming(name: str, group: PodGroupBuilder) -> PodGroupBuilder:
    return group.with_field(name, "spec", "priorityClassName")


def soon(count: int) -> list[PodBuilder]:
    return [pod(f"s{index}").cpu(1).scheduler(SCHEDULER).in_group("soon") for index in range(count)]


@pytest.mark.parametrize("level", [NATIVE, FALLBACK], ids=lambda level: level.name)
async def test_of_two_gangs_that_of_the_higher_group_goes_first_whatever_the_pods_say(level: ApiLevel) -> None:
    world = Harness(level=level)
    unimportant = naming("high", pod_group("soon").gang(3)).priority(1000)
    important = [each.priority(5000) for each in members(3)]
    world.add(*small_nodes(2), HIGH, gang(3).priority(0), *important, unimportant, *soon(3))
    await world.run_until_idle()
    assert world.binding_cycle(SOON).stage is CycleStage.GATHERING
    assert world.reasons() == [Reason.NO_CAPACITY]
    await world.close()


async def test_a_tenant_who_writes_a_priority_into_a_group_gains_no_turn() -> None:
    world = Harness(level=FALLBACK)
    greedy = gang(3).priority(1_000_000_000)
    modest = naming("low", pod_group("soon").gang(3))
    world.add(*small_nodes(2), priority_class("low", 1), greedy, *members(3), modest, *soon(3))
    await world.run_until_idle()
    assert world.binding_cycle(SOON).stage is CycleStage.GATHERING
    assert world.reasons() == [Reason.NO_CAPACITY]
    await world.close()


class TestAClassThatDoesNotExist:
    async def test_holds_its_gang_until_it_does(self) -> None:
        world = Harness(level=FALLBACK)
        await world.add(*small_nodes(2), naming("high", gang(2)), *members(2)).run_until_idle()
        assert world.groups.states[GANG].verdict == Verdict(Reason.PRIORITY_UNKNOWN, key="high")
        await world.add(HIGH).run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING
        await world.close()

    async def test_is_said_once_before_there_are_members_and_once_when_there_are(self) -> None:
        world = Harness(level=FALLBACK)
        await world.add(*small_nodes(2), naming("high", gang(2))).run_until_idle()
        assert world.reasons() == [Reason.PRIORITY_UNKNOWN]
        for member in members(2):
            await world.add(member).run_until_idle()
        assert world.reasons() == [Reason.PRIORITY_UNKNOWN] * 2
        await world.close()

    async def test_holds_a_tree_whose_root_names_it(self) -> None:
        world = Harness(level=FALLBACK)
        root = composite("root").with_field("high", "spec", "priorityClassName")
        await world.add(*small_nodes(2), root, gang(2).child_of("root"), *members(2)).run_until_idle()
        tree = world.store.forest.find_tree_key(GANG)
        assert world.reasons(tree) == [Reason.PRIORITY_UNKNOWN]
        await world.add(HIGH).run_until_idle()
        assert world.binding_cycle(tree).stage is CycleStage.GATHERING
        await world.close()

    async def test_and_one_of_the_system_is_none_for_groups(self) -> None:
        world = Harness(level=FALLBACK)
        critical = priority_class("system-cluster-critical", 2_000_000_000)
        await world.add(
            *small_nodes(2), critical, naming("system-cluster-critical", gang(2)), *members(2)
        ).run_until_idle()
        verdict = world.groups.states[GANG].verdict
        assert verdict is not None
        assert (verdict.reason, verdict.detail) == (
            Reason.PRIORITY_UNKNOWN,
            "the highest priority of a PodGroup is 1000000000",
        )
        await world.close()


@pytest.mark.parametrize(
    ("group", "own", "reason"),
    [
        pytest.param(0, 0, Reason.NO_CAPACITY, id="before a gang of lower priority"),
        pytest.param(9, 9, Reason.PLANNED, id="not before one of higher priority"),
        pytest.param(9, 0, Reason.NO_CAPACITY, id="before members of lower priority, for kube-scheduler goes by those"),
        pytest.param(0, 9, Reason.NO_CAPACITY, id="before a group of lower priority, whatever its members say"),
    ],
)
async def test_a_pod_that_is_nominated_keeps_its_room(world: Harness, group: int, own: int, reason: Reason) -> None:
    plain = pod("plain").cpu(2).priority(5).nominated("n1")
    asking = [each.priority(own) for each in members(2)]
    await world.add(*small_nodes(1), plain, gang(2).priority(group), *asking).run_until_idle()
    assert world.reasons() == [reason]
