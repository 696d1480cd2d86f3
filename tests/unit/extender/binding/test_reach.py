"""A record speaks for the pods of its own namespace: its writer decides about no other pods."""

import logging
from collections.abc import Iterable

import pytest

from extender.core.binding.records import Records
from serried.api.names import PREEMPTED, GroupKey
from serried.api.reservation import Reservation, Slot, Victim, describe_preemption
from tests.support.builders import PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes

HIGH = 100
ELSEWHERE = "team-b"


async def leave_behind(
    world: Harness,
    slots: dict[str, str],
    group: PodGroupBuilder | None = None,
    *,
    committed: bool = False,
    victims: Iterable[Victim] = (),
) -> None:
    """Write a record of an earlier term that gives each of these members, by name, a node."""
    owner = (group or gang(2)).value()
    places = {f"pod-{name}": Slot(f"pod-{name}", name, where) for name, where in slots.items()}
    left = Reservation(owner.key, owner.uid, "", 2, places, places.keys() if committed else (), victims=victims)
    await Records(world.api.client(), "v1", "earlier").write(owner, left)


async def recover(world: Harness) -> None:
    await world.recovery.recover()
    await world.run_tasks()


def stranger(name: str) -> PodBuilder:
    """A pod of another namespace that waits for our scheduler."""
    return pod(name).namespace(ELSEWHERE).cpu(1).scheduler(SCHEDULER)


def high(name: str, where: str) -> PodBuilder:
    """A pod of another namespace that fills its node, and that no gang here may ever have evicted."""
    return pod(name).namespace(ELSEWHERE).cpu(2).priority(HIGH).on(where)


class TestMembers:
    async def test_of_other_namespaces_are_not_bound_with_a_commit(self, world: Harness) -> None:
        world.add(*small_nodes(2), gang(2), *members(2), stranger("x"))
        await leave_behind(world, {"m0": "n1", "m1": "n1", "x": "n2"}, committed=True)
        await recover(world)
        await world.run_until_idle()
        assert sorted(call.name for call in world.api.list_calls("bind")) == ["m0", "m1"]

    async def test_of_other_namespaces_are_not_bound_where_a_commit_names_nobody_else(self, world: Harness) -> None:
        world.add(*small_nodes(2), gang(2), *members(2), stranger("x"), stranger("y"))
        await leave_behind(world, {"x": "n1", "y": "n1"}, committed=True)
        await recover(world)
        await world.run_until_idle()
        assert not world.api.list_calls("bind")
        assert world.ledger.of_pod("pod-x") is None

    async def test_of_other_namespaces_keep_the_slots_that_their_own_gangs_have(self, world: Harness) -> None:
        theirs = pod_group("h").namespace(ELSEWHERE).gang(2)
        world.add(*small_nodes(2), gang(2), *members(2), theirs)
        world.add(*(stranger(name).in_group("h") for name in ("x", "y")))
        await leave_behind(world, {"x": "n2", "y": "n2"}, theirs)
        await leave_behind(world, {"m0": "n1", "m1": "n1", "x": "n1"})
        await recover(world)
        slot = world.ledger.slot_of("pod-x")
        assert slot is not None
        assert slot.node == "n2"

    async def test_of_other_namespaces_are_told_of_in_the_log(
        self, world: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.add(*small_nodes(2), gang(2), *members(2), stranger("x"))
        await leave_behind(world, {"m0": "n1", "m1": "n1", "x": "n2"})
        with caplog.at_level(logging.WARNING):
            await recover(world)
        (told,) = [each for each in caplog.records if "may neither bind nor evict" in each.message]
        assert vars(told)["uids"] == ["pod-x"]
        assert vars(told)["podGroup"] == "default/g"


FALSE_NAMES = [
    pytest.param(Victim("pod-v", ELSEWHERE, "v"), id="under its own name"),
    pytest.param(Victim("pod-v", "default", "v"), id="as if it were of the record's namespace"),
]


class TestVictims:
    """Gang g is of priority 9, and a pod of another namespace fills the node that its record gives it."""

    @pytest.fixture
    def occupied(self, world: Harness) -> Harness:
        world.add(*small_nodes(2), gang(2).priority(9), *(each.cpu(1).priority(9) for each in members(2)))
        return world.add(high("v", "n1"), high("w", "n2"))

    @pytest.mark.parametrize("victim", FALSE_NAMES)
    async def test_of_other_namespaces_are_left_alone_if_the_record_alone_says_it(
        self, occupied: Harness, victim: Victim
    ) -> None:
        await leave_behind(occupied, {"m0": "n1", "m1": "n1"}, victims=[victim])
        await recover(occupied)
        await occupied.run_until_idle()
        assert not occupied.api.list_evicted()
        assert not occupied.api.list_calls("mark")
        assert occupied.nothing_reserved

    async def test_are_not_told_of_under_the_names_of_others(self, world: Harness) -> None:
        world.add(*small_nodes(2), gang(2).priority(9), *(each.cpu(1).priority(9) for each in members(2)))
        world.add(pod("v").cpu(2).on("n1"))
        await leave_behind(world, {"m0": "n1", "m1": "n1"}, victims=[Victim("pod-v", ELSEWHERE, "w")])
        await recover(world)
        await world.run_until_idle()
        assert "w" not in [name for name, _ in world.heard.victims]

    async def test_that_end_for_another_gang_are_left_alone(self, occupied: Harness) -> None:
        occupied.add(high("v", "n1").disrupted(message=describe_preemption(GroupKey(ELSEWHERE, "g"))))
        victims = [Victim("pod-v", ELSEWHERE, "v"), Victim("pod-gone", "default", "gone")]
        await leave_behind(occupied, {"m0": "n1", "m1": "n1"}, victims=victims)
        await recover(occupied)
        assert not occupied.api.list_evicted()

    async def test_that_another_scheduler_preempts_still_say_so(self, occupied: Harness) -> None:
        """A preemptor that gives up removes the conditions that it has written, and no others."""
        occupied.add(high("v", "n1").disrupted(message="default-scheduler: preempting"))
        await leave_behind(occupied, {"m0": "n1", "m1": "n1"}, victims=[Victim("pod-v", ELSEWHERE, "v")])
        await recover(occupied)
        assert occupied.store.pods["pod-v"].disruption == PREEMPTED
        assert not occupied.api.list_calls("mark")

    async def test_that_say_that_they_end_for_this_gang_go_on_ending(self, world: Harness) -> None:
        """An earlier term has begun: one of them ends already, and the Eviction API has put its own words there."""
        low = [pod(f"low{i}").namespace(ELSEWHERE).cpu(2).on(f"n{i}") for i in (1, 2)]
        world.add(*small_nodes(2), gang(2).priority(9), *(each.cpu(2).priority(9) for each in members(2)))
        world.add(
            low[0].disrupted("EvictionByEvictionAPI").deleting(), low[1].disrupted(message=describe_preemption(GANG))
        )
        victims = [Victim(f"pod-low{i}", ELSEWHERE, f"low{i}") for i in (1, 2)]
        await leave_behind(world, {"m0": "n1", "m1": "n2"}, victims=victims)
        await recover(world)
        assert not world.api.list_calls("rehearse")
        assert world.api.list_evicted() == ["low2"]

    async def test_that_were_not_told_yet_are_looked_for_anew(self, world: Harness) -> None:
        """An earlier term has died before it had said it of anybody: nobody was evicted, so nothing is lost."""
        world.add(*small_nodes(2), gang(2).priority(9), *(each.cpu(2).priority(9) for each in members(2)))
        world.add(*(pod(f"low{i}").namespace(ELSEWHERE).cpu(2).on(f"n{i}") for i in (1, 2)))
        victims = [Victim(f"pod-low{i}", ELSEWHERE, f"low{i}") for i in (1, 2)]
        await leave_behind(world, {"m0": "n1", "m1": "n2"}, victims=victims)
        await recover(world)
        assert world.nothing_reserved
        await world.run_until_idle()
        assert sorted(world.api.list_evicted()) == ["low1", "low2"]

    async def test_of_a_commit_do_not_look_as_if_they_ended(self, world: Harness) -> None:
        """Victims end before the commit: the room of one that still runs would be promised twice."""
        world.add(*small_nodes(2), gang(2), *members(2), pod("v").cpu(1).on("n2"))
        world.api.hold("bind")
        await leave_behind(world, {"m0": "n1", "m1": "n1"}, committed=True, victims=[Victim("pod-v", "default", "v")])
        await recover(world)
        assert world.ledger.of_group(GANG) is not None
        assert not list(world.store.pending_victims)
        world.api.release("bind")
        await world.run_until_idle()


async def test_the_slot_of_a_member_that_died_elsewhere_is_still_kept(world: Harness) -> None:
    """A record that counted its UID among its victims would give its place to others."""
    theirs = pod_group("h").namespace(ELSEWHERE).gang(2)
    world.add(node("n1").cpu(2), node("n2").cpu(1), theirs, gang(1), *members(1))
    world.add(stranger("h0").in_group("h").on("n1"), stranger("h1").in_group("h").on("n2"))
    world.group_scheduler.end_term()
    world.store.drop_pod("pod-h0")
    await leave_behind(world, {"m0": "n1"}, gang(1), victims=[Victim("pod-h0", ELSEWHERE, "h0")])
    world.term.active = True
    await recover(world)
    assert [vacancy.pod.name for vacancy in world.store.vacancies] == ["h0"]
