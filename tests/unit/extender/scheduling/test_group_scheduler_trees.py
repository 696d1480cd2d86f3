"""A tree of groups from its plan to its last Binding: every group with its quorum or not at all."""

import pytest

from extender.core.binding.records import Records
from extender.core.scheduling.binding_cycle import CycleStage
from extender.features.repair import broken_since
from serried.api.names import GroupKey, GroupKind, Key
from serried.api.preference import PREFERRED_TOPOLOGY
from serried.api.reservation import Reservation, Slot
from serried.api.verdict import Reason
from tests.support.builders import RACK, Builder, NodeBuilder, PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.composites import CompositeBuilder, composite
from tests.support.extender_harness import SCHEDULER, BindCall, Harness

pytestmark = pytest.mark.core

ZONE = "example.com/zone"
TREE = GroupKey("default", "root", GroupKind.COMPOSITE)
ALL = ("a0", "b0", "b1")


def racks(count: int, slots: int = 2) -> list[NodeBuilder]:
    """Return nodes with room for ``slots`` members: each is a rack of its own, two of them are a zone."""
    return [node(f"n{number}").cpu(slots).rack(f"r{number}").label(ZONE, f"z{number // 2}") for number in range(count)]


def root(groups: int) -> CompositeBuilder:
    return composite("root").gang(groups)


def group(name: str, min_count: int) -> PodGroupBuilder:
    return pod_group(name).gang(min_count).child_of("root")


def pods(name: str, count: int, first: int = 0) -> list[PodBuilder]:
    return [pod(f"{name}{number}").cpu(1).scheduler(SCHEDULER).in_group(name) for number in range(first, first + count)]


async def bind(world: Harness, *names: str) -> list[BindCall]:
    calls = [world.bind(name) for name in names]
    await world.run_until_idle()
    return calls


def bound(world: Harness) -> set[str]:
    return {key.name for key in world.api.pods if world.node_of(key.name)}


def where(world: Harness, label: str, *names: str) -> set[str]:
    return {world.store.nodes[world.node_of(name)].labels[label] for name in names}


class TestTheWholeWay:
    async def test_all_groups_wait_for_each_other_and_are_bound_together(self, world: Harness) -> None:
        await world.add(*racks(4), root(2), group("a", 1), group("b", 2), *pods("a", 1), *pods("b", 2)).run_until_idle()
        early = await bind(world, "a0", "b0")
        assert all(call.waiting for call in early)
        assert not bound(world)
        await bind(world, "b1")
        assert bound(world) == {"a0", "b0", "b1"}
        assert world.nothing_reserved
        assert world.reasons(TREE)[-1] is Reason.SCHEDULED

    async def test_there_is_one_record_which_names_the_groups_and_the_root_owns_it(self, world: Harness) -> None:
        await world.add(*racks(4), root(2), group("a", 1), group("b", 2), *pods("a", 1), *pods("b", 2)).run_until_idle()
        await bind(world, "a0", "b0", "b1")
        (written,) = world.api.list_calls("create")
        assert written.body["metadata"]["ownerReferences"][0]["kind"] == "CompositePodGroup"
        assert written.body["metadata"]["ownerReferences"][0]["name"] == "root"
        assert written.body["spec"]["parts"] == [
            {"podGroup": "a", "minCount": 1},
            {"podGroup": "b", "minCount": 2},
        ]
        members = {m["name"]: m["podGroup"] for slot in written.body["spec"]["slots"] for m in slot["members"]}
        assert members == {"a0": "a", "b0": "b", "b1": "b"}

    async def test_every_level_keeps_its_domain(self, world: Harness) -> None:
        tree = [root(2).topology(ZONE), group("a", 2).topology(), group("b", 2).topology()]
        await world.add(*racks(4), *tree, *pods("a", 2), *pods("b", 2)).run_until_idle()
        await bind(world, "a0", "a1", "b0", "b1")
        assert len(where(world, RACK, "a0", "a1")) == len(where(world, RACK, "b0", "b1")) == 1
        assert len(where(world, ZONE, "a0", "a1", "b0", "b1")) == 1

    async def test_members_beyond_the_quorums_come_along(self, world: Harness) -> None:
        await world.add(*racks(4), root(2), group("a", 1), group("b", 1), *pods("a", 2), *pods("b", 2)).run_until_idle()
        await bind(world, "a0", "b0")
        assert bound(world) == {"a0", "b0"}
        await bind(world, "a1", "b1")
        assert bound(world) == {"a0", "b0", "a1", "b1"}


class TestWhatIsMissing:
    async def test_a_tree_waits_until_enough_groups_have_their_quorum(self, world: Harness) -> None:
        await world.add(*racks(4), root(2), group("a", 1), group("b", 2), *pods("a", 1), *pods("b", 1)).run_until_idle()
        assert world.reasons(TREE)[-1] is Reason.QUORUM_MISSING
        verdict = world.groups.states[TREE].verdict
        assert verdict is not None
        assert (verdict.have, verdict.need, verdict.detail) == (2, 3, "b has 1 of 2")
        assert not world.api.list_calls("create")

    async def test_a_tree_without_enough_groups_says_so(self, world: Harness) -> None:
        await world.add(*racks(4), root(3), group("a", 1), *pods("a", 1)).run_until_idle()
        verdict = world.groups.states[TREE].verdict
        assert verdict is not None
        assert (verdict.reason, verdict.detail) == (Reason.QUORUM_MISSING, "root has 1 of 3 groups")

    async def test_members_whose_root_is_not_there_are_held_and_told(self, world: Harness) -> None:
        await world.add(*racks(4), group("a", 1), *pods("a", 1)).run_until_idle()
        verdict = world.groups.states[TREE].verdict
        assert verdict is not None
        assert (verdict.reason, verdict.detail) == (
            Reason.POD_GROUP_MISSING,
            "CompositePodGroup root does not exist",
        )
        await world.add(root(1)).run_until_idle()
        await bind(world, "a0")
        assert bound(world) == {"a0"}

    async def test_a_gated_member_holds_its_group_and_with_it_the_tree(self, world: Harness) -> None:
        gated = pods("b", 2)[1].gate("example.com/later")
        await world.add(
            *racks(4), root(2), group("a", 1), group("b", 2), *pods("a", 1), *pods("b", 1), gated
        ).run_until_idle()
        assert world.reasons(TREE)[-1] is Reason.MEMBER_GATED

    async def test_the_groups_are_no_gangs_of_their_own(self, world: Harness) -> None:
        await world.add(*racks(4), root(2), group("a", 1), group("b", 2), *pods("a", 1)).run_until_idle()
        assert list(world.groups.states) == [TREE]

    async def test_what_does_not_fit_together_waits_whole(self, world: Harness) -> None:
        tree = [root(2).topology(ZONE), group("a", 2).topology(), group("b", 2).topology()]
        small = node("n1").cpu(1).rack("r1").label(ZONE, "z0")
        unracked = node("n2").cpu(9).label(ZONE, "z0")
        await world.add(*racks(1), small, unracked, *tree, *pods("a", 2), *pods("b", 2)).run_until_idle()
        verdict = world.groups.states[TREE].verdict
        assert verdict is not None
        assert verdict.reason is Reason.GROUPS_UNPLACED
        assert (verdict.have, verdict.need) == (1, 2)
        assert verdict.detail.startswith("b: NoDomainFits: 2 members do not fit into any domain of example.com/rack")
        await world.add(node("n3").cpu(2).rack("r3").label(ZONE, "z0")).run_until_idle()
        await bind(world, "a0", "a1", "b0", "b1")
        assert len(bound(world)) == 4


class TestPreferences:
    """A tree on two racks with room for two members each, whose group of three prefers one rack."""

    def tree(self, wait: str) -> list[Builder]:
        patient = group("b", 3).annotation(PREFERRED_TOPOLOGY, f"{RACK}{wait}")
        return [*racks(2), root(2), group("a", 1), patient, *pods("a", 1), *pods("b", 3)]

    async def test_the_tree_waits_as_long_as_one_of_its_groups_would(self, world: Harness) -> None:
        await world.add(*self.tree("=30s")).run_until_idle()
        assert world.reasons(TREE)[-1] is Reason.GROUPS_UNPLACED
        await world.pass_time(29)
        assert world.groups.states[TREE].cycle is None
        await world.pass_time(1)
        assert world.binding_cycle(TREE).reservation.parts == {"a": 1, "b": 3}

    async def test_a_group_gets_the_rack_that_it_prefers(self, world: Harness) -> None:
        await world.add(node("n9").cpu(3).rack("r9"), *self.tree("")).run_until_idle()
        assert {slot.node for slot in world.binding_cycle(TREE).reservation.slots.values() if slot.part == "b"} == {
            "n9"
        }


class TestMoreGroupsThanNeeded:
    async def test_those_that_fit_come_along(self, world: Harness) -> None:
        await world.add(*racks(4), root(1), group("a", 2), group("b", 2), *pods("a", 2), *pods("b", 2)).run_until_idle()
        await bind(world, "a0", "a1", "b0")
        assert not bound(world)
        await bind(world, "b1")
        assert len(bound(world)) == 4

    async def test_one_that_comes_later_starts_whole_where_the_tree_is(self, world: Harness) -> None:
        await world.add(*racks(4, slots=4), root(1).topology(ZONE), group("a", 2), *pods("a", 2)).run_until_idle()
        await bind(world, "a0", "a1")
        await world.add(group("b", 2), *pods("b", 1)).run_until_idle()
        assert world.reasons(TREE)[-1] is Reason.QUORUM_MISSING
        await world.add(*pods("b", 1, first=1)).run_until_idle()
        await bind(world, "b0")
        assert bound(world) == {"a0", "a1"}
        await bind(world, "b1")
        assert len(where(world, ZONE, "a0", "a1", "b0", "b1")) == 1

    async def test_one_that_does_not_come_to_bind_is_left_out_in_the_end(self, world: Harness) -> None:
        await world.add(*racks(4), root(1), group("a", 2), group("b", 2), *pods("a", 2), *pods("b", 2)).run_until_idle()
        calls = await bind(world, "a0", "a1", "b0")
        await world.pass_time(61.0)
        assert bound(world) == {"a0", "a1"}
        assert calls[2].error == "serried: too few members of the pod's PodGroup reached bind in time"
        await bind(world, "b0", "b1")
        assert len(bound(world)) == 4

    async def test_one_that_loses_a_member_is_left_out_at_once(self, world: Harness) -> None:
        await world.add(*racks(4), root(1), group("a", 2), group("b", 2), *pods("a", 2), *pods("b", 2)).run_until_idle()
        world.delete("b0")
        await world.run_until_idle()
        assert world.binding_cycle(TREE).reservation.parts == {"a": 2}
        await bind(world, "a0", "a1")
        assert bound(world) == {"a0", "a1"}

    async def test_where_all_are_needed_the_round_is_over_when_one_loses_a_member(self, world: Harness) -> None:
        await world.add(*racks(4), root(2), group("a", 2), group("b", 2), *pods("a", 2), *pods("b", 2)).run_until_idle()
        (call,) = await bind(world, "a0")
        world.delete("b0")
        await world.run_until_idle()
        assert Reason.PLAN_OUTDATED in world.reasons(TREE)
        assert call.error.startswith("serried: ")
        assert not bound(world)
        assert world.nothing_reserved


class TestWhenSomethingChanges:
    async def test_a_replacement_before_the_commit_takes_the_place_in_its_own_group(self, world: Harness) -> None:
        tree = [root(2), group("a", 2).topology(), group("b", 2).topology()]
        await world.add(*racks(4, slots=3), *tree, *pods("a", 2), *pods("b", 3)).run_until_idle()
        world.delete("b0")
        await world.add(*pods("b", 1, first=9)).run_until_idle()
        assert world.binding_cycle(TREE).stage is CycleStage.GATHERING
        await bind(world, "a0", "a1", "b1", "b2", "b9")
        assert bound(world) == {"a0", "a1", "b1", "b2", "b9"}
        assert len(where(world, RACK, "b1", "b2", "b9")) == 1

    async def test_a_node_that_the_scheduler_refuses_is_left_for_one_in_the_same_domain(self, world: Harness) -> None:
        tree = [root(1), group("a", 1).topology()]
        await world.add(node("n0").cpu(1).rack("r"), *tree, *pods("a", 1)).run_until_idle()
        await world.add(node("n1").cpu(1).rack("r")).run_until_idle()
        world.core.cycle_updates.handle_rejected_node("pod-a0", "n0")
        await world.run_until_idle()
        await bind(world, "a0")
        assert world.node_of("a0") == "n1"

    async def test_nodes_that_change_racks_before_the_commit_end_the_round(self, world: Harness) -> None:
        tree = [root(1), group("a", 2).topology()]
        await world.add(
            *[node(f"n{number}").cpu(1).rack("r") for number in range(2)], *tree, *pods("a", 2)
        ).run_until_idle()
        calls = [world.bind("a0")]
        await world.run_until_idle()
        world.add(node("n1").cpu(1).rack("other"))
        calls += await bind(world, "a1")
        assert Reason.PLAN_OUTDATED in world.reasons(TREE)
        assert not bound(world)

    @pytest.mark.needs("repairs")
    async def test_a_dead_member_is_replaced_alone_in_its_groups_domain(self, world: Harness) -> None:
        tree = [root(2), group("a", 2).topology(), group("b", 2).topology()]
        await world.add(*racks(4), *tree, *pods("a", 2), *pods("b", 2)).run_until_idle()
        await bind(world, "a0", "a1", "b0", "b1")
        home = world.node_of("b0")
        world.delete("b0")
        await world.run_until_idle()
        await world.add(*pods("b", 1)).run_until_idle()
        await bind(world, "b0")
        assert world.node_of("b0") == home

    @pytest.mark.needs("repairs")
    async def test_a_replacement_does_not_wait_for_that_of_another_dead_member(self, world: Harness) -> None:
        tree = [root(2), group("a", 1), group("b", 3)]
        await world.add(*racks(4), *tree, *pods("a", 1), *pods("b", 3)).run_until_idle()
        await bind(world, "a0", "b0", "b1", "b2")
        home = world.node_of("b0")
        world.delete("b0")
        world.delete("b1")
        await world.run_until_idle()
        await world.add(*pods("b", 1)).run_until_idle()
        await bind(world, "b0")
        assert world.node_of("b0") == home

    @pytest.mark.needs("repairs")
    async def test_a_tree_that_is_to_have_more_groups_is_not_broken(self, world: Harness) -> None:
        await world.add(*racks(4), root(1), group("a", 2), *pods("a", 2)).run_until_idle()
        await bind(world, "a0", "a1")
        await world.add(root(2), group("b", 1)).run_until_idle()
        assert broken_since(world.groups.states[TREE]) is None
        world.delete("a1")
        await world.run_until_idle()
        assert broken_since(world.groups.states[TREE]) is not None

    async def test_a_gated_member_beyond_its_quorum_holds_nothing(self, world: Harness) -> None:
        await world.add(*racks(4), root(1), group("a", 1), *pods("a", 1)).run_until_idle()
        await bind(world, "a0")
        await world.add(*[each.gate("example.com/later") for each in pods("a", 1, first=1)]).run_until_idle()
        assert Reason.MEMBER_GATED not in world.reasons(TREE)

    async def test_a_group_that_came_along_keeps_the_slot_of_its_dead_member_too(self, world: Harness) -> None:
        await world.add(*racks(4), root(1), group("a", 2), group("b", 2), *pods("a", 2), *pods("b", 2)).run_until_idle()
        await bind(world, "a0", "a1", "b0", "b1")
        world.delete("b0")
        await world.run_until_idle()
        assert [vacancy.pod.name for vacancy in world.store.vacancies.of_group(TREE)] == ["b0"]

    async def test_the_root_goes_before_the_commit(self, world: Harness) -> None:
        await world.add(*racks(4), root(1), group("a", 2), *pods("a", 2)).run_until_idle()
        (call,) = await bind(world, "a0")
        world.store.drop_composite(Key("default", "root"))
        await world.run_until_idle()
        assert call.error.startswith("serried: ")
        assert not bound(world)
        assert world.reasons(TREE)[-1] is Reason.POD_GROUP_MISSING


class TestAfterARestart:
    """A record of an earlier term is there, and its process is gone."""

    async def leave_behind(self, world: Harness, *committed: str) -> None:
        world.add(*racks(4), root(2), group("a", 1), group("b", 2), *pods("a", 1), *pods("b", 2))
        slots = {f"pod-{name}": Slot(f"pod-{name}", name, "n0" if name == "a0" else "n1", name[0]) for name in ALL}
        chosen = [f"pod-{name}" for name in committed]
        left = Reservation(TREE, "compositepodgroup-root", "", 3, slots, chosen, {"a": 1, "b": 2})
        await Records(world.api.client(), "v1", "earlier").write(world.store.groups[TREE], left)
        await world.recovery.recover()
        await world.run_tasks()

    async def test_a_planned_tree_still_waits_for_all_its_groups(self, world: Harness) -> None:
        await self.leave_behind(world)
        await bind(world, "a0", "b0")
        assert not bound(world)
        await bind(world, "b1")
        assert bound(world) == set(ALL)

    async def test_a_committed_tree_is_rolled_forward_without_any_call(self, world: Harness) -> None:
        await self.leave_behind(world, *ALL)
        await world.run_until_idle()
        assert bound(world) == set(ALL)


async def test_members_that_run_in_two_domains_are_an_error_not_mended(world: Harness) -> None:
    tree = [root(1).topology(ZONE), group("a", 1)]
    strays = [each.on(f"n{number * 2}") for number, each in enumerate(pods("a", 2))]
    await world.add(*racks(4), *tree, *strays, *pods("a", 1, first=5)).run_until_idle()
    verdict = world.groups.states[TREE].verdict
    assert verdict is not None
    assert (verdict.reason, verdict.key, verdict.detail) == (Reason.DOMAIN_CONFLICT, ZONE, "root: z0, z1")


@pytest.mark.needs("repairs")
async def test_a_tree_that_starts_anew_takes_its_old_places_where_it_has_them(world: Harness) -> None:
    tree = [root(2), group("a", 2).topology(), group("b", 2).topology()]
    await world.add(*racks(4), *tree, *pods("a", 2), *pods("b", 2)).run_until_idle()
    await bind(world, "a0", "a1", "b0", "b1")
    before = {name: world.node_of(name) for name in ("a0", "a1", "b0", "b1")}
    for name in before:
        world.delete(name)
    await world.run_until_idle()
    await world.add(*pods("a", 2), *pods("b", 2)).run_until_idle()
    (record,) = list(world.ledger)
    assert {slot.name: slot.node for slot in record.slots.values()} == before
    await bind(world, "a0", "a1", "b0")
    assert not bound(world)
    await bind(world, "b1")
    assert len(bound(world)) == 4
