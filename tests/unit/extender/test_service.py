"""The answers that kube-scheduler gets."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extender.core.protocol import Candidate, Hold, Pass, Steer
from extender.options import NominationPolicy
from serried.api.names import GroupKey
from serried.api.verdict import Reason
from tests.support.builders import PodBuilder, compatible_group, job, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.fake_api import error

pytestmark = pytest.mark.core

OTHER = GroupKey("default", "other")


@pytest.fixture
async def planned(world: Harness) -> Harness:
    """Gang g of two members on n1, planned and recorded."""
    world.add(*small_nodes(2), gang(2), *members(2))
    await world.run_until_idle()
    assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} == {"n1"}
    return world


@pytest.fixture
async def broken(world: Harness) -> Harness:
    """Two racks of two nodes, a plain pod in rack b, and gang g that asks for a rack and has no members yet."""
    nodes = [node(f"{rack}{number}").cpu(2).rack(rack) for rack in "ab" for number in "12"]
    world.add(*nodes, gang(2).topology(), pod("p").cpu(1).on("b1"))
    return world


@pytest.fixture
async def sampled(world: Harness) -> Harness:
    """The same on more nodes than kube-scheduler always looks at."""
    world.add(*[node(f"n{index:03}").cpu(2) for index in range(1, 102)], gang(2), *members(2))
    await world.run_until_idle()
    return world


def slot_of(world: Harness, name: str) -> str:
    slot = world.ledger.slot_of(world.pod(name).uid)
    assert slot is not None
    return slot.node


class TestFilter:
    async def test_a_plain_pod_passes(self, world: Harness) -> None:
        world.add(*small_nodes(2), pod("p"))
        assert world.filter("p") == Pass()

    async def test_a_plain_pod_passes_and_a_gangs_pod_is_held_before_the_caches_are_filled(
        self, world: Harness
    ) -> None:
        world.service.synced = False
        assert world.service.filter(pod("p").value(), ["n1"]) == Pass()
        assert world.service.filter(members(1)[0].value(), ["n1"]) == Hold()
        assert world.service.filter(pod("j-0").of_job("j", 0).scheduler(SCHEDULER).value(), ["n1"]) == Hold()
        assert world.service.filter(pod("s-0").of_replica("s", 0).scheduler(SCHEDULER).value(), ["n1"]) == Hold()

    async def test_a_member_of_a_gang_that_is_not_complete_is_held(self, world: Harness) -> None:
        world.add(*small_nodes(2), gang(2), *members(1))
        await world.run_until_idle()
        held = world.filter("m0")
        assert held == Hold()
        assert isinstance(held, Hold)
        assert held.text == world.heard.describe_hold(GANG)

    async def test_a_member_that_our_watch_has_not_shown_yet_is_held(self, world: Harness) -> None:
        world.add(*small_nodes(2), gang(2))
        assert world.service.filter(members(1)[0].value(), ["n1"]) == Hold()

    async def test_a_member_of_a_basic_group_passes(self, world: Harness) -> None:
        world.add(*small_nodes(2), pod_group("g"), *members(1))
        assert world.filter("m0") == Pass()

    async def test_a_basic_group_waits_whole_for_the_gate_of_one_member_and_is_woken_by_its_end(
        self, world: Harness
    ) -> None:
        """The same holds natively in 1.37, where a PodGroup is queued as one."""
        gated = members(1)[0].gate("example.com/quota")
        await world.add(*small_nodes(2), pod_group("g"), gated, *members(2, first=1)).run_until_idle()
        assert [world.filter(name) for name in ("m1", "m2")] == [Hold(), Hold()]
        assert world.reasons() == [Reason.MEMBER_GATED]
        assert world.api.calls == []
        await world.add(members(1)[0]).run_until_idle()
        assert {call.name for call in world.api.list_calls("activate")} == {"m1", "m2"}
        assert [world.filter(name) for name in ("m0", "m1", "m2")] == [Pass(), Pass(), Pass()]

    async def test_a_basic_group_whose_gated_member_is_gone_waits_no_longer(self, world: Harness) -> None:
        gated = members(1)[0].gate("example.com/quota")
        await world.add(*small_nodes(2), pod_group("g"), gated, *members(1, first=1)).run_until_idle()
        assert world.filter("m1") == Hold()
        world.delete("m0")
        await world.run_until_idle()
        assert world.filter("m1") == Pass()
        assert [call.name for call in world.api.list_calls("activate")] == ["m1"]

    async def test_a_group_of_scheduler_plugins_without_a_quorum_goes_pod_by_pod(self, world: Harness) -> None:
        gated, plain = (pod(name).scheduler(SCHEDULER).in_compatible_group("g") for name in ("m0", "m1"))
        world.add(*small_nodes(2), compatible_group("g"), gated.gate("example.com/quota"), plain)
        assert world.filter("m1") == Pass()

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(members(1)[0].gate(), id="a gate of ours"),
            pytest.param(members(1)[0].gate("example.com/quota").scheduler("another"), id="another scheduler's pod"),
            pytest.param(members(1)[0].gate("example.com/quota").deleting(), id="a gated pod that goes"),
            pytest.param(members(1)[0].gate("example.com/quota").in_group("h"), id="a gated pod of another group"),
        ],
    )
    async def test_nothing_else_holds_a_member_of_a_basic_group(self, world: Harness, other: PodBuilder) -> None:
        world.add(*small_nodes(2), pod_group("g"), pod_group("h"), other, *members(1, first=1))
        assert world.filter("m1") == Pass()

    async def test_a_member_that_was_let_go_is_bound_though_a_gated_one_comes_before_its_bind_call(
        self, world: Harness
    ) -> None:
        world.add(*small_nodes(2), pod_group("g"), *members(1))
        assert world.filter("m0") == Pass()
        await world.add(members(1, first=1)[0].gate("example.com/quota")).run_until_idle()
        call = world.bind("m0", "n1")
        await world.run_until_idle()
        assert (call.error, world.node_of("m0")) == ("", "n1")

    async def test_a_planned_member_gets_its_node_and_no_other(self, planned: Harness) -> None:
        assert planned.filter("m0") == Steer("n1")

    async def test_a_scheduler_that_has_not_seen_that_a_member_is_bound_is_sent_to_its_node(
        self, planned: Harness
    ) -> None:
        """After any other answer kube-scheduler writes on the bound pod that it could not be scheduled."""
        for name in ("m0", "m1"):
            planned.bind(name)
        await planned.run_until_idle()
        assert planned.nothing_reserved
        assert planned.filter("m0") == Steer("n1")
        late = planned.bind("m0")
        await planned.run_until_idle()
        assert late.error == ""

    async def test_a_member_of_another_groups_round_is_held(self, planned: Harness) -> None:
        moved = members(1)[0].in_group("other")
        planned.add(moved, pod_group("other").gang(1))
        assert planned.filter("m0") == Hold()


ELSEWHERE = pod("p").scheduler("default-scheduler")
OTHERS = [
    pytest.param(ELSEWHERE.in_group("g"), id="by the field"),
    pytest.param(ELSEWHERE.labelled_group("g"), id="by our label"),
    pytest.param(ELSEWHERE.in_compatible_group("g"), id="by the label of scheduler-plugins"),
    pytest.param(ELSEWHERE.of_job("j", 0), id="by its Job"),
    pytest.param(ELSEWHERE.of_replica("s", 0), id="by its LeaderWorkerSet"),
    pytest.param(ELSEWHERE.of_job_set("s", "r"), id="by its JobSet"),
]


@pytest.mark.parametrize("foreign", OTHERS)
class TestAnotherProfile:
    """Extenders are the whole kube-scheduler's: a pod of another of its profiles comes, too, and is not ours."""

    @pytest.mark.parametrize("there", [True, False], ids=["a gang", "a group that is not there"])
    async def test_it_passes(self, world: Harness, foreign: PodBuilder, there: bool) -> None:  # noqa: FBT001
        world.add(*small_nodes(2), foreign, *([gang(2), *members(1)] if there else []))
        await world.run_until_idle()
        assert world.filter("p") == Pass()
        assert world.service.preempt(world.pod("p"), [Candidate("n1", ("x",))]) == (Candidate("n1", ("x",)),)
        call = world.bind("p")
        await world.run_tasks()
        assert (call.error, world.node_of("p")) == ("", "n1")

    async def test_it_passes_before_the_caches_are_filled(self, world: Harness, foreign: PodBuilder) -> None:
        world.service.synced = False
        assert world.filter_unknown(foreign) == Pass()

    async def test_it_passes_before_our_watch_shows_it(self, world: Harness, foreign: PodBuilder) -> None:
        world.add(gang(2), *members(1))
        assert world.filter_unknown(foreign) == Pass()


class TestEvidence:
    """A member without nomination teaches nothing under sampling. Here everybody is nominated."""

    @pytest.fixture
    async def world(self) -> AsyncIterator[Harness]:
        made = Harness(nomination=NominationPolicy.ALWAYS)
        yield made
        await made.close()

    async def test_a_sample_without_the_node_refuses_nothing_and_nominates_again_once(self, sampled: Harness) -> None:
        sampled.start_nominating()
        await sampled.run_tasks()
        node_name, uid = slot_of(sampled, "m0"), sampled.pod("m0").uid
        sampled.erase_nomination("m0")
        before = len(sampled.api.list_calls("nominate"))
        for _ in range(3):
            assert sampled.service.filter(members(1)[0].value(), ["n050"]) == Hold()
            await sampled.run_tasks()
        assert slot_of(sampled, "m0") == node_name
        assert len(sampled.api.list_calls("nominate")) == before + 1
        assert sampled.binding_cycle().member(uid).not_offered

    async def test_a_nominated_node_that_is_missing_was_tried_and_refused(self, sampled: Harness) -> None:
        refused = slot_of(sampled, "m0")
        nominated = members(1)[0].nominated(refused).value()
        assert sampled.service.filter(nominated, ["n050", "n051"]) == Hold()
        await sampled.run_tasks()
        assert slot_of(sampled, "m0") != refused

    async def test_a_complete_list_without_the_node_is_a_refusal_the_second_time(self, planned: Harness) -> None:
        assert planned.filter("m0", "n2") == Hold()
        await planned.run_tasks()
        assert slot_of(planned, "m0") == "n1"
        assert planned.filter("m0", "n2") == Hold()
        await planned.run_tasks()
        assert slot_of(planned, "m0") == "n2"

    async def test_a_list_from_before_the_room_was_freed_refuses_nothing(self, world: Harness) -> None:
        """Our watch may show the end of a pod before the scheduler, which is trying members just then, has seen it."""
        plain = pod("plain").cpu(2).on("n1")
        await world.add(*small_nodes(1), plain, gang(2), *members(2)).run_until_idle()
        world.start_nominating()
        world.delete("plain")
        await world.run_until_idle()
        assert world.service.filter(members(1)[0].value(), []) == Hold()
        await world.run_until_idle()
        assert [world.filter(name) for name in ("m0", "m1")] == [Steer("n1"), Steer("n1")]

    async def test_each_node_that_a_member_is_planned_on_gets_its_second_try(self, planned: Harness) -> None:
        assert planned.filter("m1", "n1") == Steer("n1")  # else its slot would be open to m0
        for _ in range(2):
            planned.filter("m0", "n2")
            await planned.run_tasks()
        assert slot_of(planned, "m0") == "n2"
        planned.filter("m0", "n1")
        await planned.run_tasks()
        assert slot_of(planned, "m0") == "n2"

    async def test_a_member_takes_the_open_slot_of_a_mate_that_it_is_offered(self, world: Harness) -> None:
        world.add(*small_nodes(2), gang(2), *(each.cpu(2) for each in members(2)))
        await world.run_until_idle()
        assert [slot_of(world, name) for name in ("m0", "m1")] == ["n1", "n2"]
        assert not world.binding_cycle().open_slots.any_node
        assert world.filter("m1", "n1") == Steer("n1")
        assert [slot_of(world, name) for name in ("m0", "m1")] == ["n2", "n1"]
        assert world.filter("m0", "n1") == Hold(), "it is taken"
        assert world.filter("m0", "n1", "n2") == Steer("n2")

    @pytest.mark.parametrize(
        "others",
        [
            pytest.param([each.index(rank) for rank, each in enumerate(members(2))], id="they have ranks"),
            pytest.param([members(1)[0], members(2)[1].memory("1Gi")], id="they ask for different things"),
        ],
    )
    async def test_but_not_if_they_are_not_alike(self, world: Harness, others: list[PodBuilder]) -> None:
        world.add(*small_nodes(2), gang(2), *(each.cpu(2) for each in others))
        await world.run_until_idle()
        own, other = slot_of(world, "m1"), slot_of(world, "m0")
        assert world.filter("m1", other) == Hold()
        assert slot_of(world, "m1") == own

    async def test_an_outdated_nomination_tried_by_itself_says_nothing_about_the_plan(self, planned: Harness) -> None:
        outdated = members(1)[0].nominated("n2").value()
        assert planned.service.filter(outdated, ["n2"]) == Hold()
        await planned.run_tasks()
        assert slot_of(planned, "m0") == "n1"
        assert planned.service.filter(outdated, ["n1", "n2"]) == Steer("n1")

    async def test_a_refusal_that_comes_after_the_member_moved_does_not_count(self, planned: Harness) -> None:
        planned.add(node("n2").cpu(1))
        nominated = members(1)[0].nominated("n1").value()
        planned.service.filter(nominated, ["n2", "n3"])
        planned.service.filter(nominated, ["n2", "n3"])
        await planned.run_tasks()
        assert slot_of(planned, "m0") == "n2"

    async def test_a_gang_whose_refused_member_finds_no_other_slot_is_planned_anew(self, world: Harness) -> None:
        world.add(*small_nodes(1), gang(2), *members(2))
        await world.run_until_idle()
        call = world.bind("m1")
        await world.run_tasks()
        for _ in range(2):
            world.filter("m0", "n9")
            await world.run_tasks()
        assert call.error.startswith("serried: PlanOutdated")
        assert len(world.ledger) == 0

    async def test_a_surplus_member_that_is_refused_costs_only_its_own_slot(self, world: Harness) -> None:
        world.add(node("n1").cpu(3), gang(2), *members(3))
        await world.run_until_idle()
        for _ in range(2):
            world.filter("m2", "n9")
            await world.run_tasks()
        assert set(world.binding_cycle().reservation.slots) == {"pod-m0", "pod-m1"}

    async def test_a_committed_member_is_not_moved(self, planned: Harness) -> None:
        planned.api.hold("bind")
        calls = [planned.bind("m0"), planned.bind("m1")]
        await planned.run_tasks()
        planned.filter("m0", "n2")
        await planned.run_tasks()
        assert slot_of(planned, "m0") == "n1"
        planned.api.release("bind")
        await planned.run_until_idle()
        assert [call.error for call in calls] == ["", ""]


class TestLooseMembers:
    """A gang with room to spare takes what is offered, if it is in its domain and has room."""

    @pytest.fixture
    async def racked(self, world: Harness) -> Harness:
        """Gang g of two members in rack a, on a1; a2 has room too, and so has rack b."""
        world.add(node("a1").cpu(2).rack("a"), node("a2").cpu(3).rack("a"), node("b1").cpu(9).rack("b"))
        world.add(gang(2).topology(), *members(2))
        await world.run_until_idle()
        assert (world.binding_cycle().open_slots.any_node, slot_of(world, "m0")) == (True, "a1")
        return world

    async def test_the_planned_node_is_taken_if_it_is_offered(self, racked: Harness) -> None:
        assert racked.filter("m0", "b1", "a2", "a1") == Steer("a1")

    async def test_another_node_of_the_domain_takes_the_members_slot_along(self, racked: Harness) -> None:
        assert racked.filter("m0", "b1", "a2") == Steer("a2")
        assert slot_of(racked, "m0") == "a2"
        assert racked.store.occupancy.used["a2"]["cpu"] == 1000

    async def test_a_node_of_another_domain_is_never_taken(self, racked: Harness) -> None:
        assert racked.filter("m0", "b1") == Hold()
        assert slot_of(racked, "m0") == "a1"

    async def test_a_node_without_room_in_the_ledger_is_not_taken(self, racked: Harness) -> None:
        racked.add(pod("p").cpu(3).on("a2"))
        assert racked.filter("m0", "a2") == Hold()

    async def test_a_node_where_a_mate_is_planned_comes_first(self, racked: Harness) -> None:
        racked.add(node("a3").cpu(2).rack("a"))
        assert racked.filter("m0", "a3", "a2") == Steer("a3")
        assert racked.filter("m1", "a2", "a3") == Steer("a3")

    async def test_a_member_at_bind_keeps_its_node(self, racked: Harness) -> None:
        racked.bind("m0")
        await racked.run_tasks()
        assert racked.filter("m0", "a2") == Hold()
        assert slot_of(racked, "m0") == "a1"

    async def test_a_moved_member_binds_where_it_was_sent_and_its_gang_with_it(self, racked: Harness) -> None:
        assert racked.filter("m0", "a2") == Steer("a2")
        calls = [racked.bind("m0"), racked.bind("m1")]
        await racked.run_until_idle()
        assert [call.error for call in calls] == ["", ""]
        assert (racked.node_of("m0"), racked.node_of("m1")) == ("a2", "a1")

    async def test_a_member_whose_sample_has_no_node_for_it_is_nominated_alone(self, racked: Harness) -> None:
        racked.add(*[node(f"c{index:03}").cpu(1) for index in range(101)])
        racked.start_nominating()
        assert racked.filter("m1", "b1") == Hold()
        await racked.run_tasks()
        assert {call.name for call in racked.api.list_calls("nominate")} == {"m1"}
        assert racked.filter("m0", "b1", "a2") == Steer("a2")


def other_members(count: int) -> list[PodBuilder]:
    """Pods o0, o1, ... of gang other, one CPU each."""
    return [pod(f"o{index}").cpu(1).in_group("other") for index in range(count)]


class TestFullRacks:
    """The whole room of a rack may be planned before kube-scheduler comes to the first member."""

    @pytest.fixture
    async def full(self, world: Harness) -> Harness:
        """Gangs g and other of two members each in rack a: g on a1, the other one on a2. Neither has room beside."""
        world.add(node("a1").cpu(3).rack("a"), node("a2").cpu(3).rack("a"), node("b1").cpu(9).rack("b"))
        world.add(gang(2).topology(), *members(2), pod_group("other").gang(2).topology(), *other_members(2))
        await world.run_until_idle()
        assert [slot_of(world, name) for name in ("m0", "m1", "o0", "o1")] == ["a1", "a1", "a2", "a2"]
        assert world.binding_cycle().open_slots.any_node
        assert world.binding_cycle(OTHER).open_slots.any_node
        world.add(pod("p1").cpu(1).on("a1"), pod("p2").cpu(1).on("a2"))
        return world

    async def test_a_member_takes_the_slot_of_another_gang_that_is_offered(self, full: Harness) -> None:
        assert full.filter("m0", "b1", "a2") == Steer("a2")
        assert [slot_of(full, name) for name in ("m0", "m1", "o0", "o1")] == ["a2", "a1", "a1", "a2"]
        assert full.store.occupancy.used["a1"]["cpu"] == full.store.occupancy.used["a2"]["cpu"] == 3000

    async def test_both_gangs_are_bound_without_a_nomination(self, full: Harness) -> None:
        full.start_nominating()
        assert full.filter("m0", "a2") == Steer("a2")
        assert full.filter("m1", "a2") == Steer("a2")
        assert full.filter("o0", "a1") == Steer("a1")
        assert full.filter("o1", "a1") == Steer("a1")
        calls = [full.bind(name) for name in ("m0", "m1", "o0", "o1")]
        await full.run_until_idle()
        assert [call.error for call in calls] == ["", "", "", ""]
        assert not full.api.list_calls("nominate")

    async def test_gangs_that_change_slots_stay_close_together(self, full: Harness) -> None:
        assert full.filter("m0", "a2") == Steer("a2")
        assert full.filter("o1", "a1") == Steer("a1")
        assert [slot_of(full, name) for name in ("m0", "m1", "o0", "o1")] == ["a2", "a2", "a1", "a1"]

    async def test_a_member_that_the_scheduler_has_reached_keeps_its_slot(self, full: Harness) -> None:
        assert full.filter("o0", "a2") == Steer("a2")
        full.bind("o1")
        await full.run_tasks()
        assert full.filter("m0", "a2") == Hold()
        assert slot_of(full, "m0") == "a1"

    async def test_a_member_that_is_nominated_to_its_slot_keeps_it(self, full: Harness) -> None:
        full.add(*[node(f"c{index:03}").cpu(1) for index in range(101)])
        full.start_nominating()
        assert full.filter("o0", "b1") == full.filter("o1", "b1") == Hold()
        await full.run_tasks()
        assert full.filter("m0", "a2") == Hold()

    async def test_a_node_that_was_tried_alone_and_refused_is_given_to_nobody_else(self, full: Harness) -> None:
        full.add(*[node(f"c{index:03}").cpu(1) for index in range(101)])
        full.start_nominating()
        full.filter("o0", "b1")
        await full.run_tasks()
        assert full.binding_cycle(OTHER).open_slots.any_node
        assert full.pod("o0").nominated == slot_of(full, "o0") == "a2"
        assert full.filter("o0", "a1") == Hold()
        assert slot_of(full, "m0") == "a1"

    async def test_a_member_that_asks_for_more_does_not_get_the_slot(self, full: Harness) -> None:
        full.add(pod("m2").cpu(2).in_group("g"))
        full.delete("m1")
        await full.run_until_idle()
        assert full.filter("m2", "a2") == Hold()

    async def test_a_gang_whose_commit_names_the_slots_keeps_those_beyond_it_too(self, full: Harness) -> None:
        full.ledger.commit(full.binding_cycle(OTHER).reservation, frozenset({full.pod("o1").uid}))
        assert full.filter("m0", "a2") == Hold()
        assert slot_of(full, "o0") == "a2"

    async def test_a_gang_whose_nodes_are_given_in_order_keeps_its_slots(self, full: Harness) -> None:
        full.binding_cycle(OTHER).open_slots.require_planned_nodes()
        assert full.filter("m0", "a2") == Hold()

    async def test_a_node_that_is_closed_to_the_other_gang_is_not_given_to_it(self, full: Harness) -> None:
        full.binding_cycle(OTHER).close_nodes(["a1"])
        assert full.filter("m0", "a2") == Hold()
        assert [slot_of(full, name) for name in ("m0", "o0")] == ["a1", "a2"]

    async def test_a_gang_of_another_rack_changes_no_slots_with_it(self, full: Harness) -> None:
        full.ledger.rename_domain(full.binding_cycle(OTHER).reservation, "c")
        assert full.filter("m0", "a2") == Hold()

    async def test_after_a_second_sample_without_a_node_the_rest_is_nominated(self, full: Harness) -> None:
        full.add(*[node(f"c{index:03}").cpu(1) for index in range(101)], pod("m2").cpu(1).in_group("g"))
        full.start_nominating()
        assert full.filter("m0", "b1") == full.filter("m1", "b1") == Hold()
        await full.run_tasks()
        assert not full.binding_cycle().open_slots.any_node


class TestWaking:
    """Held pods are woken when they may go: kube-scheduler was refused, and hears nothing more."""

    async def test_a_pod_held_before_the_caches_were_filled_is_woken_if_it_is_plain(self, world: Harness) -> None:
        plain = pod("p").controlled_by("Job", "j").scheduler(SCHEDULER)
        world.service.synced = False
        assert world.service.filter(plain.value(), ["n1"]) == Hold()
        world.store.put_job(job("j").value())
        world.add(plain)
        world.service.synced = True
        await world.run_until_idle()
        assert [call.name for call in world.api.list_calls("activate")] == ["p"]
        assert list(world.core.groups.held) == []

    async def test_a_pod_held_before_its_job_was_seen_is_woken_if_the_job_is_plain(self, world: Harness) -> None:
        plain = pod("p").controlled_by("Job", "j").scheduler(SCHEDULER)
        world.add(plain)
        assert world.filter("p", "n1") == Hold()
        world.store.put_job(job("j").value())
        await world.run_until_idle()
        assert [call.name for call in world.api.list_calls("activate")] == ["p"]

    @pytest.mark.parametrize("seconds", [1, 11, 300])
    async def test_a_plain_jobs_pod_is_woken_however_late_our_watch_shows_it(
        self, world: Harness, seconds: int
    ) -> None:
        plain = pod("p").controlled_by("Job", "j").scheduler(SCHEDULER)
        assert world.filter_unknown(plain) == Hold()
        for _ in range(seconds):
            await world.pass_time(1.0)
        world.add(job("j"), plain)
        await world.run_until_idle()
        assert [call.name for call in world.api.list_calls("activate")] == ["p"]

    async def test_members_of_a_basic_group_are_woken_however_late_our_watch_shows_them(self, world: Harness) -> None:
        assert [world.filter_unknown(member) for member in members(2)] == [Hold(), Hold()]
        await world.pass_time(60.0)
        world.add(pod_group("g"), *members(2))
        await world.run_until_idle()
        assert {call.name for call in world.api.list_calls("activate")} == {"m0", "m1"}

    async def test_held_members_of_a_group_that_turns_out_basic_are_woken(self, world: Harness) -> None:
        world.add(*members(2))
        world.filter("m0", "n1")
        world.filter("m1", "n1")
        world.add(pod_group("g"))
        await world.run_until_idle()
        assert {call.name for call in world.api.list_calls("activate")} == {"m0", "m1"}

    async def test_members_of_a_gang_stay_held_without_any_write(self, world: Harness) -> None:
        world.add(gang(2), *members(1))
        world.filter("m0", "n1")
        await world.run_until_idle()
        assert world.api.calls == []
        assert set(world.core.groups.held) == {"pod-m0"}


class TestPrioritizeAndPreempt:
    async def test_a_broken_rack_is_ranked_above_a_whole_one(self, broken: Harness) -> None:
        assert broken.service.prioritize(["a1", "b1", "b2"]) == [0, 10, 10]

    async def test_the_room_that_a_gang_is_to_get_is_used_already(self, broken: Harness) -> None:
        broken.add(*[each.request("cpu", 2) for each in members(2)])
        await broken.run_until_idle()
        assert {slot.node for slot in broken.binding_cycle().reservation.slots.values()} == {"a1", "a2"}
        assert broken.service.prioritize(["a1", "b1"]) == [10, 0]

    async def test_before_the_caches_are_filled_there_is_no_opinion(self, broken: Harness) -> None:
        broken.service.synced = False
        assert broken.service.prioritize(["a1", "b1", "b2"]) == [0, 0, 0]

    async def test_a_prioritize_call_changes_nothing(self, broken: Harness) -> None:
        used = {name: dict(amounts) for name, amounts in broken.store.occupancy.used.items()}
        broken.service.prioritize(["a1", "b1", "nowhere"])
        assert (broken.store.occupancy.used, broken.api.calls, len(broken.ledger)) == (used, [], 0)

    async def test_nothing_is_preempted_for_a_member(self, planned: Harness) -> None:
        assert not planned.service.preempt(planned.pod("m0"), [Candidate("n1", ("x",))])

    @pytest.mark.needs("plainpods")
    async def test_a_plain_pod_may_preempt_but_not_members_at_bind(self, planned: Harness) -> None:
        planned.bind("m0")
        await planned.run_tasks()
        candidates = [Candidate("n1", ("pod-m0", "x")), Candidate("n2", ("x",)), Candidate("n1", ("pod-m1",))]
        assert planned.service.preempt(pod("p").priority(1).value(), candidates) == tuple(candidates[1:])


class TestBindOfPlainPods:
    async def test_it_is_bound_with_its_uid_and_counted_before_the_write(self, world: Harness) -> None:
        world.add(*small_nodes(1), pod("p").cpu(1))
        world.api.hold("bind")
        call = world.bind("p", "n1")
        await world.run_tasks()
        assert world.store.occupancy.used["n1"]["cpu"] == 1000
        world.api.release("bind")
        await world.run_until_idle()
        assert (call.error, world.node_of("p")) == ("", "n1")
        assert world.api.list_calls("bind")[0].body == {"uid": "pod-p", "node": "n1"}
        assert world.store.occupancy.used["n1"]["cpu"] == 1000

    @pytest.mark.parametrize("status", [0, 403, 404, 429, 500])
    async def test_a_failure_is_told_and_takes_the_usage_back(self, world: Harness, status: int) -> None:
        world.add(pod("p").cpu(1))
        world.api.fail("bind", error(status))
        call = world.bind("p", "n1")
        await world.run_tasks()
        assert call.error
        assert world.store.occupancy.node_of("pod-p") is None

    async def test_an_unexpected_exception_takes_the_usage_back_too(self, world: Harness) -> None:
        world.add(pod("p").cpu(1))
        world.api.fail("bind", RuntimeError("bug"))
        call = world.bind("p", "n1")
        await world.run_tasks()
        assert isinstance(call.task.exception(), RuntimeError)
        assert world.store.occupancy.used == {}

    async def test_a_pod_that_was_deleted_during_the_write_leaves_nothing(self, world: Harness) -> None:
        world.add(pod("p").cpu(1))
        world.api.hold("bind")
        world.bind("p", "n1")
        await world.run_tasks()
        world.store.drop_pod("pod-p")
        world.api.release("bind")
        await world.run_tasks()
        assert world.store.occupancy.used == {}

    async def test_a_pod_that_our_watch_has_not_shown_yet_is_read_and_bound(self, world: Harness) -> None:
        world.add(pod("p").cpu(1))
        world.store.drop_pod("pod-p")
        call = world.bind("p", "n1")
        await world.run_tasks()
        assert (call.error, world.node_of("p")) == ("", "n1")
        assert world.store.occupancy.used == {}

    async def test_a_pod_that_does_not_exist_is_an_error_and_nothing_is_sent(self, world: Harness) -> None:
        world.add(pod("p"))
        call = world.bind("p", "n1")
        world.delete("p")
        await world.run_tasks()
        assert call.error == "pod default/p with UID pod-p does not exist"
        assert world.api.list_calls("bind") == []

    async def test_a_pod_made_anew_under_the_name_is_not_bound_for_the_old_one(self, world: Harness) -> None:
        world.add(pod("p"))
        call = world.bind("p", "n1")
        world.delete("p")
        world.add(pod("p").uid("another"))
        await world.run_tasks()
        assert call.error == "pod default/p with UID pod-p does not exist"

    async def test_a_pod_that_cannot_be_read_is_an_error(self, world: Harness) -> None:
        world.add(pod("p"))
        call = world.bind("p", "n1")
        world.store.drop_pod("pod-p")
        world.api.fail("get", error(500))
        await world.run_tasks()
        assert call.error.startswith("cannot read pod default/p")


class TestBindOfMembers:
    async def test_a_call_waits_for_the_quorum_and_then_all_are_bound(self, planned: Harness) -> None:
        first = planned.bind("m0")
        await planned.run_tasks()
        assert first.waiting
        second = planned.bind("m1")
        await planned.run_until_idle()
        assert (first.error, second.error) == ("", "")
        assert (planned.node_of("m0"), planned.node_of("m1")) == ("n1", "n1")

    async def test_a_member_without_a_slot_is_refused(self, world: Harness) -> None:
        world.add(gang(2), *members(1))
        call = world.bind("m0", "n1")
        await world.run_tasks()
        assert "no node is planned for" in call.error

    async def test_a_member_on_another_node_than_its_slot_is_refused(self, planned: Harness) -> None:
        planned.add(pod("full").cpu(planned.store.nodes["n2"].allocatable["cpu"] // 1000).on("n2"))
        await planned.run_tasks()
        call = planned.bind("m0", "n2")
        await planned.run_tasks()
        assert "is planned on n1, not on n2" in call.error
        assert not planned.binding_cycle().at_bind

    async def test_a_member_whose_client_hangs_up_leaves_the_barrier_at_once(self, planned: Harness) -> None:
        first = planned.bind("m0")
        await planned.run_tasks()
        first.disconnect()
        await planned.run_tasks()
        assert not planned.binding_cycle().at_bind
        planned.bind("m1")
        await planned.run_tasks()
        assert planned.api.list_calls("bind") == []

    async def test_a_handler_that_is_cancelled_leaves_the_barrier_too(self, planned: Harness) -> None:
        first = planned.bind("m0")
        await planned.run_tasks()
        first.task.cancel()
        await planned.run_tasks()
        assert not planned.binding_cycle().at_bind

    async def test_a_newer_call_of_the_same_pod_replaces_the_older(self, planned: Harness) -> None:
        old = planned.bind("m0")
        await planned.run_tasks()
        new = planned.bind("m0")
        await planned.run_tasks()
        assert old.error == "replaced by a newer bind call of the same pod"
        planned.bind("m1")
        await planned.run_until_idle()
        assert new.error == ""

    async def test_a_call_for_a_member_that_is_bound_already_succeeds_at_once(self, planned: Harness) -> None:
        planned.binding_cycle().mark_bound("pod-m0", planned.clock())
        call = planned.bind("m0")
        await asyncio.wait_for(call.task, 1)
        assert call.error == ""


CONDITION = "PodGroupInitiallyScheduled"
RACKS = (("a", 2), ("b", 3), ("c", 4))


def told_by(manager: str) -> dict[str, object]:
    """Return the managedFields entry of a manager that writes a PodGroup's condition."""
    owned: dict[str, object] = {"f:status": {"f:conditions": {f'k:{{"type":"{CONDITION}"}}': {"f:message": {}}}}}
    return {"manager": manager, "operation": "Update", "subresource": "status", "fieldsV1": owned}


class TestBesideNativeGangScheduling:
    """A kube-scheduler with its own gates on tries a group with a constraint in one domain after another."""

    @pytest.fixture
    async def racked(self, world: Harness) -> Harness:
        """Gang g of two members, planned in rack a, though b and c have room, too. The scheduler has told of g."""
        world.add(*[node(f"{rack}{index}").cpu(cpus).rack(rack) for rack, cpus in RACKS for index in range(2)])
        world.add(gang(2).topology().with_item(told_by("kube-scheduler"), "metadata", "managedFields"), *members(2))
        world.start_nominating()
        await world.run_until_idle()
        assert slot_of(world, "m0") == "a0"
        return world

    async def test_what_is_answered_about_another_domain_teaches_nothing(self, racked: Harness) -> None:
        planned = racked.binding_cycle().reservation.slots["pod-m0"].node
        for offered in (["b0", "b1"], ["c0", "c1"], ["b0"], ["c1"], ["b0", "b1"]) * 2:
            assert racked.filter("m0", *offered) == Hold()
            await racked.run_tasks()
        assert (slot_of(racked, "m0"), racked.binding_cycle().member("pod-m0").stage) == (planned, "Waiting")
        assert racked.api.list_calls("nominate") == []
        assert racked.filter("m0", "a0", "a1") == Steer(planned)

    async def test_a_node_that_is_missing_in_the_planned_domain_itself_is_missed(self, racked: Harness) -> None:
        racked.bind("m1")
        await racked.run_tasks()
        assert racked.filter("m0", "a1") == Steer("a1")

    async def test_what_is_offered_in_one_domain_is_not_all_that_there_is(self, world: Harness) -> None:
        group = gang(3).topology().with_item(told_by("kube-scheduler"), "metadata", "managedFields")
        claims = [{"name": "gpu", "resourceClaimName": "mine"}]
        world.add(node("a0").cpu(2).rack("a"), node("b0").cpu(2).rack("b"), group)
        world.add(*[each.with_field(claims, "spec", "resourceClaims") for each in members(2)])
        await world.run_until_idle()
        world.filter("m0", "b0")
        assert world.groups.states[GANG].refusals.offers == {}
        world.filter("m0", "a0", "b0")
        assert world.groups.states[GANG].refusals.offers != {}

    @pytest.mark.parametrize("manager", ["kube-scheduler", "scheduler-of-ours", "serried", "serried-preemption", ""])
    async def test_who_writes_the_condition_shows_who_schedules_gangs(self, world: Harness, manager: str) -> None:
        entries = [told_by(manager)] if manager else [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]
        world.add(*members(2), gang(2).with_field(entries, "metadata", "managedFields"))
        assert world.store.schedules_gangs is ("scheduler" in manager)

    async def test_what_another_scheduler_writes_of_its_own_gangs_says_nothing_of_ours(self, world: Harness) -> None:
        world.add(*[each.scheduler("default-scheduler") for each in members(2)])
        world.add(gang(2).with_field([told_by("kube-scheduler")], "metadata", "managedFields"))
        assert not world.store.schedules_gangs
