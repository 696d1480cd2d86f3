"""A cycle from its plan to its last Binding, with an API server that fails in every way it can."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from unittest.mock import Mock

import pytest

from extender.core.binding import records as reservations
from extender.core.binding import run as cycle_runner
from extender.core.binding.records import Records
from extender.core.scheduling.binding_cycle import CycleStage
from extender.core.scheduling.effects import Activate
from serried.api.names import GANG as GANG_ANNOTATION
from serried.api.names import LABELLED_BY_BINDING, POD_GROUP_LABEL
from serried.api.pod import Link
from serried.api.reservation import Reservation, Slot
from serried.api.verdict import Reason, render
from serried.kube.retry import Backoff
from tests.support.builders import job, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, BindCall, Harness, gang, members, small_nodes
from tests.support.fake_api import FakeApi, error

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rolling forward is not slowed down."""
    monkeypatch.setattr(cycle_runner, "_ROLL_FORWARD", Backoff(0.0, 0.0))
    monkeypatch.setattr(reservations, "_REMOVAL", Backoff(0.0, 0.0))


async def plan(world: Harness, count: int = 2, min_count: int = 2) -> Harness:
    """Gang g with so many members, planned on n1 and n2."""
    await world.add(*small_nodes(2), gang(min_count), *members(count)).run_until_idle()
    assert world.binding_cycle().stage is CycleStage.GATHERING
    return world


async def bind_all(world: Harness, count: int = 2) -> list[BindCall]:
    calls = [world.bind(f"m{index}") for index in range(count)]
    await world.run_until_idle()
    return calls


class TestTheWholeWay:
    async def test_gathered_then_committed_then_bound_then_removed(self, world: Harness) -> None:
        await plan(world)
        assert world.api.record_phase() is None
        calls = await bind_all(world)
        assert [call.error for call in calls] == ["", ""]
        writes = [call.verb for call in world.api.calls if call.resource == "reservations"]
        assert writes == ["create", "delete"]
        assert world.api.list_calls("create")[0].body["spec"]["phase"] == "Committed"
        assert world.nothing_reserved
        assert world.reasons()[-1] is Reason.SCHEDULED
        assert world.heard.bursts == [2]

    async def test_good_news_of_all_gangs_wait_from_its_first_binding_until_shortly_after_the_last_one(
        self, world: Harness
    ) -> None:
        await plan(world)
        assert not world.core.runner.burst.is_on()
        world.api.hold("bind")
        await bind_all(world)
        world.clock.advance(1.0)
        assert world.core.runner.burst.is_on()
        world.api.release("bind")
        await world.run_tasks()
        assert world.core.runner.burst.is_on()
        world.clock.advance(0.5)
        assert not world.core.runner.burst.is_on()

    async def test_good_news_of_others_do_not_wait_for_one_whose_binding_is_refused_again_and_again(
        self, world: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cycle_runner, "_ROLL_FORWARD", Backoff(3600.0, 3600.0))
        await plan(world)
        world.api.fail("bind", error(403))
        await bind_all(world)
        world.clock.advance(0.5)
        assert world.api.record_phase() == "Committed"
        assert not world.core.runner.burst.is_on()

    async def test_a_binding_tells_its_pod_rank_and_domain(self, world: Harness) -> None:
        racked = [each.rack("a") for each in small_nodes(2)]
        ranked = [each.of_job("j", 5 + index) for index, each in enumerate(members(2))]
        await world.add(*racked, gang(2).topology(), *ranked).run_until_idle()
        await bind_all(world)
        told = {"scheduling.serried.dev/rank": "6", "scheduling.serried.dev/domain": "a"}
        assert told.items() <= world.annotations("m1").items()

    async def test_it_does_not_tell_what_there_is_not(self, world: Harness) -> None:
        await plan(world)
        await bind_all(world)
        assert world.annotations("m0").keys() == {GANG_ANNOTATION, LABELLED_BY_BINDING}

    async def test_it_tells_the_gang_and_where_its_objects_are(self, world: Harness) -> None:
        await plan(world)
        await bind_all(world)
        assert world.annotations("m0")[GANG_ANNOTATION] == "scheduling.k8s.io/v1beta1 g"

    async def test_a_bound_member_carries_the_label_of_its_pod_group_and_names_no_other_group_by_it(
        self, world: Harness
    ) -> None:
        pods = [pod(f"m{index}").cpu(1).scheduler(SCHEDULER).of_job("j", index) for index in range(2)]
        await world.add(
            *small_nodes(2), job("j").size(2).scheduler(SCHEDULER), gang(2).controlled_by("Job", "j"), *pods
        ).run_until_idle()
        await bind_all(world)
        assert world.labels("m0")[POD_GROUP_LABEL] == "g"
        assert (world.pod("m0").group, world.pod("m0").link) == (None, None)
        assert world.store.members.group_of(world.pod("m0").uid) == GANG

    async def test_a_member_that_names_its_group_by_the_label_keeps_it_and_is_told_nothing_of_it(
        self, world: Harness
    ) -> None:
        pods = [pod(f"m{index}").cpu(1).scheduler(SCHEDULER).label(POD_GROUP_LABEL, "g") for index in range(2)]
        await world.add(*small_nodes(2), gang(2), *pods).run_until_idle()
        await bind_all(world)
        assert world.annotations("m0").keys() == {GANG_ANNOTATION}
        assert (world.pod("m0").group, world.pod("m0").link) == (GANG, Link.LABEL)

    async def test_a_name_that_is_too_long_for_a_label_is_told_by_none(self, world: Harness) -> None:
        name = "g" * 64
        pods = [each.in_group(name) for each in members(2)]
        await world.add(*small_nodes(2), pod_group(name).gang(2), *pods).run_until_idle()
        await bind_all(world)
        assert POD_GROUP_LABEL not in world.labels("m0")
        assert LABELLED_BY_BINDING not in world.annotations("m0")

    async def test_a_member_that_is_resized_after_filter_is_not_bound_where_it_does_not_fit(
        self, world: Harness
    ) -> None:
        await world.add(node("n1").cpu(2), gang(2), *members(2)).run_until_idle()
        world.filter("m0"), world.filter("m1")
        first = world.bind("m0")
        await world.run_tasks()
        raw = world.api.pods[world.pod_key("m1")]
        raw["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
        world.sync_pods()
        assert world.store.occupancy.used["n1"]["cpu"] == 3000
        second = world.bind("m1")
        await world.run_until_idle()
        assert all(call.error for call in (first, second))
        assert (world.node_of("m0"), world.node_of("m1")) == ("", "")
        assert world.reasons()[-1] is Reason.NO_CAPACITY
        await world.add(node("n2").cpu(2)).run_until_idle()
        await world.pass_time(60.0)
        assert world.reasons()[-1] is Reason.PLANNED

    async def test_no_binding_is_sent_before_the_commit_is_answered(self, world: Harness) -> None:
        await plan(world)
        world.api.hold("create")
        await bind_all(world)
        assert world.api.list_calls("bind") == []
        world.api.release("create")
        await world.run_until_idle()
        assert len(world.api.list_calls("bind")) == 2

    async def test_surplus_members_bind_as_they_come(self, world: Harness) -> None:
        await plan(world, count=3, min_count=2)
        calls = await bind_all(world, 2)
        assert [call.error for call in calls] == ["", ""]
        surplus = world.bind("m2")
        await world.run_until_idle()
        assert surplus.error == ""
        assert world.nothing_reserved

    async def test_members_at_bind_before_the_commit_go_with_it_and_the_rest_are_not_promised(
        self, world: Harness
    ) -> None:
        await plan(world, count=3, min_count=2)
        await bind_all(world, 2)
        (committed,) = world.api.list_calls("create")
        promised = [member["name"] for slot in committed.body["spec"]["slots"] for member in slot["members"]]
        assert sorted(promised) == ["m0", "m1"]

    async def test_a_late_member_of_a_gang_that_stands_needs_no_record(self, world: Harness) -> None:
        await plan(world)
        await bind_all(world)
        recorded = len(world.api.list_calls("create"))
        await world.add(*members(1, first=2)).run_until_idle()
        late = world.bind("m2")
        await world.run_until_idle()
        assert late.error == ""
        assert len(world.api.list_calls("create")) == recorded
        assert world.nothing_reserved


class TestBeforeTheCommit:
    async def test_a_record_that_cannot_be_written_ends_the_round_and_it_is_tried_again(self, world: Harness) -> None:
        await plan(world)
        world.api.fail("create", error(500))
        await bind_all(world)
        assert world.reasons()[-1] is Reason.RECORD_FAILED
        assert world.nothing_reserved
        await world.pass_time(1.0)
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_a_gang_whose_record_is_too_large_is_told_what_would_help_and_is_tried_more_and_more_seldom(
        self, world: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reservations, "MAX_RECORD_BYTES", 100)
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        _, verdict = world.heard.verdicts[-1]
        assert verdict.reason is Reason.RECORD_FAILED
        assert "accepts at most 100: use fewer members" in render(verdict)
        await world.pass_time(60.0)
        assert len(world.heard.verdicts) < 20
        assert world.api.list_calls("create") == []
        assert world.nothing_reserved

    @pytest.mark.parametrize(
        "seconds",
        [pytest.param(61.0, id="after the idle deadline"), pytest.param(301.0, id="after the total deadline")],
    )
    async def test_the_deadline_fails_all_calls_together_and_gives_everything_back(
        self, world: Harness, seconds: float
    ) -> None:
        await plan(world, count=3, min_count=3)
        calls = await bind_all(world, 2)
        assert all(call.waiting for call in calls)
        await world.pass_time(seconds)
        assert [call.error for call in calls] == ["serried: DeadlineExceeded"] * 2
        assert world.api.list_calls("bind") == []
        assert world.nothing_reserved
        assert world.reasons()[-1] is Reason.DEADLINE_EXCEEDED

    async def test_every_new_member_at_bind_extends_the_idle_deadline(self, world: Harness) -> None:
        await plan(world, count=3, min_count=3)
        for name in ("m0", "m1"):
            await world.pass_time(50.0)
            world.bind(name)
            await world.run_tasks()
        await world.pass_time(50.0)
        assert len(world.binding_cycle().at_bind) == 2

    async def test_no_progress_extends_the_total_deadline(self, world: Harness) -> None:
        await plan(world)
        for _ in range(8):
            await world.pass_time(50.0)
            if world.groups.states[GANG].cycle is None:
                break
            world.bind("m0")
            await world.run_tasks()
        assert Reason.DEADLINE_EXCEEDED in world.reasons()

    async def test_it_is_late_however_its_time_passes_if_the_scheduler_does_nothing(self, world: Harness) -> None:
        await plan(world)
        for _ in range(61):
            await world.pass_time(1.0)
        assert world.reasons()[-1] is Reason.DEADLINE_EXCEEDED

    async def test_after_the_deadline_the_gang_waits_for_room_and_does_not_spin(self, world: Harness) -> None:
        await plan(world)
        await world.pass_time(61.0)
        planned = len(world.heard.plans)
        await world.pass_time(5.0)
        assert len(world.heard.plans) == planned
        world.add(node("n3").cpu(2))
        await world.run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_a_plan_that_does_not_hold_any_more_is_made_anew_and_not_committed(self, world: Harness) -> None:
        await plan(world)
        planned_on = world.binding_cycle().reservation.slots["pod-m0"].node
        first = world.bind("m0")
        await world.run_tasks()
        world.store.drop_node(planned_on)
        second = world.bind("m1")
        await world.run_tasks()
        assert [first.error, second.error] == ["serried: PlanOutdated"] * 2
        assert world.api.list_calls("create") == world.api.list_calls("replace") == world.api.list_calls("bind") == []
        await world.run_until_idle()
        assert planned_on not in {slot.node for slot in world.binding_cycle().reservation.slots.values()}

    async def test_a_planned_member_that_is_deleted_before_the_commit_ends_the_round(self, world: Harness) -> None:
        await plan(world)
        call = world.bind("m0")
        await world.run_tasks()
        world.delete("m1")
        await world.run_until_idle()
        assert call.error == "serried: PlanOutdated"
        assert world.nothing_reserved
        assert world.reasons()[-1] is Reason.QUORUM_MISSING

    async def test_a_member_that_is_being_deleted_gives_its_slot_at_once_to_the_one_in_its_place(
        self, world: Harness
    ) -> None:
        await world.add(*small_nodes(2, 1), gang(2), *members(2)).run_until_idle()
        await world.add(members(1)[0].deleting(), *members(1, first=2)).run_until_idle()
        assert {slot.name: slot.node for slot in world.binding_cycle().reservation.slots.values()} == {
            "m1": "n2",
            "m2": "n1",
        }

    async def test_a_replacement_refills_the_round_of_a_deleted_member(self, world: Harness) -> None:
        await plan(world, count=3, min_count=2)
        call = world.bind("m0")
        await world.run_tasks()
        world.delete("m1")
        world.delete("m2")
        world.add(*members(1, first=3))
        await world.run_until_idle()
        other = world.bind("m3")
        await world.run_until_idle()
        assert (call.error, other.error) == ("", "")

    async def test_an_unexpected_exception_ends_the_round_and_leaves_nothing(
        self, world: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        judge = Mock(side_effect=itertools.chain([RuntimeError("bug")], itertools.repeat(None)))
        monkeypatch.setattr(cycle_runner.CycleRunner, "_find_failure", judge)
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        assert judge.call_count > 1
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_a_bug_that_stays_is_tried_again_at_leisure(
        self, world: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        judge = Mock(side_effect=RuntimeError("bug"))
        monkeypatch.setattr(cycle_runner.CycleRunner, "_find_failure", judge)
        world.add(*small_nodes(2), gang(2), *members(2))
        for _ in range(20):
            await world.run_until_idle()
        assert 1 < judge.call_count < 8

    async def test_members_that_ran_at_the_plan_and_have_ended_since_are_no_quorum(self, world: Harness) -> None:
        running = [each.on("n3") for each in members(2)]
        await world.add(*small_nodes(3), gang(3), *running, *members(1, first=2)).run_until_idle()
        assert world.binding_cycle().reservation.need == 1
        for name in ("m0", "m1"):
            world.delete(name)
        call = world.bind("m2")
        await world.run_tasks()
        assert call.error == "serried: PlanOutdated"
        assert world.api.list_calls("bind") == []
        await world.run_until_idle()
        assert world.reasons()[-1] is Reason.QUORUM_MISSING


class TestTheCommitItself:
    async def test_a_commit_that_was_done_though_the_answer_was_lost_is_rolled_forward(self, world: Harness) -> None:
        await plan(world)
        world.api.lose_answer("create")
        calls = await bind_all(world)
        assert [call.error for call in calls] == ["", ""]
        assert (world.node_of("m0"), world.node_of("m1")) != ("", "")

    async def test_a_commit_that_was_not_done_is_given_up_and_nothing_is_bound(self, world: Harness) -> None:
        await plan(world)
        world.api.fail("create", error(500))
        calls = await bind_all(world)
        assert [call.error for call in calls] == ["serried: RecordFailed"] * 2
        assert world.api.list_calls("bind") == []
        assert world.nothing_reserved

    async def test_nobody_decides_until_the_api_server_says_whether_it_was_done(self, world: Harness) -> None:
        await plan(world)
        world.api.lose_answer("create")
        world.api.fail("get", error(500), error(0), error(503))
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_tasks()
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]
        assert len(world.api.list_calls("get")) == 4

    async def test_another_leaders_commit_is_not_taken_for_ours(self, world: Harness) -> None:
        await plan(world)
        theirs = Reservation(GANG, gang(2).value().uid, "", 1, {"pod-m0": Slot("pod-m0", "m0", "n2")}, {"pod-m0"})
        await Records(world.api.client(), "scheduling.serried.dev/v1beta1", "another").write(gang(2).value(), theirs)
        calls = await bind_all(world)
        assert [call.error for call in calls] == ["serried: RecordFailed"] * 2
        assert world.api.list_calls("bind") == []

    async def test_no_deadline_stops_a_commit_on_its_way(self, world: Harness) -> None:
        await plan(world)
        world.api.hold("create")
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_tasks()
        await world.pass_time(400.0)
        assert all(call.waiting for call in calls)
        world.api.release("create")
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]


def bound_by_another(world: Harness) -> None:
    world.api.pods[world.pod_key("m0")]["spec"]["nodeName"] = "n9"


def made_anew(world: Harness) -> None:
    world.api.pods[world.pod_key("m0")]["metadata"]["uid"] = "another"


def gone(world: Harness) -> None:
    del world.api.pods[world.pod_key("m0")]


class TestAfterTheCommit:
    @pytest.mark.parametrize("status", [0, 403, 429, 500, 503])
    async def test_a_refused_binding_is_sent_again_until_it_stands(self, world: Harness, status: int) -> None:
        await plan(world)
        world.api.fail("bind", *[error(status)] * 3)
        calls = await bind_all(world)
        for _ in range(3):
            await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]
        assert len(world.api.list_calls("bind")) == 5
        assert world.nothing_reserved

    async def test_while_a_binding_is_refused_the_reason_says_why_and_no_longer(self, world: Harness) -> None:
        await plan(world)
        world.api.fail("bind", *[error(403)] * 1000)
        await bind_all(world)
        _, verdict = world.heard.verdicts[-1]
        assert verdict.reason is Reason.BINDING
        assert verdict.detail.startswith("the Binding of m")
        assert "said the server" in verdict.detail
        world.api.recover()
        await world.run_until_idle()
        assert world.heard.verdicts[-1][1].detail == ""

    @pytest.mark.parametrize("early", [["m2", "m3"], ["m2"], []], ids=["at bind by then", "one later", "later"])
    async def test_spares_take_the_place_of_one_whose_binding_is_refused_for_good(
        self, world: Harness, early: list[str]
    ) -> None:
        await plan(world, count=4, min_count=2)
        world.api.reject("bind", world.pod_key("m1"), error(403))
        world.api.hold("create")
        calls = await bind_all(world, 2)
        spares = [world.bind(name) for name in early]
        await world.run_tasks()
        world.api.release("create")
        await world.run_until_idle()
        spares += [world.bind(name) for name in ("m2", "m3") if name not in early]
        for _ in range(3):
            await world.run_until_idle()
        assert [world.node_of(f"m{index}") != "" for index in range(4)] == [True, False, True, True]
        assert [bool(call.error) for call in [*calls, *spares]] == [False, True, False, False]

    async def test_spares_too_few_for_the_quorum_wait_while_those_it_needs_are_refused(self, world: Harness) -> None:
        await plan(world, count=3, min_count=2)
        for name in ("m0", "m1"):
            world.api.reject("bind", world.pod_key(name), error(403))
        await bind_all(world, 2)
        spare = world.bind("m2")
        for _ in range(3):
            await world.run_until_idle()
        assert spare.waiting
        assert not any(world.node_of(f"m{index}") for index in range(3))

    async def test_one_that_is_refused_again_and_again_does_not_keep_its_cycle(self, world: Harness) -> None:
        await plan(world, count=3, min_count=2)
        world.api.reject("bind", world.pod_key("m2"), error(403))
        await bind_all(world, 2)
        cycle = world.binding_cycle()
        for _ in range(5):
            if not cycle.over:
                world.bind("m2")
            await world.pass_time(20.0)
        assert cycle.over

    async def test_a_binding_that_was_done_though_the_answer_was_lost_is_a_success(self, world: Harness) -> None:
        await plan(world)
        world.api.lose_answer("bind")
        calls = await bind_all(world)
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]

    @pytest.mark.parametrize(
        ("happen", "answer"),
        [
            pytest.param(bound_by_another, "is bound to n9", id="bound elsewhere by another hand"),
            pytest.param(made_anew, "was deleted and created again", id="made anew under its name"),
            pytest.param(gone, "does not exist any more", id="deleted"),
        ],
    )
    async def test_a_member_lost_after_the_commit_fails_alone_and_the_others_are_bound(
        self, world: Harness, happen: Callable[[Harness], None], answer: str
    ) -> None:
        await plan(world)
        world.api.hold("create")
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_tasks()
        happen(world)
        world.api.release("create")
        await world.run_tasks()
        assert answer in calls[0].error
        assert calls[1].error == ""

    async def test_a_committed_member_whose_client_hung_up_is_bound_all_the_same(self, world: Harness) -> None:
        await plan(world)
        world.api.hold("create")
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_tasks()
        calls[0].disconnect()
        await world.run_tasks()
        world.api.release("create")
        await world.run_until_idle()
        assert (world.node_of("m0") != "", world.node_of("m1") != "") == (True, True)

    async def test_an_unexpected_exception_does_not_end_what_is_committed(self, world: Harness) -> None:
        await plan(world)
        world.api.fail("bind", RuntimeError("bug"))
        calls = await bind_all(world)
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]
        assert world.nothing_reserved

    async def test_a_committed_member_whose_node_is_gone_gets_another_in_its_domain(self, world: Harness) -> None:
        await plan(world)
        lost = world.binding_cycle().reservation.slots["pod-m0"].node
        world.api.hold("bind")
        calls = await bind_all(world)
        world.store.drop_node(lost)
        world.api.fail("bind", error(500), error(500))
        world.api.release("bind")
        await world.run_until_idle()
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]
        assert lost not in {world.node_of("m0"), world.node_of("m1")}

    async def test_slots_stay_until_our_own_watch_shows_the_members_bound(self, world: Harness) -> None:
        await plan(world)
        for name in ("m0", "m1"):
            world.bind(name)
        await world.run_tasks()
        assert world.node_of("m0")
        assert len(world.ledger) == 1
        await world.run_until_idle()
        assert len(world.ledger) == 0

    async def test_nor_are_they_given_back_while_it_is_silent(
        self, world: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await plan(world)
        with monkeypatch.context() as silent:
            silent.setattr(world, "sync_pods", lambda: None)
            await bind_all(world)
            await world.pass_time(61.0)
            await world.pass_time(3600.0)
            assert len(world.binding_cycle().reservation.slots) == 2
            assert len(world.heard.plans) == 1
        await world.run_until_idle()
        assert world.nothing_reserved

    async def test_a_member_that_is_deleted_before_the_watch_shows_it_bound_keeps_nobody_waiting(
        self, world: Harness
    ) -> None:
        await plan(world)
        for name in ("m0", "m1"):
            world.bind(name)
        await world.run_tasks()
        assert world.node_of("m0")
        world.delete("m0")
        await world.run_until_idle()
        assert world.nothing_reserved

    @pytest.mark.parametrize(
        "lose_group",
        [
            pytest.param(lambda world: world.store.drop_group(GANG), id="gone before them"),
            pytest.param(lambda world: world.add(gang(2).child_of("root")), id="in a tree by now"),
        ],
    )
    async def test_a_commit_is_over_when_its_last_member_goes_though_its_pod_group_is(
        self, world: Harness, lose_group: Callable[[Harness], object]
    ) -> None:
        await plan(world)
        world.api.fail("bind", *[error(500)] * 1000)
        calls = await bind_all(world)
        assert world.binding_cycle().binding_sent
        lose_group(world)
        for name in ("m0", "m1"):
            await world.run_until_idle()
            assert any(call.waiting for call in calls)
            world.delete(name)
        await world.run_until_idle()
        assert world.nothing_reserved
        assert not any(call.waiting for call in calls)
        assert GANG not in world.groups.states

    async def test_a_surplus_member_whose_binding_fails_hears_of_it_and_may_come_again(self, world: Harness) -> None:
        await plan(world, count=3, min_count=2)
        await bind_all(world, 2)
        world.api.fail("bind", error(500))
        first = world.bind("m2")
        await world.run_tasks()
        assert first.error
        again = world.bind("m2")
        await world.run_until_idle()
        assert again.error == ""

    async def test_a_surplus_member_that_we_cannot_bind_for_a_defect_of_ours_hears_of_it(
        self, world: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        await plan(world, count=3, min_count=2)
        await bind_all(world, 2)
        world.api.fail("bind", AttributeError("odd"))
        call = world.bind("m2")
        await world.run_tasks()
        assert "internal error" in call.error
        assert "odd" in caplog.text

    async def test_a_surplus_member_that_comes_again_while_its_binding_fails_is_bound(self, world: Harness) -> None:
        await plan(world, count=3, min_count=2)
        await bind_all(world, 2)
        world.api.hold("bind")
        world.api.fail("bind", error(500))
        world.bind("m2")
        await world.run_tasks()
        again = world.bind("m2")
        await world.run_tasks()
        world.api.release("bind")
        await world.run_until_idle()
        assert again.error == ""

    async def test_surplus_members_cost_one_task_each_however_many_wait(
        self, world: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        many = 60
        await world.add(node("n1").cpu(many).pods(many), gang(2), *members(many)).run_until_idle()
        world.api.hold("create")
        calls = await bind_all(world, 2)
        calls += [world.bind(f"m{index}") for index in range(2, many)]
        await world.run_tasks()
        spawn = Mock(wraps=world.core.tasks.spawn)
        monkeypatch.setattr(world.core.tasks, "spawn", spawn)
        world.api.release("create")
        for _ in range(20):
            await world.run_tasks()
        assert not any(call.waiting for call in calls)
        assert spawn.call_count == many - 2

    async def test_a_surplus_member_that_never_comes_does_not_keep_the_round_open(self, world: Harness) -> None:
        await plan(world, count=3, min_count=2)
        await bind_all(world, 2)
        await world.pass_time(61.0)
        assert "Committed" not in {record["spec"]["phase"] for record in world.api.records.values()}

    async def test_a_record_is_removed_also_after_an_outage(self, world: Harness) -> None:
        await plan(world)
        world.api.fail("delete", error(500), error(0), error(429))
        await bind_all(world)
        assert world.nothing_reserved

    async def test_a_record_that_is_removed_late_does_not_take_that_of_the_next_round(self, world: Harness) -> None:
        await plan(world)
        world.api.hold("delete")
        await bind_all(world)
        for name in ("m0", "m1"):
            world.delete(name)
        await world.add(*members(2, first=5)).run_until_idle()
        calls = [world.bind("m5"), world.bind("m6")]
        await world.run_until_idle()
        world.api.hold("bind")
        world.api.release("delete")
        await world.run_until_idle()
        assert all(call.waiting for call in calls)
        assert world.api.record_phase() == "Committed"
        assert set(world.binding_cycle().reservation.slots) == {"pod-m5", "pod-m6"}


async def test_an_effect_that_fails_takes_none_of_those_behind_it_with_it(
    world: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(world.nominator, "activate", Mock(side_effect=RuntimeError("bug")))
    world.add(*small_nodes(2), gang(2), *members(2))
    world.core.outbox.put(Activate(members(1)[0].value()))
    await world.run_until_idle()
    assert world.binding_cycle().stage is CycleStage.GATHERING
    assert [record.message for record in caplog.records] == [
        "an internal error stopped one effect of a decision; the other effects are carried out"
    ]


class Unanswered(FakeApi):
    """Answers the first attempt of one Binding late, and that it has failed."""

    def __init__(self, pod: str) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self._pod = pod

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
        before: Callable[[], None] = lambda: None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        if name == self._pod:
            before()
            await self.answers.wait()
        await super().bind(namespace, name, uid, node, annotations, before, labels)


async def test_a_member_is_not_bound_by_a_cycle_that_has_ended_meanwhile() -> None:
    """The member's call was answered, and kube-scheduler may have used its room for others: the next cycle decides."""
    api = Unanswered("m1")
    world = Harness(api=api)
    await plan(world, min_count=1)
    world.bind("m0")
    await world.run_until_idle()
    call = world.bind("m1")
    await world.run_tasks()
    await world.pass_time(61)
    assert "the binding cycle has ended" in call.error
    api.answers.set()
    await world.run_until_idle()
    assert world.node_of("m1") == ""
    call = world.bind("m1")
    await world.run_until_idle()
    assert (call.error, world.node_of("m1") != "") == ("", True)
    await world.close()
