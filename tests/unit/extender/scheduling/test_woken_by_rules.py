"""A change of a rule's answer wakes the gangs that wait by it, at once and by the hint alone.

kube-scheduler tries a pod again by the same events (`tests.support.requeue_events`).
"""

import pytest

from extender.options import BackfillMode
from serried.api.names import GroupKey, GroupKind
from tests.support.builders import node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness
from tests.support.requeue_events import ANTI_AFFINITY, EVENT_CASES, TREE, EventCase, Step, edit, relabel, report

ROOT = GroupKey("default", "root", GroupKind.COMPOSITE)


async def tell(story: EventCase, world: Harness, gang: GroupKey = GANG) -> None:
    """The gang waits, the change comes, and the next look plans the gang. No time passes, and no watch tells more."""
    story.build(world)
    await world.run_until_idle()
    await world.pass_time(5.0)
    assert world.ledger.of_group(gang) is None
    story.change(world)
    world.schedule_groups()
    await world.run_tasks()
    assert world.ledger.of_group(gang) is not None
    await world.close()


@pytest.mark.parametrize("way", ["alone", "behind another gang", "without backfill"])
@pytest.mark.parametrize("story", [pytest.param(story, id=story.sentence) for story in EVENT_CASES])
async def test_a_gang_is_planned_as_soon_as_it_fits(story: EventCase, way: str) -> None:
    world = Harness(backfill=BackfillMode.OFF if way == "without backfill" else BackfillMode.FORECAST)
    if way == "behind another gang":
        world.add(node("big").cpu(8), pod("long").cpu(8).priority(1000).on("big"))
        huge = pod("huge-0").cpu(8).priority(1000).scheduler(SCHEDULER).in_group("huge")
        world.add(pod_group("huge").gang(1).priority(1000), huge)
    await tell(story, world)


async def test_a_tree_is_planned_as_soon_as_its_root_is_there() -> None:
    await tell(TREE, Harness(), ROOT)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(report(node("r0b").cpu(1).rack("r0").version("2")), id="a heartbeat"),
        pytest.param(relabel("noise", "noise"), id="a pod that says the same"),
        pytest.param(edit("noise", lambda each: each.label("other", "x")), id="a label that nobody asks for"),
    ],
)
async def test_what_changes_no_answer_wakes_nobody(change: Step) -> None:
    world = Harness()
    ANTI_AFFINITY(world)
    await world.run_until_idle()
    world.store.occupancy.freed_nodes.take_reached()
    change(world)
    assert world.store.occupancy.freed_nodes.take_reached() == set()
    await world.close()
