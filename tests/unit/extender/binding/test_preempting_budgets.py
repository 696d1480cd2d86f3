"""Budgets that do not let all of the cheapest victims go: others are found at once, and go."""

from collections.abc import Callable

import pytest

from extender.options import EvictionMethod
from serried.api.names import Key
from serried.api.verdict import Reason
from tests.support.budgets import budget
from tests.support.builders import PodBuilder, node, pod
from tests.support.extender_harness import Harness, gang, members

HIGH = 100


def running(name: str, on: str, priority: int = 0, cpus: int = 2) -> PodBuilder:
    return pod(name).cpu(cpus).on(on).priority(priority)


def want(count: int) -> list[PodBuilder]:
    return [each.cpu(2).priority(HIGH) for each in members(count)]


def serve(world: Harness, count: int) -> None:
    """Full nodes, each with two pods of a service of its own that may lose one; behind them one of priority 10."""
    for i in range(count):
        world.add(node(f"n{i:02}").cpu(2), budget(f"b{i}").selecting(app=f"s{i}").disruptions_allowed(1))
        world.add(*(running(f"s{i}-{j}", f"n{i:02}", 0, 1).label("app", f"s{i}") for j in (0, 1)))
    world.add(node("z").cpu(2), running("batch", "z", 10), gang(1).priority(HIGH), *want(1))


def fill_racks(world: Harness, guarded: int, free: int) -> None:
    """Racks of two nodes with a pod each; in the first ones they are a service that may lose one."""
    for i in range(guarded + free):
        world.add(*(node(f"r{i:02}-{j}").cpu(2).rack(f"r{i:02}") for j in (0, 1)))
        pods = [running(f"s{i}-{j}", f"r{i:02}-{j}") for j in (0, 1)]
        world.add(*(each.label("app", f"s{i}") if i < guarded else each for each in pods))
        world.add(budget(f"b{i}").selecting(app=f"s{i}").disruptions_allowed(1))
    world.add(gang(2).priority(HIGH).topology(), *want(2))


def spread_web(world: Harness, both: int, half: int) -> None:
    """Racks of two nodes with a pod each: in the first ones both are of the service that may lose one, then one is."""
    world.add(budget("web").selecting(app="web").disruptions_allowed(1))
    for i in range(both + half):
        world.add(*(node(f"r{i:02}-{j}").cpu(2).rack(f"r{i:02}") for j in (0, 1)))
        world.add(running(f"p{i}-0", f"r{i:02}-0").label("app", "web"))
        other = running(f"p{i}-1", f"r{i:02}-1")
        world.add(other.label("app", "web") if i < both else other)
    world.add(gang(2).priority(HIGH).topology(), *want(2))


def split_web(world: Harness) -> None:
    """Two web pods on one node, of which one may go; one on another, beside a pod of priority 10."""
    world.add(budget("web").selecting(app="web").disruptions_allowed(1), node("n1").cpu(2), node("n2").cpu(2))
    world.add(*(running(name, "n1", 0, 1).label("app", "web") for name in ("p1", "p2")))
    world.add(running("p5", "n2", 0, 1).label("app", "web"), running("q", "n2", 10, 1))
    world.add(gang(1).priority(HIGH), *want(1))


@pytest.mark.parametrize(
    ("fill", "victims"),
    [
        pytest.param(lambda world: serve(world, 5), ["batch"], id="one of a higher priority, behind five services"),
        pytest.param(lambda world: fill_racks(world, 20, 5), ["s20-0", "s20-1"], id="the rack behind 20 services"),
        pytest.param(
            lambda world: spread_web(world, 16, 5), ["p16-0", "p16-1"], id="the rack behind 16 of one service"
        ),
        pytest.param(split_web, ["p5", "q"], id="the one that may go, and one of a higher priority"),
    ],
)
async def test_those_go_that_budgets_let_go(
    world: Harness, fill: Callable[[Harness], None], victims: list[str]
) -> None:
    fill(world)
    await world.run_until_idle()
    assert world.reasons()[-1] is Reason.PREEMPTING
    assert sorted(world.api.list_evicted()) == victims


async def test_with_deletion_a_budget_is_violated_before_a_higher_priority_goes() -> None:
    world = Harness(preempt_by=EvictionMethod.DELETION)
    split_web(world)
    await world.run_until_idle()
    assert sorted(world.api.list_evicted()) == ["p1", "p2"]
    await world.close()


@pytest.mark.parametrize("size", [1, 40], ids=["of one", "of 40, which rests longer after each failure"])
async def test_however_many_pods_the_api_server_refuses_a_gang_gets_those_that_it_lets_go(
    world: Harness, size: int
) -> None:
    """No watch has shown these budgets: each search leaves out the victims that were refused to earlier searches."""
    world.api.add_budget()
    for i in range(size + 15):
        world.add(node(f"n{i:02}").cpu(2), running(f"low{i:02}", f"n{i:02}"))
    world.api.guarded.update(Key("default", f"low{i:02}") for i in range(1, 16))
    await world.add(gang(size).priority(HIGH), *want(size)).run_until_idle()
    for _ in range(100):
        await world.pass_time(5)
    assert sorted(world.api.list_evicted()) == ["low00", *(f"low{i:02}" for i in range(16, size + 15))]
