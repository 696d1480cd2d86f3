"""Filter, prioritize and preempt answer, and do nothing: kube-scheduler may only try something out, and never says so.

It does so for each domain of a group's key in turn, and with pods taken away that it might preempt (upstream's
pkg/scheduler/schedule_one_podgroup.go, framework/preemption/podgrouppreemption.go). What filter may do is in its words:
note who is held, what was offered and that a member has come, and move a slot within its domain to an offered node.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from extender.core.protocol import MAX_COMPLETE_LIST, Candidate, Hold, Steer
from extender.look.cluster import take_capture
from extender.look.snapshot import Capture
from extender.options import PlainPodRule
from serried.api.level import NATIVE
from serried.api.pod import Pod
from serried.ops.steps import finish
from tests.support.builders import RACK, node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness, gang, members
from tests.support.random_clusters import draw_gang, draw_running_workloads

SEEDS = st.integers(min_value=0, max_value=2**32)
"""Seeds of the histories: each draws too much for Hypothesis to record."""

CALLS = 100
"""The number of calls in each of 100 clusters: 10,000 in all."""

Story = Callable[[Random], Coroutine[Any, Any, int]]
"""Play the events of one cluster. Return the number of calls."""


def test_questions_change_nothing() -> None:
    assert tell(ask_questions, clusters=60) >= 60 * CALLS


def test_whatever_is_offered_to_planned_members_takes_no_room_that_was_not_held_before() -> None:
    assert tell(offer_anything, clusters=20) >= 20 * CALLS


def test_trying_one_domain_after_another_changes_nothing_until_the_planned_one_comes() -> None:
    assert tell(try_domains, clusters=20) >= 20 * CALLS


def tell(story: Story, clusters: int) -> int:
    """The story in so many clusters; how many calls there were."""
    made = 0

    @settings(max_examples=clusters)
    @given(seed=SEEDS)
    def sample(seed: int) -> None:
        nonlocal made
        made += asyncio.run(story(draw(seed)))

    sample()
    return made


def draw(seed: int) -> Random:
    """The source of all chance in one cluster."""
    return Random(seed)  # noqa: S311 - nothing is kept secret


async def ask_questions(source: Random) -> int:
    world = await begin(source)
    before = photograph(world)
    made = 0
    while made < CALLS:
        made += 1
        names = draw_names(source, world)
        about = draw_pod(source, world)
        match source.randrange(3):
            case 0:
                assert len(world.service.prioritize(names)) == len(names)
            case 1:
                given = [draw_candidate(source, world, name) for name in names]
                left = {each.node for each in world.service.preempt(about, given)}
                assert left <= set(names)
            case _ if world.groups.find_cycle(about.uid) is None:
                event(type(world.service.filter(about, names)).__name__)
            case _:
                made -= 1  # what filter may do for a planned member is the next story's
    await world.run_tasks()
    assert photograph(world) == before
    await world.close()
    return made


async def offer_anything(source: Random) -> int:
    world = await begin(source)
    while not len(world.ledger):
        await world.close()
        world = await begin(source)
    planned = [world.store.pods[uid] for each in world.ledger for uid in each.slots]
    homes = {
        uid: list_domain(world, each.domain, slot.node) for each in world.ledger for uid, slot in each.slots.items()
    }
    before = strip(photograph(world))
    for _ in range(CALLS):
        about = source.choice(planned)
        names = draw_names(source, world)
        answer = world.service.filter(about, names)
        assert isinstance(answer, Hold | Steer)
        assert isinstance(answer, Hold) or answer.node in names
        slot = world.ledger.slot_of(about.uid)
        assert slot is not None
        assert slot.node in homes[about.uid]
        assert isinstance(answer, Hold) or answer.node == slot.node
    assert strip(photograph(world)) == before
    await world.close()
    return CALLS


async def try_domains(source: Random) -> int:
    world = Harness()
    racks = {f"r{place}": source.randint(1, 3) for place in range(source.randint(2, 5))}
    for rack, count in racks.items():
        world.add(*[node(f"{rack}-{place}").cpu(source.randint(2, 4)).rack(rack) for place in range(count)])
    size = source.randint(1, 2)
    world.add(gang(size).topology().with_item(TOLD, "metadata", "managedFields"), *members(size))
    world.start_nominating()
    await world.run_until_idle()
    planned = {slot.node for slot in world.binding_cycle().reservation.slots.values()}
    home = {world.store.nodes[name].labels[RACK] for name in planned}
    before = photograph(world)
    made = 0
    while made < CALLS:
        rack = source.choice(sorted(racks.keys() - home))
        offered = [f"{rack}-{place}" for place in range(racks[rack]) if source.random() < 0.8]
        if offered:
            assert world.filter(f"m{source.randrange(size)}", *offered) == Hold()
            made += 1
        if source.random() < 0.1:
            await world.run_tasks()
    assert photograph(world) == before
    for place in range(size):
        answer = world.filter(f"m{place}", *[name for name in world.store.nodes if name.startswith(f"{min(home)}-")])
        assert isinstance(answer, Steer)
        assert answer.node in planned
    await world.close()
    return made


TOLD = {
    "manager": "kube-scheduler",
    "subresource": "status",
    "fieldsV1": {"f:status": {"f:conditions": {'k:{"type":"PodGroupInitiallyScheduled"}': {}}}},
}


async def begin(source: Random) -> Harness:
    """A cluster in which gangs are planned, wait or run; time stands still from now on."""
    world = Harness(plain=source.choice(list(PlainPodRule)))
    world.add(*draw_running_workloads(source), *[pod(f"web-{place}").scheduler(SCHEDULER) for place in range(2)])
    world.add(pod_group("loose"), pod("loose-0").scheduler(SCHEDULER).in_group("loose"))
    world.start_nominating()
    for place in range(source.randint(1, 3)):
        world.add(*draw_gang(source, f"g{place}"))
        await world.run_until_idle()
    return world


def photograph(world: Harness) -> tuple[Any, ...]:
    """Return the state that decides on plans, the writes, and the counts."""
    capture = finish(take_capture(world.core, NATIVE))
    heard = {name: list(each) for name, each in vars(world.heard).items() if isinstance(each, list)}
    cycles = {each.group: dict(each.slots) for each in world.ledger}
    return capture, len(world.api.calls), dict(world.api.records), heard, cycles, world.core.outbox.drain()


def strip(seen: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same without the nodes of slots: those may have been moved."""
    capture: Capture = seen[0]
    reserved = [
        replace(each, slots=tuple(sorted((replace(slot, node="") for slot in each.slots), key=lambda slot: slot.name)))
        for each in capture.reservations
    ]
    return replace(capture, reservations=tuple(reserved), used={}), *seen[1:4]


def list_domain(world: Harness, domain: str, planned: str) -> set[str]:
    """The nodes to which a slot may be moved: those of its domain, all of them where there is none."""
    if not domain:
        return set(world.store.nodes) | {planned}
    return {name for name, each in world.store.nodes.items() if domain in each.labels.values()}


def draw_names(source: Random, world: Harness) -> list[str]:
    """Draw the offered nodes: any, at times an unknown one, or more than kube-scheduler samples in small clusters."""
    known = [name for name in world.store.nodes if source.random() < 0.6]
    odd = ["nobody-knows"] if source.random() < 0.1 else []
    sample = [f"more-{place}" for place in range(MAX_COMPLETE_LIST)] if source.random() < 0.2 else []
    return source.sample([*known, *odd, *sample], len(known) + len(odd) + len(sample))


def draw_pod(source: Random, world: Harness) -> Pod:
    """A pod as kube-scheduler may send it: known, not known yet, or another scheduler's."""
    chosen = source.choice([*world.store.pods.values(), pod("late").scheduler(SCHEDULER).in_group("g0").value()])
    return replace(chosen, scheduler="another") if source.random() < 0.1 else chosen


def draw_candidate(source: Random, world: Harness, name: str) -> Candidate:
    """A node with some of the pods on it, and maybe one that has gone."""
    there = [each.uid for each in world.store.pods.values() if each.node == name and source.random() < 0.7]
    return Candidate(name, tuple([*there, "gone"] if source.random() < 0.1 else there), source.randint(0, 1))
