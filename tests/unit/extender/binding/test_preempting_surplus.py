"""The surplus of an elastic gang goes once: gangs that look for victims at a time do not break it together."""

from collections.abc import Callable

import pytest

from extender.features.preemption.search import Search, find_preemption
from serried.api.names import GroupKey
from serried.plan.eviction import Preemption
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness

HIGH = 100
OTHER = GroupKey("default", "h")
ELASTIC = [f"e{place}" for place in range(6)]
PLAIN = ["p0", "p1"]


def running(name: str, minute: int) -> PodBuilder:
    """A pod that fills a node of its own."""
    return pod(name).cpu(2).on(f"node-{name}").started(f"2023-11-14T10:{minute:02}:00Z")


def fill(world: Harness) -> Harness:
    """Two plain pods, and a gang of four with six members, of which the last ones have run least."""
    world.add(*(node(f"node-{name}").cpu(2) for name in [*PLAIN, *ELASTIC]), pod_group("e").gang(4))
    world.add(*(running(name, minute) for minute, name in enumerate(PLAIN)))
    return world.add(*(elastic(name) for name in ELASTIC))


def elastic(name: str) -> PodBuilder:
    return running(name, 10 + ELASTIC.index(name)).scheduler(SCHEDULER).in_group("e")


def ask(world: Harness, group: GroupKey) -> Harness:
    """A gang of two of high priority, each of which needs a node."""
    world.add(pod_group(group.name).gang(2).priority(HIGH))
    pods = [pod(f"{group.name}{place}").cpu(2).scheduler(SCHEDULER).in_group(group.name) for place in range(2)]
    return world.add(*(each.priority(HIGH) for each in pods))


def list_victims(world: Harness, group: GroupKey) -> list[str]:
    """Return the victims of a gang's preemption, which breaks no other gang."""
    found = find_preemption(world.groups.states[group])
    assert isinstance(found, Preemption)
    assert [damage.broken for damage in found.cost.damages] == [0]
    return sorted(unit.pods[0].name for unit in found.victims)


@pytest.mark.parametrize("verb", ["rehearse", "mark"])
async def test_while_the_first_gang_has_not_evicted_them_yet_the_second_one_leaves_the_rest(
    world: Harness, verb: str
) -> None:
    world.api.hold(verb)
    await ask(fill(world), GANG).run_until_idle()
    assert list_victims(world, GANG) == ["e4", "e5"]
    await ask(world, OTHER).run_until_idle()
    assert list_victims(world, OTHER) == PLAIN


class Ticking:
    """A stopwatch that shows so much more each time that nothing runs straight through."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 0.004
        return self._now


def end_for_another(world: Harness) -> None:
    """A gang whose search began at the same time gets two other members."""
    world.store.pending_victims.add([pod("e0").value().uid, pod("e1").value().uid], OTHER)


def end_by_themselves(world: Harness) -> None:
    """Two other members end."""
    world.add(elastic("e0").deleting(), elastic("e1").deleting())


@pytest.mark.parametrize("change", [end_for_another, end_by_themselves])
async def test_who_would_break_it_by_now_looks_again(
    change: Callable[[Harness], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serried.plan.limit._UNITS_PER_CHECK", 1)
    world = ask(fill(Harness(stopwatch=Ticking())), GANG)
    while GANG not in world.groups.states or world.groups.states[GANG].memory.find(Search) is None:
        world.schedule_groups()
        await world.run_tasks()
    while len(world.core.planning_tasks):
        await world.run_tasks()
    assert not world.heard.searches
    change(world)
    while not is_decided(world):
        await world.run_until_idle()
    assert list_victims(world, GANG) == PLAIN
    assert len(world.heard.searches) == 2
    await world.close()


def is_decided(world: Harness) -> bool:
    return world.ledger.of_group(GANG) is not None
