"""Members that mount one claim which has no volume yet: the first of them decides where that is, the others follow."""

from extender.core.protocol import Hold, Steer
from serried.api.volume import CSIDriver, CSINode, StorageCapacity, StorageClass, Volume, VolumeClaim
from serried.cluster.rule import KindState
from tests.support.builders import PodBuilder, node
from tests.support.devices import rejection_message
from tests.support.extender_harness import GANG, Harness, gang, members
from tests.support.volumes import VolumeClaimBuilder, storage_class, volume, volume_claim

KINDS: tuple[type, ...] = (VolumeClaim, Volume, StorageClass, StorageCapacity, CSIDriver, CSINode)
CLAIM = volume_claim("data").requesting("fast")
KEPT_OFF = rejection_message("2 node(s) didn't find available persistent volumes to bind")


def sharing(count: int) -> list[PodBuilder]:
    return [each.mounting("data") for each in members(count)]


async def planned(world: Harness) -> tuple[str, list[str]]:
    """A gang of three with a node each; the names of the member that goes first and of the others."""
    for kind in KINDS:
        world.store.note_state(kind, KindState.KNOWN)
    world.store.put_object(storage_class("fast", "fast.example.com").value())
    world.store.put_object(CLAIM.value())
    await world.add(*[node(f"n{at}").cpu(1) for at in range(3)], gang(3), *sharing(3)).run_until_idle()
    (first,), others = (wave.uids for wave in world.binding_cycle().open_slots.waves)
    return first.removeprefix("pod-"), sorted(uid.removeprefix("pod-") for uid in others)


def bind(world: Harness, claim: VolumeClaimBuilder) -> None:
    """The provisioner has made the volume, and kube-controller-manager has bound the claim to it."""
    world.store.put_object(volume("v").value())
    world.store.put_object(claim.bound_to("v").value())


async def test_one_member_goes_first_and_the_others_once_the_claim_has_its_volume(world: Harness) -> None:
    first, others = await planned(world)
    world.start_nominating()
    await world.run_tasks()
    assert {call.name for call in world.api.list_calls("nominate")} == {first}
    assert isinstance(world.filter(first), Steer)
    call = world.bind(first)
    await world.run_until_idle()
    assert call.waiting
    assert {each.name for each in world.api.list_calls("nominate")} == {first}
    bind(world, CLAIM)
    await world.run_until_idle()
    await world.run_tasks()
    assert {each.name for each in world.api.list_calls("nominate")} == {first, *others}
    for name in others:
        assert isinstance(world.filter(name), Steer)


async def test_what_the_scheduler_says_of_the_others_meanwhile_is_not_held_against_their_nodes(world: Harness) -> None:
    first, others = await planned(world)
    world.filter(first)
    world.store.put_object(CLAIM.selected_node(world.node_of(first)).value())
    for name in others:
        assert isinstance(world.filter(name, world.node_of(first)), Hold)
        world.mark_unschedulable(name, KEPT_OFF)
    world.sync_pods()
    await world.pass_time(10)
    cycle = world.binding_cycle()
    assert set(cycle.reservation.slots) == {f"pod-{name}" for name in (first, *others)}
    assert not world.groups.states[GANG].refusals.excluded
