"""Kueue has chosen the host of each member, and the PodGroup requires one domain: the hosts count."""

import pytest

from extender.core.binding.records import Records
from extender.features.kueue import POD_SET
from serried.api.interpod import HOSTNAME
from serried.api.reservation import Reservation, Slot
from serried.api.verdict import Reason
from tests.support.builders import RACK, NodeBuilder, PodBuilder, PodGroupBuilder, node
from tests.support.extender_harness import GANG, Harness, gang, members


def racks(*sizes: int) -> list[NodeBuilder]:
    """Racks r1, r2, ... of so many nodes r1-1, r1-2, ... with two CPUs."""
    return [
        node(f"r{rack}-{at}").rack(f"r{rack}").cpu(2).label(HOSTNAME, f"r{rack}-{at}")
        for rack, size in enumerate(sizes, 1)
        for at in range(1, size + 1)
    ]


def on_hosts(*hosts: str) -> list[PodBuilder]:
    """Members m0, m1, ... whose hosts Kueue has chosen."""
    made = zip(members(len(hosts)), hosts, strict=True)
    return [each.node_selector(HOSTNAME, host).label(POD_SET, "main") for each, host in made]


def in_one_rack(count: int = 2) -> PodGroupBuilder:
    return gang(count).topology(RACK)


async def bind_all(world: Harness, count: int = 2) -> list[str]:
    """The nodes of the members once all are bound."""
    calls = [world.bind(f"m{at}") for at in range(count)]
    await world.run_until_idle()
    assert [call.error for call in calls] == [""] * count
    return [world.node_of(f"m{at}") for at in range(count)]


async def test_a_gang_runs_on_the_hosts_of_two_racks_that_kueue_has_chosen(world: Harness) -> None:
    await world.add(*racks(1, 1), in_one_rack(), *on_hosts("r1-1", "r2-1")).run_until_idle()
    assert world.reasons() == [Reason.PLANNED]
    assert await bind_all(world) == ["r1-1", "r2-1"]
    assert world.reasons()[-1] is Reason.SCHEDULED


async def test_that_its_key_does_not_count_is_known_with_the_reason(world: Harness) -> None:
    await world.add(*racks(1, 1), in_one_rack(), *on_hosts("r1-1", "r2-1")).run_until_idle()
    ignored = world.store.groups[GANG].ignored
    assert ignored is not None
    assert (ignored.key, ignored.why) == (RACK, "Kueue has chosen hosts in r1, r2")


async def test_of_many_domains_a_few_are_named(world: Harness) -> None:
    hosts = [f"r{rack}-1" for rack in range(1, 6)]
    await world.add(*racks(1, 1, 1, 1, 1), in_one_rack(5), *on_hosts(*hosts)).run_until_idle()
    ignored = world.store.groups[GANG].ignored
    assert ignored is not None
    assert ignored.why == "Kueue has chosen hosts in r1, r2, r3 and 2 more"


async def test_a_key_that_agrees_with_the_hosts_counts(world: Harness) -> None:
    await world.add(*racks(2, 1), in_one_rack(), *on_hosts("r1-1", "r1-2")).run_until_idle()
    assert world.binding_cycle().reservation.domain == "r1"
    assert world.store.groups[GANG].ignored is None


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([each.node_selector(HOSTNAME, f"r{at}-1") for at, each in enumerate(members(2), 1)], id="a user"),
        pytest.param(
            [on_hosts("r1-1")[0], members(2)[1].node_selector(HOSTNAME, "r2-1")],
            id="a user for one, Kueue for the other",
        ),
    ],
)
async def test_a_key_counts_against_hosts_that_were_chosen_by(world: Harness, pods: list[PodBuilder]) -> None:
    await world.add(*racks(1, 1), in_one_rack(), *pods).run_until_idle()
    assert world.reasons()[-1] is Reason.NO_DOMAIN_FITS


async def test_a_choice_at_a_wider_level_contradicts_by_its_label(world: Harness) -> None:
    pods = [each.node_selector(RACK, f"r{at}").label(POD_SET, "main") for at, each in enumerate(members(2), 1)]
    await world.add(*racks(1, 1), in_one_rack(), *pods).run_until_idle()
    assert await bind_all(world) == ["r1-1", "r2-1"]


async def test_a_host_outside_of_every_domain_contradicts(world: Harness) -> None:
    bare = node("bare").cpu(2).label(HOSTNAME, "bare")
    await world.add(*racks(1), bare, in_one_rack(), *on_hosts("r1-1", "bare")).run_until_idle()
    assert await bind_all(world) == ["r1-1", "bare"]


async def test_the_key_counts_again_for_the_hosts_of_the_next_admission(world: Harness) -> None:
    full = racks(1, 2)
    await world.add(*(each.cpu(0) for each in full), in_one_rack(), *on_hosts("r1-1", "r2-1")).run_until_idle()
    assert world.store.groups[GANG].ignored is not None
    for name in ("m0", "m1"):
        world.delete(name)
    await world.run_until_idle()
    await world.add(
        *racks(1, 2), *(each.uid(f"{at}-anew") for at, each in enumerate(on_hosts("r2-1", "r2-2")))
    ).run_until_idle()
    assert world.store.groups[GANG].ignored is None
    assert world.binding_cycle().reservation.domain == "r2"


async def test_a_new_version_of_the_object_changes_nothing(world: Harness) -> None:
    await world.add(*(each.cpu(0) for each in racks(1, 1)), in_one_rack(), *on_hosts("r1-1", "r2-1")).run_until_idle()
    await world.add(in_one_rack().label("seen", "again")).run_until_idle()
    assert world.store.groups[GANG].topology_key is None
    assert world.reasons()[-1] is Reason.NO_CAPACITY


async def test_a_restart_finds_no_conflict_in_a_gang_that_runs(world: Harness) -> None:
    bound = [each.on(host) for each, host in zip(on_hosts("r1-1", "r2-1"), ("r1-1", "r2-1"), strict=True)]
    await world.add(*racks(1, 1), in_one_rack(), *bound).run_until_idle()
    assert world.reasons()[-1] is Reason.SCHEDULED


async def test_what_an_earlier_term_has_committed_is_bound_there(world: Harness) -> None:
    nodes = ("r1-1", "r2-1")
    slots = {f"pod-m{at}": Slot(f"pod-m{at}", f"m{at}", name) for at, name in enumerate(nodes)}
    group = in_one_rack().value()
    left = Reservation(GANG, group.uid, "", 2, slots, frozenset(slots))
    await Records(world.api.client(), "v1", "earlier").write(group, left)
    bound, waiting = on_hosts(*nodes)
    world.add(*racks(1, 1), in_one_rack(), bound.on("r1-1"), waiting)
    await world.recovery.recover()
    await world.run_until_idle()
    assert world.node_of("m1") == "r2-1"
    assert Reason.DOMAIN_CONFLICT not in world.reasons()
    assert world.nothing_reserved


async def test_a_group_that_is_made_anew_is_asked_about_anew(world: Harness) -> None:
    await world.add(*racks(1, 1), in_one_rack(), *on_hosts("r1-1", "r2-1")).run_until_idle()
    world.store.drop_group(GANG)
    world.add(in_one_rack())
    assert world.store.groups[GANG].topology_key == RACK
