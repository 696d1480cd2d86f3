"""The one door for Bindings: who may be bound is asked at every send, whatever the cycle thought before."""

import pytest

from extender.core.binding import run as cycle_runner
from extender.core.binding.records import Records
from extender.core.scheduling.binding_cycle import CycleStage
from extender.core.scheduling.permit import Obstacle, find_misfit
from serried.api.names import GroupKey, Key
from serried.api.reservation import Reservation, Slot
from serried.api.verdict import Reason
from serried.cluster.cache import Store
from serried.cluster.ledger import Ledger
from serried.cluster.usage import UsageSource
from serried.kube.retry import Backoff
from serried.rules.all import RULES
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.fake_api import error


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rolling forward is not slowed down."""
    monkeypatch.setattr(cycle_runner, "_ROLL_FORWARD", Backoff(0.0, 0.0))


def replacement(name: str, group: str = "g") -> PodBuilder:
    return pod(name).cpu(1).scheduler(SCHEDULER).in_group(group)


def bound_of(world: Harness) -> dict[str, str]:
    """Node names by pod name, of those that the API server has bound."""
    return {key.name: found for key in world.api.pods if (found := world.node_of(key.name))}


class TestMembersThatAreBeingDeleted:
    async def test_are_no_quorum_for_those_that_replace_them(self, world: Harness) -> None:
        old = [replacement(f"o{i}").cpu(2).on(f"n{i + 1}").deleting() for i in range(4)]
        new = [replacement(f"m{i}").cpu(2) for i in range(4)]
        await world.add(*small_nodes(5, 2), gang(4), *old, *new).run_until_idle()
        assert len(world.ledger) == 0
        assert world.reasons()[-1] in {Reason.NO_CAPACITY, Reason.BROKEN}
        for index in range(4):
            world.delete(f"o{index}")
        await world.run_until_idle()
        assert len(world.binding_cycle().reservation.slots) == world.binding_cycle().reservation.need == 4

    async def test_two_gangs_that_are_drained_at_once_never_hold_halves(self, world: Harness) -> None:
        groups = ("g", "h")
        world.add(*[node(f"n{index}").cpu(1).cordoned() for index in range(1, 5)])
        world.add(node("free1").cpu(1), node("free2").cpu(1), gang(2), pod_group("h").gang(2))
        old = {"g-old0": "n1", "g-old1": "n2", "h-old0": "n3", "h-old1": "n4"}
        world.add(*[replacement(name, name[0]).on(home).deleting() for name, home in old.items()])
        await world.run_until_idle()
        for index in range(2):
            for group in groups:
                await world.add(replacement(f"{group}-new{index}", group)).run_until_idle()
                for uid in [uid for held in world.ledger for uid in held.slots]:
                    world.bind(uid.removeprefix("pod-"))
                await world.run_until_idle()
        for name in old:
            world.delete(name)
        await world.run_until_idle()
        for uid in [uid for held in world.ledger for uid in held.slots]:
            world.bind(uid.removeprefix("pod-"))
        await world.run_until_idle()
        assert sorted(bound_of(world)) in (["g-new0", "g-new1"], ["h-new0", "h-new1"])

    async def test_one_of_four_is_replaced_as_soon_as_there_is_room(self, world: Harness) -> None:
        running = [each.on(f"n{index + 1}") for index, each in enumerate(members(3))]
        ending = members(1, first=3)[0].on("n4").deleting()
        await world.add(*small_nodes(5, 1), gang(4), *running, ending, replacement("r")).run_until_idle()
        assert world.binding_cycle().reservation.need == 1
        call = world.bind("r")
        await world.run_until_idle()
        assert (call.error, world.node_of("r")) == ("", "n5")

    async def test_keep_the_gang_in_their_domain_until_they_are_gone(self, world: Harness) -> None:
        racked = [node("a1").cpu(2).rack("a").cordoned(), node("b1").cpu(2).rack("b")]
        old = [each.on("a1").deleting() for each in members(2)]
        await world.add(*racked, gang(2).topology(), *old, replacement("r0"), replacement("r1")).run_until_idle()
        assert len(world.ledger) == 0
        world.delete("m0")
        world.delete("m1")
        await world.run_until_idle()
        assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} == {"b1"}

    async def test_on_a_node_that_nobody_hears_of_keep_nobody(self, world: Harness) -> None:
        silent = node("a1").cpu(2).rack("a").taint("node.kubernetes.io/unreachable", "NoExecute")
        old = [each.on("a1").deleting() for each in members(2)]
        world.add(silent, node("b1").cpu(2).rack("b"), gang(2).topology(), *old)
        await world.add(replacement("r0"), replacement("r1")).run_until_idle()
        assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} == {"b1"}


class TestThePodGroup:
    async def test_that_is_made_anew_while_a_committed_round_drains_starts_whole_or_not_at_all(
        self, world: Harness
    ) -> None:
        await world.add(*small_nodes(3, 1), gang(2), *members(2)).run_until_idle()
        for name in ("m0", "m1"):
            world.bind(name)
        await world.run_tasks()  # our watch has not shown the two bound yet
        world.store.drop_group(GANG)
        world.add(gang(4).uid("another"))
        world.add(*[replacement(f"x{index}") for index in range(4)])
        world.schedule_groups()
        await world.run_tasks()
        assert not [uid for uid in world.binding_cycle().reservation.slots if uid.startswith("pod-x")]
        late = world.bind("x0", "n3")
        await world.run_until_idle()
        assert late.error
        assert sorted(bound_of(world)) == ["m0", "m1"]

    async def test_that_goes_while_the_commit_is_on_its_way_binds_nobody(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        world.api.hold("create")
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_tasks()
        world.store.drop_group(GANG)
        world.api.release("create")
        await world.run_until_idle()
        assert all(call.error for call in calls)
        assert bound_of(world) == {}
        assert world.nothing_reserved
        assert world.reasons()[-1] is Reason.POD_GROUP_MISSING

    async def test_that_goes_after_the_commit_closes_the_door_until_a_binding_has_left(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        cycle = world.binding_cycle()
        world.ledger.commit(cycle.reservation, cycle.reservation.slots.keys())
        world.store.drop_group(GANG)
        first = await world.core.runner.send(cycle, "pod-m0")
        assert first.refusal is not None
        assert (first.refusal.obstacle, bound_of(world)) == (Obstacle.GROUP, {})
        cycle.note_binding_sent()
        await world.core.runner.send(cycle, "pod-m0")
        assert bound_of(world).keys() == {"m0"}

    async def test_that_goes_in_the_middle_of_the_burst_stops_nobody(self, world: Harness) -> None:
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        world.api.before_bind = lambda _: world.store.drop_group(GANG)
        world.api.fail("bind", error(500))
        calls = [world.bind("m0"), world.bind("m1")]
        for _ in range(3):
            await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]
        assert sorted(bound_of(world)) == ["m0", "m1"]


class TestTheQuorum:
    async def test_that_dies_while_a_late_member_is_on_its_way_is_waited_for_by_all(self, world: Harness) -> None:
        world.add(*small_nodes(4, 1), gang(3), *[each.on(f"n{i + 1}") for i, each in enumerate(members(3))])
        await world.run_until_idle()
        await world.add(*members(1, first=3)).run_until_idle()
        assert world.binding_cycle().reservation.need == 0
        for index in range(3):
            world.store.drop_node(f"n{index + 1}")
            world.delete(f"m{index}")
        world.add(node("n5").cpu(1), *[replacement(f"r{index}") for index in range(3)])
        await world.run_until_idle()
        for uid in [uid for held in world.ledger for uid in held.slots]:
            world.bind(uid.removeprefix("pod-"))
        await world.run_until_idle()
        assert bound_of(world) == {}

    async def test_that_breaks_while_the_commit_is_on_its_way_binds_nobody(self, world: Harness) -> None:
        running = [each.on("n3") for each in members(2)]
        await world.add(*small_nodes(3), gang(3), *running, *members(1, first=2)).run_until_idle()
        world.api.hold("create")
        call = world.bind("m2")
        await world.run_tasks()
        world.delete("m0")
        world.schedule_groups()
        world.api.release("create")
        await world.run_until_idle()
        assert call.error
        assert world.node_of("m2") == ""
        assert world.nothing_reserved

    async def test_that_loses_a_member_in_the_middle_of_the_burst_stops_nobody(self, world: Harness) -> None:
        await world.add(*small_nodes(3), gang(3), *members(3)).run_until_idle()

        def lose_the_last(_: Key) -> None:
            world.api.before_bind = lambda _: None
            world.delete("m2")

        world.api.before_bind = lose_the_last
        world.api.fail("bind", error(500), error(500))
        for index in range(3):
            world.bind(f"m{index}")
        for _ in range(3):
            await world.run_until_idle()
        assert sorted(bound_of(world)) == ["m0", "m1"]

    async def test_is_not_asked_for_by_a_member_whose_own_slot_is_kept(self, world: Harness) -> None:
        world.add(*small_nodes(3, 1), gang(3), *[each.on(f"n{i + 1}") for i, each in enumerate(members(3))])
        await world.run_until_idle()
        world.delete("m2")
        await world.add(members(1, first=2)[0].uid("again")).run_until_idle()
        assert world.binding_cycle().reservation.need == 0
        call = world.bind("m2")
        await world.run_until_idle()
        assert (call.error, world.node_of("m2")) == ("", "n3")

    async def test_is_asked_for_by_members_whose_own_slots_will_not_do(self, world: Harness) -> None:
        world.add(*small_nodes(3, 1), gang(3), *[each.on(f"n{i + 1}") for i, each in enumerate(members(3))])
        await world.run_until_idle()
        world.store.put_node(node("n2").cpu(1).cordoned().value())
        world.store.put_node(node("n3").cpu(1).cordoned().value())
        world.delete("m1")
        world.delete("m2")
        world.add(node("n4").cpu(1))
        await world.add(*[each.uid(f"again-{i}") for i, each in enumerate(members(2, first=1))]).run_until_idle()
        assert len(world.ledger) == 0  # there is room for one of two
        await world.add(node("n5").cpu(1)).run_until_idle()
        assert world.binding_cycle().reservation.need == 2


class TestTheDomain:
    async def test_a_late_member_is_not_bound_to_a_node_that_left_it(self, world: Harness) -> None:
        world.add(node("a1").cpu(4).rack("a"), node("a2").cpu(4).rack("a"), gang(2).topology())
        world.add(members(1)[0].on("a1"), members(1, 1)[0].cpu(3).on("a1"))
        await world.run_until_idle()
        await world.add(members(1, 2)[0].cpu(2)).run_until_idle()
        assert world.binding_cycle().reservation.slots["pod-m2"].node == "a2"
        world.store.put_node(node("a2").cpu(4).rack("b").value())
        world.schedule_groups()
        call = world.bind("m2")
        await world.run_until_idle()
        assert "a2" in call.error
        assert world.node_of("m2") == ""

    async def test_a_late_member_is_not_bound_where_the_gang_is_no_more(self, world: Harness) -> None:
        world.add(node("a1").cpu(2).rack("a"), node("a2").cpu(4).rack("a"), gang(2).topology())
        world.add(*[each.on("a1") for each in members(2)])
        await world.run_until_idle()
        await world.add(members(1, 2)[0]).run_until_idle()
        world.store.put_node(node("a1").cpu(2).rack("b").value())
        call = world.bind("m2")
        await world.run_until_idle()
        assert "runs in b" in call.error
        assert world.node_of("m2") == ""

    async def test_a_surplus_member_goes_to_another_node_if_its_own_is_gone(self, world: Harness) -> None:
        await world.add(*small_nodes(3, 1), gang(2), *members(3)).run_until_idle()
        world.bind("m0")
        world.bind("m1")
        await world.run_tasks()
        lost = world.binding_cycle().reservation.slots["pod-m2"].node
        world.store.drop_node(lost)
        world.add(node("n4").cpu(1))
        first = world.bind("m2", lost)
        await world.run_tasks()
        assert lost in first.error
        again = world.bind("m2")
        await world.run_until_idle()
        assert (again.error, world.node_of("m2")) == ("", "n4")


class TestARecordOfAnEarlierTerm:
    async def leave_behind(self, world: Harness, nodes: dict[str, str], domain: str = "", need: int = 2) -> None:
        slots = {f"pod-{name}": Slot(f"pod-{name}", name, home) for name, home in nodes.items()}
        left = Reservation(GANG, "podgroup-g", domain, need, slots, frozenset(slots))
        await Records(world.api.client(), "v1", "earlier").write(gang(need).value(), left)
        await world.recovery.recover()
        for _ in range(3):
            await world.run_until_idle()

    async def test_whose_node_is_gone_is_withdrawn_and_the_scheduler_is_asked_about_others(
        self, world: Harness
    ) -> None:
        world.add(node("n2").cpu(4), gang(2), *members(2))
        await self.leave_behind(world, {"m0": "gone", "m1": "gone"})
        assert bound_of(world) == {}
        for name in ("m0", "m1"):
            world.bind(name)
        for _ in range(2):
            await world.run_until_idle()
        assert bound_of(world) == {"m0": "n2", "m1": "n2"}
        assert {call.body["node"] for call in world.api.list_calls("bind")} == {"n2"}

    async def test_that_fits_nowhere_any_more_is_withdrawn_and_planned_anew(self, world: Harness) -> None:
        world.add(node("n2").cpu(1), gang(2), *members(2))
        await self.leave_behind(world, {"m0": "gone", "m1": "gone"})
        assert bound_of(world) == {}
        assert world.nothing_reserved
        assert world.reasons()[-1] is Reason.NO_CAPACITY

    async def test_whose_node_is_in_another_rack_waits_for_room_beside_the_others(self, world: Harness) -> None:
        world.add(node("n1").cpu(1).rack("a"), node("n2").cpu(4).rack("b"), gang(2).topology())
        world.add(members(1)[0].on("n1"), members(1, 1)[0])
        await self.leave_behind(world, {"m0": "n1", "m1": "n2"}, "a")
        assert world.node_of("m1") == ""
        assert "n2 is not in a any more" in world.heard.verdicts[-1][1].detail
        world.add(node("n3").cpu(1).rack("a"))
        for _ in range(3):
            await world.run_until_idle()
        assert world.node_of("m1") == "n3"

    async def test_follows_those_that_run_into_the_rack_that_theirs_is_called_now(self, world: Harness) -> None:
        world.add(node("n1").cpu(1).rack("b"), node("n2").cpu(4).rack("a"), node("n3").cpu(1).rack("b"))
        world.add(gang(2).topology(), members(1)[0].on("n1"), members(1, 1)[0])
        await self.leave_behind(world, {"m0": "n1", "m1": "n2"}, "a")
        assert world.node_of("m1") == "n3"

    async def test_stays_in_its_own_rack_if_those_that_run_are_in_two_others_by_now(self, world: Harness) -> None:
        racked = {"n1": "b", "n2": "c", "n3": "a", "n4": "b", "n5": "c"}
        world.add(*[node(name).cpu(1).rack(rack) for name, rack in racked.items()], gang(3).topology())
        world.add(members(1)[0].on("n1"), members(1, 1)[0].on("n2"), members(1, 2)[0])
        await self.leave_behind(world, {"m0": "n1", "m1": "n2", "m2": "n3"}, "a", need=3)
        assert world.node_of("m2") == "n3"

    async def test_whose_quorum_has_broken_since_binds_nobody_though_one_has_the_slot_that_is_kept_for_it(
        self, world: Harness
    ) -> None:
        """The record puts one replacement on its own node, the other elsewhere. A third member has died since."""
        world.add(*small_nodes(3, 1), node("n4").cpu(1).cordoned(), node("n5").cpu(1), gang(4))
        world.add(*[each.on(f"n{i + 1}") for i, each in enumerate(members(4))])
        for lost in ("m2", "m3", "m1"):
            world.delete(lost)
        world.add(replacement("r0"), replacement("r1"))
        await self.leave_behind(world, {"r0": "n3", "r1": "n5"}, need=2)
        assert bound_of(world) == {"m0": "n1"}
        assert world.binding_cycle().reservation.slots.keys() == {"pod-r0"}

    async def test_of_a_podgroup_made_anew_binds_nobody_for_the_new_one(self, world: Harness) -> None:
        world.add(*small_nodes(2, 1), gang(3).uid("another"), *members(4))
        await self.leave_behind(world, {"m0": "n1"}, need=1)
        assert bound_of(world) == {}


async def test_a_member_is_asked_about_again_before_each_attempt(world: Harness) -> None:
    await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
    assert world.binding_cycle().stage is CycleStage.GATHERING
    world.api.fail("bind", error(500))
    planned = world.binding_cycle().reservation.slots["pod-m0"].node
    world.api.before_bind = lambda _: world.store.drop_node(planned)
    for name in ("m0", "m1"):
        world.bind(name)
    for _ in range(3):
        await world.run_until_idle()
    assert len(bound_of(world)) == 2
    assert list(bound_of(world).values()).count(planned) <= 1


@pytest.fixture
def planned() -> tuple[Store, Reservation]:
    """Members m0 and m1 with slots on n1, which they fill."""
    store = Store([SCHEDULER], rules=RULES)
    store.put_node(node("n1").cpu(2).value())
    pods = [builder.value() for builder in members(2)]
    for each in pods:
        store.put_pod(each)
    slots = {each.uid: Slot(each.uid, each.name, "n1") for each in pods}
    reservation = Reservation(GroupKey("default", "g"), "podgroup-g", "", 2, slots)
    Ledger(store.occupancy, store.pending_victims).reserve(reservation, {each.uid: each for each in pods})
    return store, reservation


def misfit(store: Store, reservation: Reservation) -> str | None:
    return find_misfit(store.groups.get(reservation.group), reservation, ("pod-m0", "pod-m1"), store, beside=())


class TestTheSlots:
    def test_a_plan_that_still_holds_has_no_misfit(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        assert misfit(store, reservation) is None

    def test_another_pod_took_the_room(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        store.occupancy.add_usage("plain", UsageSource.ASSUMED, "n1", pod("plain").cpu(1).value().shape.requests)
        assert misfit(store, reservation) == "node n1 has too few free resources"

    def test_another_pod_that_asks_for_something_else_is_no_misfit(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        requests = (("example.com/gpu", 1000),)
        store.occupancy.add_usage("plain", UsageSource.BOUND, "n1", requests)
        assert misfit(store, reservation) is None

    def test_another_pod_took_the_port(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        listening = members(1)[0].host_port(80)
        store.put_pod(listening.value())
        store.occupancy.add_usage("pod-m0", UsageSource.RESERVED, "n1", listening.value().shape.requests)
        assert misfit(store, reservation) is None
        store.occupancy.add_usage("plain", UsageSource.BOUND, "n1", pod("plain").host_port(80).value().shape.requests)
        assert misfit(store, reservation) == "node n1 has too few free resources"

    def test_the_node_is_gone(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        store.drop_node("n1")
        assert misfit(store, reservation) == "node n1 does not exist any more"

    def test_the_node_is_cordoned_or_tainted(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        store.put_node(node("n1").cpu(2).cordoned().value())
        assert misfit(store, reservation) == "node n1 does not admit m0 any more"

    def test_the_node_went_to_another_domain(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        reservation.rename_domain("r1")
        store.put_group(gang(2).topology().value())
        store.put_node(node("n1").cpu(2).rack("r1").value())
        assert misfit(store, reservation) is None
        store.put_node(node("n1").cpu(2).rack("r2").value())
        assert misfit(store, reservation) == "node n1 is not in r1 any more"

    def test_the_node_shrank(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        store.put_node(node("n1").cpu(1).value())
        assert misfit(store, reservation) == "node n1 has too few free resources"

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(members(1)[0].deleting(), id="is being deleted"),
            pytest.param(members(1)[0].on("n2"), id="is bound already"),
            pytest.param(members(1)[0].phase("Failed"), id="has failed"),
        ],
    )
    def test_a_member(self, planned: tuple[Store, Reservation], change: PodBuilder) -> None:
        store, reservation = planned
        store.put_pod(change.value())
        assert misfit(store, reservation) == "member pod-m0 does not exist any more"

    def test_a_member_has_no_slot_any_more(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        reservation.remove_slot("pod-m1")
        assert misfit(store, reservation) == "member pod-m1 does not exist any more"


LOW = 1
HIGH = 100


class TestSlotsOfOthers:
    """A plain pod has taken room on which two gangs are planned: only one of them can stay."""

    def make(self, own: int, others: int) -> tuple[Store, Ledger]:
        """Gangs g and h have a slot each on n1, which they fill; then a plain pod is bound there."""
        store = Store([SCHEDULER], rules=RULES)
        store.put_node(node("n1").cpu(2).value())
        ledger = Ledger(store.occupancy, store.pending_victims)
        for name, priority in (("g", own), ("h", others)):
            store.put_group(pod_group(name).gang(1).priority(priority).value())
            member = pod(name).cpu(1).scheduler(SCHEDULER).in_group(name).priority(priority).value()
            store.put_pod(member)
            slots = {member.uid: Slot(member.uid, name, "n1")}
            reservation = Reservation(GroupKey("default", name), f"podgroup-{name}", "", 1, slots)
            ledger.reserve(reservation, {member.uid: member})
        store.put_pod(pod("plain").cpu(1).on("n1").value())
        return store, ledger

    def misfit(self, store: Store, ledger: Ledger, name: str) -> str | None:
        reservation = ledger.of_group(GroupKey("default", name))
        assert reservation is not None
        group = store.groups[reservation.group]
        return find_misfit(group, reservation, list(reservation.slots), store, beside=ledger)

    def test_of_lower_priority_are_not_in_the_way(self) -> None:
        store, ledger = self.make(HIGH, LOW)
        assert self.misfit(store, ledger, "g") is None
        assert self.misfit(store, ledger, "h") == "node n1 has too few free resources"

    def test_of_equal_priority_are(self) -> None:
        store, ledger = self.make(HIGH, HIGH)
        assert self.misfit(store, ledger, "g") == "node n1 has too few free resources"

    def test_that_are_committed_are(self) -> None:
        store, ledger = self.make(HIGH, LOW)
        other = ledger.of_group(GroupKey("default", "h"))
        assert other is not None
        ledger.commit(other, other.slots.keys())
        assert self.misfit(store, ledger, "g") == "node n1 has too few free resources"
