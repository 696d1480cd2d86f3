"""A namespace may have its share of the racks for itself; a gang beyond that waits and says why.

The scene has five racks of one node with eight CPUs. Every namespace may have four of them.
"""

from collections.abc import AsyncIterator

import pytest

from extender.core.scheduling.unschedulable import count_share
from serried.api.names import GroupKey, Key, write_time
from serried.api.preference import EXCLUSIVE
from serried.api.verdict import render
from tests.support.builders import Builder, PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness

RACKS = 5
SHARE_PERCENT = 80
MOST = 4
MINUTE = 60.0


@pytest.fixture
async def world() -> AsyncIterator[Harness]:
    made = Harness(share_percent=SHARE_PERCENT)
    made.add(*(node(f"n{place}").cpu(8).rack(f"r{place}") for place in range(RACKS)))
    yield made
    await made.close()


def of(namespace: str, *made: PodGroupBuilder | PodBuilder) -> list[Builder]:
    """The same in a namespace."""
    uids = [f"{namespace}-{each.raw()['metadata']['name']}" for each in made]
    return [each.with_field(namespace, "metadata", "namespace").uid(uid) for each, uid in zip(made, uids, strict=True)]


def exclusive(namespace: str, name: str, priority: int = 0) -> list[Builder]:
    """A gang of one pod that wants a rack for itself."""
    group = pod_group(name).gang(1).topology().annotation(EXCLUSIVE, "true").priority(priority)
    return of(namespace, group, _member(f"{name}-0", name).priority(priority))


def running(namespace: str, name: str, on: str, priority: int = 0) -> list[Builder]:
    """The same, bound."""
    group, member = exclusive(namespace, name, priority)
    return [group, member.with_field(on, "spec", "nodeName")]


def whole_nodes(namespace: str, name: str, count: int) -> list[Builder]:
    """A gang whose members take a node each."""
    pods = [_member(f"{name}-{place}", name).cpu(8) for place in range(count)]
    return of(namespace, pod_group(name).gang(count), *pods)


def ending(world: Harness) -> list[Builder]:
    """On each node a pod that will have ended in ten minutes."""
    return [
        pod(f"old-{place}").cpu(8).on(f"n{place}").active_deadline(600).started(now(world)) for place in range(RACKS)
    ]


def now(world: Harness) -> str:
    return write_time(world.wall_time())


def _member(name: str, group: str) -> PodBuilder:
    return pod(name).cpu(1).scheduler(SCHEDULER).in_group(group)


def said(world: Harness, namespace: str, name: str) -> str:
    found = world.groups.states[GroupKey(namespace, name)].verdict
    assert found is not None
    return render(found)


def domains(world: Harness, namespace: str) -> int:
    return sum(reservation.group.namespace == namespace for reservation in world.ledger)


@pytest.mark.parametrize(
    ("count", "most"),
    [
        pytest.param(1, 1, id="one may be had by anybody"),
        pytest.param(2, 1, id="of two one"),
        pytest.param(5, 4, id="of five four"),
        pytest.param(99, 79, id="of a number that does not divide less"),
    ],
)
def test_the_share_of(count: int, most: int) -> None:
    assert count_share(SHARE_PERCENT, count) == most


async def test_the_last_rack_is_left_to_other_namespaces(world: Harness) -> None:
    for number in range(RACKS):
        await world.add(*exclusive("greedy", f"g{number}")).run_until_idle()
    assert domains(world, "greedy") == MOST
    waiting = said(world, "greedy", "g4")
    assert waiting.startswith("NoDomainFits: 1 member does not fit into any domain of example.com/rack")
    assert waiting.endswith(
        "gangs of namespace greedy have 4 of 5 domains exclusively, and may have no more (--namespace-share)"
    )
    await world.add(*exclusive("modest", "m")).run_until_idle()
    assert domains(world, "modest") == 1


async def test_the_next_of_the_namespace_follows_when_one_of_its_gangs_ends(world: Harness) -> None:
    for number in range(MOST):
        world.add(*running("greedy", f"g{number}", f"n{number}"))
    await world.add(*exclusive("greedy", "next")).run_until_idle()
    assert domains(world, "greedy") == 0
    world.store.drop_pod("greedy-g2-0")
    world.store.drop_group(GroupKey("greedy", "g2"))
    await world.run_until_idle()
    assert domains(world, "greedy") == 1


async def test_gangs_of_other_namespaces_do_not_count(world: Harness) -> None:
    for number in range(RACKS - 1):
        world.add(*running(f"tenant-{number}", "g", f"n{number}"))
    await world.add(*exclusive("late", "g")).run_until_idle()
    assert domains(world, "late") == 1


async def test_gangs_that_share_their_rack_do_not_count(world: Harness) -> None:
    for number in range(MOST):
        shared = pod_group(f"s{number}").gang(1).topology()
        world.add(*of("greedy", shared, _member(f"s{number}-0", f"s{number}").on(f"n{number}")))
    await world.add(*exclusive("greedy", "g")).run_until_idle()
    assert said(world, "greedy", "g").startswith("Planned")


async def test_beyond_the_share_only_gangs_of_the_own_namespace_go_for_a_gang(world: Harness) -> None:
    for number in range(MOST):
        world.add(*running("greedy", f"g{number}", f"n{number}"))
    await world.add(*running("modest", "m", "n4"), *exclusive("greedy", "urgent", priority=100)).run_until_idle()
    reservation = world.ledger.of_group(GroupKey("greedy", "urgent"))
    assert reservation is not None
    assert reservation.domain in {f"r{number}" for number in range(MOST)}
    assert {victim.namespace for victim in reservation.victims.values()} == {"greedy"}


async def test_while_others_wait_no_node_is_kept_for_a_gang_beyond_the_share_and_it_says_so(world: Harness) -> None:
    await world.add(
        *ending(world), *whole_nodes("modest", "some", 2), *whole_nodes("greedy", "all", RACKS)
    ).run_until_idle()
    head = world.core.backfill.head
    assert head is not None
    assert head.group == GroupKey("modest", "some")
    await world.pass_time(1)
    assert said(world, "greedy", "all").endswith(
        "Serried keeps no nodes for the gang, because it would need 5 of 5 nodes, and one namespace may have 4 "
        "(--namespace-share)"
    )


async def test_while_nobody_else_waits_they_are_kept_from_its_own_namespace(world: Harness) -> None:
    await world.add(*ending(world), *whole_nodes("greedy", "all", RACKS)).run_until_idle()
    head = world.core.backfill.head
    assert head is not None
    assert len(head.forecast.nodes) == RACKS
    world.store.drop_pod("pod-old-0")
    await world.add(*whole_nodes("greedy", "one", 1)).run_until_idle()
    assert said(world, "greedy", "one").startswith("BehindHead")


async def test_but_never_from_others(world: Harness) -> None:
    await world.add(*ending(world), *whole_nodes("greedy", "all", RACKS)).run_until_idle()
    world.store.drop_pod("pod-old-0")
    await world.add(*whole_nodes("modest", "one", 1)).run_until_idle()
    assert domains(world, "modest") == 1


async def test_a_gang_within_the_share_is_the_head(world: Harness) -> None:
    await world.add(*ending(world), *whole_nodes("greedy", "most", MOST)).run_until_idle()
    head = world.core.backfill.head
    assert head is not None
    assert head.group == GroupKey("greedy", "most")


async def test_a_gang_behind_one_beyond_the_share_takes_its_place(world: Harness) -> None:
    await world.add(*ending(world), *whole_nodes("greedy", "all", RACKS)).run_until_idle()
    assert world.core.backfill.head is not None
    await world.add(*whole_nodes("modest", "some", 2)).run_until_idle()
    head = world.core.backfill.head
    assert head is not None
    assert head.group == GroupKey("modest", "some")


async def test_it_is_the_head_again_once_nobody_else_waits(world: Harness) -> None:
    await world.add(
        *ending(world), *whole_nodes("greedy", "all", RACKS), *whole_nodes("modest", "some", 2)
    ).run_until_idle()
    world.store.drop_group(GroupKey("modest", "some"))
    for place in range(2):
        world.store.drop_pod(f"modest-some-{place}")
    await world.run_until_idle()
    await world.pass_time(2 * MINUTE)
    head = world.core.backfill.head
    assert head is not None
    assert head.group == GroupKey("greedy", "all")


async def test_a_gang_beyond_the_share_still_starts_when_there_is_room(world: Harness) -> None:
    await world.add(*ending(world), *whole_nodes("greedy", "all", RACKS)).run_until_idle()
    for place in range(RACKS):
        world.store.drop_pod(f"pod-old-{place}")
    await world.run_until_idle()
    assert domains(world, "greedy") == 1


async def test_with_the_whole_as_share_nothing_is_limited() -> None:
    world = Harness(share_percent=100)
    world.add(*(node(f"n{place}").cpu(8).rack(f"r{place}") for place in range(RACKS)))
    for number in range(RACKS):
        world.add(*running("greedy", f"g{number}", f"n{number}"))
    await world.add(*exclusive("greedy", "late")).run_until_idle()
    assert "5 more domains are used exclusively by other gangs" in said(world, "greedy", "late")
    await world.close()


class TestSlotsThatAreKeptForReplacements:
    """A gang has a member of four CPUs on each node, and a small one. What it deletes is in no quota any more."""

    async def run(self, world: Harness) -> None:
        large = [_member(f"g-{place}", "g").cpu(4).on(f"n{place}") for place in range(RACKS)]
        await world.add(
            *of("greedy", pod_group("g").gang(RACKS + 1), *large, _member("small", "g").on("n0"))
        ).run_until_idle()

    async def delete(self, world: Harness, count: int = RACKS) -> None:
        for place in range(count):
            self.drop(world, f"g-{place}")
        await world.run_until_idle()

    def drop(self, world: Harness, name: str) -> None:
        del world.api.pods[Key("greedy", name)]
        world.store.drop_pod(f"greedy-{name}")

    def kept(self, world: Harness) -> set[str]:
        return {vacancy.pod.node for vacancy in world.store.vacancies}

    async def test_are_no_more_than_its_share_while_another_namespace_waits(self, world: Harness) -> None:
        await self.run(world)
        await world.add(*whole_nodes("modest", "m", 1)).run_until_idle()
        assert domains(world, "modest") == 0
        await self.delete(world)
        await world.pass_time(1)
        assert self.kept(world) == {"n0", "n1", "n2", "n3"}
        assert domains(world, "modest") == 1

    async def test_end_when_another_namespace_begins_to_wait(self, world: Harness) -> None:
        await self.run(world)
        await self.delete(world)
        await world.add(*whole_nodes("modest", "m", 1)).run_until_idle()
        await world.pass_time(1)
        assert len(self.kept(world)) == MOST
        assert domains(world, "modest") == 1
        assert world.heard.repairs == [("Lost", 0.0)]

    async def test_are_all_kept_while_only_gangs_of_its_own_wait(self, world: Harness) -> None:
        await self.run(world)
        await self.delete(world)
        await world.add(*whole_nodes("greedy", "next", 1)).run_until_idle()
        await world.pass_time(1)
        assert len(self.kept(world)) == RACKS
        assert domains(world, "greedy") == 0

    async def test_do_not_count_once_their_replacements_are_there_and_again_when_these_are_gone(
        self, world: Harness
    ) -> None:
        await self.run(world)
        await self.delete(world)
        await world.add(*of("greedy", _member("g-0", "g").cpu(4))).run_until_idle()
        await world.add(*whole_nodes("modest", "m", 1)).run_until_idle()
        await world.pass_time(1)
        assert len(self.kept(world)) == RACKS
        self.drop(world, "g-0")
        await world.pass_time(1)
        assert len(self.kept(world)) == MOST

    async def test_are_counted_for_each_namespace(self, world: Harness) -> None:
        await self.run(world)
        await world.add(*whole_nodes("modest", "m", 1)).run_until_idle()
        await self.delete(world, MOST)
        await world.pass_time(1)
        assert len(self.kept(world)) == MOST
