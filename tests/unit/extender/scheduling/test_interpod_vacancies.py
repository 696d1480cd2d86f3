"""A member has died and its slot is kept for the next one: what that means for gangs with rules about it."""

from serried.api.names import GroupKey
from tests.support.builders import PodBuilder, job, node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness, members

DATABASE = {"app": "db"}
CLIENTS = GroupKey("default", "clients")


def database() -> list[PodBuilder]:
    return [each.of_job("db", index).label("app", "db") for index, each in enumerate(members(2))]


async def scene(world: Harness, client: PodBuilder) -> Harness:
    """The members of the database run on n1 and n2, and both die. One client comes before that, another one after."""
    world.add(*[node(f"n{at}").cpu(4).label("kubernetes.io/hostname", f"n{at}") for at in (1, 2, 3)])
    group = pod_group("g").gang(2).controlled_by("Job", "db", "job-db")
    runs = [each.on(f"n{at}") for at, each in enumerate(database(), 1)]
    await world.add(job("db").size(2), group, *runs, pod_group("clients").gang(2), client).run_until_idle()
    for name in ("m0", "m1"):
        world.delete(name)
    await world.add(client.with_field("c1", "metadata", "name").uid("pod-c1")).run_until_idle()
    assert len(world.store.vacancies) == 2
    return world


def client() -> PodBuilder:
    return pod("c0").scheduler(SCHEDULER).in_group("clients").cpu(1)


async def test_a_gang_that_must_be_beside_it_waits_for_the_next_member(world: Harness) -> None:
    await scene(world, client().affinity(DATABASE))
    assert world.ledger.of_group(CLIENTS) is None
    world.store.drop_group(GroupKey("default", "g"))
    await world.add(pod("anew").label("app", "db").cpu(1).on("n3")).run_until_idle()
    assert {slot.node for slot in world.binding_cycle(CLIENTS).reservation.slots.values()} == {"n3"}


async def test_a_gang_that_must_be_apart_from_it_leaves_its_node_to_the_next_member(world: Harness) -> None:
    await scene(world, client().anti_affinity(DATABASE))
    assert {slot.node for slot in world.binding_cycle(CLIENTS).reservation.slots.values()} == {"n3"}


async def test_the_slot_that_is_given_up_leaves_nothing(world: Harness) -> None:
    await scene(world, client().anti_affinity(DATABASE))
    world.store.drop_group(GroupKey("default", "g"))
    await world.run_until_idle()
    assert not any("counts:" in name for used in world.store.occupancy.used.values() for name in used)
