"""kube-scheduler offers a node to a member for which the last plan had none: the gang is planned once more.

Whatever changes the answer of a rule wakes the gangs that wait by it. These are the stories in which that was lost.
"""

import pytest

from extender.core.protocol import MAX_COMPLETE_LIST, Hold
from tests.support.builders import RACK, node, pod, pod_group
from tests.support.devices import claim
from tests.support.extender_harness import GANG, Harness
from tests.support.requeue_events import (
    AFFINITY,
    ANTI_AFFINITY,
    AT_LIMIT,
    FOREIGN_ANTI_AFFINITY,
    FULL,
    HELD,
    Step,
    add_waiting_gang,
    delete,
    make_member,
    relabel,
    report,
)


async def wait(world: Harness, build: Step) -> None:
    """The gang waits."""
    build(world)
    await world.run_until_idle()
    assert GANG in world.queue


def lose(world: Harness, change: Step) -> None:
    """The change comes, and nobody is woken by it."""
    change(world)
    world.store.occupancy.freed_nodes.take()
    world.store.occupancy.freed_nodes.take_reached()
    world.store.dirty.take_groups()


async def count_plans(world: Harness, *offered: str) -> int:
    """kube-scheduler offers these nodes to the member; how many plans follow."""
    before = len(world.heard.plans)
    assert isinstance(world.filter("m0", *offered), Hold)
    world.schedule_groups()
    await world.run_tasks()
    return len(world.heard.plans) - before


LOST: list[tuple[str, Step, Step, str]] = [
    ("the pod in the way goes", ANTI_AFFINITY, delete("noise"), "r0b"),
    ("the pod goes that keeps others off", FOREIGN_ANTI_AFFINITY, delete("lonely"), "r0b"),
    ("a pod gets the label of the cache", AFFINITY, relabel("cousin", "cache"), "r1a"),
    ("the volume of the last pod that the node takes is free", AT_LIMIT, delete("user"), "a"),
    ("another claim gives its device back", HELD, report(claim("other", 1)), "a"),
]


@pytest.mark.parametrize(("build", "change", "offered"), [pytest.param(*rest, id=sentence) for sentence, *rest in LOST])
async def test_what_no_hint_has_told_kube_scheduler_s_offer_does(
    world: Harness, build: Step, change: Step, offered: str
) -> None:
    await wait(world, build)
    lose(world, change)
    world.schedule_groups()
    assert world.ledger.of_group(GANG) is None
    assert await count_plans(world, offered) == 1
    assert world.ledger.of_group(GANG) is not None


async def test_the_same_offer_is_tried_once(world: Harness) -> None:
    await wait(world, ANTI_AFFINITY)
    assert [await count_plans(world, "r0b") for _ in range(3)] == [1, 0, 0]


async def test_each_node_is_tried_once_in_whatever_order_they_are_offered(world: Harness) -> None:
    await wait(world, ANTI_AFFINITY)
    offers = [("r0a",), ("r0b",), ("r0a",), ("r0b", "r0a")]
    assert [await count_plans(world, *each) for each in offers] == [1, 1, 0, 0]


async def test_after_a_plan_for_another_reason_the_offer_counts_again(world: Harness) -> None:
    await wait(world, ANTI_AFFINITY)
    assert await count_plans(world, "r0b") == 1
    world.add(node("r0c").cpu(1).rack("r0"))
    await world.run_until_idle()
    assert [await count_plans(world, "r0b") for _ in range(2)] == [1, 0]


async def test_no_offer_matters_to_a_gang_that_lacks_only_room(world: Harness) -> None:
    await wait(world, FULL)
    assert await count_plans(world, "a") == 0


async def test_an_offer_says_nothing_where_the_plan_had_some_nodes_and_too_few(world: Harness) -> None:
    await wait(world, ANTI_AFFINITY)
    world.add(node("r1a").cpu(1).rack("r1"), pod_group("g").gang(2))
    world.add(make_member().uid("pod-m1").with_field("m1", "metadata", "name").anti_affinity({"app": "noise"}, RACK))
    await world.run_until_idle()
    assert await count_plans(world, "r1a") == 0


LARGE = add_waiting_gang(
    *(node(f"n{index}").cpu(1).rack("r0") for index in range(MAX_COMPLETE_LIST + 1)),
    pod("noise").label("app", "noise").cpu(1).on("n0"),
    member=make_member().anti_affinity({"app": "noise"}, RACK),
)
"""The same story as `ANTI_AFFINITY`, with as many nodes as make a sample."""


async def test_nor_does_a_sample_of_many_nodes_or_a_node_that_is_not_known(world: Harness) -> None:
    await wait(world, LARGE)
    assert await count_plans(world, *(f"n{index}" for index in range(MAX_COMPLETE_LIST))) == 0
    assert await count_plans(world, "stranger") == 0
    assert await count_plans(world, "n1") == 1


async def test_after_so_many_nodes_in_vain_no_more_are_tried(world: Harness) -> None:
    await wait(world, LARGE)
    plans = [await count_plans(world, f"n{index}") for index in range(MAX_COMPLETE_LIST + 1)]
    assert plans == [1] * MAX_COMPLETE_LIST + [0]
