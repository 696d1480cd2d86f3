"""The moments at which a group is planned, and the reasons that are reported."""

from dataclasses import replace
from unittest.mock import DEFAULT, Mock

import pytest

from extender.core.protocol import Hold, Pass, Steer
from extender.core.scheduling.binding_cycle import CycleStage
from extender.core.scheduling.request import build_request
from serried.api.level import FALLBACK
from serried.api.names import GroupKey, GroupKind
from serried.api.topology import TopologyLevels, explain_missing
from serried.api.verdict import Reason, Verdict, render
from serried.api.volume import VolumeClaim
from serried.cluster.rule import KindState
from tests.support.builders import RACK, job, node, pod, pod_group, workload
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.parents import job_set
from tests.support.volumes import volume, volume_claim

pytestmark = pytest.mark.core


def verdict_of(world: Harness, group: GroupKey = GANG) -> tuple[Reason, int, int]:
    verdict = world.groups.states[group].verdict
    assert verdict is not None
    return verdict.reason, verdict.have, verdict.need


class TestBeforeAPlan:
    async def test_a_missing_quorum_is_said_with_its_numbers(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(3), *members(2)).run_until_idle()
        assert verdict_of(world) == (Reason.QUORUM_MISSING, 2, 3)
        assert world.api.calls == []

    async def test_the_last_member_completes_the_quorum(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(3), *members(2)).run_until_idle()
        await world.add(*members(1, first=2)).run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_a_member_with_a_gate_of_another_owner_holds_all(self, world: Harness) -> None:
        gated = members(1)[0].gate("example.com/quota")
        await world.add(*small_nodes(2), gang(2), gated, *members(2, first=1)).run_until_idle()
        assert verdict_of(world) == (Reason.MEMBER_GATED, 1, 2)
        assert "1 member has a scheduling gate that another controller has to remove: example.com/quota" in render(
            world.heard.verdicts[-1][1]
        )
        await world.add(members(1)[0]).run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_a_gang_that_its_volume_confines_waits_whole_until_the_volume_is_reached(
        self, world: Harness
    ) -> None:
        racked = [each.rack(f"r{index}") for index, each in enumerate(small_nodes(2))]
        here = {"matchExpressions": [{"key": RACK, "operator": "In", "values": ["r0"]}]}
        world.store.put_object(volume("v").node_affinity(here).value())
        world.store.put_object(volume_claim("c").bound_to("v").value())
        await world.add(*racked, gang(3), *[each.mounting("c") for each in members(3)]).run_until_idle()
        assert verdict_of(world) == (Reason.NO_CAPACITY, 2, 3)
        world.store.put_object(volume("v").value())
        await world.run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_claims_without_a_volume_are_said_with_the_plan(self, world: Harness) -> None:
        world.store.put_object(volume_claim("c").value())
        await world.add(*small_nodes(2), gang(2), members(1)[0].mounting("c"), *members(1, first=1)).run_until_idle()
        (planned,) = [verdict for _, verdict in world.heard.verdicts if verdict.reason is Reason.PLANNED]
        assert planned.detail == "1 member mounts volume claims that are not bound yet"

    async def test_a_claim_that_does_not_exist_is_the_reason_and_nobody_is_evicted_for_its_pod(
        self, world: Harness
    ) -> None:
        world.store.note_state(VolumeClaim, KindState.KNOWN)
        low = [pod(f"low-{index}").cpu(4).on(f"n{index}") for index in range(2)]
        high = [each.priority(10).mounting("c") for each in members(2)]
        await world.add(*small_nodes(2), *low, gang(2), *high).run_until_idle()
        assert verdict_of(world) == (Reason.NO_CAPACITY, 0, 2)
        _, told = world.heard.verdicts[-1]
        assert told.detail == "m0 can run nowhere: volume claim c does not exist"
        assert not world.api.calls

    async def test_our_own_gate_holds_nobody(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *[each.gate() for each in members(2)]).run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_members_of_a_group_that_does_not_exist_wait_for_it(self, world: Harness) -> None:
        await world.add(*small_nodes(2), *members(2)).run_until_idle()
        assert verdict_of(world)[0] is Reason.POD_GROUP_MISSING
        await world.add(gang(2)).run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_members_are_told_if_the_api_of_their_group_is_not_there(self, world: Harness) -> None:
        world.store.set_obstacle("the API server does not serve podgroups")
        await world.add(*small_nodes(2), *members(2)).run_until_idle()
        assert verdict_of(world)[0] is Reason.API_MISSING
        world.store.set_obstacle("")
        await world.run_until_idle()
        assert verdict_of(world)[0] is Reason.POD_GROUP_MISSING

    async def test_members_are_told_if_the_clusters_own_groups_cannot_be_read(self) -> None:
        refused = ("scheduling.k8s.io/v1 has a shape that is not known",)
        world = Harness(level=replace(FALLBACK, refused=refused))
        await world.add(*small_nodes(2), *members(2), pod("plain").scheduler(SCHEDULER)).run_until_idle()
        assert world.heard.verdicts[-1][1] == Verdict(Reason.API_MISSING, detail=refused[0])
        assert isinstance(world.filter("plain"), Pass)
        await world.add(gang(2)).run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING
        await world.close()

    async def test_nothing_is_said_of_the_group_of_a_suspended_job_before_it_is_resumed(self, world: Harness) -> None:
        suspended = job("train").size(2).scheduler(SCHEDULER).suspended()
        await world.add(suspended, gang(2).controlled_by("Job", "train", "job-train")).run_until_idle()
        assert world.reasons() == []
        await world.add(suspended.with_field(False, "spec", "suspend")).run_until_idle()  # noqa: FBT003 - a JSON value
        assert world.reasons() == [Reason.QUORUM_MISSING]

    async def test_nor_of_the_group_of_a_suspended_job_set(self, world: Harness) -> None:
        training = job_set("s").gang_policy().replicated("w", pods=2)
        world.store.put_parent(training.suspended().value())
        await world.add(gang(2).controlled_by("JobSet", "s").from_template("s", "all")).run_until_idle()
        assert world.reasons() == []
        world.store.put_parent(training.value())
        await world.run_until_idle()
        assert world.reasons() == [Reason.QUORUM_MISSING]

    async def test_a_class_without_a_value_holds_the_group(self, world: Harness) -> None:
        named = gang(2).with_field("high", "spec", "priorityClassName")
        await world.add(*small_nodes(2), named, *members(2)).run_until_idle()
        assert verdict_of(world)[0] is Reason.PRIORITY_UNKNOWN
        await world.add(named.with_field(1000, "spec", "priority")).run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_a_group_of_another_scheduler_is_left_to_it(self, world: Harness) -> None:
        theirs = [each.scheduler("default-scheduler") for each in members(2)]
        await world.add(*small_nodes(2), gang(2), *theirs).run_until_idle()
        assert GANG not in world.groups.states
        assert world.reasons() == []

    async def test_a_verdict_is_said_once_while_it_does_not_change(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(3), *members(2)).run_until_idle()
        world.store.dirty.add(GANG)
        await world.run_until_idle()
        assert world.reasons() == [Reason.QUORUM_MISSING]

    async def test_a_group_that_is_gone_is_forgotten(self, world: Harness) -> None:
        await world.add(gang(2), *members(1)).run_until_idle()
        world.delete("m0")
        world.store.drop_group(GANG)
        await world.run_until_idle()
        assert world.groups.states == {}

    async def test_bound_members_of_a_deleted_group_are_no_news(self, world: Harness) -> None:
        await world.add(members(1)[0].on("n1")).run_until_idle()
        assert world.reasons() == []


class TestThePlan:
    async def test_it_is_held_in_the_ledger_before_anything_is_written(self, world: Harness) -> None:
        world.add(*small_nodes(2), gang(2), *members(2))
        world.schedule_groups()
        assert set(world.ledger.of_group(GANG).slots) == {"pod-m0", "pod-m1"}  # type: ignore[union-attr]
        assert world.api.calls == []

    async def test_two_gangs_that_need_the_same_room_never_hold_halves(self, world: Harness) -> None:
        other = [each.in_group("h") for each in members(3, first=10)]
        await world.add(*small_nodes(2), gang(3), *members(3), pod_group("h").gang(3), *other).run_until_idle()
        assert len(world.ledger) == 1
        assert verdict_of(world, GroupKey("default", "h")) == (Reason.NO_CAPACITY, 1, 3)

    async def test_the_higher_priority_goes_first_then_the_older_quorum(self, world: Harness) -> None:
        urgent = [each.in_group("urgent").priority(10) for each in members(3, first=10)]
        world.add(*small_nodes(2), gang(3), *members(3), pod_group("urgent").gang(3).priority(10), *urgent)
        await world.run_until_idle()
        assert [reservation.group.name for reservation in world.ledger] == ["urgent"]

    async def test_a_gang_that_does_not_fit_is_not_planned_again_until_room_is_freed(self, world: Harness) -> None:
        await world.add(*small_nodes(1), gang(3), *members(3)).run_until_idle()
        planned = len(world.heard.plans)
        world.store.dirty.add(GANG)
        await world.run_until_idle()
        assert len(world.heard.plans) == planned
        await world.add(node("n2").cpu(2)).run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_a_pod_that_ends_anywhere_frees_room(self, world: Harness) -> None:
        await world.add(*small_nodes(1), pod("p").cpu(1).on("n1"), gang(2), *members(2)).run_until_idle()
        assert verdict_of(world)[0] is Reason.NO_CAPACITY
        world.delete("p")
        await world.run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_a_nomination_that_ends_frees_room(self, world: Harness) -> None:
        await world.add(*small_nodes(1), pod("p").cpu(1).nominated("n1"), gang(2), *members(2)).run_until_idle()
        assert verdict_of(world)[0] is Reason.NO_CAPACITY
        world.delete("p")
        await world.run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_a_toleration_that_is_added_to_its_members_unblocks_a_gang(self, world: Harness) -> None:
        await world.add(node("n1").cpu(2).taint("dedicated"), gang(2), *members(2)).run_until_idle()
        assert world.groups.states[GANG].cycle is None
        await world.add(*[each.tolerating("dedicated") for each in members(2)]).run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_the_room_of_an_aborted_gang_goes_to_the_next_although_its_nominations_are_still_there(
        self, world: Harness
    ) -> None:
        world.start_nominating()
        other = [each.in_group("h") for each in members(2, first=10)]
        await world.add(*small_nodes(1), gang(2), *members(2)).run_until_idle()
        await world.add(pod_group("h").gang(2), *other).run_until_idle()
        await world.pass_time(61.0)
        assert [reservation.group.name for reservation in world.ledger] == ["h"]


_ONCE_EACH = 3
"""Looks at what the watch showed last, when the rest after a failure is over, and when it is time to try again."""


def considered(world: Harness, seconds: int) -> int:
    """Count how often any group is looked at in so many seconds without any change."""
    consider, looks = world.group_scheduler.consider, 0

    def count(key: GroupKey) -> None:
        nonlocal looks
        looks += 1
        consider(key)

    world.group_scheduler.consider = count  # type: ignore[method-assign]
    for _ in range(2 * seconds):
        world.clock.advance(0.5)
        world.schedule_groups()
    return looks


class TestAnObstacle:
    """A term that cannot plan yet, because the reservations of earlier terms are not known."""

    async def test_gangs_are_told_and_planned_when_it_is_over(self, world: Harness) -> None:
        world.group_scheduler.set_obstacle("no records")
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        assert world.reasons() == [Reason.RECORDS_UNREADABLE]
        assert world.heard.verdicts[-1][1].detail == "no records"
        assert world.api.calls == []
        world.group_scheduler.set_obstacle("")
        await world.run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_a_gang_without_quorum_hears_that_first(self, world: Harness) -> None:
        world.group_scheduler.set_obstacle("no records")
        await world.add(*small_nodes(2), gang(2), *members(1)).run_until_idle()
        assert world.reasons() == [Reason.QUORUM_MISSING]

    async def test_members_of_a_basic_group_and_pods_of_lost_jobs_go(self, world: Harness) -> None:
        world.group_scheduler.set_obstacle("no records")
        lost = pod("lost").of_job("nobody", 0).scheduler(SCHEDULER)
        world.add(*small_nodes(2), *members(1), lost)
        assert [world.filter(name) for name in ("m0", "lost")] == [Hold(), Hold()]
        await world.add(pod_group("g")).run_until_idle()
        await world.pass_time(31.0)
        assert {call.name for call in world.api.list_calls("activate")} == {"m0", "lost"}


class TestAtRest:
    """Without a change no group is looked at, whatever has happened before."""

    @pytest.fixture
    async def late(self, world: Harness) -> Harness:
        """A gang whose members did not come to bind in time."""
        world.add(*small_nodes(1, 1), gang(1), *members(1))
        await world.run_until_idle()
        await world.pass_time(61.0)
        assert world.reasons()[-1] is Reason.DEADLINE_EXCEEDED
        return world

    async def test_a_gang_that_failed_and_lost_its_quorum_then(self, late: Harness) -> None:
        late.delete("m0")
        await late.run_until_idle()
        assert considered(late, 300) <= _ONCE_EACH

    async def test_a_gang_that_failed_and_was_deleted_then(self, late: Harness) -> None:
        late.store.drop_group(GANG)
        await late.run_until_idle()
        assert considered(late, 300) <= _ONCE_EACH

    async def test_a_gang_that_failed_and_was_bound_by_another_hand_then(self, late: Harness) -> None:
        late.add(members(1)[0].on("n1"))
        await late.run_until_idle()
        assert considered(late, 300) <= _ONCE_EACH

    async def test_pods_whose_job_nobody_will_ever_see(self, world: Harness) -> None:
        await world.add(*small_nodes(1), pod("p").of_job("lost", 0).scheduler(SCHEDULER)).run_until_idle()
        await world.pass_time(31.0)
        assert world.filter("p") == Pass()
        assert considered(world, 300) <= _ONCE_EACH


class TestTopology:
    async def test_a_rack_bound_gang_lands_in_one_rack(self, world: Harness) -> None:
        racks = [node(f"{rack}-{place}").cpu(1).rack(rack) for rack in ("r1", "r2") for place in (1, 2)]
        await world.add(*racks, gang(2).topology(), *members(2)).run_until_idle()
        nodes = {slot.node for slot in world.binding_cycle().reservation.slots.values()}
        assert len({name.split("-")[0] for name in nodes}) == 1

    async def test_a_late_member_goes_to_the_gangs_rack_or_waits_for_it(self, world: Harness) -> None:
        world.add(node("a").cpu(2).rack("r1"), node("b").cpu(8).rack("r2"), gang(2).topology())
        await world.add(members(2)[0].on("a"), members(2)[1].on("a"), *members(1, first=2)).run_until_idle()
        assert verdict_of(world)[0] is Reason.DOMAIN_FULL
        await world.add(node("c").cpu(1).rack("r1")).run_until_idle()
        assert world.binding_cycle().reservation.slots["pod-m2"].node == "c"
        assert world.binding_cycle().reservation.need == 0

    async def test_a_basic_group_with_a_key_keeps_its_members_together(self, world: Harness) -> None:
        world.add(node("a").cpu(2).rack("r1"), node("b").cpu(8).rack("r2"), pod_group("g").topology())
        await world.add(members(1)[0].on("a"), *members(1, first=1)).run_until_idle()
        assert world.filter("m1") == Steer("a")

    async def test_the_gate_of_one_member_holds_also_the_later_ones_of_a_basic_group_with_a_key(
        self, world: Harness
    ) -> None:
        world.add(node("a").cpu(4).rack("r1"), pod_group("g").topology(), members(1)[0].on("a"))
        await world.add(members(1, first=1)[0].gate("example.com/quota"), *members(1, first=2)).run_until_idle()
        assert world.filter("m2") == Hold()
        assert verdict_of(world)[0] is Reason.MEMBER_GATED
        await world.add(*members(1, first=1)).run_until_idle()
        assert world.filter("m2") == Steer("a")

    async def test_the_shortage_of_each_rack_is_said(self, world: Harness) -> None:
        await (
            world.add(*[node(f"n{rack}").cpu(1).rack(f"r{rack}") for rack in (1, 2)])
            .add(gang(2).topology(), *members(2))
            .run_until_idle()
        )
        verdict = world.groups.states[GANG].verdict
        assert verdict is not None
        assert (verdict.reason, verdict.key) == (Reason.NO_DOMAIN_FITS, RACK)
        assert [(domain.domain, domain.slots) for domain in verdict.domains] == [("r1", 1), ("r2", 1)]

    async def test_room_in_a_rack_that_the_refusal_did_not_name_wakes_the_gang_as_well(self, world: Harness) -> None:
        """The refusal names ten racks. The other two have two slots as well, so one more is enough there, too."""
        racks = [f"r{number:02}" for number in range(12)]
        await world.add(
            *[node(rack).cpu(2).rack(rack) for rack in racks], gang(3).topology(), *members(3)
        ).run_until_idle()
        refusal = world.heard.verdicts[-1][1]
        unnamed = set(racks) - {domain.domain for domain in refusal.domains}
        assert (refusal.reason, len(unnamed)) == (Reason.NO_DOMAIN_FITS, 2)
        await world.add(node("more").cpu(1).rack(min(unnamed))).run_until_idle()
        assert world.binding_cycle().reservation.domain == min(unnamed)


class TestDuringARound:
    async def test_a_late_member_joins_the_round_in_its_domain(self, world: Harness) -> None:
        world.add(node("a").cpu(3).rack("r1"), node("b").cpu(8).rack("r2"), gang(2).topology(), *members(2))
        world.add(node("c").cpu(3).rack("r2"))
        await world.run_until_idle()
        home = world.binding_cycle().reservation.domain
        await world.add(*members(1, first=2)).run_until_idle()
        slot = world.binding_cycle().reservation.slots["pod-m2"]
        assert world.store.nodes[slot.node].labels[RACK] == home

    async def test_a_late_member_of_a_group_that_is_gone_does_not_join_what_was_committed(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        world.api.hold("bind")
        for name in ("m0", "m1"):
            world.bind(name)
        await world.run_until_idle()
        assert world.binding_cycle().reservation.committed
        world.store.drop_group(GANG)
        world.add(*members(1, first=2))
        await world.run_until_idle()
        assert set(world.binding_cycle().reservation.slots) == {"pod-m0", "pod-m1"}

    async def test_a_refused_surplus_member_does_not_end_what_was_committed(self, world: Harness) -> None:
        await world.add(*small_nodes(3, 1), gang(2), *members(3)).run_until_idle()
        nodes = {slot.name: slot.node for slot in world.binding_cycle().reservation.slots.values()}
        world.api.hold("bind")
        for name in ("m0", "m1"):
            world.bind(name)
        await world.run_until_idle()
        assert world.binding_cycle().reservation.committed == {"pod-m0", "pod-m1"}
        world.store.drop_node(nodes["m0"])
        world.delete("m0")
        await world.run_until_idle()
        world.core.cycle_updates.handle_rejected_node("pod-m2", nodes["m2"])
        assert (set(world.binding_cycle().reservation.slots), world.binding_cycle().over) == ({"pod-m1"}, False)
        world.api.release("bind")
        await world.run_until_idle()
        assert world.node_of("m1") == nodes["m1"]

    async def test_a_late_member_need_not_wait_for_a_surplus_member_that_never_comes(self, world: Harness) -> None:
        await world.add(*small_nodes(3), gang(2), *members(3)).run_until_idle()
        for name in ("m0", "m1"):
            world.bind(name)
        await world.run_until_idle()
        await world.add(*members(1, first=3)).run_until_idle()
        late = world.bind("m3")
        await world.run_until_idle()
        assert late.error == ""

    async def test_members_that_do_not_fit_are_not_planned_again_at_every_event(self, world: Harness) -> None:
        await world.add(*small_nodes(1), gang(2), *members(4)).run_until_idle()
        planned = len(world.heard.plans)
        for _ in range(5):
            world.sync_pods()
            await world.run_until_idle()
        assert len(world.heard.plans) <= planned + 1

    async def test_the_podgroup_is_deleted(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        call = world.bind("m0")
        await world.run_tasks()
        world.store.drop_group(GANG)
        await world.run_until_idle()
        assert call.error == "serried: PodGroupMissing"
        assert world.nothing_reserved
        assert world.filter("m0") == Hold()

    async def test_the_podgroup_is_deleted_and_made_anew(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        await world.add(gang(2).uid("another")).run_until_idle()
        assert world.binding_cycle().group.uid == "another"
        world.api.hold("bind")
        for name in ("m0", "m1"):
            world.bind(name)
        await world.run_until_idle()
        assert world.api.records[GANG.object_key]["spec"]["podGroupUID"] == "another"

    async def test_everything_is_deleted_at_once(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        call = world.bind("m0")
        await world.run_tasks()
        world.store.drop_group(GANG)
        for name in ("m0", "m1"):
            world.delete(name)
        await world.run_until_idle()
        assert call.error
        assert world.nothing_reserved
        assert world.groups.states == {}

    async def test_a_member_that_leaves_the_group_leaves_its_slot_and_its_call(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *members(3)).run_until_idle()
        call = world.bind("m0")
        await world.run_tasks()
        await world.add(members(1)[0].in_group("elsewhere")).run_until_idle()
        assert "does not belong to the group any more" in call.error
        assert set(world.binding_cycle().reservation.slots) == {"pod-m1", "pod-m2"}

    async def test_a_committed_member_that_leaves_the_group_is_bound_all_the_same(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        world.api.hold("bind")
        calls = [world.bind(name) for name in ("m0", "m1")]
        await world.run_tasks()
        world.store.put_pod(members(1)[0].in_group("elsewhere").value())
        world.schedule_groups()
        assert all(call.waiting for call in calls)
        world.api.release("bind")
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]

    async def test_a_member_that_another_hand_binds_elsewhere_counts_and_gives_its_slot_back(
        self, world: Harness
    ) -> None:
        await world.add(*small_nodes(3), gang(2), *members(2)).run_until_idle()
        other = world.bind("m1")
        await world.run_tasks()
        await world.add(members(1)[0].on("n3")).run_until_idle()
        assert other.error == ""
        assert world.nothing_reserved


class TestJobs:
    PODS = tuple(pod(f"j-{index}").of_job("j", index).cpu(1).scheduler(SCHEDULER) for index in range(2))
    JOB = job("j").size(2).scheduler(SCHEDULER)
    WAITING = GroupKey("default", "j", GroupKind("Job"))

    async def test_pods_of_a_gang_job_are_held_from_the_first_on_and_planned_with_the_podgroup(
        self, world: Harness
    ) -> None:
        world.store.put_job(self.JOB.value())
        await world.add(*small_nodes(2), *self.PODS).run_until_idle()
        assert world.filter("j-0") == Hold()
        assert verdict_of(world, self.WAITING)[0] is Reason.POD_GROUP_MISSING
        world.store.put_workload(workload("w").for_job("j").gang_template("t", 2).value())
        await world.add(pod_group("g").gang(2).from_template("w", "t")).run_until_idle()
        assert isinstance(world.filter("j-0"), Steer)
        assert self.WAITING not in world.groups.states

    async def test_a_job_whose_level_no_label_stands_for_waits_and_is_told_what_was_looked_for(
        self, world: Harness
    ) -> None:
        world.store.put_job(self.JOB.topology("spine").value())
        await world.add(*small_nodes(2), *self.PODS).run_until_idle()
        assert world.filter("j-0") == Hold()
        unknown = Verdict(Reason.LEVEL_UNKNOWN, key="spine", detail=explain_missing("spine", (), None))
        assert world.groups.states[self.WAITING].verdict == unknown
        table = world.store.levels.table
        world.store.put_levels(TopologyLevels("default", {}, table))
        await world.run_until_idle()
        unknown = Verdict(Reason.LEVEL_UNKNOWN, key="spine", detail=explain_missing("spine", (), table))
        assert world.groups.states[self.WAITING].verdict == unknown

    async def test_a_job_that_nobody_has_seen_holds_its_pods_for_a_bounded_time(self, world: Harness) -> None:
        await world.add(*small_nodes(2), *self.PODS).run_until_idle()
        assert world.filter("j-0") == Hold()
        assert verdict_of(world, self.WAITING)[0] is Reason.JOB_UNKNOWN
        await world.pass_time(29.0)
        assert world.filter("j-0") == Hold()
        await world.pass_time(2.0)
        assert world.filter("j-0") == Pass()
        assert [call.name for call in world.api.list_calls("activate")] == ["j-0"]

    async def test_a_job_set_that_nobody_has_seen_holds_its_pods_for_a_bounded_time(self, world: Harness) -> None:
        world.store.membership.followed.add("JobSet")
        world.store.put_job(job("s-a-0").size(2).scheduler(SCHEDULER).controlled_by("JobSet", "s").value())
        await world.add(*small_nodes(1), pod("p").of_job_set("s", "a").scheduler(SCHEDULER)).run_until_idle()
        assert world.filter("p") == Hold()
        await world.pass_time(31.0)
        assert world.filter("p") == Pass()

    async def test_pods_of_a_job_set_are_held_from_the_first_on_and_planned_with_the_podgroup(
        self, world: Harness
    ) -> None:
        world.store.put_parent(job_set("s").gang_policy().replicated("a", replicas=2).value())
        first, second = (pod(f"p-{n}").of_job_set("s", "a", n).cpu(1).scheduler(SCHEDULER) for n in range(2))
        await world.add(*small_nodes(2), first).run_until_idle()
        assert world.filter("p-0") == Hold()
        world.store.put_workload(workload("w").for_parent("JobSet", "s").gang_template("t", 2).value())
        await world.add(second, pod_group("g").gang(2).from_template("w", "t")).run_until_idle()
        assert isinstance(world.filter("p-0"), Steer)

    async def test_a_gated_pod_that_comes_when_its_job_is_given_up_is_let_go_at_once(self, world: Harness) -> None:
        await world.add(*small_nodes(1), pod("p").of_job("lost", 0).scheduler(SCHEDULER)).run_until_idle()
        await world.pass_time(31.0)
        await world.add(pod("late").of_job("lost", 1).scheduler(SCHEDULER).gate()).run_until_idle()
        assert "late" in {call.name for call in world.api.list_calls("ungate")}

    async def test_a_job_that_is_seen_late_holds_again(self, world: Harness) -> None:
        await world.add(*small_nodes(2), *self.PODS).run_until_idle()
        await world.pass_time(31.0)
        world.store.put_job(self.JOB.value())
        await world.run_until_idle()
        assert world.filter("j-1") == Hold()

    async def test_a_pod_that_is_a_gangs_again_before_we_look_keeps_its_gate(self, world: Harness) -> None:
        world.store.put_job(self.JOB.value())
        await world.add(*[each.gate() for each in self.PODS]).run_until_idle()
        world.store.put_job(job("j").size(1).scheduler(SCHEDULER).value())
        world.store.put_job(self.JOB.value())
        await world.run_until_idle()
        assert world.api.list_calls("ungate") == []

    async def test_the_pods_of_a_job_that_turns_out_plain_are_woken_and_ungated(self, world: Harness) -> None:
        await world.add(*small_nodes(2), self.PODS[0].gate(), self.PODS[1]).run_until_idle()
        world.filter("j-1")
        world.store.put_job(job("j").size(1).scheduler(SCHEDULER).value())
        await world.run_until_idle()
        assert [call.name for call in world.api.list_calls("ungate")] == ["j-0"]
        assert [call.name for call in world.api.list_calls("activate")] == ["j-1"]


class TestBasicGroups:
    async def test_its_members_pass_and_the_group_is_scheduled_with_the_first(self, world: Harness) -> None:
        await world.add(*small_nodes(2), pod_group("g"), members(1)[0].on("n1"), *members(1, first=1)).run_until_idle()
        assert world.filter("m1") == Pass()
        assert verdict_of(world) == (Reason.SCHEDULED, 1, 0)

    async def test_members_with_our_gate_are_let_go(self, world: Harness) -> None:
        await world.add(*small_nodes(2), pod_group("g"), members(1)[0].gate()).run_until_idle()
        assert [call.name for call in world.api.list_calls("ungate")] == ["m0"]
        assert not world.pod("m0").gates


async def test_an_exception_about_one_group_stops_no_other_and_the_group_is_tried_again(
    world: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = [each.in_group("h") for each in members(2, first=10)]
    world.add(*small_nodes(3), gang(2), *members(2), pod_group("h").gang(2), *other)
    with monkeypatch.context() as patched:
        patched.setattr(
            "extender.core.scheduling.scheduling_cycle.build_request",
            Mock(side_effect=[RuntimeError("bug"), DEFAULT], wraps=build_request),
        )
        await world.core.loop.consider({GANG, GroupKey("default", "h")})
    assert [reservation.group.name for reservation in world.ledger] == ["h"]
    await world.pass_time(10.0)
    assert world.binding_cycle().stage is CycleStage.GATHERING


async def test_work_in_the_background_never_fails_in_silence(world: Harness, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise AttributeError("odd")

    world.core.tasks.spawn(fail())
    await world.run_tasks()
    assert "odd" in caplog.text
    assert not len(world.core.tasks)


async def test_a_pause_of_members_that_wanted_to_join_a_round_ends_with_it(world: Harness) -> None:
    await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
    world.groups.states[GANG].entry.back_off(world.clock() + 1000.0)
    for name in ("m0", "m1"):
        world.bind(name)
    await world.run_until_idle()
    await world.add(*members(1, first=2)).run_until_idle()
    assert world.ledger.slot_of("pod-m2")
