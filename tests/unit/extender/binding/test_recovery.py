"""A new term takes over what an earlier one has promised."""

import asyncio

import pytest

from extender.core.binding import recovery as stray_nominations
from extender.core.binding import run as cycle_runner
from extender.core.binding.records import Records
from extender.core.scheduling.binding_cycle import CycleStage
from serried.api.names import GroupKey, Key
from serried.api.reservation import Reservation, Slot, Victim
from serried.api.verdict import Reason
from serried.kube.errors import ApiError
from serried.kube.retry import Backoff
from tests.support.builders import PodBuilder, job, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.fake_api import error
from tests.support.leftover_records import add_leftover_record

pytestmark = pytest.mark.core


async def recover(world: Harness) -> None:
    await world.recovery.recover()
    await world.run_tasks()


@pytest.fixture
def cluster(world: Harness) -> Harness:
    return world.add(*small_nodes(2), gang(2), *members(2))


async def test_a_committed_record_is_rolled_forward_without_any_call_of_the_scheduler(cluster: Harness) -> None:
    await add_leftover_record(cluster, "m0", "m1", committed=True)
    await recover(cluster)
    await cluster.run_until_idle()
    assert (cluster.node_of("m0"), cluster.node_of("m1")) == ("n1", "n1")
    assert cluster.nothing_reserved


async def test_so_is_one_of_a_release_that_did_not_say_the_format(cluster: Harness) -> None:
    await add_leftover_record(cluster, "m0", "m1", committed=True)
    for record in cluster.api.records.values():
        del record["spec"]["format"]
    await recover(cluster)
    await cluster.run_until_idle()
    assert (cluster.node_of("m0"), cluster.node_of("m1")) == ("n1", "n1")
    assert cluster.nothing_reserved


async def test_half_a_burst_is_finished(cluster: Harness) -> None:
    cluster.add(members(1)[0].on("n1"))
    await add_leftover_record(cluster, "m0", "m1", committed=True)
    await recover(cluster)
    await cluster.run_until_idle()
    assert [call.name for call in cluster.api.list_calls("bind")] == ["m1"]
    assert cluster.nothing_reserved


async def test_a_process_that_dies_in_the_burst_leaves_rank_and_domain_to_the_next(world: Harness) -> None:
    racked = [each.rack("a") for each in small_nodes(2)]
    first, second = (each.of_job("j", index) for index, each in enumerate(members(2)))
    world.add(*racked, gang(2).topology(), first.on("n1"), second)
    await add_leftover_record(world, "m0", "m1", committed=True, domain="a")
    await recover(world)
    await world.run_until_idle()
    told = {"scheduling.serried.dev/rank": "1", "scheduling.serried.dev/domain": "a"}
    assert told.items() <= world.annotations("m1").items()


async def test_a_planned_record_is_taken_up_where_it_was_left(cluster: Harness) -> None:
    await add_leftover_record(cluster, "m0", "m1")
    await recover(cluster)
    assert {slot.node for slot in cluster.binding_cycle().reservation.slots.values()} == {"n1"}
    calls = [cluster.bind("m0"), cluster.bind("m1")]
    await cluster.run_until_idle()
    assert [call.error for call in calls] == ["", ""]


async def test_a_planned_record_that_does_not_hold_any_more_is_dropped(cluster: Harness) -> None:
    await add_leftover_record(cluster, "m0", "m1", nodes="gone")
    await recover(cluster)
    assert cluster.nothing_reserved


async def test_a_planned_record_that_misses_a_member_is_dropped(cluster: Harness) -> None:
    await add_leftover_record(cluster, "m0", "m1")
    cluster.delete("m1")
    await recover(cluster)
    assert cluster.nothing_reserved


async def test_a_planned_record_that_misses_a_member_is_in_the_way_of_no_other_one(world: Harness) -> None:
    lesser = pod_group("a").gang(2)
    world.add(node("n1").cpu(1), gang(1), *members(1), lesser, pod("a0").cpu(1).scheduler(SCHEDULER).in_group("a"))
    group = lesser.value()
    slots = {f"pod-{name}": Slot(f"pod-{name}", name, "n1") for name in ("a0", "gone")}
    await Records(world.api.client(), "v1", "earlier").write(group, Reservation(group.key, group.uid, "", 2, slots))
    await add_leftover_record(world, "m0")
    await world.recovery.recover()
    assert [slot.name for slot in world.binding_cycle().reservation.slots.values()] == ["m0"]


async def test_a_planned_record_that_misses_a_member_beyond_the_quorum_goes_on_without_it(world: Harness) -> None:
    world.add(*small_nodes(2), gang(2), *members(2))
    slots = {f"pod-m{index}": Slot(f"pod-m{index}", f"m{index}", "n1") for index in range(3)}
    left = Reservation(GANG, "podgroup-g", "", 2, slots)
    await Records(world.api.client(), "v1", "earlier").write(gang(2).value(), left)
    await recover(world)
    assert {slot.name: slot.node for slot in world.binding_cycle().reservation.slots.values()} == {
        "m0": "n1",
        "m1": "n1",
    }
    calls = [world.bind("m0"), world.bind("m1")]
    await world.run_until_idle()
    assert [call.error for call in calls] == ["", ""]
    assert world.nothing_reserved


async def test_slots_of_a_gang_of_lower_priority_are_not_in_the_way_of_a_planned_record(world: Harness) -> None:
    """A plain pod has taken room on which both gangs are planned: only one of them can stay."""
    lesser = pod_group("a").gang(1).priority(1)
    world.add(node("n1").cpu(2), pod("plain").cpu(1).on("n1"), gang(1).priority(9), members(1)[0].priority(9))
    world.add(lesser, pod("a0").cpu(1).scheduler(SCHEDULER).in_group("a").priority(1))
    group = lesser.value()
    left = Reservation(group.key, group.uid, "", 1, {"pod-a0": Slot("pod-a0", "a0", "n1")})
    await Records(world.api.client(), "v1", "earlier").write(group, left)
    await add_leftover_record(world, "m0")
    await recover(world)
    call = world.bind("m0")
    await world.run_until_idle()
    assert (call.error, world.node_of("m0")) == ("", "n1")


async def test_a_member_whose_node_has_gone_gets_no_room_that_another_record_has_promised(
    world: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two a third record is dropped, which takes its time."""
    monkeypatch.setattr(cycle_runner, "_ROLL_FORWARD", Backoff(0.0, 0.0))
    first, second = members(2)
    world.add(node("n1").cpu(1), node("n2").cpu(1), gang(2), first.on("n1"), second, pod_group("z").gang(1))
    world.add(pod("z0").cpu(1).scheduler(SCHEDULER).in_group("z"))
    await add_leftover_record(world, "m0", "m1", committed=True, nodes="gone")
    for name, committed in (("x", ()), ("z", ("pod-z0",))):
        group = pod_group(name).gang(1).value()
        left = Reservation(
            group.key, group.uid, "", 1, {f"pod-{name}0": Slot(f"pod-{name}0", f"{name}0", "n2")}, committed
        )
        await Records(world.api.client(), "v1", "earlier").write(group, left)
    world.api.hold("delete")
    recovering = asyncio.create_task(world.recovery.recover())
    await world.run_tasks()
    world.api.release("delete")
    await recovering
    await world.run_tasks()
    assert (world.node_of("z0"), world.node_of("m1")) == ("n2", "")


@pytest.fixture(params=["gone", "made anew"])
def orphaned(cluster: Harness, request: pytest.FixtureRequest) -> Harness:
    """The PodGroup that a record was made for is not there any more."""
    cluster.store.drop_group(GANG)
    if request.param == "made anew":
        cluster.add(gang(2).uid("another"))
    return cluster


class TestARecordThatOutlivesItsPodGroup:
    async def test_is_dropped_if_it_was_only_planned(self, orphaned: Harness) -> None:
        await add_leftover_record(orphaned, "m0", "m1")
        await recover(orphaned)
        assert orphaned.nothing_reserved

    async def test_is_rolled_forward_if_it_was_committed(self, orphaned: Harness) -> None:
        orphaned.add(members(1)[0].on("n1"))
        await add_leftover_record(orphaned, "m0", "m1", committed=True)
        await recover(orphaned)
        await orphaned.run_until_idle()
        assert [call.body["node"] for call in orphaned.api.list_calls("bind")] == ["n1"]
        assert orphaned.nothing_reserved

    async def test_is_withdrawn_if_nobody_of_it_was_bound(self, orphaned: Harness) -> None:
        await add_leftover_record(orphaned, "m0", committed=True)
        await recover(orphaned)
        assert orphaned.api.list_calls("bind") == []
        assert orphaned.nothing_reserved

    async def test_ends_also_if_its_pods_belong_elsewhere_by_now(self, cluster: Harness) -> None:
        cluster.store.drop_group(GANG)
        for each in (members(1)[0].on("n1"), *members(1, first=1)):
            cluster.add(each.with_field({"podGroupName": "h"}, "spec", "schedulingGroup"))
        await add_leftover_record(cluster, "m0", "m1", committed=True)
        await recover(cluster)
        await cluster.run_until_idle()
        assert (cluster.node_of("m0"), cluster.node_of("m1")) == ("n1", "n1")
        await cluster.pass_time(61)
        assert cluster.nothing_reserved

    async def test_keeps_its_domain_when_a_node_of_it_is_lost(
        self, world: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cycle_runner, "_ROLL_FORWARD", Backoff(0.0, 0.0))
        world.add(node("a1").cpu(2).rack("b"), node("b1").cpu(3).rack("a"), node("b2").cpu(2).rack("a"))
        world.add(*members(2), members(1, first=2)[0].on("b1"))
        await add_leftover_record(world, "m0", "m1", "m2", committed=True, nodes="b1", domain="a")
        world.api.fail("bind", error(500), error(500))
        world.api.hold("bind")
        await recover(world)
        world.store.drop_node("b1")
        world.api.release("bind")
        async with asyncio.timeout(5):
            while not (world.node_of("m0") and world.node_of("m1")):
                await world.run_until_idle()
        assert (world.node_of("m0"), world.node_of("m1")) == ("b2", "b2")


async def test_a_record_whose_members_are_all_bound_is_removed(cluster: Harness) -> None:
    cluster.add(*[each.on("n1") for each in members(2)])
    await add_leftover_record(cluster, "m0", "m1", committed=True)
    await recover(cluster)
    assert cluster.nothing_reserved


async def test_recovering_again_after_an_error_takes_nothing_twice(cluster: Harness) -> None:
    await add_leftover_record(cluster, "m0", "m1")
    await recover(cluster)
    await recover(cluster)
    assert len(cluster.ledger) == 1
    calls = [cluster.bind("m0"), cluster.bind("m1")]
    await cluster.run_until_idle()
    assert [call.error for call in calls] == ["", ""]
    assert cluster.nothing_reserved


async def test_what_is_taken_up_goes_on_though_nothing_may_be_planned_yet(cluster: Harness) -> None:
    cluster.term.active = False
    await add_leftover_record(cluster, "m0", "m1")
    cluster.add(members(1, first=5)[0].nominated("n1"))  # a nomination to look at: the cycles have time to begin
    await cluster.recovery.recover()
    cluster.term.active = True
    await cluster.run_tasks()
    assert cluster.binding_cycle().stage is CycleStage.GATHERING


class TestARecordThatIsDroppedAndCannotBeDeleted:
    @pytest.fixture
    async def stubborn(self, cluster: Harness, monkeypatch: pytest.MonkeyPatch) -> Harness:
        """The plan of gang g does not hold any more; that of gang z holds."""
        monkeypatch.setattr(cycle_runner, "_ROLL_FORWARD", Backoff(0.0, 0.0))
        cluster.add(pod_group("z").gang(1), pod("z0").cpu(1).scheduler(SCHEDULER).in_group("z"))
        await add_leftover_record(cluster, "m0", "m1", nodes="gone")
        group = pod_group("z").gang(1).value()
        left = Reservation(group.key, group.uid, "", 1, {"pod-z0": Slot("pod-z0", "z0", "n2")})
        await Records(cluster.api.client(), "v1", "earlier").write(group, left)
        cluster.api.reject("delete", GANG.object_key, error(403))
        return cluster

    async def test_keeps_no_other_from_being_taken_up(self, stubborn: Harness) -> None:
        assert await stubborn.recovery.recover()
        assert {slot.node for slot in stubborn.binding_cycle(GroupKey("default", "z")).reservation.slots.values()} == {
            "n2"
        }
        assert not stubborn.ledger.of_group(GANG)

    async def test_is_deleted_when_that_is_allowed(self, stubborn: Harness, caplog: pytest.LogCaptureFixture) -> None:
        await recover(stubborn)
        assert stubborn.api.record_phase() == "Planned"
        assert any("403" in str(vars(record).get("err")) for record in caplog.records)
        stubborn.api.recover()
        async with asyncio.timeout(5):
            while stubborn.api.record_phase() is not None:
                await stubborn.run_tasks()

    async def test_keeps_its_gang_from_nothing(self, stubborn: Harness) -> None:
        await recover(stubborn)
        stubborn.schedule_groups()
        await stubborn.run_tasks()
        assert {slot.node for slot in stubborn.binding_cycle().reservation.slots.values()} <= {"n1", "n2"}
        stubborn.api.recover()
        calls = [stubborn.bind("m0"), stubborn.bind("m1")]
        await stubborn.run_until_idle()
        assert [call.error for call in calls] == ["", ""]


async def test_an_error_of_the_api_server_is_the_callers_to_wait_out(cluster: Harness) -> None:
    cluster.api.fail("list", error(500))
    with pytest.raises(ApiError):
        await recover(cluster)


MANAGED = {"manager": "serried", "fieldsV1": {"f:status": {"f:nominatedNodeName": {}}}}


class TestStrayNominations:
    async def test_ours_are_taken_off_members_that_hold_no_slot(self, cluster: Harness) -> None:
        left = members(1)[0].nominated("n1").with_field([MANAGED], "metadata", "managedFields")
        await recover(cluster.add(left))
        assert cluster.pod("m0").nominated == ""

    async def test_they_are_looked_at_sixteen_at_a_time(self, cluster: Harness) -> None:
        cluster.add(*[each.nominated("n1").with_field([MANAGED], "metadata", "managedFields") for each in members(40)])
        cluster.api.hold("get")
        recovering = asyncio.create_task(recover(cluster))
        await cluster.run_tasks()
        assert len(cluster.api.list_calls("get")) == 16
        cluster.api.release("get")
        await recovering
        async with asyncio.timeout(5):
            while any(cluster.pod(f"m{number}").nominated for number in range(40)):
                await cluster.run_tasks()

    @pytest.mark.parametrize(
        ("failures", "left"),
        [pytest.param(3, ["", ""], id="three failures are outlasted"), pytest.param(7, ["", "n1"], id="not for ever")],
    )
    async def test_one_that_cannot_be_read_is_read_again_and_keeps_no_other(
        self, cluster: Harness, monkeypatch: pytest.MonkeyPatch, failures: int, left: list[str]
    ) -> None:
        monkeypatch.setattr(stray_nominations, "_RETRY", Backoff(0.0, 0.0))
        cluster.add(*[each.nominated("n1").with_field([MANAGED], "metadata", "managedFields") for each in members(2)])
        cluster.api.fail("get", *[error(500)] * failures)
        await recover(cluster)
        assert sorted(cluster.pod(name).nominated for name in ("m0", "m1")) == left

    async def test_those_of_others_stay(self, cluster: Harness) -> None:
        other = {**MANAGED, "manager": "kube-scheduler"}
        await recover(cluster.add(members(1)[0].nominated("n1").with_field([other], "metadata", "managedFields")))
        assert cluster.pod("m0").nominated == "n1"

    async def test_those_of_recovered_members_stay(self, cluster: Harness) -> None:
        left = members(1)[0].nominated("n1").with_field([MANAGED], "metadata", "managedFields")
        cluster.add(left)
        await add_leftover_record(cluster, "m0", "m1")
        await recover(cluster)
        assert cluster.pod("m0").nominated == "n1"


async def leave_preempting(world: Harness, *victims: str) -> None:
    """An earlier term has died after it had written that these have to go for m0 and m1."""
    slots = {f"pod-m{i}": Slot(f"pod-m{i}", f"m{i}", f"n{i + 1}") for i in range(2)}
    left = Reservation(
        GANG, "podgroup-g", "", 2, slots, victims=[Victim(f"pod-{each}", "default", each) for each in victims]
    )
    await Records(world.api.client(), "v1", "earlier").write(gang(2).value(), left)


@pytest.mark.needs("preemptions")
class TestARecordWithVictims:
    @pytest.fixture
    def occupied(self, world: Harness) -> Harness:
        """Two nodes taken by pods, and a gang of higher priority that wants both."""
        world.api.graceful.update([Key("default", "low1"), Key("default", "low2")])
        world.add(*small_nodes(2), gang(2).priority(9), *(each.cpu(2).priority(9) for each in members(2)))
        return world.add(*(pod(f"low{i}").cpu(2).on(f"n{i}") for i in (1, 2)))

    async def test_of_whom_none_was_evicted_begins_with_the_dry_runs(self, occupied: Harness) -> None:
        await leave_preempting(occupied, "low1", "low2")
        await recover(occupied)
        assert occupied.binding_cycle().stage is CycleStage.PREEMPTING
        assert occupied.api.list_calls("rehearse")
        assert len(occupied.api.list_evicted()) == 2

    async def test_goes_on_with_those_that_are_left(self, occupied: Harness) -> None:
        occupied.add(pod("low1").cpu(2).on("n1").deleting().disrupted(), pod("low2").cpu(2).on("n2").disrupted())
        await leave_preempting(occupied, "low1", "low2")
        await recover(occupied)
        assert not occupied.api.list_calls("rehearse")
        assert occupied.api.list_evicted() == ["low2"]
        occupied.delete("low1")
        occupied.delete("low2")
        await occupied.run_until_idle()
        assert occupied.binding_cycle().stage is CycleStage.GATHERING

    async def test_of_whom_some_only_say_that_they_end_begins_with_the_dry_runs(self, occupied: Harness) -> None:
        occupied.add(pod("low1").cpu(2).on("n1").disrupted())
        await leave_preempting(occupied, "low1", "low2")
        await recover(occupied)
        assert occupied.api.list_calls("rehearse")
        assert occupied.api.list_evicted() == ["low1", "low2"]

    async def test_of_whom_all_say_that_they_end_and_all_still_run_begins_with_the_dry_runs(
        self, occupied: Harness
    ) -> None:
        occupied.add(*(pod(f"low{i}").cpu(2).on(f"n{i}").disrupted() for i in (1, 2)))
        await leave_preempting(occupied, "low1", "low2")
        await recover(occupied)
        assert occupied.api.list_calls("rehearse")
        assert occupied.api.list_evicted() == ["low1", "low2"]

    async def test_whose_plan_does_not_hold_any_more_takes_nobody_with_it(self, occupied: Harness) -> None:
        """The process died after the last condition was written, and a node was cordoned meanwhile."""
        occupied.add(*(pod(f"low{i}").cpu(2).on(f"n{i}").disrupted() for i in (1, 2)))
        occupied.add(node("n2").cpu(2).cordoned())
        await leave_preempting(occupied, "low1", "low2")
        await recover(occupied)
        await occupied.run_until_idle()
        assert not occupied.api.list_evicted()
        assert Reason.PLAN_OUTDATED in occupied.reasons()
        assert [occupied.pod(name).disruption for name in ("low1", "low2")] == ["", ""]
        assert occupied.nothing_reserved

    async def test_one_of_whom_has_gone_lets_off_the_rest_if_its_plan_does_not_hold_any_more(
        self, occupied: Harness
    ) -> None:
        """The room that is free already may do with that of another node: the gang is planned anew."""
        occupied.add(pod("low2").cpu(2).on("n2").disrupted())
        occupied.add(node("n2").cpu(2).cordoned(), node("n3").cpu(2))
        await leave_preempting(occupied, "low1", "low2")
        occupied.delete("low1")
        await recover(occupied)
        await occupied.run_until_idle()
        assert not occupied.api.list_calls("rehearse")
        assert not occupied.api.list_evicted()
        assert occupied.pod("low2").disruption == ""
        assert {slot.node for slot in occupied.binding_cycle().reservation.slots.values()} == {"n1", "n3"}

    async def test_takes_back_what_was_said_if_one_of_them_may_not_go(self, occupied: Harness) -> None:
        occupied.api.add_budget()
        occupied.api.guarded.add(Key("default", "low2"))
        occupied.add(pod("low1").cpu(2).on("n1").disrupted())
        await leave_preempting(occupied, "low1", "low2")
        await recover(occupied)
        await occupied.run_until_idle()
        assert not occupied.api.list_evicted()
        assert [occupied.pod(name).disruption for name in ("low1", "low2")] == ["", ""]

    async def test_who_have_ended_meanwhile_gathers_its_members(self, occupied: Harness) -> None:
        await leave_preempting(occupied, "low1", "low2")
        occupied.delete("low1")
        occupied.delete("low2")
        await recover(occupied)
        assert occupied.binding_cycle().stage is CycleStage.GATHERING
        assert not occupied.api.list_evicted()
        calls = [occupied.bind("m0"), occupied.bind("m1")]
        await occupied.run_until_idle()
        assert [call.error for call in calls] == ["", ""]

    async def test_leaves_those_alone_that_were_made_anew_under_their_names(self, occupied: Harness) -> None:
        await leave_preempting(occupied, "low1", "low2")
        for name in ("low1", "low2"):
            occupied.delete(name)
            occupied.add(pod(name).uid(f"new-{name}").cpu(2).on("n1"))
        await recover(occupied)
        assert not occupied.api.list_evicted()

    async def test_ends_with_its_gang_and_takes_nobody_with_it(self, occupied: Harness) -> None:
        await leave_preempting(occupied, "low1", "low2")
        occupied.store.drop_group(GANG)
        await recover(occupied)
        assert not occupied.api.list_evicted()
        assert occupied.nothing_reserved

    async def test_ends_without_its_quorum_and_takes_nobody_with_it(self, occupied: Harness) -> None:
        await leave_preempting(occupied, "low1", "low2")
        occupied.delete("m1")
        await recover(occupied)
        assert not occupied.api.list_evicted()
        assert occupied.nothing_reserved


@pytest.mark.needs("repairs")
class TestSlotsThatAStandbyHasKept:
    """The kept slots of gang h must not be in the way of what gang g was promised on n1."""

    async def begin(
        self, world: Harness, *pods: PodBuilder, committed: bool = False, victim: str = "", preempted: bool = False
    ) -> None:
        """h0 has ended on n1, as a standby has seen it, and now these pods are there; g has a record on n1."""
        nodes = [node("n1").cpu(2), node("n2").cpu(1)]
        dead = self.h("h0").on("n1")
        world.add(*nodes, pod_group("h").gang(2), gang(1), *members(1), dead.disrupted() if preempted else dead)
        world.group_scheduler.end_term()
        world.delete("h0")
        assert len(world.store.vacancies) == 1
        world.add(*pods)
        victims = [Victim(f"pod-{victim}", "default", victim)] if victim else []
        slots = {"pod-m0": Slot("pod-m0", "m0", "n1")}
        left = Reservation(GANG, "podgroup-g", "", 1, slots, slots.keys() if committed else (), victims=victims)
        await Records(world.api.client(), "v1", "earlier").write(gang(1).value(), left)
        world.term.active = True
        await recover(world)

    def h(self, name: str) -> PodBuilder:
        return pod(name).cpu(1).scheduler(SCHEDULER).in_group("h")

    @pytest.mark.parametrize("committed", [False, True], ids=["planned", "committed"])
    async def test_one_that_its_replacement_has_taken_by_now_is_kept_no_longer(
        self, world: Harness, *, committed: bool
    ) -> None:
        await self.begin(world, self.h("h1").on("n2"), self.h("h0b").on("n1"), committed=committed)
        assert world.binding_cycle().reservation.slots["pod-m0"].node == "n1"
        world.bind("m0")
        await world.run_until_idle()
        assert world.node_of("m0") == "n1"
        assert Reason.PLAN_OUTDATED not in world.reasons()

    async def test_nor_is_that_of_a_victim_of_the_record(self, world: Harness) -> None:
        await self.begin(world, pod("p").cpu(1).on("n1"), self.h("h1").on("n2"), self.h("h0b"), victim="h0")
        assert world.binding_cycle().reservation.slots["pod-m0"].node == "n1"

    async def test_nor_is_that_of_one_that_was_preempted_for_it_and_is_not_in_the_record_any_more(
        self, world: Harness
    ) -> None:
        await self.begin(world, pod("p").cpu(1).on("n1"), self.h("h1").on("n2"), self.h("h0b"), preempted=True)
        assert world.binding_cycle().reservation.slots["pod-m0"].node == "n1"

    async def test_nor_is_one_of_a_job_that_is_suspended_by_now(self, world: Harness) -> None:
        suspended = job("train").size(2).scheduler(SCHEDULER).suspended()
        world.add(job("train").size(2).scheduler(SCHEDULER))
        owned = pod_group("h").gang(2).controlled_by("Job", "train", "job-train")
        dead = pod("train-0").of_job("train", 0).cpu(1).scheduler(SCHEDULER).in_group("h")
        world.add(node("n1").cpu(1), owned, gang(1), *members(1), dead.on("n1"))
        world.group_scheduler.end_term()
        world.delete("train-0")
        assert len(world.store.vacancies) == 1
        world.add(suspended)
        slots = {"pod-m0": Slot("pod-m0", "m0", "n1")}
        left = Reservation(GANG, "podgroup-g", "", 1, slots)
        await Records(world.api.client(), "v1", "earlier").write(gang(1).value(), left)
        world.term.active = True
        await recover(world)
        assert world.binding_cycle().reservation.slots["pod-m0"].node == "n1"

    async def test_one_whose_replacement_waits_is_kept_for_it(self, world: Harness) -> None:
        await self.begin(world, self.h("h1").on("n2"), self.h("h0b"))
        assert [vacancy.replacement for vacancy in world.store.vacancies] == ["pod-h0b"]
        assert world.binding_cycle().reservation.slots["pod-m0"].node == "n1"
