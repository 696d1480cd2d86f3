import asyncio

import pytest

from extender.core.binding import nominator
from extender.options import NominationPolicy
from serried.api.names import Key
from serried.kube.retry import Backoff
from tests.support.builders import PodBuilder, node, pod
from tests.support.extender_harness import SCHEDULER, Harness, gang, members
from tests.support.fake_api import error
from tests.support.memory import read_memory


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry failed writes at once."""
    monkeypatch.setattr(nominator, "_RETRY", Backoff(0.0, 0.0))


async def plan(world: Harness, count: int = 2, *, gated: bool = False, room: int = 0) -> Harness:
    """Gang g planned on n1, which has just room for it unless ``room`` says more; the writers are at work."""
    world.start_nominating()
    pods = [each.gate() if gated else each for each in members(count)]
    await world.add(node("n1").cpu(room or count), gang(count), *pods).run_until_idle()
    return world


def names(world: Harness, verb: str) -> list[str]:
    return [call.name for call in world.api.list_calls(verb)]


class TestNominations:
    async def test_each_member_is_nominated_once_with_its_uid_as_precondition(self, world: Harness) -> None:
        await plan(world)
        assert sorted(names(world, "nominate")) == ["m0", "m1"]
        assert world.api.list_calls("nominate")[0].body["metadata"]["uid"].startswith("pod-m")
        assert world.pod("m0").nominated == "n1"

    async def test_a_member_that_filter_has_answered_already_needs_no_nomination(self) -> None:
        world = Harness(window=1)
        await plan(world)
        for name in ("m1", "m0"):
            world.filter(name)
        await world.run_until_idle()
        assert names(world, "nominate") == ["m0"]
        await world.close()

    async def test_a_nomination_of_another_node_is_cleared_first(self, world: Harness) -> None:
        world.start_nominating()
        outdated, other = members(2)
        await world.add(node("n1").cpu(2), gang(2), outdated.nominated("gone"), other).run_until_idle()
        nominated = [
            call.body["status"]["nominatedNodeName"] for call in world.api.list_calls("nominate") if call.name == "m0"
        ]
        assert nominated == [None, "n1"]

    async def test_the_window_bounds_the_members_that_no_filter_call_has_asked_about(self) -> None:
        world = Harness(window=2)
        await plan(world, 4)
        assert len(names(world, "nominate")) == 2
        world.filter(names(world, "nominate")[0])
        await world.run_tasks()
        assert len(names(world, "nominate")) == 3
        await world.close()

    async def test_a_nomination_that_fails_frees_its_place_in_the_window(self) -> None:
        world = Harness(window=1)
        world.api.fail("nominate", error(500))
        await plan(world, 2)
        assert names(world, "nominate") == ["m0", "m1"]
        await world.close()

    async def test_an_odd_member_does_not_stop_the_nominations_of_others(
        self, world: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        more_than_writers = [AttributeError("odd") for _ in range(20)]
        world.api.fail("nominate", *more_than_writers)
        await plan(world, 40)
        assert len(names(world, "nominate")) == 40
        assert len([record for record in caplog.records if record.exc_info]) == 20

    async def test_a_member_deleted_before_its_nomination_frees_its_place_for_the_next_gang(self) -> None:
        world = Harness(window=1)
        world.api.hold("nominate")
        await plan(world, 1)
        world.delete("m0")
        await world.run_tasks()
        world.api.release("nominate")
        await world.run_until_idle()
        assert read_memory(world.nominator)["open"] == {}
        await world.close()

    async def test_one_that_keeps_others_off_is_not_taken_off_for_an_earlier_cycle_that_has_ended(
        self, world: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The API server has refused that at first, and it is tried again while the victims of the next cycle end."""
        monkeypatch.setattr(nominator, "_RETRY", Backoff(0.2, 0.2))
        world.start_nominating()
        world.api.graceful.add(Key("default", "low"))
        world.add(members(1)[0].priority(9))
        world.api.fail("nominate", error(500))
        world.nominator.release(["pod-m0"], [world.store.pods["pod-m0"]])
        await world.run_tasks()
        await world.add(node("n1").cpu(1), pod("low").cpu(1).on("n1").priority(0), gang(1).priority(9)).run_until_idle()
        assert world.binding_cycle().waits_for_victims
        await asyncio.gather(*read_memory(world.nominator)["background"])
        assert world.pod("m0").nominated == "n1"

    async def test_if_nobody_is_to_be_nominated_members_that_are_put_aside_are_activated(self) -> None:
        world = Harness(nomination=NominationPolicy.NEVER)
        world.filter_unknown(members(1)[0])
        await plan(world)
        assert (names(world, "nominate"), names(world, "activate")) == ([], ["m0"])
        await world.close()


class TestLooseRounds:
    """Room to spare: as much again as the gang needs. A write per member is saved."""

    async def test_members_that_the_scheduler_will_try_anyway_cost_no_write(self, world: Harness) -> None:
        await plan(world, room=4)
        assert world.api.calls == []

    async def test_less_room_than_for_another_gang_of_that_size_is_not_enough(self, world: Harness) -> None:
        await plan(world, room=3)
        assert sorted(names(world, "nominate")) == ["m0", "m1"]

    async def test_everybody_is_nominated_if_that_is_asked_for(self) -> None:
        world = Harness(nomination=NominationPolicy.ALWAYS)
        await plan(world, room=4)
        assert sorted(names(world, "nominate")) == ["m0", "m1"]
        await world.close()

    async def test_a_member_that_filter_has_turned_away_is_nominated(self, world: Harness) -> None:
        world.filter_unknown(members(1)[0])
        await plan(world, room=4)
        assert names(world, "nominate") == ["m0"]

    async def test_a_member_that_the_scheduler_has_given_up_before_is_nominated(self, world: Harness) -> None:
        world.start_nominating()
        tried, fresh = members(2)
        await world.add(node("n1").cpu(4), gang(2), tried.unschedulable(), fresh).run_until_idle()
        assert names(world, "nominate") == ["m0"]

    async def test_a_member_that_the_scheduler_gives_up_later_is_nominated_once(self, world: Harness) -> None:
        await plan(world, room=4)
        world.mark_unschedulable("m1")
        world.sync_pods()
        await world.run_until_idle()
        assert names(world, "nominate") == ["m1"]

    async def test_a_gated_member_costs_the_gate_only(self, world: Harness) -> None:
        await plan(world, gated=True, room=4)
        assert (names(world, "nominate"), sorted(names(world, "ungate"))) == ([], ["m0", "m1"])

    async def test_a_member_that_nobody_asks_about_is_activated(self, world: Harness) -> None:
        await plan(world, 1, room=2)
        await world.pass_time(2.5)
        assert names(world, "activate") == ["m0"]


class TestGates:
    async def test_a_gate_is_lifted_after_the_nomination(self, world: Harness) -> None:
        await plan(world, gated=True)
        verbs = [call.verb for call in world.api.calls if call.name == "m0"]
        assert verbs == ["nominate", "ungate"]
        assert world.pod("m0").gates == ()

    async def test_a_gate_of_another_owner_stays(self, world: Harness) -> None:
        world.add(members(1)[0].gate("example.com/quota").gate())
        world.nominator.activate(world.store.pods["pod-m0"])
        await world.run_tasks()
        assert world.pod("m0").gates == ("example.com/quota",)

    async def test_a_gate_that_could_not_be_lifted_is_tried_again(self, world: Harness) -> None:
        world.api.fail("ungate", error(500))
        await plan(world, count=1, gated=True)
        await world.pass_time(2.5)
        assert world.pod("m0").gates == ()

    async def test_a_pod_that_must_be_woken_is_woken_also_after_an_outage(self, world: Harness) -> None:
        world.add(*members(1))
        world.api.fail("activate", error(500), error(0), error(429))
        world.nominator.activate(world.store.pods["pod-m0"])
        await world.run_tasks()
        assert names(world, "activate") == ["m0"] * 4

    async def test_a_write_that_loses_against_others_is_made_again_as_long_as_the_pod_is_there(
        self, world: Harness
    ) -> None:
        world.add(*members(1))
        world.api.fail("activate", error(409), error(409))
        world.nominator.activate(world.store.pods["pod-m0"])
        await world.run_tasks()
        assert names(world, "activate") == ["m0"] * 3

    async def test_a_pod_that_was_made_anew_is_left_alone(self, world: Harness) -> None:
        world.add(*members(1))
        gone = world.store.pods["pod-m0"]
        world.delete("m0")
        world.api.fail("activate", error(409))
        world.nominator.activate(gone)
        await world.run_tasks()
        assert names(world, "activate") == ["m0"]

    @pytest.mark.parametrize("status", [403, 404, 422])
    async def test_what_the_api_server_will_never_take_is_not_repeated(self, world: Harness, status: int) -> None:
        world.add(*members(1))
        world.api.fail("activate", error(status))
        world.nominator.activate(world.store.pods["pod-m0"])
        await world.run_tasks()
        assert names(world, "activate") == ["m0"]


class TestTheEndOfARound:
    async def test_nominations_that_are_still_there_are_taken_off(self, world: Harness) -> None:
        await plan(world)
        await world.pass_time(61.0)
        assert [world.pod(name).nominated for name in ("m0", "m1")] == ["", ""]

    async def test_a_nomination_in_flight_when_the_cycle_ends_is_taken_off(self, world: Harness) -> None:
        world.api.hold("nominate")
        await plan(world)
        await world.pass_time(61.0)
        world.api.release("nominate")
        await world.run_until_idle()
        assert [world.pod(name).nominated for name in ("m0", "m1")] == ["", ""]

    async def test_no_gate_is_lifted_for_a_cycle_that_ended_under_the_nomination(self, world: Harness) -> None:
        world.api.hold("nominate")
        await plan(world, gated=True)
        await world.pass_time(61.0)
        world.api.release("nominate")
        await world.run_tasks()
        assert names(world, "ungate") == []

    async def test_nothing_is_nominated_for_a_cycle_that_is_over(self) -> None:
        world = Harness(window=1)
        await plan(world, 2)
        await world.pass_time(61.0)
        assert [call.name for call in world.api.list_calls("nominate") if call.body["status"]["nominatedNodeName"]] == [
            "m0"
        ]
        await world.close()

    async def test_taking_off_an_old_nomination_does_not_erase_a_newer_one(self, world: Harness) -> None:
        await plan(world)
        world.api.hold("nominate")
        old = world.store.pods["pod-m0"]
        world.nominator.release(["pod-m0"], [old])
        world.nominator.nominate(world.binding_cycle(), ["pod-m0"])
        await world.run_tasks()
        world.api.release("nominate")
        await world.run_until_idle()
        assert world.pod("m0").nominated == "n1"

    async def test_what_is_on_its_way_when_it_is_closed_is_written_no_more_and_what_comes_later_is(
        self, world: Harness
    ) -> None:
        world.api.hold("nominate")
        await plan(world)
        cycle = world.binding_cycle()
        world.nominator.end_term()
        await world.nominator.close()
        world.api.release("nominate")
        await world.run_until_idle()
        assert [world.pod(name).nominated for name in ("m0", "m1")] == ["", ""]
        world.nominator.nominate(cycle, ["pod-m0"])
        await world.run_until_idle()
        assert [world.pod(name).nominated for name in ("m0", "m1")] == ["n1", ""]

    async def test_bound_members_are_left_alone(self, world: Harness) -> None:
        await plan(world)
        calls = [world.bind(name) for name in ("m0", "m1")]
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]
        assert len(names(world, "nominate")) == 2


class TestActivations:
    async def test_a_member_that_a_silent_scheduler_forgot_is_activated_at_growing_intervals(
        self, world: Harness
    ) -> None:
        await plan(world, 1)
        activated = []
        for _ in range(16):
            await world.pass_time(1.0)
            activated.append(len(names(world, "activate")))
        assert (activated[0], activated[1], activated[-1]) == (0, 1, 3)

    async def test_a_busy_scheduler_is_not_disturbed(self, world: Harness) -> None:
        await plan(world, 1)
        for _ in range(10):
            world.core.groups.activity.note_call()
            await world.pass_time(1.0)
        assert names(world, "activate") == []

    async def test_a_member_at_bind_is_not_activated(self, world: Harness) -> None:
        await plan(world, 2)
        world.bind("m0")
        await world.run_tasks()
        await world.pass_time(10.0)
        assert set(names(world, "activate")) == {"m1"}

    async def test_a_activated_member_does_not_keep_others_out_of_the_window(self) -> None:
        world = Harness(window=1)
        await plan(world, 2)
        await world.pass_time(2.5)
        assert {call.name for call in world.api.list_calls("nominate")} == {"m0", "m1"}
        await world.close()

    async def test_each_kick_changes_the_pod(self, world: Harness) -> None:
        await plan(world, 1)
        for _ in range(8):
            await world.pass_time(1.0)
        values = [
            call.body["metadata"]["annotations"][nominator.ACTIVATION_ANNOTATION]
            for call in world.api.list_calls("activate")
        ]
        assert len(values) == len(set(values)) == 2


OURS = pod("other").scheduler(SCHEDULER)


class TestSignsOfWork:
    """Plain pods need not come to filter (overlay isolated): what the watch shows of them says as much."""

    @pytest.mark.parametrize(
        ("before", "after", "busy"),
        [
            pytest.param(OURS, OURS.on("n1"), True, id="one of its pods is bound"),
            pytest.param(OURS, OURS.unschedulable(), True, id="one of its pods was tried in vain"),
            pytest.param(OURS.on("n1"), OURS.on("n1").phase("Failed"), False, id="one that ran has ended"),
            pytest.param(
                OURS.unschedulable(), OURS.unschedulable().label("a", "b"), False, id="somebody labels one that waits"
            ),
            pytest.param(pod("other"), pod("other").on("n1"), False, id="another scheduler binds one"),
        ],
    )
    async def test_it_is_busy_if(self, world: Harness, before: PodBuilder, after: PodBuilder, *, busy: bool) -> None:
        await plan(world, 1)
        for _ in range(10):
            world.core.groups.activity.note_pod(before.value(), after.value())
            await world.pass_time(1.0)
        assert (world.binding_cycle().idle_seconds < 5.0) is busy


class TestRequeues:
    async def test_the_pod_is_nominated_and_then_no_more(self, world: Harness) -> None:
        world.add(pod("p"))
        world.nominator.requeue(pod("p").value(), "n1")
        await world.run_tasks()
        assert world.is_requeued("p", "n1")

    @pytest.mark.parametrize(
        "meanwhile",
        [
            pytest.param(pod("p").nominated("n2"), id="it has victims on another node"),
            pytest.param(pod("p").on("n2"), id="it runs"),
            pytest.param(pod("p").deleting(), id="it goes"),
        ],
    )
    async def test_nothing_is_written_if_it_is_not_as_it_was_any_more(
        self, world: Harness, meanwhile: PodBuilder
    ) -> None:
        world.add(meanwhile)
        world.nominator.requeue(pod("p").nominated("n1").value(), "n1")
        await world.run_tasks()
        assert names(world, "nominate") == []
