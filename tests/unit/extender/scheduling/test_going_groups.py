"""A PodGroup that is being deleted governs the pods that name it until it is gone, as it does natively.

Upstream's scheduler does not ask for a deletion timestamp, and a finalizer keeps the PodGroup while a live pod names it
(pkg/controller/scheduling/podgroupprotection).
"""

import pytest

from serried.api.names import GroupKey, GroupKind
from serried.api.verdict import Reason
from tests.support.builders import Builder, PodGroupBuilder, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes
from tests.unit.extender.scheduling.test_repairs import run_gang, slot, wait_for_room

TREE = GroupKey("default", "root", GroupKind.COMPOSITE)


def going(min_count: int = 2) -> PodGroupBuilder:
    return gang(min_count).deleting()


def bound(world: Harness) -> set[str]:
    return {key.name for key in world.api.pods if world.node_of(key.name)}


async def bind(world: Harness, *names: str) -> None:
    for name in names:
        world.bind(name)
    await world.run_until_idle()


async def test_a_gang_that_comes_anew_before_its_group_is_gone_runs_under_it(world: Harness) -> None:
    """Job and PodGroup were deleted, and applied again at once: the PodGroup was never made anew."""
    old = [each.on(f"n{place}").deleting() for place, each in enumerate(members(2, first=8), 1)]
    await world.add(*small_nodes(4, 1), going(), *old, *members(1)).run_until_idle()
    assert world.reasons() == [Reason.QUORUM_MISSING]
    await world.add(*members(1, first=1)).run_until_idle()
    await bind(world, "m0", "m1")
    assert {world.node_of("m0"), world.node_of("m1")} == {"n3", "n4"}
    assert world.reasons()[-1] is Reason.SCHEDULED


async def test_a_gang_whose_group_is_deleted_while_it_is_planned_is_bound_all_the_same(world: Harness) -> None:
    await world.add(*small_nodes(2, 1), gang(2), *members(2)).run_until_idle()
    await bind(world, "m0")
    await world.add(going()).run_until_idle()
    await bind(world, "m1")
    assert bound(world) == {"m0", "m1"}


async def test_a_member_that_dies_leaves_its_slot_to_its_replacement_although_the_group_is_being_deleted(
    world: Harness,
) -> None:
    await run_gang(world)
    await world.add(going()).run_until_idle()
    await wait_for_room(world)
    world.delete("m0")
    await world.run_until_idle()
    await world.add(*members(1, first=2)).run_until_idle()
    assert slot(world, "m2") == "n1"
    await bind(world, "m2")
    assert world.node_of("m2") == "n1"


async def test_a_slot_that_is_kept_stays_kept_when_the_group_begins_to_go(world: Harness) -> None:
    await run_gang(world)
    await wait_for_room(world)
    world.delete("m0")
    await world.add(going()).run_until_idle()
    await world.add(*members(1, first=2)).run_until_idle()
    assert slot(world, "m2") == "n1"


async def test_once_it_is_gone_its_pods_wait_for_the_next_of_the_name_and_belong_to_that(world: Harness) -> None:
    await world.add(*small_nodes(2, 1), going(3), *members(2)).run_until_idle()
    world.store.drop_group(GANG)
    await world.run_until_idle()
    await world.add(gang(2).uid("next")).run_until_idle()
    await bind(world, "m0", "m1")
    assert bound(world) == {"m0", "m1"}
    waited = [Reason.QUORUM_MISSING, Reason.POD_GROUP_MISSING, Reason.PLANNED]
    assert [reason for reason in world.reasons() if reason in waited] == waited


@pytest.mark.parametrize(
    "going_tree",
    [
        pytest.param([composite("root").gang(1).deleting(), pod_group("g").gang(2).child_of("root")], id="its root"),
        pytest.param(
            [composite("root").gang(1), pod_group("g").gang(2).child_of("root").deleting()], id="its only group"
        ),
        pytest.param(
            [
                composite("root").gang(1),
                composite("branch").gang(1).child_of("root").deleting(),
                pod_group("g").gang(2).child_of("branch"),
            ],
            id="what is between",
        ),
    ],
)
async def test_a_tree_runs_although_a_part_of_it_is_being_deleted(world: Harness, going_tree: list[Builder]) -> None:
    await world.add(*small_nodes(2, 1), *going_tree, *members(2)).run_until_idle()
    await bind(world, "m0", "m1")
    assert bound(world) == {"m0", "m1"}
    assert world.reasons(TREE)[-1] is Reason.SCHEDULED
