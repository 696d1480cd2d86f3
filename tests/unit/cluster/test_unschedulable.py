"""Unschedulable groups, and the freed resources that wake them."""

from types import MappingProxyType
from unittest.mock import Mock

import pytest

from extender.core.scheduling.unschedulable import UnschedulableGroups
from serried.api.names import GroupKey
from serried.api.verdict import Reason, Verdict
from serried.cluster.cache import Store
from serried.cluster.usage import Freed, UsageSource
from serried.plan.fit import count_fitting
from serried.plan.gang import plan_gang
from serried.plan.request import PlanRequest
from serried.rules.all import RULES
from tests.support.builders import RACK, PodBuilder, node, pod

G, H = GroupKey("default", "g"), GroupKey("default", "h")
ONE_CPU = pod("p").cpu(1)


class Scene:
    """A cluster of three full nodes in two racks, and the unschedulable of its gangs."""

    def __init__(self) -> None:
        self.store = Store([], rules=RULES)
        for name, rack in (("a1", "a"), ("a2", "a"), ("b1", "b")):
            self.store.put_node(node(name).cpu(4).rack(rack).value())
            self.store.occupancy.add_usage(f"filler-{name}", UsageSource.BOUND, name, (("cpu", 4000), ("pods", 1)))
        self.unschedulable = UnschedulableGroups(self.store.nodes, self.store.occupancy.used)
        self.store.occupancy.freed_nodes.take()

    def refuse(self, group: GroupKey, count: int, like: PodBuilder = ONE_CPU, **said: object) -> None:
        """A gang of so many members is planned, in vain."""
        asked = self.ask(count, like, **said)
        answer = plan_gang(self.store.snapshots.take(0, asked.members), asked)
        assert isinstance(answer, Verdict)
        self.unschedulable.put(group, asked, answer)

    def ask(self, count: int, like: PodBuilder = ONE_CPU, **said: object) -> PlanRequest:
        pods = tuple(like.with_field(f"p{i}", "metadata", "name").uid(f"p{i}").value() for i in range(count))
        return PlanRequest(pods, count, **{"topology_key": None, **said})  # type: ignore[arg-type]

    def free(self, name: str, cpus: int) -> set[GroupKey]:
        """Free CPUs of a node. Return the groups that this wakes."""
        self.store.occupancy.add_usage(
            f"filler-{name}", UsageSource.BOUND, name, (("cpu", 4000 - 1000 * cpus), ("pods", 1))
        )
        return self.wake()

    def wake(self, withdrawn: Freed | None = MappingProxyType({})) -> set[GroupKey]:
        return self.unschedulable.wake(self.store.occupancy.freed_nodes.take(), withdrawn)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_gang_wakes_when_as_much_is_free_as_it_needs_and_not_before(scene: Scene) -> None:
    scene.refuse(G, 3)
    assert scene.free("a1", 2) == set()
    assert scene.free("b1", 1) == {G}
    assert G not in scene.unschedulable


def test_room_that_is_freed_little_by_little_adds_up(scene: Scene) -> None:
    scene.refuse(G, 4)
    assert scene.free("a1", 2) == set()
    assert scene.free("a1", 3) == set()
    assert scene.free("a1", 4) == {G}


def test_what_was_free_when_the_gang_was_refused_counts(scene: Scene) -> None:
    scene.free("a1", 2)
    scene.refuse(G, 4)
    assert scene.free("a1", 3) == set()
    assert scene.free("a2", 1) == {G}


def test_a_gang_bound_to_one_rack_wakes_for_room_in_one_rack(scene: Scene) -> None:
    scene.refuse(G, 4, topology_key=RACK)
    assert scene.free("a1", 3) == set()
    assert scene.free("b1", 3) == set()
    assert scene.free("a2", 1) == {G}


def test_a_rack_that_the_refusal_does_not_name_counts_with_what_the_last_named_one_has(scene: Scene) -> None:
    for at in range(12):
        scene.store.put_node(node(f"r{at:02}").cpu(4).rack(f"r{at:02}").value())
        scene.free(f"r{at:02}", 1)
    scene.refuse(G, 2, topology_key=RACK)  # it names ten racks with room for one: r00 to r09
    assert scene.free("r11", 2) == {G}


def test_a_gang_that_has_its_rack_wakes_for_room_there_only(scene: Scene) -> None:
    scene.refuse(G, 1, topology_key=RACK, pinned=frozenset({"a"}))
    assert scene.free("b1", 4) == set()
    assert scene.free("a1", 1) == {G}


def test_of_several_gangs_those_wake_that_the_room_would_hold(scene: Scene) -> None:
    scene.refuse(G, 5)
    scene.refuse(H, 2)
    assert scene.free("a1", 2) == {H}
    assert scene.free("a2", 3) == {G}


def test_a_refusal_from_before_room_was_freed_takes_nothing_from_others_that_wait(scene: Scene) -> None:
    asked = scene.ask(9)
    answer = plan_gang(scene.store.snapshots.take(0, asked.members), asked)
    assert isinstance(answer, Verdict)
    scene.refuse(H, 3)
    assert scene.free("a1", 2) == set()
    scene.unschedulable.put_stale(G, asked, answer)
    assert scene.free("b1", 1) == {H}


def test_a_refusal_from_before_room_was_freed_is_what_is_known_if_nobody_else_waits(scene: Scene) -> None:
    asked = scene.ask(3)
    answer = plan_gang(scene.store.snapshots.take(0, asked.members), asked)
    assert isinstance(answer, Verdict)
    scene.unschedulable.put_stale(G, asked, answer)
    assert scene.free("a1", 2) == set()
    assert scene.free("a1", 3) == {G}


def test_replacements_whose_own_slots_are_taken_say_nothing_of_the_room_for_others(scene: Scene) -> None:
    scene.refuse(H, 3)
    assert scene.free("a1", 2) == set()
    scene.unschedulable.put(G, scene.ask(1, own_slots=True), Verdict(Reason.NO_CAPACITY, need=1))
    assert scene.free("b1", 1) == {G, H}


def test_a_node_that_the_members_may_not_use_wakes_nobody(scene: Scene) -> None:
    scene.refuse(G, 1, like=ONE_CPU.node_selector("gpu", "yes"))
    assert scene.free("a1", 4) == set()
    scene.store.put_node(node("a1").cpu(4).rack("a").label("gpu", "yes").value())
    assert scene.wake() == {G}


def test_a_resource_that_the_members_do_not_lack_wakes_nobody(scene: Scene) -> None:
    scene.refuse(G, 1)
    scene.store.occupancy.add_usage("x", UsageSource.BOUND, "a1", (("memory", 1),))
    scene.store.occupancy.forget("x")
    assert scene.wake() == set()


def test_a_new_node_wakes_those_whom_it_could_help(scene: Scene) -> None:
    scene.refuse(G, 4, topology_key=RACK)
    scene.refuse(H, 9, topology_key=RACK)
    scene.store.put_node(node("c1").cpu(8).rack("c").value())
    assert scene.wake() == {G}


def test_a_closed_node_helps_nobody_to_whom_it_is_closed(scene: Scene) -> None:
    scene.refuse(G, 1, closed=frozenset({"a1"}))
    assert scene.free("a1", 4) == set()
    assert scene.free("a2", 1) == {G}


def test_a_gang_of_several_shapes_wakes_for_any_slot_of_one_of_them(scene: Scene) -> None:
    small, large = ONE_CPU.uid("s").value(), pod("l").cpu(3).uid("l").value()
    asked = PlanRequest((small, large), 2)
    scene.unschedulable.put(G, asked, Verdict(Reason.NO_CAPACITY, have=0, need=2))
    assert scene.free("a1", 1) == {G}


def test_a_gang_that_gave_its_room_up_hears_of_what_others_free_not_of_its_own_nominations(scene: Scene) -> None:
    scene.free("a1", 4)
    scene.unschedulable.put_released(G, scene.ask(2))
    scene.refuse(H, 5)
    assert scene.wake(withdrawn={"a1": None}) == {H}
    scene.refuse(H, 5)
    assert scene.free("a2", 1) == {G, H}


def test_too_much_news_wakes_everybody(scene: Scene) -> None:
    scene.refuse(G, 100)
    for number in range(300):
        scene.store.occupancy.note_freed(f"n{number}")
    assert scene.wake() == {G}


def test_who_has_left_is_not_woken(scene: Scene) -> None:
    scene.refuse(G, 1)
    scene.refuse(H, 1)
    scene.unschedulable.leave(G)
    assert scene.free("a1", 4) == {H}
    assert len(scene.unschedulable) == 0


def test_rooms_are_counted_per_kind_of_room_and_not_per_gang(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Mock(side_effect=count_fitting)
    for number in range(50):
        scene.refuse(GroupKey("default", f"g{number}"), 5 + number)
    monkeypatch.setattr("extender.core.scheduling.unschedulable.count_fitting", counting)
    scene.free("a1", 4)
    assert counting.call_count == 2  # before and after


def test_it_knows_whether_anybody_waits_of_another_namespace(scene: Scene) -> None:
    other = GroupKey("other", "g")
    assert not scene.unschedulable.has_other_namespaces("default")
    scene.refuse(G, 3)
    scene.refuse(G, 3)
    assert (scene.unschedulable.has_other_namespaces("default"), scene.unschedulable.has_other_namespaces("other")) == (
        False,
        True,
    )
    scene.refuse(other, 3)
    assert (scene.unschedulable.has_other_namespaces("default"), scene.unschedulable.has_other_namespaces("other")) == (
        True,
        True,
    )
    scene.unschedulable.leave(G)
    assert (scene.unschedulable.has_other_namespaces("default"), scene.unschedulable.has_other_namespaces("other")) == (
        True,
        False,
    )
