"""Members for whom kube-scheduler has no node whatever room there is: the gang lets go at once, and rests.

Of a claim that does not exist, of affinity, spread and shared volumes only the scheduler knows. If they keep a pod from
every node, it does not even call filter: it says so in the pod's condition.
"""

import pytest

from extender.core.protocol import Hold
from serried.api.names import GroupKey
from serried.api.verdict import Reason, Verdict, render
from tests.support.builders import NodeBuilder, PodBuilder, node, pod, pod_group
from tests.support.devices import held_message, rejection_message
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes

NO_CLAIM = rejection_message('persistentvolumeclaim "data" not found')
APART = "node(s) didn't match pod anti-affinity rules"
NOWHERE = rejection_message(f"12 {APART}")
PARTLY = rejection_message("10 Insufficient cpu", f"2 {APART}")
HIGH = 100


def verdict_of(world: Harness) -> Verdict:
    verdict = world.groups.states[GANG].verdict
    assert verdict is not None
    return verdict


def racks(count: int) -> list[NodeBuilder]:
    """Racks r0, r1, ... with two nodes each, which one member fills."""
    return [node(f"{name}{rack}").cpu(1).rack(f"r{rack}") for rack in range(count) for name in "ab"]


async def refuse(world: Harness, *names: str, message: str = NOWHERE) -> None:
    """The scheduler tries these pods in vain, as its plugins say."""
    for name in names:
        world.erase_nomination(name)
        world.mark_unschedulable(name, message)
    world.sync_pods()
    await world.run_until_idle()


async def try_beside_a_mate(world: Harness) -> str:
    """Let m0 come to its bind call and m1 find no node then. Return the error of m0's call."""
    node_name = world.ledger.of_group(GANG).slots["pod-m0"].node  # type: ignore[union-attr]
    world.filter("m0", node_name)
    call = world.bind("m0")
    await world.run_tasks()
    await refuse(world, "m1")
    return call.error


async def offer_all(world: Harness) -> None:
    """The mate's node is given back, so the scheduler has nodes for both, and filter holds them."""
    await refuse(world, "m0", "m1", message=held_message())


class TestAMemberThatWasRefusedBeforeItsGangWasPlanned:
    async def test_nothing_is_planned_and_the_reason_has_the_schedulers_words(self, world: Harness) -> None:
        await world.add(
            *small_nodes(2), gang(2), members(1)[0], members(2)[1].unschedulable(message=NO_CLAIM)
        ).run_until_idle()
        assert world.heard.plans == []
        assert render(verdict_of(world)) == (
            "NoCapacity: only 1 of 2 members fit into the cluster; "
            'kube-scheduler rejects m1 on every node: persistentvolumeclaim "data" not found'
        )

    async def test_it_is_planned_once_the_scheduler_has_a_node(self, world: Harness) -> None:
        await world.add(
            *small_nodes(2), gang(2), members(1)[0], members(2)[1].unschedulable(message=NO_CLAIM)
        ).run_until_idle()
        await refuse(world, "m1", message=held_message())
        assert world.reasons()[-1] is Reason.PLANNED

    async def test_where_room_is_all_that_some_nodes_lack_the_gang_waits_for_room(self, world: Harness) -> None:
        await world.add(
            *small_nodes(1), gang(3), *[each.unschedulable(message=PARTLY) for each in members(3)]
        ).run_until_idle()
        assert verdict_of(world).reason is Reason.NO_CAPACITY
        assert GANG in world.queue

    async def test_nor_does_what_a_plan_counts_keep_it_from_its_plan(self, world: Harness) -> None:
        ports = rejection_message("12 node(s) didn't have free ports for the requested pod ports")
        await world.add(
            *small_nodes(2), gang(2), *[each.unschedulable(message=ports) for each in members(2)]
        ).run_until_idle()
        assert world.reasons()[-1] is Reason.PLANNED

    async def test_nobody_is_evicted_for_it(self, world: Harness) -> None:
        full = [pod(f"low{index}").cpu(2).on(f"n{index + 1}") for index in range(2)]
        high = [each.cpu(2).priority(HIGH) for each in members(2)]
        await world.add(
            *small_nodes(2), *full, gang(2).priority(HIGH), high[0], high[1].unschedulable(message=NO_CLAIM)
        ).run_until_idle()
        await world.pass_time(60)
        assert world.api.list_evicted() == []


class TestAMemberThatIsRefusedBesideItsMates:
    async def test_the_mates_call_fails_and_everything_is_given_back_at_once(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        assert (await try_beside_a_mate(world)).startswith("serried: NoCapacity")
        assert world.nothing_reserved
        assert render(verdict_of(world)) == (
            "NoCapacity: only 1 of 2 members fit into the cluster; kube-scheduler rejects m1 on every node "
            f"while other members of the gang have nodes: 12 {APART}"
        )

    async def test_it_rests_and_each_rest_is_longer(self, world: Harness) -> None:
        await world.add(*[each.cpu(1) for each in small_nodes(40)], gang(2), *members(2)).run_until_idle()
        rests: list[float] = []
        for _ in range(4):
            await try_beside_a_mate(world)
            await offer_all(world)
            begun = world.clock()
            while world.nothing_reserved:
                await world.pass_time(1)
            rests.append(world.clock() - begun)
        assert rests == [10, 20, 40, 60]

    async def test_other_nodes_are_tried_next(self, world: Harness) -> None:
        await world.add(*racks(3), gang(2).topology(), *members(2)).run_until_idle()
        tried = []
        for _ in range(3):
            tried.append(world.binding_cycle().reservation.domain)
            await try_beside_a_mate(world)
            await offer_all(world)
            await world.pass_time(60)
        assert sorted(tried) == ["r0", "r1", "r2"]

    async def test_where_none_is_left_it_rests_and_the_reason_stays(self, world: Harness) -> None:
        await world.add(*racks(1), gang(2).topology(), *members(2)).run_until_idle()
        await try_beside_a_mate(world)
        await offer_all(world)
        await world.pass_time(11)
        assert (
            f"kube-scheduler rejects m1 on every node while other members of the gang have nodes: 12 {APART}"
            in render(verdict_of(world))
        )
        assert world.nothing_reserved
        assert world.core.backfill.head is None
        await world.pass_time(30)
        assert world.binding_cycle().reservation.domain == "r0"

    async def test_what_the_gang_has_learnt_is_nothing_to_the_pods_that_come_in_their_place(
        self, world: Harness
    ) -> None:
        await world.add(*racks(1), gang(2).topology(), *members(2)).run_until_idle()
        await try_beside_a_mate(world)
        world.delete("m1")
        await world.add(*members(1, first=2)).run_until_idle()
        await world.pass_time(11)
        assert world.binding_cycle().reservation.domain == "r0"

    async def test_where_some_nodes_lacked_room_it_counts_after_a_moment(self, world: Harness) -> None:
        world.start_nominating()
        await world.add(*small_nodes(2), gang(2), *[each.unschedulable() for each in members(2)]).run_until_idle()
        await refuse(world, "m1", message=PARTLY)
        assert not world.nothing_reserved
        await world.pass_time(0.6)
        assert world.nothing_reserved
        assert "kube-scheduler rejects m1 on every node" in verdict_of(world).detail

    async def test_one_that_bears_its_nomination_has_not_been_tried(self, world: Harness) -> None:
        world.start_nominating()
        await world.add(
            *small_nodes(2), gang(2), *[each.unschedulable(message=PARTLY) for each in members(2)]
        ).run_until_idle()
        await world.pass_time(5)
        assert not world.nothing_reserved

    async def test_but_other_words_than_before_show_that_it_was_tried_before_that_was_written(
        self, world: Harness
    ) -> None:
        world.start_nominating()
        await world.add(
            *small_nodes(2), gang(2), *[each.unschedulable(message=PARTLY) for each in members(2)]
        ).run_until_idle()
        nominated = world.pod("m1").nominated
        world.mark_unschedulable("m1", rejection_message("9 Insufficient cpu", f"3 {APART}"))
        world.sync_pods()
        assert world.pod("m1").nominated == nominated
        await world.pass_time(0.6)
        assert world.nothing_reserved


class TestEvictions:
    async def test_they_are_not_repeated_while_the_refusal_stands(self, world: Harness) -> None:
        low = [pod(f"low{index}").cpu(2).on(f"n{index + 1}") for index in range(4)]
        await world.add(*small_nodes(4), *low).run_until_idle()
        await world.add(gang(2).priority(HIGH), *[each.cpu(2).priority(HIGH) for each in members(2)]).run_until_idle()
        assert len(world.api.list_evicted()) == 2
        for name in [f"low{index}" for index in range(4)]:
            if world.pod_key(name) not in world.api.pods:
                world.delete(name)
        await world.run_until_idle()
        await try_beside_a_mate(world)
        assert world.nothing_reserved
        freed = [name for name in ("n1", "n2", "n3", "n4") if not world.store.occupancy.used.get(name)]
        world.add(*[pod(f"new-{name}").cpu(2).on(name) for name in freed])
        await refuse(world, "m0", "m1", message=rejection_message("12 Insufficient cpu"))
        for _ in range(28):
            await world.pass_time(10)
        assert len(world.api.list_evicted()) == 2
        assert "kube-scheduler rejects m1 on every node" in verdict_of(world).detail


class TestAMemberBeyondTheQuorum:
    async def test_its_slot_is_given_back_and_the_others_run(self, world: Harness) -> None:
        await world.add(*[each.cpu(1) for each in small_nodes(3)], gang(2), *members(3)).run_until_idle()
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_until_idle()
        await refuse(world, "m2")
        assert [call.error for call in calls] == ["", ""]
        assert world.nothing_reserved
        assert verdict_of(world).reason is Reason.SCHEDULED


async def test_a_gang_in_one_rack_goes_where_the_scheduler_offers_nodes_for_all(world: Harness) -> None:
    world.start_nominating()
    await world.add(*racks(12), gang(2).topology(), *[each.unschedulable() for each in members(2)]).run_until_idle()
    first = world.binding_cycle().reservation.domain
    assert first != "r7"
    assert world.filter("m0", "a7", "b7") == Hold()
    await world.run_until_idle()
    assert world.binding_cycle().reservation.domain == "r7"


async def test_what_was_refused_stays_so_while_another_rack_is_left(world: Harness) -> None:
    """The pauses between two tries grow; the first racks must not be open again before the last one is tried."""
    world.start_nominating()
    await world.add(*racks(12), gang(2).topology(), *[each.unschedulable() for each in members(2)]).run_until_idle()
    tried = []
    for _ in range(1000):
        if not world.nothing_reserved:
            reservation = world.binding_cycle().reservation
            tried.append(reservation.domain)
            for slot in list(reservation.slots.values()):
                world.core.cycle_updates.handle_rejected_node(slot.uid, slot.node)
        await world.pass_time(5)
        if len(tried) == 12:
            break
    assert len(set(tried)) == 12


async def test_a_gang_that_rests_keeps_nobodys_place(world: Harness) -> None:
    await world.add(*[each.cpu(1) for each in small_nodes(2)], gang(2), *members(2)).run_until_idle()
    await try_beside_a_mate(world)
    await offer_all(world)
    other = GroupKey("default", "h")
    await world.add(pod_group("h").gang(2), *[each.in_group("h") for each in members(2, first=5)]).run_until_idle()
    assert {slot.name for slot in world.binding_cycle(other).reservation.slots.values()} == {"m5", "m6"}


class TestAMemberThatMustBeBesideAMate:
    """Before the mate has its node the scheduler refuses it everywhere."""

    NOBODY_THERE = rejection_message("12 node(s) didn't match pod affinity rules")

    def led(self) -> list[PodBuilder]:
        leader, follower = members(2)
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"role": "leader"}}}
        required = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        return [leader.label("role", "leader"), follower.with_field(required, "spec", "affinity")]

    def hosts(self) -> list[NodeBuilder]:
        return [each.label("kubernetes.io/hostname", f"h{index}").cpu(2) for index, each in enumerate(small_nodes(2))]

    async def test_that_keeps_its_gang_from_no_plan(self, world: Harness) -> None:
        leader, follower = self.led()
        await world.add(
            *self.hosts(), gang(2), leader, follower.unschedulable(message=self.NOBODY_THERE)
        ).run_until_idle()
        assert world.reasons()[-1] is Reason.PLANNED

    async def test_nor_does_it_end_the_plan_before_the_scheduler_tries_it_again(self, world: Harness) -> None:
        await world.add(*self.hosts(), gang(2), *self.led()).run_until_idle()
        calls = [world.bind("m0")]
        await world.run_tasks()
        await refuse(world, "m1", message=self.NOBODY_THERE)
        await world.pass_time(10)
        calls.append(world.bind("m1"))
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]

    async def test_one_whose_neighbour_is_no_mate_is_refused_at_once(self, world: Harness) -> None:
        leader, follower = self.led()
        await world.add(*small_nodes(2), gang(2), leader.label("role", "other"), follower).run_until_idle()
        world.bind("m0")
        await world.run_tasks()
        await refuse(world, "m1", message=self.NOBODY_THERE)
        await world.pass_time(0.6)
        assert world.nothing_reserved


class TestTheEndOfARejection:
    async def test_others_go_for_the_gang_again_though_nothing_has_changed(self, world: Harness) -> None:
        await world.add(
            *small_nodes(2, 1), gang(2).priority(HIGH), *[each.priority(HIGH) for each in members(2)]
        ).run_until_idle()
        await try_beside_a_mate(world)
        await world.add(*[pod(f"low{index}").cpu(1).on(f"n{index}") for index in (1, 2)]).run_until_idle()
        await offer_all(world)
        await world.pass_time(100)
        assert world.api.list_evicted() == []
        for _ in range(30):
            await world.pass_time(10)
        assert len(world.api.list_evicted()) == 2

    @pytest.mark.parametrize(
        ("said", "evicted"),
        [
            pytest.param("12 Insufficient cpu", 2, id="only room is missing: pods of lower priority are evicted"),
            pytest.param(f"12 {APART}", 0, id="the same is missing as before: nobody is evicted"),
        ],
    )
    async def test_the_members_next_condition_tells_whether_evictions_would_help(
        self, world: Harness, said: str, evicted: int
    ) -> None:
        await world.add(
            *small_nodes(2, 1), gang(2).priority(HIGH), *[each.priority(HIGH) for each in members(2)]
        ).run_until_idle()
        await try_beside_a_mate(world)
        await world.add(*[pod(f"low{index}").cpu(1).on(f"n{index}") for index in (1, 2)]).run_until_idle()
        await refuse(world, "m0", "m1", message=rejection_message(said))
        await world.pass_time(30)
        assert len(world.api.list_evicted()) == evicted

    async def test_what_was_said_of_the_pod_itself_ends_when_the_scheduler_has_a_node(self, world: Harness) -> None:
        await world.add(
            *small_nodes(2, 1), gang(2).priority(HIGH), *[each.priority(HIGH) for each in members(2)]
        ).run_until_idle()
        world.bind("m0")
        await world.run_tasks()
        await refuse(world, "m1", message=NO_CLAIM)
        await world.add(*[pod(f"low{index}").cpu(1).on(f"n{index}") for index in (1, 2)]).run_until_idle()
        await offer_all(world)
        for _ in range(3):
            await world.pass_time(10)
        assert len(world.api.list_evicted()) == 2

    async def test_it_says_nothing_of_a_gang_that_can_run_without_the_member(self, world: Harness) -> None:
        await world.add(*[each.cpu(1) for each in small_nodes(2)], gang(2), *members(2)).run_until_idle()
        await try_beside_a_mate(world)
        await offer_all(world)
        await world.add(*[pod(f"low{index}").cpu(1).on(f"n{index}") for index in (1, 2)]).run_until_idle()
        await world.add(*members(1, first=2)).run_until_idle()
        await world.pass_time(60)
        assert "kube-scheduler rejects" not in render(verdict_of(world))

    async def test_with_the_gang_bound_the_nodes_are_open_again(self, world: Harness) -> None:
        await world.add(*racks(2), gang(2).topology(), *members(2)).run_until_idle()
        first = world.binding_cycle().reservation.domain
        await try_beside_a_mate(world)
        await offer_all(world)
        await world.pass_time(60)
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]
        waiting = world.store.members.of_group(GANG)
        out = world.groups.states[GANG].find_exclusions(waiting, world.clock(), world.store)
        assert not any(name.endswith(first[1:]) for name in out.nodes)


async def test_a_domain_that_was_refused_beside_mates_is_not_open_again_by_what_is_offered_in_the_next(
    world: Harness,
) -> None:
    """DoNotSchedule over racks: beside a mate in one rack, the scheduler offers the nodes of all other racks."""
    world.start_nominating()
    await world.add(*racks(3), gang(2).topology(), *[each.unschedulable() for each in members(2)]).run_until_idle()
    tried = []
    for _ in range(3):
        domain = world.binding_cycle().reservation.domain
        tried.append(domain)
        slots = world.binding_cycle().reservation.slots
        world.filter("m0", slots["pod-m0"].node)
        world.bind("m0")
        await world.run_tasks()
        others = [name for name, each in world.store.nodes.items() if domain not in each.labels.values()]
        world.filter("m1", *others)
        await world.run_until_idle()
        await world.pass_time(60)
    assert sorted(tried) == ["r0", "r1", "r2"]


async def test_a_sample_of_nodes_has_a_gang_planned_only_after_a_refusal(world: Harness) -> None:
    await world.add(*[node(f"n{index}").cpu(1) for index in range(150)], gang(3), *members(2)).run_until_idle()
    world.groups.states[GANG].refusals.exclude_node(world.pod("m0").shape, "n0", world.store)
    plans = len(world.heard.plans)
    for index in range(10):
        world.filter("m0", *[f"n{each}" for each in range(index, index + 120)])
        await world.run_until_idle()
    assert len(world.heard.plans) == plans
