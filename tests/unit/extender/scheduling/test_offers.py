"""Gangs that ask for what only kube-scheduler can count: they are offered to it, and its word decides."""

import pytest

from extender.core.protocol import Hold, Steer
from extender.core.scheduling.binding_cycle import CycleStage
from extender.options import NominationPolicy, PreemptionMode
from serried.api.device import DeviceClass
from serried.api.names import GroupKey, GroupKind
from serried.api.resources import MARKERS
from serried.api.verdict import Reason, Verdict, render
from serried.cluster.rule import KindState
from tests.support.builders import NodeBuilder, PodBuilder, node, pod, pod_group
from tests.support.composites import composite
from tests.support.devices import device_class, held_message, rejection_message
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes

pytestmark = pytest.mark.core

GPU = "example.com/gpu"
CLASS = device_class("gpu").extended_resource(GPU)
NO_DEVICE = rejection_message("12 cannot allocate all claims")
NEVER = "even if nothing ran, at most {} members would fit, so waiting does not help"
NO_GPU = rejection_message(f"12 Insufficient {GPU}")
TREE = GroupKey("default", "root", GroupKind.COMPOSITE)
CLAIMS = [{"name": "gpu", "resourceClaimName": "mine"}]
TEMPLATES = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
MADE = [{"name": "gpu", "resourceClaimName": "made"}]


def asking(count: int, resource: str = GPU) -> list[PodBuilder]:
    return [each.request(resource, 1) for each in members(count)]


def claiming(count: int) -> list[PodBuilder]:
    return [each.with_field(CLAIMS, "spec", "resourceClaims") for each in members(count)]


def verdict_of(world: Harness) -> Verdict:
    verdict = world.groups.states[GANG].verdict
    assert verdict is not None
    return verdict


async def refuse(world: Harness, *names: str, message: str = NO_DEVICE) -> None:
    for name in names:
        world.mark_unschedulable(name, message)
    world.sync_pods()
    await world.run_until_idle()


class TestAResourceThatAClassProvides:
    async def test_a_gang_is_planned_where_the_scheduler_may_have_it(self, world: Harness) -> None:
        await world.add(*small_nodes(2), CLASS, gang(2), *asking(2)).run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING
        (planned,) = [verdict for _, verdict in world.heard.verdicts if verdict.reason is Reason.PLANNED]
        assert planned.detail == f"2 members ask for {GPU}, which only kube-scheduler can count"

    async def test_nodes_that_have_it_are_counted_beside_those_that_do_not(self, world: Harness) -> None:
        own = [each.allocatable(GPU, 1).rack("own") for each in small_nodes(1, 8)]
        slices = [node("slices").cpu(8).rack("slices")]
        await world.add(*own, *slices, CLASS, gang(2).topology(), *asking(2)).run_until_idle()
        assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} == {"slices"}

    async def test_the_gang_is_bound_whole(self, world: Harness) -> None:
        await world.add(*small_nodes(2), CLASS, gang(2), *asking(2)).run_until_idle()
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]
        assert world.reasons()[-1] is Reason.SCHEDULED

    async def test_a_node_that_the_scheduler_refuses_is_learnt(self, world: Harness) -> None:
        racked = [each.rack(each.value().name) for each in small_nodes(2)]
        await world.add(*racked, CLASS, gang(2).topology(), *asking(2)).run_until_idle()
        first = world.binding_cycle().reservation.domain
        other = ({"n1", "n2"} - {first}).pop()
        for name in ("m0", "m1"):
            world.filter(name, other)
            await world.run_until_idle()
        for name in ("m0", "m1"):
            world.filter(name, other)
            await world.run_until_idle()
        assert world.binding_cycle().reservation.domain == other
        assert world.filter("m0", other) == Steer(other)

    async def test_a_gang_that_was_refused_before_the_class_came_is_planned_when_the_scheduler_has_a_node(
        self, world: Harness
    ) -> None:
        racks = [*small_nodes(2), node("plugin").cpu(1).allocatable(GPU, 1)]
        await world.add(*racks, gang(2), *[each.unschedulable(message=NO_GPU) for each in asking(2)]).run_until_idle()
        assert verdict_of(world) == Verdict(Reason.NO_CAPACITY, have=1, need=2, detail=NEVER.format(1))
        world.add(CLASS)
        await world.run_until_idle()
        assert verdict_of(world).detail.startswith(f"only kube-scheduler can count {GPU}; kube-scheduler rejects m0")
        await refuse(world, "m0", "m1", message=held_message())
        assert world.binding_cycle().stage is CycleStage.GATHERING


async def reject_beside_a_mate(world: Harness) -> str:
    """Let m0 come to its bind call and m1 find no node, so that the gang rests. Return the node of m0."""
    mates_node = world.binding_cycle().reservation.slots["pod-m0"].node
    world.filter("m0", mates_node)
    world.bind("m0")
    await world.run_tasks()
    await refuse(world, "m1")
    assert world.nothing_reserved
    return mates_node


class TestAResourceThatNoNodeHas:
    async def test_a_gang_does_not_fit_and_is_told_so_once(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *asking(2)).run_until_idle()
        assert (world.heard.plans, world.nothing_reserved) == ([], True)
        await refuse(world, "m0", message=NO_GPU)
        (said,) = [verdict for _, verdict in world.heard.verdicts]
        assert render(said) == (
            "NoCapacity: only 0 of 2 members fit into the cluster; "
            f"m0 asks for {GPU}, which no node has and no DeviceClass provides"
        )

    async def test_nobody_is_evicted_for_it(self) -> None:
        world = Harness(preemption=PreemptionMode.ON)
        low = [pod(f"low{at}").cpu(2).on(f"n{at}") for at in (1, 2)]
        high = [each.priority(100) for each in asking(2)]
        await world.add(*small_nodes(2), *low, gang(2).priority(100), *high).run_until_idle()
        assert (verdict_of(world).reason, world.api.list_evicted()) == (Reason.NO_CAPACITY, [])
        await world.close()

    async def test_members_beyond_the_quorum_do_not_keep_the_others(self, world: Harness) -> None:
        spare = [each.request(GPU, 1) for each in members(1, first=2)]
        await world.add(*small_nodes(2), gang(2), *members(2), *spare).run_until_idle()
        assert world.binding_cycle().reservation.slots.keys() == {"pod-m0", "pod-m1"}

    async def test_gated_members_are_let_to_the_scheduler_which_may_know_more(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *[each.gate() for each in asking(2)]).run_until_idle()
        assert (world.heard.plans, verdict_of(world).reason) == ([], Reason.NO_CAPACITY)
        assert [world.pod(name).held_by_gate for name in ("m0", "m1")] == [False, False]

    async def test_so_are_those_of_a_group_that_is_no_gang(self, world: Harness) -> None:
        await world.add(*small_nodes(2), pod_group("g"), *[each.gate() for each in asking(2)]).run_until_idle()
        assert [world.pod(name).held_by_gate for name in ("m0", "m1")] == [False, False]

    async def test_one_that_the_scheduler_ignores_keeps_nobody(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *asking(2)).run_until_idle()
        assert world.filter("m0", "n1", "n2") == Hold()
        await refuse(world, "m0", "m1", message=held_message())
        (planned,) = [verdict for _, verdict in world.heard.verdicts if verdict.reason is Reason.PLANNED]
        assert planned.detail == f"2 members ask for {GPU}, which no node has"
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]

    async def test_a_refusal_for_another_reason_is_told(self, world: Harness) -> None:
        await world.add(
            *small_nodes(2), gang(2), *[each.unschedulable(message=NO_DEVICE) for each in asking(2)]
        ).run_until_idle()
        assert verdict_of(world).detail == (
            f"no node has {GPU}; kube-scheduler rejects m0 on every node: 12 cannot allocate all claims"
        )

    async def test_the_markers_of_an_isolated_installation_are_none(self, world: Harness) -> None:
        first, second = MARKERS
        await world.add(
            *small_nodes(2), gang(2), *[each.request(first, 1) for each in asking(2, second)]
        ).run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_where_classes_cannot_be_seen_the_scheduler_is_asked_as_one_may_provide_it(
        self, world: Harness
    ) -> None:
        await world.add(*small_nodes(2), gang(2), *asking(2)).run_until_idle()
        world.store.note_state(DeviceClass, KindState.DENIED, "the API server does not let Serried read deviceclasses")
        await world.run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_it_is_not_offered_again_while_nothing_changes(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *asking(2)).run_until_idle()
        await refuse(world, "m0", "m1", message=NO_GPU)
        plans, said = len(world.heard.plans), len(world.heard.verdicts)
        for _ in range(20):
            await world.pass_time(60)
        world.add(node("n3").cpu(8))
        await world.run_until_idle()
        assert (len(world.heard.plans), len(world.heard.verdicts)) == (plans, said)
        assert world.nothing_reserved

    async def test_the_scheduler_finding_a_node_is_what_has_it_planned_again(self, world: Harness) -> None:
        await world.add(
            *small_nodes(2), gang(2), *[each.unschedulable(message=NO_GPU) for each in asking(2)]
        ).run_until_idle()
        assert world.heard.plans == []
        assert world.filter("m0") == Hold()
        await refuse(world, "m0", "m1", message=held_message(f"1 Insufficient {GPU}"))
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_a_node_that_has_it_ends_the_guessing(self, world: Harness) -> None:
        await world.add(
            *small_nodes(2), gang(2), *[each.unschedulable(message=NO_GPU) for each in asking(2)]
        ).run_until_idle()
        world.add(node("n3").cpu(8).allocatable(GPU, 1))
        await world.run_until_idle()
        assert verdict_of(world) == Verdict(Reason.NO_CAPACITY, have=1, need=2, detail=NEVER.format(1))
        world.add(node("n3").cpu(8).allocatable(GPU, 2))
        await world.run_until_idle()
        assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} == {"n3"}

    async def test_what_a_plan_can_count_is_still_counted(self, world: Harness) -> None:
        await world.add(
            *small_nodes(1), gang(3), *[each.unschedulable(message=NO_GPU) for each in asking(3)]
        ).run_until_idle()
        await refuse(world, "m0", "m1", "m2", message=held_message())
        assert verdict_of(world) == Verdict(Reason.NO_CAPACITY, have=2, need=3, detail=NEVER.format(2))

    async def test_others_are_planned_meanwhile(self, world: Harness) -> None:
        await world.add(
            *small_nodes(2), gang(2), *[each.unschedulable(message=NO_GPU) for each in asking(2)]
        ).run_until_idle()
        plain = members(2, first=8)
        await world.add(*[each.in_group("h") for each in plain]).run_until_idle()
        await world.add(pod_group("h").gang(2)).run_until_idle()
        assert {slot.name for slot in world.binding_cycle(GroupKey("default", "h")).reservation.slots.values()} == {
            "m8",
            "m9",
        }


class TestClaimsOfDevices:
    async def test_they_are_said_with_the_plan(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *claiming(1), *members(1, first=1)).run_until_idle()
        (planned,) = [verdict for _, verdict in world.heard.verdicts if verdict.reason is Reason.PLANNED]
        assert planned.detail == "1 member claims devices, which only kube-scheduler can count"

    async def test_so_are_those_of_the_group(self, world: Harness) -> None:
        group = gang(2).with_field(CLAIMS, "spec", "resourceClaims")
        await world.add(*small_nodes(2), group, *members(2)).run_until_idle()
        (planned,) = [verdict for _, verdict in world.heard.verdicts if verdict.reason is Reason.PLANNED]
        assert planned.detail == "the PodGroup claims devices, which only kube-scheduler can count"

    async def test_a_gang_waits_until_its_claims_are_made_and_says_so(self, world: Harness) -> None:
        pods = [each.with_field(TEMPLATES, "spec", "resourceClaims") for each in members(2)]
        await world.add(*small_nodes(2), gang(2), *pods).run_until_idle()
        assert render(verdict_of(world)) == (
            "QuorumMissing: 2 of 2 members exist; m0 has no ResourceClaim from template one yet"
        )
        assert world.api.calls == []
        await world.add(*[each.with_field(MADE, "status", "resourceClaimStatuses") for each in pods]).run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_a_gang_that_the_scheduler_has_no_devices_for_waits_and_says_so(self, world: Harness) -> None:
        await world.add(
            *small_nodes(2), gang(2), *[each.unschedulable(message=NO_DEVICE) for each in claiming(2)]
        ).run_until_idle()
        assert world.heard.plans == []
        assert render(verdict_of(world)) == (
            "NoCapacity: only 0 of 2 members fit into the cluster; only kube-scheduler can count the claimed devices; "
            "kube-scheduler rejects m0 on every node: 12 cannot allocate all claims"
        )
        await refuse(world, "m0", "m1", message=held_message())
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_devices_for_half_a_gang_are_given_back_at_once(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *claiming(2)).run_until_idle()
        world.filter("m0")
        first = world.bind("m0")
        await world.run_tasks()
        await refuse(world, "m1")
        assert first.error.startswith("serried: NoCapacity")
        assert world.nothing_reserved
        await refuse(world, "m0", "m1", message=held_message())
        await world.pass_time(9)
        assert world.nothing_reserved
        await world.pass_time(1)
        assert world.binding_cycle().stage is CycleStage.GATHERING

    async def test_a_node_that_is_offered_for_the_first_time_ends_the_rest_and_then_never_again(
        self, world: Harness
    ) -> None:
        await world.add(*small_nodes(2), gang(2), *claiming(2)).run_until_idle()
        mates_node = await reject_beside_a_mate(world)
        assert world.filter("m0", mates_node) == Hold()
        await refuse(world, "m0", "m1", message=held_message())
        assert world.nothing_reserved, "that is what the mate had"
        assert world.filter("m0", "n1", "n2") == Hold()
        await world.run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING

        await reject_beside_a_mate(world)
        assert world.filter("m0", "n1", "n2") == Hold()
        await refuse(world, "m0", "m1", message=held_message())
        assert world.nothing_reserved

    async def test_a_member_that_the_quorum_does_not_need_just_waits(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *claiming(3)).run_until_idle()
        await refuse(world, "m2")
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]
        assert not world.node_of("m2")
        assert verdict_of(world).reason is Reason.SCHEDULED
        assert world.nothing_reserved

    async def test_what_was_said_of_a_member_before_it_came_is_old(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *claiming(2)).run_until_idle()
        world.filter("m0", world.binding_cycle().reservation.slots["pod-m0"].node)
        await refuse(world, "m0")
        assert "pod-m0" in world.binding_cycle().reservation.slots

    async def test_a_refusal_for_what_we_count_ourselves_changes_nothing(self, world: Harness) -> None:
        busy = rejection_message("12 Insufficient cpu")
        await world.add(
            *small_nodes(2), gang(2), *[each.unschedulable(message=busy) for each in claiming(2)]
        ).run_until_idle()
        assert world.binding_cycle().stage is CycleStage.GATHERING


def unoffered(world: Harness) -> frozenset[str]:
    return world.groups.states[GANG].list_unoffered(
        world.store.members.of_group(GANG), world.clock(), world.store.nodes
    )


def racks(count: int, size: int = 3) -> list[NodeBuilder]:
    """Racks r0, r1, ... of so many nodes a0, b0, a1, ... each with room for all."""
    return [node(f"{chr(97 + each)}{rack}").cpu(8).rack(f"r{rack}") for rack in range(count) for each in range(size)]


class TestWhatIsOffered:
    async def test_one_list_of_the_scheduler_says_more_than_a_refusal(self, world: Harness) -> None:
        await world.add(*racks(20), gang(3).topology(), *claiming(3)).run_until_idle()
        assert world.binding_cycle().reservation.domain != "r17"
        for _ in range(2):  # the first list may be older than the room that was planned on
            world.filter("m0", "a17", "b17", "c17")
            await world.run_until_idle()
        assert world.binding_cycle().reservation.domain == "r17"
        assert len(world.heard.plans) <= 4

    async def test_a_held_gang_is_planned_where_it_was_offered_room(self, world: Harness) -> None:
        await world.add(*racks(20), gang(3).topology(), *claiming(2)).run_until_idle()
        world.filter("m0", "a9", "b9")
        await world.add(claiming(3)[2]).run_until_idle()
        assert world.binding_cycle().reservation.domain == "r9"
        assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} <= {"a9", "b9"}

    async def test_a_gang_that_does_not_fit_there_waits_until_it_is_offered_more(self, world: Harness) -> None:
        await world.add(*racks(20), gang(2).topology(), *[each.cpu(5) for each in claiming(1)]).run_until_idle()
        world.filter("m0", "a9")
        await world.add(claiming(2)[1].cpu(5)).run_until_idle()
        assert verdict_of(world).reason is Reason.NO_DOMAIN_FITS
        await world.run_until_idle()
        world.filter("m1", "a9", "b9")
        await world.run_until_idle()
        assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} == {"a9", "b9"}

    async def test_what_was_offered_is_believed_for_half_a_minute(self, world: Harness) -> None:
        await world.add(*racks(2), gang(2).topology(), *claiming(1)).run_until_idle()
        world.filter("m0", "a1")
        world.clock.advance(29)
        assert unoffered(world) == {"a0", "b0", "c0", "b1", "c1"}
        world.clock.advance(2)
        assert unoffered(world) == frozenset()

    async def test_a_list_that_may_be_a_sample_says_nothing(self, world: Harness) -> None:
        await world.add(*racks(2), gang(2).topology(), *claiming(1)).run_until_idle()
        world.filter("m0", *[f"n{number}" for number in range(100)])
        assert world.groups.states[GANG].refusals.offers == {}

    async def test_nor_does_the_nomination_that_is_tried_by_itself(self, world: Harness) -> None:
        await world.add(*racks(2), gang(2).topology(), claiming(1)[0].nominated("a0")).run_until_idle()
        world.filter("m0", "a0")
        assert world.groups.states[GANG].refusals.offers == {}

    async def test_nor_what_is_offered_to_a_member_that_we_count_for(self, world: Harness) -> None:
        await world.add(*racks(2), gang(2).topology(), *members(1)).run_until_idle()
        world.filter("m0", "a0")
        assert world.groups.states[GANG].refusals.offers == {}

    async def test_members_of_which_nothing_was_offered_yet_are_not_confined_by_others(self, world: Harness) -> None:
        await world.add(*racks(2), gang(2).topology(), *claiming(1)).run_until_idle()
        world.filter("m0", "a1")
        await world.add(*members(1, first=1)).run_until_idle()
        assert unoffered(world) == frozenset()

    async def test_a_node_that_is_full_of_mates_stays_open_to_them(self) -> None:
        world = Harness(nomination=NominationPolicy.ALWAYS)
        await world.add(*racks(1), gang(2).topology(), *claiming(2)).run_until_idle()
        first = world.binding_cycle().reservation.slots["pod-m0"].node
        second, third = {"a0", "b0", "c0"} - {first}
        assert world.filter("m0") == Steer(first)
        for _ in range(2):
            world.filter("m1", second)
            await world.run_until_idle()
        assert world.binding_cycle().closed == {third}
        assert world.binding_cycle().reservation.slots["pod-m1"].node == second
        await world.close()


async def test_a_gang_keeps_its_place_in_the_queue_while_it_is_refused(world: Harness) -> None:
    await world.add(*small_nodes(1), gang(3), *claiming(3)).run_until_idle()
    since = world.groups.states[GANG].quorum_since
    world.clock.advance(5)
    await refuse(world, "m0")
    assert verdict_of(world).detail
    assert world.groups.states[GANG].quorum_since == since


class TestATree:
    async def test_the_groups_that_have_their_devices_go_on_without_the_others(self, world: Harness) -> None:
        tree = [composite("root").gang(1), *[pod_group(name).gang(1).child_of("root") for name in ("a", "b")]]
        pods = [pod(f"{name}0").cpu(1).scheduler(SCHEDULER).in_group(name) for name in ("a", "b")]
        await world.add(
            *small_nodes(2), *tree, *[each.with_field(CLAIMS, "spec", "resourceClaims") for each in pods]
        ).run_until_idle()
        await refuse(world, "b0")
        assert world.binding_cycle(TREE).reservation.slots.keys() == {"pod-a0"}
        assert world.binding_cycle(TREE).stage is CycleStage.GATHERING

    async def test_one_that_lacks_groups_waits_whole_and_says_for_what(self, world: Harness) -> None:
        tree = [composite("root").gang(2), *[pod_group(name).gang(1).child_of("root") for name in ("a", "b")]]
        pods = [pod(f"{name}0").cpu(1).scheduler(SCHEDULER).in_group(name) for name in ("a", "b")]
        await world.add(
            *small_nodes(2), *tree, *[each.with_field(CLAIMS, "spec", "resourceClaims") for each in pods]
        ).run_until_idle()
        await refuse(world, "b0")
        verdict = world.groups.states[TREE].verdict
        assert verdict is not None
        assert (verdict.reason, verdict.have, verdict.need) == (Reason.NO_CAPACITY, 1, 2)
        assert "kube-scheduler rejects b0" in verdict.detail
        assert world.nothing_reserved
