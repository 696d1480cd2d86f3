"""A capture has all that a decision depends on, not only nodes and pods: no story decides the same without it."""

from dataclasses import replace

import pytest

from extender.core.scheduling.refusals import Fact
from extender.look.cluster import restore, take_capture
from extender.look.decide import Decision, decide, find_recorded
from extender.look.snapshot import Capture, read_snapshot, write_snapshot
from serried.api.level import NATIVE
from serried.api.volume import CSIDriver, CSINode, StorageCapacity, StorageClass, Volume, VolumeClaim
from serried.cluster.rule import KindState
from serried.ops.steps import finish
from tests.support.builders import pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.volumes import csi_node, storage_class, volume, volume_claim


def take(world: Harness) -> Capture:
    return finish(take_capture(world.core, NATIVE, GANG))


def decide_live(world: Harness) -> Decision:
    """Return the live extender's decision on the gang at this moment."""
    world.group_scheduler.consider(GANG)
    found = find_recorded(take(world), GANG)
    assert found is not None
    return found


async def test_the_replacement_of_a_dead_member_gets_its_kept_slot(world: Harness) -> None:
    first, second = (each.index(place) for place, each in enumerate(members(2)))
    await world.add(*small_nodes(3, cpus=1), gang(2), first.on("n3"), second.on("n2")).run_until_idle()
    world.delete("m0")
    world.add(pod("again").cpu(1).scheduler(SCHEDULER).in_group("g").index(0))
    capture = take(world)
    assert decide_live(world).nodes == decide(capture, GANG).nodes == {"again": "n3"}
    assert decide(replace(capture, vacancies=()), GANG).nodes != {"again": "n3"}


async def test_what_a_feature_remembers_is_refused_with_its_place_if_it_makes_no_sense(world: Harness) -> None:
    await world.add(*small_nodes(2), gang(2), *(each.on("n1") for each in members(2))).run_until_idle()
    world.delete("m0")
    await world.run_until_idle()
    capture = take(world)
    (memory,) = capture.memories
    damaged = replace(memory, features={name: {"broken_since": "yesterday"} for name in memory.features})
    with pytest.raises(ValueError, match=r"snapshot\.memories\.default/g\.\w+\.broken_since: Input should be"):
        decide(replace(capture, memories=(damaged,)), GANG)


async def test_a_member_that_its_kubelet_has_refused_counts_nowhere(world: Harness) -> None:
    first, second = members(2)
    await world.add(*small_nodes(2), gang(2), first.on("n1"), second.on("n2")).run_until_idle()
    await world.add(first.on("n1").kubelet_rejected("OutOfcpu")).run_until_idle()
    restored = restore(take(world)).store
    assert [each.refusal for each in restored.vacancies] == ["OutOfcpu"]
    assert restored.occupancy.node_of("pod-m0") is world.store.occupancy.node_of("pod-m0") is None


async def test_a_node_that_the_scheduler_has_refused_is_not_tried_again(world: Harness) -> None:
    await world.add(*small_nodes(1), gang(1), *members(1)).run_until_idle()
    state = world.groups.states[GANG]
    state.refusals.exclude_node(world.pod("m0").shape, "n1", world.store)
    capture = take(world)
    assert decide(capture, GANG).nodes == {}
    assert decide(replace(capture, memories=()), GANG).nodes == {"m0": "n1"}


async def test_room_that_is_kept_for_the_first_in_the_queue_stays_kept(world: Harness) -> None:
    big = [pod(f"big{place}").cpu(1).scheduler(SCHEDULER).in_group("big") for place in range(9)]
    await world.add(*small_nodes(2), pod_group("big").gang(9), *big, pod("web").cpu(1).on("n1")).run_until_idle()
    assert world.core.backfill.head is None  # nine will never fit
    world.add(pod_group("four").gang(4), *[pod(f"f{at}").cpu(1).scheduler(SCHEDULER).in_group("four") for at in "abcd"])
    await world.run_until_idle()
    world.add(gang(2), *members(2))
    capture = take(world)
    live = decide_live(world)
    assert live.verdict is not None
    assert live.verdict.reason.value == "BehindHead"
    assert decide(capture, GANG) == live
    assert decide(replace(capture, kept=None), GANG).nodes


async def test_nobody_goes_for_a_gang_of_which_the_scheduler_refuses_a_member(world: Harness) -> None:
    first, second = (each.priority(100) for each in members(2))
    await world.add(*small_nodes(1), gang(2).priority(100), first).run_until_idle()
    world.add(pod("low").cpu(1).on("n1"), second)
    rejection = Fact(world.core.clock() + 60, text="there is no such volume", member=world.pod("m0").uid)
    world.groups.states[GANG].refusals.rejection = rejection
    capture = take(world)
    live = decide_live(world)
    assert not live.victims
    assert decide(capture, GANG) == live
    memories = tuple(replace(each, rejection=None) for each in capture.memories)
    assert decide(replace(capture, memories=memories), GANG).victims


async def test_all_that_is_known_of_the_first_in_the_queue_is_in_the_capture(world: Harness) -> None:
    await world.add(*small_nodes(2), pod("web").cpu(1).on("n1"), gang(4), *members(4)).run_until_idle()
    head = world.core.backfill.head
    assert head is not None
    head.beyond_share, head.has_missed, head.first_missed, head.passed = True, True, 7.0, {GANG: 9.0}
    restored = restore(take(world)).backfill.head
    assert restored == head
    assert restored.forecast.shares == head.forecast.shares != {}


async def test_a_nominated_pod_keeps_its_room(world: Harness) -> None:
    world.add(*small_nodes(1), pod("web").cpu(2).nominated("n1"), gang(1), *members(1))
    capture = take(world)
    assert decide_live(world).nodes == decide(capture, GANG).nodes == {}


async def test_one_whose_room_is_used_already_is_counted_once(world: Harness) -> None:
    plain = pod("web").cpu(2).nominated("n1")
    world.add(*small_nodes(1, cpus=3), plain, gang(1), *members(1))
    used = {"n1": {"cpu": 2000, "pods": 1}}
    counted = replace(take(world), on_their_way=frozenset({plain.value().uid}), used=used)
    assert decide(counted, GANG).nodes == {"m0": "n1"}
    assert decide(replace(counted, on_their_way=frozenset()), GANG).nodes == {}


async def test_a_planned_gang_for_which_others_have_ended_keeps_its_slots(world: Harness) -> None:
    world.add(*small_nodes(1), pod("runs").cpu(2).on("n1"), pod_group("h").gang(1).priority(1))
    await world.add(pod("h0").cpu(2).scheduler(SCHEDULER).in_group("h").priority(1)).run_until_idle()
    world.delete("runs")
    await world.run_until_idle()
    world.add(gang(1).priority(9), members(1)[0].cpu(2).priority(9))
    capture = take(world)
    assert decide(capture, GANG).nodes == {}
    forgetful = tuple(replace(each, preempted=False) for each in capture.memories)
    assert decide(replace(capture, memories=forgetful), GANG).nodes == {"m0": "n1"}


async def test_members_get_the_volumes_that_there_were(world: Harness) -> None:
    for kind in (VolumeClaim, Volume, StorageClass, StorageCapacity, CSIDriver, CSINode):
        world.store.note_state(kind, KindState.KNOWN)
    nodes = [each.label("kubernetes.io/hostname", f"n{at}") for at, each in enumerate(small_nodes(3), start=1)]
    disks = [volume(f"jane-{at}").available("local").local_to(f"n{at}").label("owner", "jane") for at in (1, 3)]
    claims = [volume_claim(f"c{at}").requesting("local") for at in range(2)]
    for each in (storage_class("local"), *disks, *claims, csi_node("n1", other=1)):
        world.store.put_object(each.value())  # type: ignore[attr-defined]
    mounting = [each.mounting(f"c{at}") for at, each in enumerate(members(2))]
    await world.add(*nodes, gang(3), *mounting).run_until_idle()
    world.add(gang(2))
    capture = read_snapshot(b"".join(write_snapshot(take(world))))
    assert isinstance(capture, Capture)
    assert "jane" not in str(capture)
    assert decide_live(world).nodes == decide(capture, GANG).nodes
    assert set(decide(capture, GANG).nodes.values()) == {"n1", "n3"}
    assert decide(replace(capture, pools=()), GANG).nodes == {}
