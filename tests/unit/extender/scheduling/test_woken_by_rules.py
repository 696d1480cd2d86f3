"""What changes the answer of a rule about other pods wakes the gangs that wait by it.

kube-scheduler tries a pod again by the same (EventsToRegister of InterPodAffinity and PodTopologySpread, 1.37).
"""

from collections.abc import Callable
from typing import Any

import pytest

from extender.options import BackfillMode
from tests.support.builders import RACK, PodBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness

ZONE = "topology.kubernetes.io/zone"
Step = Callable[[Harness], object]


def member() -> PodBuilder:
    return pod("m0").cpu(1).scheduler(SCHEDULER).in_group("g").label("app", "w")


def spread(**fields: Any) -> Step:
    """Two zones have one such pod each, and the third one, which has none, is full."""

    def build(world: Harness) -> None:
        world.add(*(node(name).cpu(cpus).label(ZONE, name) for name, cpus in (("a", 4), ("b", 4), ("c", 1))))
        world.add(*(pod(f"x-{name}").label("app", "w").cpu(1).on(name) for name in "ab"), pod("full").cpu(1).on("c"))
        world.add(pod_group("g").gang(1), member().spread({"app": "w"}, ZONE, **fields))

    return build


def apart(world: Harness) -> None:
    """The free node of the only rack is kept from the gang by a pod on the full one."""
    world.add(node("r0a").cpu(1).rack("r0"), node("r0b").cpu(1).rack("r0"))
    world.add(pod("noise").label("app", "noise").cpu(1).on("r0a"))
    world.add(pod_group("g").gang(1), member().apart({"app": "noise"}, RACK))


def kept_off(world: Harness) -> None:
    """The other way round: a pod that runs keeps the gang off."""
    world.add(node("r0a").cpu(1).rack("r0"), node("r0b").cpu(1).rack("r0"))
    world.add(pod("lonely").apart({"app": "w"}, RACK).cpu(1).on("r0a"))
    world.add(pod_group("g").gang(1), member())


def beside(world: Harness) -> None:
    """The gang has to be in the rack of a cache, which is full."""
    world.add(node("r0a").cpu(1).rack("r0"), node("r1a").cpu(1).rack("r1"))
    world.add(pod("cache").label("app", "cache").cpu(1).on("r0a"), pod("cousin").label("app", "other").on("r1a"))
    world.add(pod_group("g").gang(1), member().beside({"app": "cache"}, RACK))


def relabel(name: str, value: str) -> Step:
    return edit(name, lambda each: each.label("app", value))


def edit(name: str, change: Callable[[PodBuilder], PodBuilder]) -> Step:
    def step(world: Harness) -> None:
        key = world.pod_key(name)
        world.api.pods[key] = change(PodBuilder(world.api.pods[key])).raw()
        world.watch()

    return step


def move_to(rack: str) -> Step:
    return lambda world: world.add(node("r0a").cpu(1).rack(rack).version("2"))


CASES: list[tuple[str, Step, Step]] = [
    ("the node of the empty zone goes", spread(), lambda world: world.store.drop_node("c")),
    ("it is tainted, and that counts", spread(nodeTaintsPolicy="Honor"),
     lambda world: world.add(node("c").cpu(1).label(ZONE, "c").taint("x").version("2"))),
    ("it gets another zone", spread(), lambda world: world.add(node("c").cpu(1).label(ZONE, "a").version("2"))),
    ("a pod that counts begins to end", spread(), edit("x-a", lambda each: each.deleting())),
    ("a pod that counts gets another label", spread(), relabel("x-a", "z")),
    ("the node of the pod in the way gets another rack", apart, move_to("r9")),
    ("the pod in the way gets another label", apart, relabel("noise", "quiet")),
    ("the pod in the way goes", apart, lambda world: world.delete("noise")),
    ("the node of a pod that keeps others off gets another rack", kept_off, move_to("r9")),
    ("the node of the cache gets the rack of a free one", beside, move_to("r1")),
    ("a pod in the free rack gets the label of the cache", beside, relabel("cousin", "cache")),
    ("another cache comes", beside, lambda world: world.add(pod("cache2").label("app", "cache").on("r1a"))),
]  # fmt: skip


@pytest.mark.parametrize("way", ["alone", "behind another gang", "without backfill"])
@pytest.mark.parametrize(("build", "change"), [pytest.param(b, c, id=sentence) for sentence, b, c in CASES])
async def test_a_gang_is_planned_as_soon_as_it_fits(build: Step, change: Step, way: str) -> None:
    world = Harness(backfill=BackfillMode.OFF if way == "without backfill" else BackfillMode.FORECAST)
    build(world)
    if way == "behind another gang":
        world.add(node("big").cpu(8), pod("long").cpu(8).priority(1000).on("big"))
        huge = pod("huge-0").cpu(8).priority(1000).scheduler(SCHEDULER).in_group("huge")
        world.add(pod_group("huge").gang(1).priority(1000), huge)
    await world.go()
    await world.pass_time(5.0)
    assert world.ledger.of_group(GANG) is None
    change(world)
    await world.go()
    assert world.ledger.of_group(GANG) is not None
    await world.close()


@pytest.mark.parametrize(
    ("build", "change"),
    [
        pytest.param(apart, lambda world: world.add(node("r0b").cpu(1).rack("r0").version("2")), id="a heartbeat"),
        pytest.param(apart, relabel("noise", "noise"), id="a pod that says the same"),
        pytest.param(apart, edit("noise", lambda each: each.label("other", "x")), id="a label that nobody asks for"),
    ],
)
async def test_what_changes_no_answer_wakes_nobody(build: Step, change: Step) -> None:
    world = Harness()
    build(world)
    await world.go()
    world.store.occupancy.freed_nodes.take_neighbours()
    change(world)
    assert world.store.occupancy.freed_nodes.take_neighbours() == set()
    await world.close()
