"""Life after binding: slots of dead members are kept for their replacements, and broken gangs go first."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from extender.core.protocol import Hold
from extender.core.scheduling.binding_cycle import CycleStage
from extender.features.repair import GangHistory
from extender.options import BrokenAction, PreemptionMode, RepairRules
from serried.api.names import GroupKey, Key, write_time
from serried.api.verdict import Reason, render
from tests.support.builders import JobBuilder, PodBuilder, job, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.fake_api import budget_refusal
from tests.support.parents import JobSetBuilder, job_set, leader_worker_set
from tests.support.volumes import volume, volume_claim

OTHER = GroupKey("default", "h")


def job_gang(size: int) -> JobBuilder:
    return job("train").size(size).scheduler(SCHEDULER)


def job_pods(*indexes: int, generation: str = "") -> list[PodBuilder]:
    """Pods of Job train, in group g, one CPU each."""
    made = (pod(f"train-{index}{generation}").of_job("train", index) for index in indexes)
    return [each.cpu(1).scheduler(SCHEDULER).in_group("g") for each in made]


def rack(name: str, count: int, cpus: int = 1) -> list[object]:
    return [node(f"{name}-{place}").cpu(cpus).rack(name) for place in range(1, count + 1)]


async def run_gang(world: Harness, *, rack_bound: bool = False) -> None:
    """Gang g of two, with one member on n1 and one on n2."""
    group = gang(2).topology() if rack_bound else gang(2)
    nodes = [node(f"n{place}").cpu(1).rack("r1") for place in (1, 2)]
    await world.add(*nodes, group, members(2)[0].on("n1"), members(2)[1].on("n2")).run_until_idle()
    assert world.reasons() == [Reason.SCHEDULED]


async def run_job(world: Harness, size: int) -> None:
    """A gang Job, each pod on a node of its own: index 0 on n1, index 1 on n2."""
    group = gang(size).controlled_by("Job", "train", "job-train")
    pods = [each.on(f"n{place}") for place, each in enumerate(job_pods(*range(size)), 1)]
    await world.add(*small_nodes(size, 1), job_gang(size), group, *pods).run_until_idle()


async def run_job_set(world: Harness) -> JobSetBuilder:
    """A JobSet of two pods, which run on n1 and n2; they are called s-w-0 and s-w-1."""
    training = job_set("s").gang_policy().replicated("w", pods=2)
    world.add(*small_nodes(2, 1), gang(2).controlled_by("JobSet", "s").from_template("s", "all"))
    world.store.put_parent(training.value())
    pods = [pod(f"s-w-{index}").of_job_set("s", "w", index).cpu(1).scheduler(SCHEDULER) for index in (0, 1)]
    await world.add(*[each.in_group("g").on(f"n{place}") for place, each in enumerate(pods, 1)]).run_until_idle()
    return training


async def delete_job_set_pods(world: Harness) -> None:
    """The pods of `run_job_set` go."""
    world.delete("s-w-0")
    world.delete("s-w-1")
    await world.run_until_idle()


async def wait_for_room(world: Harness) -> None:
    """Gang h, of one pod, wants whatever room there is."""
    await world.add(pod_group("h").gang(1), pod("h0").cpu(1).scheduler(SCHEDULER).in_group("h")).run_until_idle()
    assert OTHER not in [reservation.group for reservation in world.ledger]


def slot(world: Harness, name: str) -> str:
    found = world.ledger.slot_of(world.pod(name).uid)
    return found.node if found is not None else ""


def message(world: Harness, group: GroupKey = GANG) -> str:
    verdict = world.groups.states[group].verdict
    assert verdict is not None
    return render(verdict)


class TestTheSlotOfADeadMember:
    async def test_it_is_kept_for_its_replacement_although_another_gang_waits_for_the_room(
        self, world: Harness
    ) -> None:
        await run_gang(world)
        await wait_for_room(world)
        world.delete("m0")
        await world.pass_time(60.0)
        assert world.groups.states[OTHER].cycle is None
        await world.add(*members(1, first=2)).run_until_idle()
        assert slot(world, "m2") == "n1"

    async def test_its_replacement_is_bound_alone_without_a_record(self, world: Harness) -> None:
        await run_gang(world)
        world.delete("m0")
        await world.add(*members(1, first=2)).run_until_idle()
        call = world.bind("m2")
        await world.run_until_idle()
        assert (call.error, world.node_of("m2")) == ("", "n1")
        assert world.api.list_calls("create") == []

    async def test_two_that_die_together_are_replaced_one_by_one(self, world: Harness) -> None:
        await run_job(world, 3)
        world.delete("train-0")
        world.delete("train-2")
        await world.add(*job_pods(2, generation="b")).run_until_idle()
        assert slot(world, "train-2b") == "n3"
        call = world.bind("train-2b")
        await world.run_until_idle()
        assert (call.error, world.node_of("train-2b")) == ("", "n3")
        await world.add(*job_pods(0, generation="b")).run_until_idle()
        assert slot(world, "train-0b") == "n1"

    async def test_two_that_are_alike_keep_to_their_own_slots(self, world: Harness) -> None:
        running = [each.on(f"n{place}") for place, each in enumerate(members(3), 1)]
        await world.add(*small_nodes(3, 1), gang(3), *running).run_until_idle()
        world.delete("m0")
        world.delete("m1")
        await world.add(*members(2, first=3)).run_until_idle()
        planned = {name: slot(world, name) for name in ("m3", "m4")}
        assert sorted(planned.values()) == ["n1", "n2"]
        assert world.filter("m4", planned["m3"]) == Hold()
        assert {name: slot(world, name) for name in ("m3", "m4")} == planned
        calls = [world.bind(name) for name in ("m3", "m4")]
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]

    async def test_one_of_two_that_are_missing_waits_for_the_other_if_only_its_own_slot_is_kept(
        self, world: Harness
    ) -> None:
        await run_job(world, 3)
        world.delete("train-1")
        await world.run_until_idle()
        await world.pass_time(121.0)  # nobody has come, so that slot is kept no longer
        world.delete("train-2")
        await world.add(*job_pods(2, generation="b")).run_until_idle()
        assert slot(world, "train-2b") == ""
        await world.add(*job_pods(1, generation="b")).run_until_idle()
        assert {slot(world, "train-1b"), slot(world, "train-2b")} == {"n2", "n3"}
        assert world.binding_cycle().reservation.need == 2

    async def test_each_index_gets_its_own_node_again(self, world: Harness) -> None:
        await run_job(world, 3)
        world.delete("train-0")
        world.delete("train-1")
        await world.add(*job_pods(1, 0, generation="b")).run_until_idle()
        assert (slot(world, "train-0b"), slot(world, "train-1b")) == ("n1", "n2")

    async def test_one_whose_place_is_taken_gives_way_to_one_that_is_wanted(self, world: Harness) -> None:
        """Index 0 was replaced while its first pod still ended; index 1 dies before that pod is gone."""
        await run_job(world, 3)
        await world.add(node("n4").cpu(1), job_pods(0)[0].on("n1").deleting()).run_until_idle()
        await world.add(*job_pods(0, generation="b")).run_until_idle()
        world.bind("train-0b")
        await world.run_until_idle()
        await wait_for_room(world)
        world.delete("train-1")
        world.delete("train-0")
        await world.run_until_idle()
        assert slot(world, "h0") == "n1"
        await world.add(*job_pods(1, generation="b")).run_until_idle()
        assert slot(world, "train-1b") == "n2"

    async def test_a_replacement_that_came_before_the_slot_was_free_gets_it_though_another_is_being_bound(
        self, world: Harness
    ) -> None:
        await run_job(world, 3)
        world.delete("train-0")
        await world.add(*job_pods(0, generation="b")).run_until_idle()
        await world.add(job_pods(1)[0].on("n2").deleting(), *job_pods(1, generation="b")).run_until_idle()
        assert (slot(world, "train-0b"), slot(world, "train-1b")) == ("n1", "")
        world.delete("train-1")
        await world.run_until_idle()
        assert slot(world, "train-1b") == "n2"

    async def test_a_larger_replacement_takes_no_room_that_another_member_is_planned_on(self, world: Harness) -> None:
        await run_job(world, 3)
        await world.add(node("n1").cpu(3)).run_until_idle()
        world.delete("train-0")
        world.delete("train-1")
        world.store.drop_node("n2")
        larger = job_pods(0, generation="b")[0].cpu(2)
        await world.add(larger, job_pods(1, generation="b")[0].cpu(2)).run_until_idle()
        assert (slot(world, "train-0b"), slot(world, "train-1b")) == ("n1", "")

    async def test_a_failed_pod_leaves_its_slot_although_its_object_stays(self, world: Harness) -> None:
        await run_job(world, 2)
        await world.add(job_pods(0)[0].on("n1").phase("Failed")).run_until_idle()
        await wait_for_room(world)
        await world.add(*job_pods(0, generation="b")).run_until_idle()
        assert slot(world, "train-0b") == "n1"

    async def test_a_pod_that_succeeds_leaves_none(self, world: Harness) -> None:
        await run_job(world, 2)
        await wait_for_room(world)
        await world.add(job_pods(0)[0].on("n1").phase("Succeeded")).run_until_idle()
        assert slot(world, "h0") == "n1"

    async def test_a_replacement_that_dies_before_it_is_bound_leaves_the_slot_to_the_next(self, world: Harness) -> None:
        await run_gang(world)
        await wait_for_room(world)
        world.delete("m0")
        await world.add(*members(1, first=2)).run_until_idle()
        world.delete("m2")
        await world.run_until_idle()
        assert world.groups.states[OTHER].cycle is None
        await world.add(*members(1, first=3)).run_until_idle()
        assert slot(world, "m3") == "n1"

    async def test_a_replacement_whose_round_ends_early_keeps_its_slot(self, world: Harness) -> None:
        await run_gang(world)
        await wait_for_room(world)
        world.delete("m0")
        await world.add(*members(1, first=2)).run_until_idle()
        await world.pass_time(61.0)  # it has never come to its bind call
        assert world.groups.states[OTHER].cycle is None
        assert slot(world, "m2") == "n1"

    async def test_a_plain_pod_may_take_the_room_and_the_replacement_gets_it_when_that_ends(
        self, world: Harness
    ) -> None:
        await run_gang(world)
        world.delete("m0")
        await world.add(pod("plain").cpu(1).on("n1"), *members(1, first=2)).run_until_idle()
        assert slot(world, "m2") == ""
        world.delete("plain")
        await world.pass_time(1.0)
        assert slot(world, "m2") == "n1"

    async def test_a_larger_replacement_goes_where_it_fits(self, world: Harness) -> None:
        await run_gang(world)
        await world.add(node("n3").cpu(4)).run_until_idle()
        world.delete("m0")
        await world.add(members(1)[0].uid("anew").cpu(3)).run_until_idle()
        assert slot(world, "m0") == "n3"

    async def test_a_member_that_died_in_the_burst_leaves_its_slot_too(self, world: Harness) -> None:
        await world.add(*small_nodes(1), gang(2), *members(2)).run_until_idle()
        await wait_for_room(world)
        calls = [world.bind(name) for name in ("m0", "m1")]
        await world.run_tasks()
        world.sync_pods()
        assert [call.error for call in calls] == ["", ""]
        world.delete("m0")
        await world.run_until_idle()
        assert world.groups.states[OTHER].cycle is None
        await world.add(*members(1, first=2)).run_until_idle()
        assert slot(world, "m2") == "n1"

    async def test_it_is_not_free_while_its_replacement_is_being_bound_though_the_group_goes(
        self, world: Harness
    ) -> None:
        await run_gang(world)
        await wait_for_room(world)
        world.delete("m0")
        await world.add(*members(1, first=2)).run_until_idle()
        world.api.hold("bind")
        world.bind("m2")
        await world.run_tasks()
        world.store.drop_group(GANG)
        await world.run_until_idle()
        assert world.groups.states[OTHER].cycle is None
        world.api.release("bind")
        await world.run_until_idle()
        assert world.node_of("m2") == "n1"
        world.delete("m2")
        await world.run_until_idle()
        assert slot(world, "h0") == "n1"

    async def test_it_is_kept_when_its_replacement_is_deleted_while_it_is_being_bound(self, world: Harness) -> None:
        await run_gang(world)
        await wait_for_room(world)
        world.delete("m0")
        await world.add(*members(1, first=2)).run_until_idle()
        world.api.hold("bind")
        call = world.bind("m2")
        await world.run_tasks()
        world.delete("m2")
        await world.run_until_idle()
        world.api.release("bind")
        await world.run_until_idle()
        assert "being deleted" in call.error
        assert world.groups.states[OTHER].cycle is None
        await world.add(*members(1, first=3)).run_until_idle()
        assert slot(world, "m3") == "n1"

    async def test_a_member_that_is_left_over_takes_no_slot_that_is_kept_for_an_index(self, world: Harness) -> None:
        await run_job(world, 2)
        world.delete("train-0")
        await world.add(*job_pods(7, generation="b")).run_until_idle()
        assert slot(world, "train-7b") == ""

    async def test_how_it_was_mended_is_counted(self, world: Harness) -> None:
        await run_gang(world)
        world.delete("m0")
        await world.run_until_idle()
        await world.pass_time(5.0)
        await world.add(members(3)[2].on("n1")).run_until_idle()
        assert world.heard.repairs == []  # bound by another hand: nobody's replacement
        assert len(world.store.vacancies) == 0
        world.delete("m2")
        await world.run_until_idle()
        await world.pass_time(5.0)
        await world.add(*members(1, first=4)).run_until_idle()
        world.bind("m4")
        await world.run_until_idle()
        assert world.heard.repairs == [("SameNode", 5.0)]


class TestASlotThatTheSchedulerRefuses:
    async def test_the_replacement_is_planned_elsewhere_at_once(self, world: Harness) -> None:
        """A volume, or an affinity, keeps the replacement from the node that is kept for it."""
        world.start_nominating()
        await run_gang(world)
        await world.add(node("n3").cpu(1)).run_until_idle()
        world.delete("m0")
        await world.add(*members(1, first=2)).run_until_idle()
        assert slot(world, "m2") == "n1"
        for _ in range(2):
            world.filter("m2", "n3")
            await world.run_until_idle()
        assert slot(world, "m2") == "n3"


class TestTheEndOfAVacancy:
    async def test_its_time_is_over(self, world: Harness) -> None:
        await run_gang(world)
        await wait_for_room(world)
        world.delete("m0")
        await world.run_until_idle()
        await world.pass_time(119.0)
        assert world.groups.states[OTHER].cycle is None
        await world.pass_time(1.0)
        assert slot(world, "h0") == "n1"
        assert world.heard.repairs == [("Lost", 120.0)]

    async def test_then_the_rest_of_the_quorum_is_placed_together_or_not_at_all(self, world: Harness) -> None:
        await run_job(world, 3)
        world.delete("train-0")
        world.delete("train-1")
        await world.run_until_idle()
        await world.pass_time(120.0)
        await world.add(*job_pods(0, generation="b")).run_until_idle()
        assert slot(world, "train-0b") == ""
        await world.add(*job_pods(1, generation="b")).run_until_idle()
        assert world.binding_cycle().reservation.need == 2

    async def test_none_is_kept_where_the_setting_says_so(self) -> None:
        world = Harness(rules=RepairRules(seconds=0.0))
        await run_gang(world)
        await wait_for_room(world)
        world.delete("m0")
        await world.run_until_idle()
        assert slot(world, "h0") == "n1"
        await world.close()

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(job_gang(2).condition("Failed"), id="the Job has failed"),
            pytest.param(job_gang(2).condition("FailureTarget"), id="the Job fails as soon as its pods have ended"),
            pytest.param(job_gang(2).suspended(), id="the Job is suspended"),
            pytest.param(job_gang(2).deleting(), id="the Job is being deleted"),
            pytest.param(job_gang(2).failed_indexes("0"), id="the index was given up"),
            pytest.param(job_gang(1), id="the Job is scaled down"),
        ],
    )
    async def test_its_job_does_not_want_it_any_more(self, world: Harness, change: JobBuilder) -> None:
        await run_job(world, 2)
        await wait_for_room(world)
        world.delete("train-0")
        await world.run_until_idle()
        await world.add(change).run_until_idle()
        assert slot(world, "h0") == "n1"

    async def test_its_job_set_is_suspended_before_its_pods_are_seen_to_go(self, world: Harness) -> None:
        training = await run_job_set(world)
        await wait_for_room(world)
        world.store.put_parent(training.suspended().value())
        await delete_job_set_pods(world)
        assert slot(world, "h0") == "n1"

    async def test_its_job_set_is_seen_to_be_suspended_when_its_pods_have_gone(self, world: Harness) -> None:
        training = await run_job_set(world)
        await wait_for_room(world)
        await delete_job_set_pods(world)
        assert slot(world, "h0") == ""
        world.store.put_parent(training.suspended().value())
        await world.run_until_idle()
        assert slot(world, "h0") == "n1"

    async def test_its_job_is_gone(self, world: Harness) -> None:
        await run_job(world, 2)
        await wait_for_room(world)
        world.delete("train-0")
        await world.run_until_idle()
        world.store.drop_job(Key("default", "train"))
        await world.run_until_idle()
        assert slot(world, "h0") == "n1"

    async def test_its_group_is_gone(self, world: Harness) -> None:
        await run_gang(world)
        await wait_for_room(world)
        world.delete("m0")
        await world.run_until_idle()
        world.store.drop_group(GANG)
        await world.run_until_idle()
        assert slot(world, "h0") == "n1"

    async def test_its_member_was_replaced_before_it_died(self, world: Harness) -> None:
        """podReplacementPolicy TerminatingOrFailed: the replacement comes while the old one still has its node."""
        await run_job(world, 2)
        await world.add(node("n3").cpu(1), job_pods(0)[0].on("n1").deleting()).run_until_idle()
        await world.add(*job_pods(0, generation="b")).run_until_idle()
        assert slot(world, "train-0b") == "n3"
        world.bind("train-0b")
        await world.run_until_idle()
        await wait_for_room(world)
        world.delete("train-0")
        await world.run_until_idle()
        assert slot(world, "h0") == "n1"

    async def test_nobody_is_left_of_a_gang_that_nobody_makes_anew(self, world: Harness) -> None:
        await run_gang(world)
        await wait_for_room(world)
        world.delete("m0")
        world.delete("m1")
        await world.run_until_idle()
        assert slot(world, "h0") in {"n1", "n2"}

    async def test_a_surplus_member_that_nobody_asked_for_leaves_none(self, world: Harness) -> None:
        await run_gang(world)
        await world.add(node("n3").cpu(1), members(3)[2].on("n3")).run_until_idle()
        await wait_for_room(world)
        world.delete("m2")
        await world.run_until_idle()
        assert slot(world, "h0") == "n3"

    async def test_bound_members_of_a_gang_that_never_ran_leave_none(self, world: Harness) -> None:
        await world.add(*small_nodes(1, 1), gang(2), members(1)[0].on("n1")).run_until_idle()
        await wait_for_room(world)
        world.delete("m0")
        await world.run_until_idle()
        assert slot(world, "h0") == "n1"


class TestAGangThatIsToGrow:
    """Two members run, and there is no room for the third that its Job asks for by now."""

    @pytest.fixture(
        params=[
            pytest.param(False, id="whose quorum this process has seen"),
            pytest.param(True, id="of which a restart knows only that it ran"),
        ]
    )
    async def world(self, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
        world = Harness(rules=RepairRules(grace=10.0, broken=BrokenAction.EVICT))
        grown = gang(3).controlled_by("Job", "train", "job-train").condition("True", "Scheduled")
        if not request.param:
            await run_job(world, 2)
        running = [each.on(f"n{place}") for place, each in enumerate(job_pods(0, 1), 1)]
        world.add(*small_nodes(2, 1), job_gang(3), grown.with_field(2, "metadata", "generation"))
        await world.add(*running, *job_pods(2)).run_until_idle()
        assert "only 0 of 1 members fit" in message(world)
        yield world
        await world.close()

    async def test_it_replaces_a_member_that_dies(self, world: Harness) -> None:
        world.delete("train-0")
        await world.add(*job_pods(0, generation="b")).run_until_idle()
        call = world.bind("train-0b")
        await world.run_until_idle()
        assert (call.error, world.node_of("train-0b")) == ("", "n1")
        assert slot(world, "train-2") == ""
        await world.pass_time(20.0)
        assert (world.heard.broken, world.api.list_calls("evict")) == ([], [])

    async def test_it_gets_its_whole_new_quorum_when_there_is_room_for_it(self, world: Harness) -> None:
        world.delete("train-0")
        await world.add(*job_pods(0, generation="b")).run_until_idle()
        world.bind("train-0b")
        await world.run_until_idle()
        await world.add(node("n3").cpu(1)).run_until_idle()
        assert slot(world, "train-2") == "n3"

    async def test_of_which_nobody_is_left_it_starts_anew_as_large_as_it_is_to_be(self, world: Harness) -> None:
        """Like a replica of a LeaderWorkerSet that is made anew in another size."""
        world.delete("train-0")
        world.delete("train-1")
        await world.add(*job_pods(0, 1, generation="b")).run_until_idle()
        assert (slot(world, "train-0b"), slot(world, "train-1b")) == ("", "")
        await world.add(node("n3").cpu(1)).run_until_idle()
        assert {slot(world, name) for name in ("train-0b", "train-1b", "train-2")} == {"n1", "n2", "n3"}


class TestLostNodes:
    async def test_replacements_stay_in_the_domain_of_the_gang(self, world: Harness) -> None:
        await run_gang(world, rack_bound=True)
        await world.add(
            *[node(f"a{place}").cpu(8).rack("r2") for place in (1, 2)], node("n3").cpu(1).rack("r1")
        ).run_until_idle()
        world.store.drop_node("n1")
        world.delete("m0")
        await world.add(*members(1, first=2)).run_until_idle()
        assert slot(world, "m2") == "n3"

    async def test_no_replacement_goes_elsewhere_while_members_on_lost_nodes_count(self, world: Harness) -> None:
        """The pods of a node that is gone are deleted one by one: the first replacement must not lead the gang away."""
        await run_gang(world, rack_bound=True)
        await world.add(node("a1").cpu(8).rack("r2")).run_until_idle()
        world.store.drop_node("n1")
        world.store.drop_node("n2")
        world.delete("m0")
        await world.add(*members(1, first=2)).run_until_idle()
        assert slot(world, "m2") == ""
        assert message(world).startswith(
            "Broken: only 1 of 2 members are left of this gang, which was running; DomainFull:"
        )
        world.delete("m1")
        await world.add(*members(1, first=3)).run_until_idle()
        assert {slot(world, "m2"), slot(world, "m3")} == {"a1"}

    async def test_a_node_that_comes_back_in_time_gets_its_member_back(self, world: Harness) -> None:
        await run_gang(world)
        world.store.drop_node("n1")
        world.delete("m0")
        await world.add(*members(1, first=2)).run_until_idle()
        assert slot(world, "m2") == ""
        await world.add(node("n1").cpu(1)).run_until_idle()
        assert slot(world, "m2") == "n1"

    async def test_a_cordoned_node_gets_nobody_back(self, world: Harness) -> None:
        await run_gang(world)
        await world.add(node("n1").cpu(1).cordoned(), node("n3").cpu(1)).run_until_idle()
        world.delete("m0")
        await world.add(*members(1, first=2)).run_until_idle()
        assert slot(world, "m2") == "n3"


class TestAGangOfWhichNobodyRuns:
    async def test_it_starts_anew_with_its_whole_quorum_and_its_room_is_kept_until_then(self, world: Harness) -> None:
        await run_job(world, 2)
        await wait_for_room(world)
        world.delete("train-0")
        world.delete("train-1")
        await world.add(*job_pods(0, generation="b")).run_until_idle()
        assert slot(world, "train-0b") == ""
        assert world.groups.states[OTHER].cycle is None
        await world.add(*job_pods(1, generation="b")).run_until_idle()
        assert (slot(world, "train-0b"), slot(world, "train-1b")) == ("n1", "n2")
        assert world.binding_cycle().reservation.need == 2

    async def test_it_leaves_its_old_slots_if_the_whole_fits_elsewhere_only(self, world: Harness) -> None:
        await run_gang(world, rack_bound=True)
        two = [each.controlled_by("ReplicaSet", "s") for each in members(2, first=2)]
        await world.add(*[node(f"a{place}").cpu(1).rack("r2") for place in (1, 2)]).run_until_idle()
        world.store.drop_node("n2")
        world.delete("m0")
        await world.add(two[0]).run_until_idle()
        world.delete("m1")
        await world.add(two[1]).run_until_idle()
        assert {slot(world, "m2"), slot(world, "m3")} == {"a1", "a2"}
        assert len(world.store.vacancies) == 0

    async def test_it_keeps_its_old_slots_while_the_whole_fits_nowhere(self, world: Harness) -> None:
        await run_job(world, 2)
        await wait_for_room(world)
        world.store.drop_node("n2")
        world.delete("train-0")
        world.delete("train-1")
        await world.add(*job_pods(0, 1, generation="b")).run_until_idle()
        assert world.groups.states[OTHER].cycle is None
        assert "only 1 of 2 members fit into the cluster" in message(world)
        await world.add(node("n2").cpu(1)).run_until_idle()
        assert (slot(world, "train-0b"), slot(world, "train-1b")) == ("n1", "n2")

    async def test_its_old_slots_help_it_as_soon_as_they_take_it_again(self, world: Harness) -> None:
        await run_job(world, 2)
        await world.add(*[node(f"n{place}").cpu(1).cordoned() for place in (1, 2)]).run_until_idle()
        world.delete("train-0")
        world.delete("train-1")
        await world.add(*job_pods(0, 1, generation="b")).run_until_idle()
        assert slot(world, "train-0b") == ""
        await world.add(*small_nodes(2, 1)).run_until_idle()
        assert (slot(world, "train-0b"), slot(world, "train-1b")) == ("n1", "n2")

    async def test_a_replica_that_is_made_anew_as_a_whole_gets_its_nodes_back(self, world: Harness) -> None:
        """LeaderWorkerSet, RecreateGroupOnPodRestart: same names, other UIDs."""
        world.add(*small_nodes(2, 1), gang(2).controlled_by("LeaderWorkerSet", "s").replica(0))
        world.store.put_parent(leader_worker_set("s").gang_policy().size(1, 2).value())
        pods = [
            pod(f"s-0-{worker}").of_replica("s", 0, worker).cpu(1).scheduler(SCHEDULER).in_group("g")
            for worker in (0, 1)
        ]
        await world.add(pods[0].on("n2"), pods[1].on("n1")).run_until_idle()
        await wait_for_room(world)
        world.delete("s-0-0")
        world.delete("s-0-1")
        await world.run_until_idle()
        await world.add(*[each.uid(f"anew-{place}") for place, each in enumerate(pods)]).run_until_idle()
        assert (slot(world, "s-0-0"), slot(world, "s-0-1")) == ("n2", "n1")


class TestARefusalByTheKubelet:
    async def test_only_that_slot_is_planned_anew_in_the_domain_and_without_that_node(self, world: Harness) -> None:
        await run_gang(world, rack_bound=True)
        await world.add(node("n3").cpu(1).rack("r1"), node("a1").cpu(8).rack("r2")).run_until_idle()
        await world.add(members(1)[0].on("n1").kubelet_rejected("OutOfcpu")).run_until_idle()
        await world.add(*members(1, first=2)).run_until_idle()
        assert slot(world, "m2") == "n3"
        assert world.node_of("m1") == "n2"

    async def test_the_node_is_out_for_the_class_until_the_time_is_over(self, world: Harness) -> None:
        await run_gang(world)
        await world.add(members(1)[0].on("n1").kubelet_rejected("OutOfpods")).run_until_idle()
        await world.add(*members(1, first=2)).run_until_idle()
        assert slot(world, "m2") == ""
        await world.pass_time(299.0)
        assert slot(world, "m2") == ""
        await world.pass_time(31.0)
        assert slot(world, "m2") == "n1"

    async def test_the_node_is_out_though_kube_scheduler_which_does_not_ask_the_kubelet_offers_it_first(
        self, world: Harness
    ) -> None:
        await run_gang(world)
        await world.add(members(1)[0].on("n1").kubelet_rejected("OutOfcpu")).run_until_idle()
        world.add(*members(1, first=2))
        assert isinstance(world.service.filter(world.pod("m2"), ["n1"]), Hold)
        await world.run_until_idle()
        assert slot(world, "m2") == ""

    async def test_the_node_is_open_again_once_it_changes(self, world: Harness) -> None:
        await run_gang(world)
        await world.add(members(1)[0].on("n1").kubelet_rejected("NodeAffinity")).run_until_idle()
        await world.add(*members(1, first=2)).run_until_idle()
        await world.add(node("n1").cpu(2)).run_until_idle()
        assert slot(world, "m2") == "n1"

    async def test_the_node_is_out_for_members_with_volumes_too(self, world: Harness) -> None:
        world.store.put_object(volume("v").local_to("n1", "n2").value())
        world.store.put_object(volume_claim("c").bound_to("v").value())
        nodes = [node(name).label("kubernetes.io/hostname", name).cpu(2) for name in ("n1", "n2")]
        first, second, replacement = (each.mounting("c") for each in members(3))
        await world.add(*nodes, gang(2), first.on("n1"), second.on("n1")).run_until_idle()
        await world.add(first.on("n1").kubelet_rejected("OutOfcpu"), replacement).run_until_idle()
        assert slot(world, "m2") == "n2"

    async def test_its_room_is_not_kept(self, world: Harness) -> None:
        await run_gang(world)
        await wait_for_room(world)
        await world.add(members(1)[0].on("n1").kubelet_rejected("UnexpectedAdmissionError")).run_until_idle()
        assert slot(world, "h0") == "n1"


class TestABrokenGang:
    async def test_it_is_marked_at_once_but_nothing_is_said_while_nobody_waits(self, world: Harness) -> None:
        await run_gang(world)
        world.delete("m0")
        await world.run_until_idle()
        assert message(world) == (
            "Broken: only 1 of 2 members are left of this gang, which was running; no replacements of the "
            "missing members exist"
        )
        assert world.reasons() == [Reason.SCHEDULED]

    async def test_its_replacement_is_told_that_it_is_broken_and_what_it_waits_for(self, world: Harness) -> None:
        await run_gang(world, rack_bound=True)
        world.store.drop_node("n1")
        world.delete("m0")
        await world.add(*members(1, first=2)).run_until_idle()
        assert world.reasons() == [Reason.SCHEDULED, Reason.BROKEN]
        assert "DomainFull: only 0 of 1" in message(world)

    async def test_it_goes_before_gangs_that_wait_for_longer(self, world: Harness) -> None:
        await run_gang(world)
        await wait_for_room(world)
        world.store.drop_node("n1")
        world.delete("m0")
        await world.add(*members(1, first=2)).run_until_idle()
        await world.add(node("n3").cpu(1)).run_until_idle()
        assert (slot(world, "m2"), slot(world, "h0")) == ("n3", "")

    async def test_but_not_before_gangs_of_higher_priority(self) -> None:
        world = Harness(preemption=PreemptionMode.OFF)
        await run_gang(world)
        urgent = pod("h0").cpu(1).scheduler(SCHEDULER).in_group("h").priority(5)
        await world.add(pod_group("h").gang(1).priority(5), urgent).run_until_idle()
        world.store.drop_node("n1")
        world.delete("m0")
        await world.add(*members(1, first=2)).run_until_idle()
        await world.add(node("n3").cpu(1)).run_until_idle()
        assert (slot(world, "m2"), slot(world, "h0")) == ("", "n3")
        await world.close()

    async def test_it_is_reported_once_after_the_grace(self, world: Harness) -> None:
        await run_gang(world)
        world.delete("m0")
        await world.run_until_idle()
        await world.pass_time(299.0)
        assert world.heard.broken == []
        await world.pass_time(1.0)
        await world.pass_time(600.0)
        ((group, verdict),) = world.heard.broken
        assert (group, verdict.have, verdict.need) == (GANG, 1, 2)

    async def test_one_that_is_mended_in_time_is_not_reported_and_the_next_time_counts_anew(
        self, world: Harness
    ) -> None:
        await run_gang(world)
        world.delete("m0")
        await world.run_until_idle()
        await world.pass_time(200.0)
        await world.add(members(3)[2].on("n1")).run_until_idle()
        assert world.groups.states[GANG].verdict == world.heard.verdicts[-1][1]
        world.delete("m2")
        await world.run_until_idle()
        await world.pass_time(200.0)
        assert world.heard.broken == []
        await world.pass_time(100.0)
        assert len(world.heard.broken) == 1

    async def test_a_job_that_is_over_is_not_broken(self, world: Harness) -> None:
        await run_job(world, 2)
        await world.add(job_gang(2).condition("Failed")).run_until_idle()
        world.delete("train-0")
        await world.run_until_idle()
        await world.pass_time(400.0)
        assert world.heard.broken == []
        assert Reason.BROKEN not in world.reasons()

    async def test_a_gang_that_never_had_its_quorum_is_not_broken(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), members(1)[0].on("n1")).run_until_idle()
        assert message(world) == "QuorumMissing: 1 of 2 members exist"

    async def test_a_gang_that_is_to_have_more_members_than_fit_is_not_broken(self, world: Harness) -> None:
        await run_gang(world)
        for each in small_nodes(2):
            world.add(each.cordoned())
        await world.add(gang(3), *members(1, first=2)).run_until_idle()
        assert message(world).startswith("NoCapacity: ")
        world.delete("m0")
        await world.run_until_idle()
        assert message(world).startswith("Broken: only 1 of 3 members are left of this gang, which was running; ")

    async def test_after_a_restart_the_groups_condition_says_that_it_ran(self, world: Harness) -> None:
        ran = gang(2).condition("True", "Scheduled")
        await world.add(*small_nodes(2), ran, members(1)[0].on("n1")).run_until_idle()
        assert message(world).startswith("Broken: only 1 of 2")

    async def test_one_whose_group_is_gone_is_not_reported(self, world: Harness) -> None:
        await run_gang(world)
        world.delete("m0")
        await world.run_until_idle()
        world.store.drop_group(GANG)
        await world.run_until_idle()
        await world.pass_time(400.0)
        assert world.heard.broken == []


class TestEvictingTheRest:
    @pytest.fixture
    async def world(self) -> AsyncIterator[Harness]:
        world = Harness(rules=RepairRules(grace=10.0, broken=BrokenAction.EVICT))
        yield world
        await world.close()

    async def test_what_is_left_is_evicted_after_the_grace_and_its_room_is_everybodys(self, world: Harness) -> None:
        await run_job(world, 3)
        world.delete("train-0")
        await world.run_until_idle()
        await world.pass_time(10.0)
        assert sorted(call.name for call in world.api.list_calls("evict")) == ["train-1", "train-2"]
        await wait_for_room_at_last(world)
        world.delete("train-1")
        world.delete("train-2")
        await world.run_until_idle()
        assert len(world.store.vacancies) == 0

    async def test_of_members_that_take_their_time_to_end_no_slot_is_kept_either(self, world: Harness) -> None:
        await run_job(world, 3)
        world.delete("train-0")
        await world.run_until_idle()
        world.api.hold("evict")  # what the API server does then is told by hand
        await world.pass_time(10.0)
        await world.add(*[job_pods(index)[0].on(f"n{index + 1}").deleting() for index in (1, 2)]).run_until_idle()
        world.delete("train-1")
        await world.run_until_idle()
        world.delete("train-2")
        await world.run_until_idle()
        assert len(world.store.vacancies) == 0

    async def test_a_budget_that_refuses_keeps_its_pod(self, world: Harness) -> None:
        await run_gang(world)
        world.api.fail("evict", budget_refusal())
        world.delete("m0")
        await world.run_until_idle()
        await world.pass_time(10.0)
        assert [call.name for call in world.api.list_calls("evict")] == ["m1"]
        assert world.groups.states[GANG].memory.get_or_create(GangHistory).evicting

    async def test_a_gang_that_is_whole_again_keeps_what_it_has(self, world: Harness) -> None:
        await run_job(world, 3)
        world.delete("train-0")
        await world.run_until_idle()
        world.api.hold("evict")
        await world.pass_time(10.0)
        await world.add(job_pods(0, generation="b")[0].on("n1")).run_until_idle()
        world.api.release("evict")
        await world.run_until_idle()
        assert len(world.api.list_calls("evict")) == 1

    async def test_a_new_term_takes_nothing_for_broken_that_an_earlier_one_has_seen(self, world: Harness) -> None:
        """Another process has repaired the gang meanwhile."""
        await run_job(world, 3)
        world.delete("train-0")
        await world.run_until_idle()
        world.term.active = False
        world.groups.wake()
        world.core.tasks.spawn(world.core.loop.run())
        await world.run_tasks()
        world.clock.advance(20.0)
        await world.add(job_pods(0, generation="b")[0].on("n1")).run_tasks()
        world.term.active = True
        await world.run_until_idle()
        assert (world.heard.broken, world.api.list_calls("evict")) == ([], [])

    async def test_before_the_records_are_read_nobody_is_evicted_and_the_grace_begins_after_it(
        self, world: Harness
    ) -> None:
        """Half a gang may be the half of a commit that is still to be rolled forward."""
        ran = gang(3).condition("True", "Scheduled")
        world.group_scheduler.set_obstacle("no records")
        await world.add(*small_nodes(3), ran, *[each.on("n1") for each in members(2)]).run_until_idle()
        await world.pass_time(20.0)
        assert (world.heard.broken, world.api.list_calls("evict")) == ([], [])
        world.group_scheduler.set_obstacle("")
        await world.run_until_idle()
        await world.pass_time(9.0)
        assert world.api.list_calls("evict") == []
        await world.pass_time(1.0)
        assert len(world.api.list_calls("evict")) == 2


async def wait_for_room_at_last(world: Harness) -> None:
    await world.add(pod_group("h").gang(1), pod("h0").cpu(1).scheduler(SCHEDULER).in_group("h")).run_until_idle()
    assert slot(world, "h0") == "n1"


class TestWhatOthersDid:
    async def test_a_member_that_another_scheduler_bound_to_another_domain_is_reported(self, world: Harness) -> None:
        await run_gang(world, rack_bound=True)
        await world.add(node("a1").cpu(8).rack("r2"), members(3)[2].on("a1")).run_until_idle()
        assert world.reasons()[-1] is Reason.DOMAIN_CONFLICT
        assert message(world).endswith("; r1, r2")

    async def test_and_nobody_is_sent_to_either_side(self, world: Harness) -> None:
        await run_gang(world, rack_bound=True)
        await world.add(node("a1").cpu(8).rack("r2"), members(3)[2].on("a1"), *members(1, first=3)).run_until_idle()
        assert slot(world, "m3") == ""

    async def test_the_burst_goes_on_without_a_member_that_is_bound_elsewhere(self, world: Harness) -> None:
        racks = [node("n1").cpu(2).rack("r1"), node("a1").cpu(1).rack("r2")]
        await world.add(*racks, gang(2).topology(), *members(2)).run_until_idle()

        def steal(_: Key) -> None:
            world.api.pods[Key("default", "m1")]["spec"]["nodeName"] = "a1"

        world.api.before_bind = steal
        world.bind("m0")
        world.bind("m1")
        await world.run_until_idle()
        await world.pass_time(61.0)
        assert (world.node_of("m0"), world.node_of("m1")) == ("n1", "a1")
        assert world.reasons()[-1] is Reason.DOMAIN_CONFLICT


async def test_a_repair_takes_a_nomination_and_a_binding_and_no_record(world: Harness) -> None:
    world.start_nominating()
    await run_gang(world)
    before = len(world.api.calls)
    world.delete("m0")
    await world.add(*members(1, first=2)).run_until_idle()
    world.bind("m2")
    await world.run_until_idle()
    assert [call.verb for call in world.api.calls[before:]] == ["nominate", "bind"]


class TestARestart:
    async def test_a_restart_forgets_the_slot_but_not_the_domain(self, world: Harness) -> None:
        ran = gang(2).topology().condition("True", "Scheduled")
        racks = [node("n1").cpu(1).rack("r1"), node("n2").cpu(1).rack("r1"), node("a1").cpu(8).rack("r2")]
        await world.add(*racks, ran, members(2)[1].on("n2"), *members(1, first=2)).run_until_idle()
        assert (slot(world, "m2"), world.binding_cycle().stage) == ("n1", CycleStage.GATHERING)

    async def test_nor_the_domain_of_members_whose_nodes_are_all_gone(self, world: Harness) -> None:
        ran = gang(2).topology().condition("True", "Scheduled")
        bound = members(2)[1].on("n2").annotation("scheduling.serried.dev/domain", "r1")
        racks = [node("n1").cpu(1).rack("r1"), node("a1").cpu(8).rack("r2")]
        await world.add(*racks, ran, bound, *members(1, first=2)).run_until_idle()
        assert slot(world, "m2") == "n1"

    async def test_a_standby_sees_who_dies_and_keeps_the_slot_for_its_own_turn(self, world: Harness) -> None:
        await run_gang(world)
        world.group_scheduler.end_term()
        world.delete("m0")
        world.group_scheduler.drop_queued()
        world.clock.advance(119.0)
        world.group_scheduler.drop_queued()
        world.term.active = True
        await wait_for_room(world)
        await world.add(*members(1)).run_until_idle()
        assert slot(world, "m0") == "n1"

    async def test_but_no_longer_than_the_leader_does(self, world: Harness) -> None:
        await run_gang(world)
        world.group_scheduler.end_term()
        world.delete("m0")
        world.group_scheduler.drop_queued()
        world.clock.advance(120.0)
        world.group_scheduler.drop_queued()
        assert len(world.store.vacancies) == 0
        assert world.store.occupancy.node_of("vacancy:pod-m0") is None

    @pytest.mark.parametrize(
        ("ago", "kept"),
        [
            pytest.param(119, ["m0"], id="the slot of a member that has just failed is kept"),
            pytest.param(120, [], id="that of one that failed long ago is not"),
            pytest.param(-5, ["m0"], id="of one that failed by another clock in the future it is"),
            pytest.param(-3600, ["m0"], id="and for no longer if that clock is an hour ahead"),
        ],
    )
    async def test_a_restart_finds_the_failed_members_that_are_still_there(
        self, world: Harness, ago: int, kept: list[str]
    ) -> None:
        await begin_with_failed(world, ago)
        assert [vacancy.pod.name for vacancy in world.store.vacancies] == kept
        await world.pass_time(120.0)
        assert len(world.store.vacancies) == 0

    async def test_and_gives_it_to_the_replacement_though_another_gang_waits_for_the_room(self, world: Harness) -> None:
        await begin_with_failed(world, 10)
        await wait_for_room(world)
        await world.add(*members(1, first=2)).run_until_idle()
        assert slot(world, "m2") == "n1"

    async def test_room_that_another_has_by_now_is_nobody_elses(self, world: Harness) -> None:
        await begin_with_failed(world, 10, pod("p").cpu(1).on("n1"))
        assert len(world.store.vacancies) == 0


class TestAnotherApiLevel:
    """The extender begins anew at a level at which a Job's objects are still to be made, and is given a kept slot."""

    async def test_room_that_waits_for_the_objects_is_nobody_elses(self, world: Harness) -> None:
        await begin_without_objects(world)
        await wait_for_room(world)
        await world.add(gang(2).uid("anew").controlled_by("Job", "train", "job-train")).run_until_idle()
        await world.add(running_pod(0, generation="b", gone=True)).run_until_idle()
        assert slot(world, "train-0b") == "n1"

    @pytest.mark.parametrize("leads", [True, False], ids=["a leader", "a standby"])
    async def test_it_is_nobodys_for_no_longer_than_a_slot_is_kept(self, world: Harness, leads: bool) -> None:  # noqa: FBT001
        await begin_without_objects(world)
        world.term.active = leads
        for seconds, kept in ((119.0, 1), (1.0, 0)):
            world.clock.advance(seconds)
            await world.run_until_idle() if leads else world.group_scheduler.drop_queued()
            assert len(world.store.vacancies) == kept

    async def test_a_term_that_begins_meanwhile_leaves_it_waiting(self, world: Harness) -> None:
        await begin_without_objects(world)
        world.core.end_term()
        assert await world.recovery.recover()
        assert len(world.store.vacancies) == 1


def running_pod(index: int, generation: str = "", *, gone: bool = False) -> PodBuilder:
    """A pod of Job train that names no group."""
    made = pod(f"train-{index}{generation}").of_job("train", index).cpu(1).scheduler(SCHEDULER)
    return made if gone else made.on(f"n{index + 1}")


async def begin_without_objects(world: Harness) -> None:
    """Job train of two has lost the pod on n1, whose slot is kept; its PodGroup is out of sight by now."""
    earlier = Harness()
    group = gang(2).controlled_by("Job", "train", "job-train")
    earlier.add(*small_nodes(2, 1), job_gang(2), group, running_pod(0), running_pod(1))
    earlier.store.drop_pod("pod-train-0")
    for each in earlier.store.vacancies:
        each.since = world.clock()
    world.add(*small_nodes(2, 1), job_gang(2))
    world.store.put_pod(replace(running_pod(1).value(), told=True, stranded=True))
    world.store.earlier_slots.restore_vacancies(earlier.store.vacancies)
    await world.run_until_idle()


async def begin_with_failed(world: Harness, ago: int, *others: PodBuilder) -> None:
    """A process begins that finds gang g of two with one member, and one on n1 that failed so many seconds ago."""
    ended = {"terminated": {"exitCode": 1, "finishedAt": write_time(world.wall_time() - ago)}}
    failed = members(1)[0].on("n1").phase("Failed").with_field([{"state": ended}], "status", "containerStatuses")
    world.term.active = False
    world.add(*small_nodes(2, 1), gang(2).condition("True", "Scheduled"), failed, members(2)[1].on("n2"), *others)
    world.group_scheduler.begin_term(world.wall_time())
    world.term.active = True
    await world.run_until_idle()
