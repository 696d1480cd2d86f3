"""The time that counts against a gang that waits for its members at bind (decision 20)."""

from collections.abc import AsyncIterator

import pytest

from extender.core.protocol import Hold, Steer
from extender.core.scheduling.binding_cycle import CycleStage
from extender.options import NominationPolicy
from serried.api.verdict import Reason
from tests.support.builders import pod
from tests.support.extender_harness import Harness
from tests.unit.extender.binding.test_run import bind_all, plan


async def work_on_others(world: Harness, seconds: int, look_every: int = 10) -> None:
    """kube-scheduler asks about another pod each second; each cycle is looked at after so many of them."""
    for second in range(seconds):
        world.filter("plain")
        world.clock.advance(1.0)
        if second % look_every == look_every - 1:
            await world.pass_time(0.0)
    await world.pass_time(0.0)


class TestAQueueBeforeTheGang:
    """The scheduler has others to see to first: for minutes, if need be."""

    @pytest.fixture
    async def queued(self, world: Harness) -> Harness:
        world.add(pod("plain").scheduler("serried"))
        return await plan(world)

    async def test_the_gang_stays_planned_and_goes_when_its_turn_comes(self, queued: Harness) -> None:
        await work_on_others(queued, 1000)
        assert queued.reasons() == [Reason.PLANNED]
        calls = await bind_all(queued)
        assert [call.error for call in calls] == ["", ""]
        assert len(queued.api.list_calls("create")) == 1

    async def test_when_the_queue_is_empty_and_nobody_has_come_the_gang_is_late(self, queued: Harness) -> None:
        await work_on_others(queued, 1000)
        await queued.pass_time(59.0)
        assert queued.binding_cycle().stage is CycleStage.GATHERING
        await queued.pass_time(3.0)
        assert queued.reasons()[-1] is Reason.DEADLINE_EXCEEDED

    async def test_a_call_now_and_then_is_no_queue(self, queued: Harness) -> None:
        for second in range(90):
            if second % 5 == 0:
                queued.filter("plain")
            await queued.pass_time(1.0)
        assert queued.reasons()[-1] is Reason.DEADLINE_EXCEEDED

    async def test_from_the_first_member_at_bind_on_the_rest_has_as_long_as_ever(self, queued: Harness) -> None:
        await work_on_others(queued, 1000)
        first = queued.bind("m0")
        await work_on_others(queued, 299, look_every=1)
        assert first.waiting
        await work_on_others(queued, 3, look_every=1)
        assert first.error == "serried: DeadlineExceeded"
        assert queued.nothing_reserved

    async def test_a_member_that_filter_has_sent_on_its_way_counts_as_the_first(self, queued: Harness) -> None:
        assert queued.filter("m0") == Steer("n1")
        await work_on_others(queued, 902)
        assert queued.reasons()[-1] is Reason.DEADLINE_EXCEEDED

    async def test_when_the_scheduler_has_hung_up_on_all_it_comes_to_the_gang_anew(self, queued: Harness) -> None:
        first = queued.bind("m0")
        await work_on_others(queued, 250)
        first.disconnect()
        await work_on_others(queued, 100)
        again = queued.bind("m0")
        await work_on_others(queued, 250)
        assert again.waiting

    async def test_a_gang_to_which_nobody_ever_comes_gives_its_room_back(self, queued: Harness) -> None:
        await work_on_others(queued, 1802)
        assert queued.reasons()[-1] is Reason.DEADLINE_EXCEEDED
        assert queued.nothing_reserved


class TestASchedulerThatIsAway:
    """kube-scheduler is stopped, or waits after an outage until it watches again: no gang has failed by that."""

    @pytest.fixture
    async def late(self, world: Harness) -> Harness:
        await plan(world)
        await world.pass_time(62.0)
        assert world.reasons()[-1] is Reason.DEADLINE_EXCEEDED
        return world

    async def test_the_gang_is_planned_as_soon_as_it_is_back(self, late: Harness) -> None:
        assert late.filter("m0") == Hold()
        await late.pass_time(3.0)
        assert late.reasons()[-1] is Reason.PLANNED
        assert [call.error for call in await bind_all(late)] == ["", ""]

    async def test_nobody_plans_it_before_that(self, late: Harness) -> None:
        await late.pass_time(50.0)
        assert late.reasons()[-1] is Reason.DEADLINE_EXCEEDED
        assert late.nothing_reserved

    async def test_a_gang_whose_first_member_it_had_seen_to_rests_as_ever(self, world: Harness) -> None:
        await plan(world)
        world.filter("m0")
        await world.pass_time(902.0)
        assert world.reasons()[-1] is Reason.DEADLINE_EXCEEDED
        assert world.filter("m0") == Hold()
        await world.pass_time(50.0)
        assert world.reasons()[-1] is Reason.DEADLINE_EXCEEDED


class TestARefusedMember:
    """The scheduler erases the nomination of a member tried in vain: it was there, and no queue excuses that."""

    @pytest.fixture
    async def world(self) -> AsyncIterator[Harness]:
        made = Harness(nomination=NominationPolicy.ALWAYS)
        made.start_nominating()
        made.add(pod("plain").scheduler("serried"))
        yield made
        await made.close()

    async def test_its_gang_is_late_although_the_scheduler_is_busy(self, world: Harness) -> None:
        await plan(world)
        world.mark_unschedulable("m1")
        await world.run_until_idle()
        world.erase_nomination("m1")
        world.mark_unschedulable("m1")
        await work_on_others(world, 62)
        assert world.reasons()[-1] is Reason.DEADLINE_EXCEEDED

    async def test_one_that_has_its_nomination_still_is_waiting_for_its_turn(self, world: Harness) -> None:
        await plan(world)
        world.mark_unschedulable("m1")
        await work_on_others(world, 200)
        assert world.reasons() == [Reason.PLANNED]

    async def test_one_beyond_the_quorum_keeps_nobody_from_waiting(self, world: Harness) -> None:
        await plan(world, count=3, min_count=2)
        for _ in range(2):
            world.erase_nomination("m2")
            world.mark_unschedulable("m2")
            await world.run_until_idle()
        await work_on_others(world, 200)
        assert world.reasons() == [Reason.PLANNED]
