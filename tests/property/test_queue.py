"""Order and forecast against brute force, and against what they promise."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from serried.api.names import GroupKey, write_time
from serried.api.preference import EXCLUSIVE
from serried.api.resources import Resources
from serried.plan.forecast import Ending, find_forecast
from serried.plan.gang import plan_gang
from serried.plan.request import Ageing, Plan, Snapshot, Waiting, order_groups
from tests.support.builders import Builder, PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.composites import composite
from tests.support.examples import scale
from tests.support.extender_harness import SCHEDULER, Harness
from tests.support.rules import PLAN_RULES
from tests.support.strategies import Problem, problems

STEP = 100.0
PRIORITIES = (0, 10, 20)

groups = st.lists(
    st.builds(
        lambda number, priority, since: Waiting(GroupKey("ns", f"g{number}"), priority, float(since)),
        st.integers(0, 20),
        st.sampled_from((*PRIORITIES, 5, 30)),
        st.integers(0, 500),
    ),
    max_size=8,
    unique_by=lambda waiting: waiting.group,
)


@given(waiting=groups, now=st.integers(0, 1000), data=st.data())
def test_the_order_is_one_order_whatever_it_is_made_from(waiting: list[Waiting], now: int, data: st.DataObject) -> None:
    ageing = Ageing(STEP, PRIORITIES)
    shuffled = data.draw(st.permutations(waiting))
    ordered = order_groups(waiting, ageing, now)
    assert order_groups(shuffled, ageing, now) == ordered
    assert order_groups(ordered[1:], ageing, now) == ordered[1:]


@given(waiting=groups, now=st.integers(0, 1000))
def test_nobody_is_passed_for_ever(waiting: list[Waiting], now: int) -> None:
    """A gang that has waited one step for each priority has only gangs ahead of it that wait longer."""
    ordered = order_groups(waiting, Ageing(STEP, PRIORITIES), now)
    for place, patient in enumerate(ordered):
        if now - patient.since >= STEP * len(PRIORITIES):
            assert all(
                earlier.since <= patient.since or earlier.priority > PRIORITIES[-1] for earlier in ordered[:place]
            )


@given(waiting=groups)
def test_within_a_step_priority_alone_decides(waiting: list[Waiting]) -> None:
    fresh = [replace(each, since=each.since / 10) for each in waiting]
    ordered = order_groups(fresh, Ageing(STEP, PRIORITIES), STEP / 2)
    assert [each.priority for each in ordered] == sorted((each.priority for each in fresh), reverse=True)


@st.composite
def forecasts(draw: st.DrawFn, classes: int = 1) -> tuple[Problem, list[Ending]]:
    """A gang that does not fit, and what is used as pods with an end, without one, or that stay."""
    problem = draw(problems(classes=classes))
    names = sorted(problem.snapshot.nodes) or ["gone"]
    pods = st.builds(
        lambda node, cpu, memory, at: Ending(node, (("cpu", cpu), ("memory", memory), ("pods", 1)), at),
        st.sampled_from(names),
        st.integers(0, 4),
        st.integers(0, 4),
        st.sampled_from([1.0, 2.0, 3.0, 4.0, None, float("inf")]),
    )
    endings = draw(st.lists(pods, max_size=8))
    used: dict[str, Resources] = {name: dict(amounts) for name, amounts in problem.snapshot.used.items()}
    for ending in endings:
        before = used.get(ending.node, {})
        used[ending.node] = {key: before.get(key, 0) + amount for key, amount in ending.requests}
    return Problem(Snapshot(problem.snapshot.nodes, used, rules=PLAN_RULES), problem.ask), endings


def after(snapshot: Snapshot, ended: Iterable[Ending]) -> Snapshot:
    """The cluster without these pods."""
    used: dict[str, Resources] = {name: dict(amounts) for name, amounts in snapshot.used.items()}
    for ending in ended:
        asked = dict(ending.requests)
        used[ending.node] = {key: amount - asked.get(key, 0) for key, amount in used[ending.node].items()}
    return Snapshot(snapshot.nodes, used, rules=PLAN_RULES)


def by(endings: list[Ending], at: float) -> list[Ending]:
    return [ending for ending in endings if ending.at is not None and ending.at <= at]


@given(case=forecasts())
def test_the_forecast_is_the_first_moment_at_which_the_gang_fits(case: tuple[Problem, list[Ending]]) -> None:
    problem, endings = case
    ask = replace(problem.ask, excluded=frozenset())
    if isinstance(plan_gang(problem.snapshot, ask), Plan):
        return
    moments = [
        at for at in (1.0, 2.0, 3.0, 4.0) if isinstance(plan_gang(after(problem.snapshot, by(endings, at)), ask), Plan)
    ]
    forecast = find_forecast(problem.snapshot, ask, endings)
    assert (forecast.at if forecast else None) == min(moments, default=None)


@given(case=forecasts())
def test_there_is_a_forecast_if_the_gang_would_fit_once_all_have_ended_that_will(
    case: tuple[Problem, list[Ending]],
) -> None:
    problem, endings = case
    ask = replace(problem.ask, excluded=frozenset())
    if isinstance(plan_gang(problem.snapshot, ask), Plan):
        return
    left = after(problem.snapshot, [ending for ending in endings if ending.at != float("inf")])
    assert (find_forecast(problem.snapshot, ask, endings) is not None) == isinstance(plan_gang(left, ask), Plan)


@given(case=forecasts(classes=3))
def test_at_the_time_of_the_forecast_its_nodes_hold_the_gang(case: tuple[Problem, list[Ending]]) -> None:
    problem, endings = case
    forecast = find_forecast(problem.snapshot, problem.ask, endings)
    if forecast is None or forecast.at is None:
        return
    inside = {name: problem.snapshot.nodes[name] for name in forecast.nodes}
    then = after(problem.snapshot, by(endings, forecast.at))
    assert isinstance(plan_gang(Snapshot(inside, then.used, rules=PLAN_RULES), problem.ask), Plan)


# --- nobody is passed for ever ---------------------------------------------------------------------------------------

TURN = 30.0
"""Seconds between two arrivals: room is kept for twenty of them at first."""

PATIENT_TURNS = 150
"""The turns within which the first gang runs: room kept in vain, a pause as long, room kept twice as long elsewhere."""


class Kind(StrEnum):
    """The nodes that the first gang in the queue asks for; each of its members takes a whole node."""

    ANYWHERE = "nodes anywhere"
    RACK = "a whole rack"
    EXCLUSIVE = "a whole rack in which no other gang is that asks for the same"
    TREE = "two groups, each in one rack"


@dataclass(frozen=True)
class Scene:
    """The cluster is full of guests that come and go, one at a time; in the first rack some gang may stay."""

    kind: Kind
    racks: int
    width: int

    guest: tuple[int, int]
    """The number of members of each guest, all in one rack, and how many of a node's two CPUs each member takes."""

    staying: str
    """The kind of the owner of the gang that stays, "" for none: of some kinds it is known that they stay."""

    timed: float
    """The part of the guests whose end is known, from 0 to 1."""

    seed: int

    @property
    def room(self) -> int:
        """The number of guests that fit at once."""
        size, cpus = self.guest
        return (self.racks - bool(self.staying)) * (self.width * 2 // cpus // size)


SHAPES = [(3, 3, (1, 1)), (3, 4, (1, 2)), (3, 4, (3, 2)), (4, 5, (1, 2)), (4, 5, (3, 2))]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    kind, staying = draw(st.sampled_from(list(Kind))), draw(st.sampled_from(["", "StatefulSet", "PyTorchJob"]))
    timed, seed = draw(st.sampled_from([1.0, 0.5, 0.0])), draw(st.integers(0, 999))
    return Scene(kind, *draw(st.sampled_from(SHAPES)), staying, timed, seed)


@example(scene=Scene(Kind.EXCLUSIVE, 3, 3, (1, 1), "StatefulSet", 1.0, 7))
@example(scene=Scene(Kind.TREE, 3, 4, (3, 2), "", 1.0, 7))
@example(scene=Scene(Kind.RACK, 3, 3, (1, 1), "PyTorchJob", 0.0, 7))
@settings(max_examples=scale(15))
@given(scene=scenes())
def test_the_first_in_the_queue_is_passed_by_few_whatever_it_asks_for(scene: Scene) -> None:
    """Of two gangs that both could run one day, the first runs within a bounded number of later arrivals."""
    turns = asyncio.run(Story(scene).count_turns())
    event(f"{scene.kind}: {'soon' if turns <= scene.room * 2 else 'late'}")
    assert turns < PATIENT_TURNS


class Story:
    """One history: in each turn a guest ends, and another one comes."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.source = Random(scene.seed)  # noqa: S311 - nothing is kept secret
        self.world = Harness()
        self.made = 0
        self.began: dict[str, float] = {}

    async def count_turns(self) -> int:
        """Return the number of turns until the first gang runs."""
        self.world.start_nominating()
        self.lay_ground()
        self.invite(self.scene.room)
        await self.drive()
        for name, left in zip(self.began, self.source.sample(range(self.scene.room), len(self.began)), strict=True):
            self.begin(name, self.world.wall_time() - TURN * left)
        self.world.add(*self.make_first())
        turns = 0
        while turns < PATIENT_TURNS and not self.world.node_of("f0-0"):
            turns += 1
            self.world.clock.advance(TURN)
            self.invite(1)
            self.part()
            await self.drive()
        await self.world.close()
        return turns

    def lay_ground(self) -> None:
        scene = self.scene
        places = [(f"r{rack}", f"r{rack}-{place}") for rack in range(scene.racks) for place in range(scene.width)]
        self.world.add(*[node(name).cpu(2).rack(rack) for rack, name in places])
        if scene.staying:
            there = self.make_group("x", scene.width, alone=scene.kind is Kind.EXCLUSIVE)
            pods = self.make_members("x", scene.width)
            self.world.add(
                there, *[each.controlled_by(scene.staying, "x").on(f"r0-{i}") for i, each in enumerate(pods)]
            )

    def make_group(self, name: str, size: int, *, alone: bool = False) -> PodGroupBuilder:
        """Return a gang for one rack. ``alone``: in an exclusive rack."""
        made = pod_group(name).gang(size).topology()
        return made.annotation(EXCLUSIVE, "true") if alone else made

    def make_members(self, group: str, size: int, cpus: int = 2) -> list[PodBuilder]:
        return [pod(f"{group}-{i}").cpu(cpus).scheduler(SCHEDULER).in_group(group) for i in range(size)]

    def make_first(self) -> list[Builder]:
        width = self.scene.width
        match self.scene.kind:
            case Kind.ANYWHERE:
                return [pod_group("f0").gang(width), *self.make_members("f0", width)]
            case Kind.TREE:
                parts = [self.make_group(name, width - 1).child_of("first") for name in ("f0", "f1")]
                pods = [each for name in ("f0", "f1") for each in self.make_members(name, width - 1)]
                return [composite("first").gang(2), *parts, *pods]
            case kind:
                return [self.make_group("f0", width, alone=kind is Kind.EXCLUSIVE), *self.make_members("f0", width)]

    def invite(self, count: int) -> None:
        scene = self.scene
        size, cpus = scene.guest
        for _ in range(count):
            name = f"s{self.made}"
            self.made += 1
            pods = [each.controlled_by("PyTorchJob", name) for each in self.make_members(name, size, cpus)]
            if self.source.random() < scene.timed:
                pods = [each.active_deadline(int(TURN) * scene.room) for each in pods]
            self.world.add(self.make_group(name, size), *pods)

    def part(self) -> None:
        """Guests whose time is over end."""
        for name in [each for each, at in self.began.items() if at + TURN * self.scene.room <= self.world.wall_time()]:
            del self.began[name]
            for place in range(self.scene.guest[0]):
                self.world.delete(f"{name}-{place}")
            self.world.store.drop_group(GroupKey("default", name))

    async def drive(self) -> None:
        """Let kube-scheduler bind each pod that has a slot, and the kubelets start them."""
        await self.world.run_until_idle()
        slots = [slot for reservation in self.world.ledger for slot in reservation.slots.values()]
        for slot in slots:
            if not self.world.node_of(slot.name):
                self.world.filter(slot.name)
                self.world.bind(slot.name)
        await self.world.run_until_idle()
        for name in {slot.name.partition("-")[0] for slot in slots if slot.name.startswith("s")}:
            self.begin(name, self.world.wall_time())
        self.world.sync_pods()

    def begin(self, name: str, at: float) -> None:
        """Set the time since which the pods of a guest run, as their kubelets report it."""
        self.began[name] = at
        for place in range(self.scene.guest[0]):
            key = self.world.pod_key(f"{name}-{place}")
            self.world.api.pods[key] = PodBuilder(self.world.api.pods[key]).started(write_time(at)).raw()
