"""Plans that would hold the loop are made in slices: filter is answered meanwhile, and others are planned.

The stopwatch of these stories shows half a millisecond more each time somebody looks at it, which is after each step of
a plan: so a plan takes as long as it has steps, and a gang of many shapes has many.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import pytest

from extender.core.protocol import Pass
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.planning_tasks import SHORT_SECONDS, PlanningTasks, Unfinished
from extender.options import BackfillMode, PreemptionMode
from serried.api.names import GroupKey
from serried.api.verdict import Reason, Verdict, render
from serried.ops.fork import WorkError, fork
from serried.ops.steps import finish
from serried.plan.capacity import Capacity
from serried.plan.eviction import Blocker, NoVictims, Preemption
from serried.plan.request import Plan, PlanRequest, Snapshot
from serried.plan.tree import plan_group
from tests.support.builders import RACK, Builder, PodBuilder, job, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members
from tests.support.inline_fork import fork_inline
from tests.support.memory import read_memory

SMALL = GroupKey("default", "h")


@pytest.fixture(autouse=True)
def look_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serried.plan.limit._UNITS_PER_CHECK", 8)


class Stopwatch:
    """Shows so much more each time somebody looks at it."""

    def __init__(self, step: float) -> None:
        self.step, self._now = step, 0.0

    def __call__(self) -> float:
        self._now += self.step
        return self._now


def ticking(step: float = 0.0005) -> Callable[[], float]:
    numbers: Iterator[int] = count()
    return lambda: next(numbers) * step


def odd(shapes: int, least: int = 1000) -> list[Builder]:
    """Gang g: each member has a shape of its own, of a little more than so many millicores."""
    pods = [pod(f"m{i}").cpu(f"{least + i}m").scheduler(SCHEDULER).in_group("g") for i in range(shapes)]
    return [gang(shapes).topology(), *pods]


def racks(world: Harness, cpus: int = 16, size: int = 3) -> Harness:
    return world.add(*[node(f"{rack}{place}").cpu(cpus).rack(rack) for rack in "abc" for place in range(size)])


def small(name: str = "h") -> list[Builder]:
    return [pod_group(name).gang(2), *[each.in_group(name) for each in members(2, first=100)]]


async def until(world: Harness, happens: Callable[[], bool], turns: int = 60) -> None:
    """Let the group scheduler look, and everybody work for some turns of the loop, until something is so."""
    for _ in range(2000):
        world.schedule_groups()
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.sleep(0.002)
        if happens():
            return
    raise AssertionError("it never happened")


async def begin(world: Harness) -> None:
    """A child has begun with a plan, and nobody has heard of it yet."""
    for _ in range(10):
        await asyncio.sleep(0)
        if any(task.child for task in read_memory(world.core.planning_tasks)["tasks"][GANG]):
            return
    raise AssertionError("no child has begun")


def is_planned(world: Harness, group: GroupKey = GANG) -> bool:
    return group in world.groups.states and world.groups.states[group].cycle is not None


def is_over_committed(world: Harness) -> bool:
    return any(
        used.get("cpu", 0) > world.store.nodes[name].allocatable["cpu"]
        for name, used in world.store.occupancy.used.items()
    )


@pytest.fixture
def slow() -> Harness:
    return racks(Harness(fork=fork, stopwatch=ticking()))


async def test_a_small_plan_runs_straight_through(slow: Harness) -> None:
    slow.add(*small()).schedule_groups()
    assert is_planned(slow, SMALL)
    assert not len(slow.core.planning_tasks)
    await slow.close()


async def test_what_asks_a_node_for_thousands_of_things_is_not_even_looked_up_straight() -> None:
    def choosy(index: int) -> PodBuilder:
        values = ["a", *(f"no-{index}-{number}" for number in range(5_000))]
        wanted = {"matchExpressions": [{"key": RACK, "operator": "In", "values": values}]}
        return pod(f"m{index}").cpu(1).node_affinity(wanted).scheduler(SCHEDULER).in_group("g")

    world = racks(Harness()).add(gang(3).topology(), *map(choosy, range(3)))
    world.schedule_groups()
    (task,) = read_memory(world.core.planning_tasks)["tasks"][GANG]
    assert not task.tried_inline
    await until(world, lambda: is_planned(world))
    assert world.reasons() == [Reason.PLANNING, Reason.PLANNED]
    await world.close()


async def test_while_an_odd_gang_is_planned_filter_answers_and_another_gang_is_planned(slow: Harness) -> None:
    slow.add(*odd(12)).schedule_groups()
    assert len(slow.core.planning_tasks) == 1
    slow.add(pod("plain").scheduler(SCHEDULER), *small())
    assert isinstance(slow.filter("plain"), Pass)
    slow.schedule_groups()
    assert is_planned(slow, SMALL)
    assert not is_planned(slow)
    await until(slow, lambda: is_planned(slow))
    assert slow.reasons() == [Reason.PLANNING, Reason.PLANNED]
    await slow.close()


async def test_what_a_gang_was_refused_for_holds_while_its_next_plan_is_made(slow: Harness) -> None:
    slow.groups.states[GANG] = GroupState(0.0, Verdict(Reason.NO_CAPACITY, 1, 12))
    slow.add(*odd(12)).schedule_groups()
    assert len(slow.core.planning_tasks) == 1
    assert slow.reasons() == []
    await slow.close()


async def test_a_burst_of_gangs_of_one_new_shape_counts_it_once(slow: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.core.scheduling.planning_tasks._MAX_NODES_COUNTED_AT_ONCE", 0)
    for number in range(30):
        name = f"g{number}"
        pods = [pod(f"{name}-{i}").cpu(1).scheduler(SCHEDULER).in_group(name) for i in range(2)]
        slow.add(pod_group(name).gang(2), *pods)
    slow.schedule_groups()
    assert len(slow.core.planning_tasks) == 30
    await until(slow, lambda: len(slow.ledger) == 30)
    assert {verdict.reason for _, verdict in slow.heard.verdicts} == {Reason.PLANNING, Reason.PLANNED}
    assert not is_over_committed(slow)
    await slow.close()


async def test_many_odd_gangs_take_turns_and_the_shortest_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan_slowly(snapshot: Snapshot, request: PlanRequest, capacity: Capacity) -> Plan | Verdict:
        answer = plan_group(snapshot, request, capacity)
        time.sleep(len(request.members) / 200)
        return answer

    monkeypatch.setattr("extender.core.scheduling.planning_tasks.plan_group", plan_slowly)
    world = racks(Harness(fork=fork, stopwatch=ticking()), cpus=64)
    long = [pod(f"l{i}").cpu(f"{500 + i}m").scheduler(SCHEDULER).in_group("long") for i in range(150)]
    world.add(pod_group("long").gang(150), *long)
    world.schedule_groups()
    await asyncio.sleep(0.1)
    world.add(*odd(8))
    await until(world, lambda: is_planned(world), turns=1)
    assert not is_planned(world, GroupKey("default", "long"))
    await until(world, lambda: is_planned(world, GroupKey("default", "long")))
    await world.close()


async def test_a_plan_whose_ground_has_changed_meanwhile_is_made_anew(slow: Harness) -> None:
    slow.add(*odd(12)).schedule_groups()
    await begin(slow)
    # Somebody else takes what the plan will have counted on, wherever that is but in one rack.
    slow.add(*[pod(f"x{name}").cpu(16).on(name) for name in slow.store.nodes if name[0] in "ab"])
    await until(slow, lambda: is_planned(slow))
    assert {slot.node[0] for slot in slow.binding_cycle().reservation.slots.values()} == {"c"}
    assert not is_over_committed(slow)
    await slow.close()


async def test_a_long_plan_that_loses_its_ground_is_made_straight_in_its_domain_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("extender.core.scheduling.planning_tasks._MAX_RESTARTS", 0)
    stopwatch = Stopwatch(0.005)
    world = racks(Harness(fork=fork, stopwatch=stopwatch))
    world.add(*odd(12)).schedule_groups()
    (task,) = read_memory(world.core.planning_tasks)["tasks"][GANG]
    for _ in range(500):
        await asyncio.sleep(0.01)
        if task.done:
            break
    assert task.done
    assert task.spent > SHORT_SECONDS
    world.add(*[pod(f"x{name}").cpu(16).on(name) for name in set(task.found.nodes.values())])
    stopwatch.step = 0.0001
    world.schedule_groups()
    assert is_planned(world)
    assert world.binding_cycle().reservation.domain == task.found.domain
    assert not is_over_committed(world)
    await world.close()


async def test_what_the_scheduler_has_nominated_meanwhile_is_ground_that_has_changed(slow: Harness) -> None:
    slow.add(*odd(12)).schedule_groups()
    await begin(slow)
    slow.add(*[pod(f"x{name}").cpu(16).nominated(name).priority(1) for name in slow.store.nodes if name[0] in "ab"])
    await until(slow, lambda: is_planned(slow))
    assert {slot.node[0] for slot in slow.binding_cycle().reservation.slots.values()} == {"c"}
    await slow.close()


async def test_nothing_is_reserved_on_ground_that_changes_all_the_time(slow: Harness) -> None:
    slow.add(*odd(12)).schedule_groups()
    for turn in range(200):
        full = "abc"[turn % 3]
        for name in slow.store.nodes:
            slow.store.put_pod(pod(f"x{name}").cpu(16 if name[0] == full else 9).on(name).value())
        slow.schedule_groups()
        if is_planned(slow):
            break
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not is_over_committed(slow)
    assert slow.reasons()[-1] in {Reason.PLANNED, Reason.PLAN_UNFINISHED}
    await slow.close()


async def test_what_was_refused_after_long_work_is_tried_again_after_ten_times_as_long(slow: Harness) -> None:
    slow.add(*odd(40, least=2000)).schedule_groups()
    await until(slow, lambda: Reason.NO_DOMAIN_FITS in slow.reasons())
    pause = slow.groups.states[GANG].entry.backoff_until - slow.clock()
    assert pause >= 10 * SHORT_SECONDS
    plans = len(slow.heard.plans)
    slow.add(node("a9").cpu(1).rack("a"))  # room that would wake it
    await slow.pass_time(pause - 0.1)
    assert len(slow.heard.plans) == plans
    await slow.pass_time(0.2)
    await until(slow, lambda: len(slow.heard.plans) > plans)
    await slow.close()


async def test_short_plans_in_vain_count_for_the_pause_of_all_and_others_do_not(slow: Harness) -> None:
    slow.add(*small()).schedule_groups()
    assert slow.core.planning.vain_seconds == 0
    slow.add(
        pod_group("big").gang(1), *[each.in_group("big").cpu(99) for each in members(1, first=50)]
    ).schedule_groups()
    assert slow.reasons(GroupKey("default", "big")) == [Reason.NO_CAPACITY]
    short = slow.core.planning.vain_seconds
    assert 0 < short < SHORT_SECONDS
    slow.add(*odd(40, least=2000)).schedule_groups()
    await until(slow, lambda: Reason.NO_DOMAIN_FITS in slow.reasons())
    assert slow.core.planning.vain_seconds == short
    await slow.close()


async def test_a_time_that_has_come_is_looked_at_once(slow: Harness) -> None:
    slow.add(
        pod_group("big").gang(1), *[each.in_group("big").cpu(99) for each in members(1, first=50)]
    ).schedule_groups()
    gone = slow.groups.states[GroupKey("default", "big")]
    gone.entry.back_off(slow.clock() + 5)
    gone.entry.retry_by(slow.clock() + 5)
    slow.delete("m50")
    slow.schedule_groups()
    slow.clock.advance(6)
    assert finish(slow.group_scheduler.run_periodic_work()) == {GroupKey("default", "big")}
    assert finish(slow.group_scheduler.run_periodic_work()) == set()
    await slow.close()


async def test_what_cannot_be_planned_in_its_time_says_so_and_gets_more_time_later() -> None:
    world = racks(Harness(fork=fork, stopwatch=ticking(step=0.1)))
    world.add(*odd(12)).schedule_groups()
    await until(world, lambda: Reason.PLAN_UNFINISHED in world.reasons())
    assert world.heard.plans == ["PlanUnfinished"]
    assert not len(world.core.planning_tasks)
    while not is_planned(world):
        await world.pass_time(60)
        for _ in range(20):
            await world.run_tasks()
        assert world.clock() < 3600
    await world.close()


async def test_a_forecast_is_made_in_slices_too() -> None:
    world = Harness(fork=fork, stopwatch=ticking())
    racks(world, cpus=16, size=6)
    for number, name in enumerate(sorted(world.store.nodes)):
        world.add(
            job(f"job-{name}"),
            pod(f"x{name}")
            .of_job(f"job-{name}", 0)
            .cpu(16)
            .on(name)
            .started("2023-11-14T22:13:20Z")
            .active_deadline(600 + number),
        )
    world.add(*odd(12)).schedule_groups()
    assert world.core.backfill.head is None
    await until(world, lambda: world.core.backfill.head is not None)
    head = world.core.backfill.head
    assert head is not None
    assert head.group == GANG
    assert {name[0] for name in head.forecast.nodes} == {"a"}
    assert "Serried keeps " in world.heard.verdicts[-1][1].detail
    await world.close()


async def test_a_forecast_and_who_would_have_to_go_are_told_together_whichever_is_there_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = racks(Harness(fork=fork, stopwatch=ticking(), preemption=PreemptionMode.ADVICE), cpus=2, size=8)
    world.add(*[pod(f"x{name}").cpu(2).on(name) for name in sorted(world.store.nodes)])
    world.add(gang(3).priority(100), *[each.cpu(2).priority(100) for each in members(3)]).schedule_groups()
    parts = {"Serried keeps ", "the gang would fit without 3 pods"}
    await until(world, lambda: all(part in world.heard.verdicts[-1][1].detail for part in parts))
    await world.close()


async def test_room_that_is_freed_while_a_forecast_is_made_is_not_forgotten_when_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serried.plan.limit._UNITS_PER_CHECK", 1)
    world = racks(Harness(fork=fork, stopwatch=ticking()), cpus=2, size=8)
    full = {name: pod(f"x{name}").cpu(2).on(name) for name in sorted(world.store.nodes)}
    world.add(*full.values(), gang(3), *[each.cpu(2) for each in members(3)]).schedule_groups()
    assert len(world.core.planning_tasks) == 1
    world.delete("xa0")
    await until(world, lambda: world.core.backfill.head is not None)
    world.delete("xa1")
    world.schedule_groups()
    assert not is_planned(world)
    world.delete("xa2")
    await until(world, lambda: is_planned(world))
    await world.close()


async def test_room_that_is_freed_while_a_plan_is_made_is_not_forgotten_for_others_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serried.plan.limit._UNITS_PER_CHECK", 1)
    world = racks(Harness(fork=fork, stopwatch=ticking(), backfill=BackfillMode.OFF), cpus=1, size=8)
    world.add(*[pod(f"x{name}").cpu(1).on(name) for name in sorted(world.store.nodes)])
    world.add(pod_group("h").gang(3), *[each.in_group("h") for each in members(3, first=100)])
    await until(world, lambda: Reason.NO_CAPACITY in world.reasons(SMALL))
    for name in list(world.store.nodes):
        world.add(node(name).cpu(1).rack(name[0]).label("checked", "yes"))  # each is counted anew
    world.add(gang(9), *members(9)).schedule_groups()
    await begin(world)
    world.delete("xa0")
    await until(world, lambda: Reason.NO_CAPACITY in world.reasons())
    assert world.heard.verdicts[-1][1].have == 0  # an answer of before
    world.delete("xa1")
    world.delete("xa2")
    world.schedule_groups()
    await until(world, lambda: is_planned(world, SMALL))
    await world.close()


async def test_late_members_of_many_shapes_get_their_slots_when_these_are_found(slow: Harness) -> None:
    slow.add(gang(1), *members(1)).schedule_groups()
    await until(slow, lambda: slow.binding_cycle().accepts_members)
    late: list[PodBuilder] = [pod(f"m{i}").cpu(f"{500 + i}m").scheduler(SCHEDULER).in_group("g") for i in range(5, 20)]
    slow.add(*late).schedule_groups()
    assert len(slow.binding_cycle().reservation.slots) == 1
    await until(slow, lambda: len(slow.binding_cycle().reservation.slots) == 16)
    await slow.close()


async def test_a_question_about_newer_versions_of_the_same_pods_is_the_same_question() -> None:
    world = racks(Harness())
    planning_tasks = PlanningTasks(world.core.context, ticking())
    pods = [pod(f"m{i}").cpu(f"{1000 + i}m").value() for i in range(20)]
    with pytest.raises(Unfinished):
        planning_tasks.plan(PlanRequest(pods, 20))
    await planning_tasks.work()
    newer = [replace(each, version="2", unschedulable=True) for each in pods]
    found = planning_tasks.plan(PlanRequest(newer, 20))
    assert isinstance(found.found, Plan)
    assert found.seconds
    assert planning_tasks.plan(PlanRequest(newer, 20)).seconds is None  # told once
    with pytest.raises(Unfinished):
        planning_tasks.plan(PlanRequest(newer, 19))


@pytest.mark.parametrize("turns", [0, 1, 2], ids=["before it began", "in its first slice", "in the middle"])
async def test_a_term_that_ends_ends_all_work_and_the_next_one_begins_it_anew(slow: Harness, turns: int) -> None:
    slow.add(*odd(12)).schedule_groups()
    for _ in range(turns):
        await asyncio.sleep(0)
    slow.core.end_term()
    await slow.run_tasks()
    assert not len(slow.core.planning_tasks)
    assert not is_planned(slow)
    slow.term.active = True
    slow.store.dirty.add(GANG)
    await until(slow, lambda: is_planned(slow))
    await slow.close()


async def test_the_caller_is_told_that_a_plan_failed(slow: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    slow.add(*odd(12)).schedule_groups()
    assert len(slow.core.planning_tasks) == 1
    monkeypatch.setattr("extender.core.scheduling.planning_tasks.PlanningTasks._make_in_child", _fail)
    with pytest.raises(WorkError, match="of all"):
        await until(slow, lambda: False)
    await slow.close()


def _fail(*_: object) -> None:
    raise RuntimeError("of all things")


def test_a_verdict_that_time_is_over_says_what_helps() -> None:
    said = render(Verdict(Reason.PLAN_UNFINISHED, have=2, need=1300))
    assert said.startswith("PlanUnfinished: Serried found no plan for 1300 members in 2 s")
    assert "more similar members are planned faster" in said


class Victims:
    """A search for victims that ends after so many steps, or soon after it is told to."""

    def __init__(self, steps: int, after_deadline: int) -> None:
        self._steps = steps
        self._after_deadline = after_deadline

    def make(self, snapshot: Snapshot, capacity: Capacity) -> NoVictims:
        left = self._steps
        done = 0
        while left > 0:
            snapshot.limit.spend()
            done += 1
            left = min(left - 1, self._after_deadline if snapshot.limit.content else left)
        return NoVictims(Verdict(Reason.NO_CAPACITY, have=done), Blocker.ROOM)


def seek(planning_tasks: PlanningTasks, search: Victims, members_: int = 20) -> Preemption | NoVictims | None:
    pods = [pod(f"m{i}").cpu(1).value() for i in range(members_)]
    found: Preemption | NoVictims | None = planning_tasks.find_victims(
        GANG, PlanRequest(pods, members_), (), search.make
    ).found
    return found


def tasks_at(step: float) -> PlanningTasks:
    """Tasks in which a look at the stopwatch takes so many seconds."""
    return PlanningTasks(Harness().core.context, ticking(step=step), fork_inline)


async def test_a_search_for_victims_is_told_to_end_with_what_it_has_when_half_of_its_time_is_over() -> None:
    planning_tasks = tasks_at(0.1)
    search = Victims(steps=1_000, after_deadline=3)
    with pytest.raises(Unfinished):
        seek(planning_tasks, search)
    await planning_tasks.work()
    found = seek(planning_tasks, search)
    assert isinstance(found, NoVictims)
    assert 2.5 / 0.3 <= found.verdict.have <= 2.5 / 0.1 + 5


async def test_a_search_that_nothing_ends_in_time_gets_twice_the_time_the_next_time() -> None:
    planning_tasks = tasks_at(0.1)
    for _ in range(8):
        search = Victims(steps=300, after_deadline=300)
        with pytest.raises(Unfinished):
            seek(planning_tasks, search)
        await planning_tasks.work()
        found = seek(planning_tasks, search)
        if found is not None:
            break
    assert isinstance(found, NoVictims)
    assert found.verdict.have == 300
