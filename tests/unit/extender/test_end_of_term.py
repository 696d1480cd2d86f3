"""Work that is left undone, or done again, when a term ends at the worst moment."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extender.core.binding import run as cycle_runner
from extender.core.binding.records import Records
from extender.core.protocol import Hold
from extender.features.repair import GangHistory
from extender.lead import leadership as terms
from extender.lead.leadership import Leadership, Takeover
from extender.options import BrokenAction, RepairRules
from serried.api.names import GroupKey, Key
from serried.api.reservation import Reservation, Slot
from serried.api.verdict import Reason
from serried.kube.election import Lease
from serried.kube.retry import Backoff
from tests.support.builders import job, pod, pod_group
from tests.support.clock import Clock
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.fake_api import error
from tests.unit.extender.scheduling.test_group_scheduler_trees import TREE, group, pods, racks, root
from tests.unit.extender.status.test_reports import MISSING, Office


class TestALeaseThatLapsesForAMoment:
    def test_is_a_turn_for_an_instance_that_was_told_so(self) -> None:
        clock = Clock()
        seen: list[bool] = []
        leadership = Leadership("here", seen.append, clock)
        leadership.set_lease(Lease("here_1", int(clock()), 15))
        clock.advance(12.1)
        assert not leadership.leads()  # a cycle is left to the next leader
        leadership.set_lease(Lease("here_1", int(clock()), 15))  # the watch was late
        assert seen == [True, False, True]

    async def test_loses_no_gang(self, world: Harness) -> None:
        turns: list[bool] = []
        leadership = Leadership("here", turns.append, world.clock)
        leadership.set_lease(Lease("here_1", int(world.clock()), 15))
        world.term.holds_lease = leadership.leads
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        world.schedule_groups()
        world.clock.advance(12.1)
        world.binding_cycle().changed.set()
        await world.run_tasks()
        assert world.groups.states[GANG].cycle is None  # left
        leadership.set_lease(Lease("here_1", int(world.clock()), 15))
        if turns[1:] == [False, True]:  # what the process does then
            world.core.end_term()
            await world.recovery.recover()
            world.term.active = True
            world.group_scheduler.set_obstacle("")
        world.schedule_groups()  # nothing else has happened in the cluster
        assert world.groups.states[GANG].cycle is not None


class TestARecoveryUnderWhichTheTermEnds:
    async def test_takes_no_nomination_off(self, world: Harness) -> None:
        world.add(*small_nodes(2), gang(2), *members(2))
        for raw in world.api.pods.values():
            raw["status"] = {"nominatedNodeName": "n1"}
            managed = {"manager": "serried", "fieldsV1": {"f:status": {"f:nominatedNodeName": {}}}}
            raw["metadata"]["managedFields"] = [managed]
        world.sync_pods()
        world.api.hold("get")
        recovery = world.recovery
        task = asyncio.create_task(recovery.recover())
        await world.run_tasks()
        world.core.end_term()
        world.api.release("get")
        await world.run_tasks()
        await asyncio.gather(task, return_exceptions=True)
        assert world.api.list_calls("nominate") == []

    async def test_is_none_of_the_next_term(self, world: Harness) -> None:
        """The API server was away: our Lease was lost, another instance led and committed, and we lead again."""
        world.add(*small_nodes(2), gang(2), *members(2))
        world.term.active = False
        world.add(members(1, first=5)[0].nominated("n2"))
        world.api.hold("get")
        recovery = world.recovery
        task = asyncio.create_task(recovery.recover())
        await world.run_tasks()  # it is looking at the stray nomination
        world.core.end_term()
        world.core.end_term()
        world.api.release("get")
        await world.run_tasks()
        assert task.done()
        assert await task is False  # the process must hear of it, or it goes on as if this term had been adopted

    async def test_takes_no_record_back_from_the_next_leader(self, world: Harness) -> None:
        world.add(*small_nodes(2), gang(2), *members(2))
        held = Reservation(GANG, "podgroup-g", "", 2, {"pod-m0": Slot("pod-m0", "m0", "n1")})
        await Records(world.api.client(), "v1", "earlier").write(gang(2).value(), held)
        world.api.hold("list")
        recovery = world.recovery
        task = asyncio.create_task(recovery.recover())
        await world.run_tasks()
        world.core.end_term()
        world.api.release("list")
        await world.run_tasks()
        await asyncio.gather(task, return_exceptions=True)
        assert world.api.list_calls("replace") == []


class TestTheWriterOfNominations:
    async def test_takes_nothing_back_after_the_end_of_the_term(self, world: Harness) -> None:
        world = world.add(*small_nodes(2, 1), gang(2), *members(2))
        world.start_nominating()
        world.api.hold("nominate")
        await world.run_until_idle()
        sent = len(world.api.list_calls("nominate"))
        assert sent
        world.core.end_term()
        world.api.release("nominate")
        await world.run_tasks()
        assert len(world.api.list_calls("nominate")) == sent


async def lead_again(world: Harness, verb: str) -> None:
    """The term ends while calls of this verb wait; in the next term of ours they do not."""
    world.core.end_term()
    await world.run_tasks()
    world.api.stop_holding(verb)
    world.term.active = True
    world.group_scheduler.set_obstacle("")


class TestAPodThatNeedsNoGang:
    async def test_is_let_go_when_our_turn_comes_again_though_the_last_term_ended_under_that(
        self, world: Harness
    ) -> None:
        world.add(pod("plain").scheduler(SCHEDULER).gate())
        world.api.hold("ungate")
        world.schedule_groups()
        await world.run_tasks()
        await lead_again(world, "ungate")
        world.schedule_groups()  # nothing has happened to the pod, so no watch shows it
        await world.run_tasks()
        assert not world.pod("plain").gates

    async def test_is_woken_when_our_turn_comes_again_though_the_last_term_ended_under_that(
        self, world: Harness
    ) -> None:
        each = pod("j-0").of_job("j", 0).cpu(1).scheduler(SCHEDULER)
        world.store.put_job(job("j").size(2).scheduler(SCHEDULER).value())
        await world.add(*small_nodes(2), each).run_until_idle()
        assert world.filter("j-0") == Hold()
        world.api.hold("activate")
        world.store.put_job(job("j").size(1).scheduler(SCHEDULER).value())
        await world.run_until_idle()
        await lead_again(world, "activate")
        sent = len(world.api.list_calls("activate"))
        await world.pass_time(1.0)  # nothing has happened to the pod, so no watch shows it
        assert [call.name for call in world.api.list_calls("activate")][sent:] == ["j-0"]


class TestAPassUnderWhichTheTermEnds:
    async def test_says_nothing_more(self, world: Harness) -> None:
        other = GroupKey("default", "h")
        world.add(gang(2), *members(1), pod_group("h").gang(2), members(1, first=7)[0].in_group("h"))
        task = asyncio.create_task(world.core.loop.consider({GANG, other}))
        await asyncio.sleep(0)
        assert len(world.heard.verdicts) == 1
        world.core.end_term()
        await world.run_tasks()
        assert task.done()
        assert len(world.heard.verdicts) == 1


class TestAGangThatGoesWhileAnotherInstanceLeads:
    async def test_is_forgotten_when_our_turn_comes_again(self, world: Harness) -> None:
        await world.add(*small_nodes(1), gang(3), *members(3)).run_until_idle()
        assert GANG in world.queue.unschedulable
        world.core.end_term()
        world.store.drop_group(GANG)
        for name in ("m0", "m1", "m2"):
            world.delete(name)
        world.store.dirty.groups.clear()  # as the loop of a standby does
        world.term.active = True
        world.group_scheduler.set_obstacle("")
        await world.run_until_idle()
        assert GANG not in world.groups.states
        assert GANG not in world.queue.unschedulable


class TestAPodGroupOfATree:
    async def test_that_lost_its_quorum_gets_no_member_alone_though_the_tree_stands(self, world: Harness) -> None:
        tree = [root(1), group("a", 1), group("c", 2)]
        running = [*[each.on("n0") for each in pods("a", 1)], *[each.on("n1") for each in pods("c", 2)]]
        await world.add(*racks(4), *tree, *running).run_until_idle()
        await world.add(*pods("c", 1, first=2)).run_until_idle()
        assert world.binding_cycle(TREE).reservation.need == 0
        for index in (0, 1):
            world.delete(f"c{index}")
        call = world.bind("c2")
        await world.run_until_idle()
        assert world.node_of("c2") == ""
        assert call.error


class TestTheWorkerOfTasks:
    async def test_that_is_cancelled_before_it_began_is_followed_by_another(self, world: Harness) -> None:
        planning_tasks = world.core.planning_tasks
        tasks = world.core.tasks
        planning_tasks._request_work()
        world.core.runner.carry_out()
        assert len(tasks) == 1
        world.core.end_term()
        await world.run_tasks()
        assert len(tasks) == 0
        planning_tasks._request_work()
        world.core.runner.carry_out()
        assert len(tasks) == 1


class TestAGangThatIsBeingEvicted:
    async def test_is_not_taken_for_one_when_our_turn_comes_again_at_once(self) -> None:
        world = Harness(rules=RepairRules(120.0, 10.0, BrokenAction.EVICT))
        await world.add(
            *small_nodes(4, 1), gang(3), *[each.on(f"n{i + 1}") for i, each in enumerate(members(3))]
        ).run_until_idle()
        world.api.hold("evict")
        world.delete("m0")
        await world.run_until_idle()
        await world.pass_time(10.0)
        assert world.groups.states[GANG].memory.get_or_create(GangHistory).evicting
        world.core.end_term()
        world.term.active = True
        world.group_scheduler.set_obstacle("")
        await world.run_until_idle()
        assert not world.groups.states[GANG].memory.get_or_create(GangHistory).evicting
        await world.close()


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    made = Office()
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


class TestWhatIsSaid:
    async def test_is_said_again_when_our_turn_comes_again(self, world: Harness) -> None:
        """The reason may not have settled when the last term ended, or another instance may have reported another."""
        await world.add(gang(2), *members(1)).run_until_idle()
        assert world.reasons() == [Reason.QUORUM_MISSING]
        world.core.end_term()
        world.term.active = True
        world.group_scheduler.set_obstacle("")
        await world.run_until_idle()
        assert world.reasons() == [Reason.QUORUM_MISSING] * 2

    async def test_is_said_again_of_a_gang_that_waits_for_room_though_none_was_freed(self, world: Harness) -> None:
        await world.add(*small_nodes(1, 1), gang(2), *members(2)).run_until_idle()
        assert world.reasons() == [Reason.NO_CAPACITY]
        world.core.end_term()
        world.term.active = True
        world.group_scheduler.set_obstacle("")
        await world.run_until_idle()
        assert world.reasons() == [Reason.NO_CAPACITY] * 2

    async def test_is_written_again_over_what_another_instance_has_written(self, office: Office) -> None:
        office.reports.report_verdict(GANG, MISSING)
        await office.settle()
        office.reports.end_term()
        office.store.put_group(gang(2).condition("False", "Unschedulable", "what another instance said").value())
        office.reports.report_verdict(GANG, MISSING)
        await office.settle()
        assert len(office.api.conditions) == 2

    async def test_is_not_tried_again_after_the_end_of_the_term(self, office: Office) -> None:
        office.api.hold("apply")
        office.api.fail("apply", error(500))
        office.reports.report_verdict(GANG, MISSING)
        office.stuck.add(GANG)
        await office.settle()
        office.reports.end_term()
        office.stuck.clear()
        office.api.release("apply")
        await office.settle()
        await office.pass_time(60.0)
        assert len(office.api.list_calls("apply")) == 1


async def test_nobody_is_bound_before_the_commit_is_written_though_writing_it_failed_in_an_odd_way(
    world: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle_runner, "_ROLL_FORWARD", Backoff(0.0, 0.0))
    await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
    said: list[str | None] = []
    world.api.before_bind = lambda _: said.append(world.api.record_phase())
    world.api.hold("replace")
    world.api.fail("replace", RuntimeError("something that nobody has thought of"))
    calls = [world.bind("m0"), world.bind("m1")]
    await world.run_tasks()
    for call in calls:
        call.disconnect()
    await world.run_tasks()
    world.api.release("replace")
    await world.run_until_idle()
    assert said == ["Committed", "Committed"]


class TestRecordsThatAreRefused:
    async def test_end_the_term_at_the_second_refusal_in_a_row_and_count_anew(
        self, world: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(terms, "_READ_SECONDS", 0.0)
        answers = iter([False, True, False, False, False, True, False, False])
        begins = iter([True, False])
        begun: list[str] = []
        takeover = Takeover(
            world.core.term,
            world.group_scheduler,
            Leadership("here", lambda _: None, world.clock),
            world.recovery,
            synced=asyncio.Event(),
        )

        async def may_read() -> bool:
            begun.append("read")
            try:
                return next(answers)
            except StopIteration:
                raise asyncio.CancelledError from None

        def begin_anew() -> bool:
            begun.append("begin")
            return next(begins)

        with pytest.raises(asyncio.CancelledError):
            await takeover.watch_records(may_read, begin_anew)
        # The third refusal is the first of the next term, and a term that cannot begin is not said to have begun.
        assert "".join(each[0] for each in begun) == "rrrrbrrrrbr"
        assert [record.message for record in caplog.records if "cannot be read" in record.message] == [
            "the Reservations cannot be read any more, so nothing is planned"
        ]

    @pytest.mark.parametrize(
        "refused", ["m2", "nobody", "all"], ids=["one is not bound", "all are bound", "none is bound"]
    )
    async def test_do_not_end_the_term_of_a_gang_that_is_bound_in_part(self, world: Harness, refused: str) -> None:
        await world.add(*small_nodes(3), gang(3), *members(3)).run_until_idle()
        cycle = world.binding_cycle()
        if refused == "m2":
            world.api.reject("bind", Key("default", "m2"), error(500))
        if refused != "all":
            calls = [world.bind(f"m{number}") for number in range(3)]
            await world.run_until_idle()
            assert [call.error for call in calls[:2]] == ["", ""]
        assert cycle.is_half_done == (refused == "m2")
        await world.close()
