"""Members without markers, which an isolated scheduler binds without asking: they are told of."""

from collections.abc import Callable
from unittest.mock import Mock

import pytest

from extender.lead.holding import UNMARKED, Isolation
from serried.api.resources import MARKERS
from serried.kube.events import EventWriter
from tests.support.builders import PodBuilder, job, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness, gang, members

Make = Callable[..., Isolation]


def marked(builder: PodBuilder) -> PodBuilder:
    for marker in sorted(MARKERS):
        builder = builder.request(marker, "0")
    return builder


@pytest.fixture
def events() -> Mock:
    return Mock(spec=EventWriter)


@pytest.fixture
def make(world: Harness, events: Mock) -> Make:
    def make(*, isolated: bool = True) -> Isolation:
        return Isolation(
            world.store.members,
            world.store.groups,
            events,
            {SCHEDULER},
            isolated=isolated,
            leads=lambda: world.term.holds_lease(),  # noqa: PLW0108 - tests exchange it
        )

    return make


def see(world: Harness, isolation: Isolation, *pods: PodBuilder) -> None:
    """The watch shows the pods, as they are now."""
    for builder in pods:
        old = world.store.pods.get(builder.value().uid)
        world.add(builder)
        isolation.on_change(old, builder.value())


def told(events: Mock) -> list[tuple[str, str, str]]:
    return [(call.args[0]["name"], call.args[1], call.args[2]) for call in events.emit.call_args_list]


async def test_a_member_without_markers_is_told_of_once(world: Harness, make: Make, events: Mock) -> None:
    isolation = make()
    world.add(gang(2))
    first, second = members(2)
    see(world, isolation, first, marked(second))
    isolation.emit_events()
    assert told(events) == [(first.value().name, "Warning", UNMARKED)]
    assert isolation.describe() == {
        "isolated": True,
        "unmarkedMembers": 1,
        "examples": [f"default/{first.value().name}"],
    }


async def test_what_is_no_gang_s_pod_is_not(world: Harness, make: Make, events: Mock) -> None:
    isolation = make()
    world.add(job("j").size(1).scheduler(SCHEDULER), pod_group("loose"), gang(2))
    see(
        world,
        isolation,
        pod("plain").scheduler(SCHEDULER),
        pod("single").scheduler(SCHEDULER).of_job("j", 0, uid=job("j").value().uid),
        pod("basic").scheduler(SCHEDULER).in_group("loose"),
        pod("foreign").scheduler("default-scheduler").in_group("g"),
        pod("placed").scheduler(SCHEDULER).in_group("g").on("n1"),
    )
    isolation.emit_events()
    assert told(events) == []


async def test_one_whose_group_comes_later_is_told_of_then(world: Harness, make: Make, events: Mock) -> None:
    isolation = make()
    world.add(pod_group("g"))  # policy basic
    see(world, isolation, *members(1))
    assert told(events) == []
    world.add(gang(2))
    isolation.emit_events()
    assert [reason for _, _, reason in told(events)] == [UNMARKED]


async def test_one_that_is_bound_or_gone_is_forgotten(world: Harness, make: Make) -> None:
    isolation = make()
    world.add(gang(3))
    first, second, _ = members(3)
    see(world, isolation, first, second)
    see(world, isolation, first.on("n1"))
    isolation.on_change(second.value(), None)
    assert isolation.list_unmarked() == []


async def test_where_the_scheduler_asks_about_every_pod_they_are_counted_and_nothing_is_said(
    world: Harness, make: Make, events: Mock
) -> None:
    isolation = make(isolated=False)
    world.add(gang(2))
    see(world, isolation, *members(2))
    await isolation.run()
    assert told(events) == []
    assert isolation.describe()["unmarkedMembers"] == 2


async def test_a_standby_tells_nothing_until_it_leads(world: Harness, make: Make, events: Mock) -> None:
    world.term.holds_lease = lambda: False
    isolation = make()
    see(world.add(gang(2)), isolation, *members(1))
    isolation.emit_events()
    assert told(events) == []
    world.term.holds_lease = lambda: True
    isolation.emit_events()
    assert len(told(events)) == 1
