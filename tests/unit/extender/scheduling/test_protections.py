"""Whom a search for victims leaves alone: in steps, however many pods there are, and as the API server would judge."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from extender.core.scheduling.queue import Queue
from extender.features.preemption.units import VictimCandidates, enforce_budgets, protect_young
from serried.api.names import Disruption, Key
from serried.plan.eviction import Allowances, EvictionUnit
from tests.support.budgets import budget
from tests.support.builders import pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes

HIGH = 100
MANY = 5000
BUDGET = Key("default", "b")


def crowd(allowed: int) -> VictimCandidates:
    """Return many pods that have just started, all under one budget."""
    value = pod("p").cpu(1).on("n1").started("2026-01-01T00:00:00Z").value()
    pods = [replace(value, uid=f"u{place}") for place in range(MANY)]
    return VictimCandidates(
        tuple(EvictionUnit((each,), 0, budgets=(BUDGET,)) for each in pods), Allowances({}, {BUDGET: allowed})
    )


@pytest.mark.parametrize(
    ("protect", "count"),
    [
        pytest.param(lambda: enforce_budgets(crowd(0)), MANY, id="as a budget allows nothing"),
        pytest.param(
            lambda: protect_young(crowd(9), 0, 0.0), MANY, id=("as they have just started (--preemption-spare)")
        ),
    ],
)
def test_thousands_are_protected(protect: Callable[[], VictimCandidates], count: int) -> None:
    running = protect()
    assert len([unit for unit in running.units if unit.protection]) == count


async def test_a_whole_gang_of_which_one_pod_is_under_two_budgets_is_no_victim(world: Harness) -> None:
    """The API server evicts no such pod: dry runs would be refused again and again."""
    world.add(*small_nodes(3), pod_group("v").gang(3).disruption(Disruption.ALL))
    run = [pod(f"v{i}").cpu(2).scheduler(SCHEDULER).in_group("v").on(f"n{i}") for i in (1, 2, 3)]
    world.add(*run[:2], run[2].label("app", "web"))
    world.add(*(budget(name).selecting(app="web").disruptions_allowed(9) for name in ("one", "two")))
    await world.add(gang(1).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(1))).run_until_idle()
    assert not world.api.records
    assert not world.api.list_calls("rehearse")
    (said,) = (verdict.detail for key, verdict in world.heard.verdicts if key == GANG)
    assert "PodDisruptionBudgets" in said


async def test_nobody_goes_on_nodes_that_were_kept_for_another_gang_while_victims_were_looked_for(
    world: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([frozenset[str]()])
    monkeypatch.setattr(Queue, "list_closed_nodes", lambda *_: next(answers, frozenset({"n1", "n2"})))
    world.add(*small_nodes(2), *(pod(f"low{i}").cpu(2).on(f"n{i}") for i in (1, 2)))
    await world.add(gang(2).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(2))).run_until_idle()
    assert not world.api.list_evicted()
    assert not len(world.ledger)
    monkeypatch.undo()
    await world.pass_time(61)
    assert sorted(world.api.list_evicted()) == ["low1", "low2"]
