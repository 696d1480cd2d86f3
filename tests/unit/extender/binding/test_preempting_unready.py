"""Pods that the API server evicts whatever their budgets allow: those that have not started, and some that are unready.

Upstream's rule is in pkg/registry/core/pod/storage/eviction.go. A budget that allows nothing protects none of them.
"""

import pytest

from serried.api.verdict import Reason
from tests.support.budgets import BudgetBuilder, budget
from tests.support.builders import PodBuilder, pod
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes

HIGH = 100
NOTHING = budget("web").selecting(app="web").disruptions_allowed(0)


def running(number: int = 1) -> PodBuilder:
    return pod(f"low{number}").cpu(2).on(f"n{number}").label("app", "web").phase("Running")


async def preempt(world: Harness, budgets: list[BudgetBuilder], *victims: PodBuilder) -> None:
    """A gang of higher priority needs the node of each of them."""
    count = len(victims)
    world.add(*small_nodes(count), *victims, *budgets, gang(count).priority(HIGH))
    await world.add(*(each.cpu(2).priority(HIGH) for each in members(count))).run_until_idle()


@pytest.mark.parametrize(
    ("victim", "budgets"),
    [
        pytest.param(running().phase("Pending"), [NOTHING], id="it has not started"),
        pytest.param(running().phase("Pending"), [NOTHING, budget("b").selecting()], id="nor do two budgets hold it"),
        pytest.param(
            running().ready("False"), [NOTHING.always_allow_unready()], id="it may go as long as it is not Ready"
        ),
        pytest.param(
            running(),
            [NOTHING.with_field(2, "status", "currentHealthy").with_field(2, "status", "desiredHealthy")],
            id="enough others are Ready",
        ),
    ],
)
async def test_it_ends_though_its_budget_allows_nothing(
    world: Harness, victim: PodBuilder, budgets: list[BudgetBuilder]
) -> None:
    await preempt(world, budgets, victim)
    assert [call.name for call in world.api.list_calls("rehearse")] == ["low1"]
    assert [call.name for call in world.api.list_calls("evict")] == ["low1"]


@pytest.mark.parametrize(
    ("victim", "budgets"),
    [
        pytest.param(running(), [NOTHING], id="it is not Ready, and too few others are"),
        pytest.param(running().ready(), [NOTHING.always_allow_unready()], id="it is Ready"),
        pytest.param(
            running(),
            [budget(name).selecting(app="web").always_allow_unready() for name in ("one", "two")],
            id="it has two budgets, whatever these allow",
        ),
    ],
)
async def test_it_is_protected_and_nothing_is_rehearsed(
    world: Harness, victim: PodBuilder, budgets: list[BudgetBuilder]
) -> None:
    await preempt(world, budgets, victim)
    assert not world.api.list_calls("rehearse")
    verdict = world.groups.states[GANG].verdict
    assert verdict is not None
    assert "PodDisruptionBudgets do not allow it" in verdict.detail


async def test_one_that_has_not_started_takes_nothing_of_what_its_budget_allows(world: Harness) -> None:
    await preempt(
        world, [budget("web").selecting(app="web").disruptions_allowed(1)], running(1).phase("Pending"), running(2)
    )
    assert sorted(world.api.list_evicted()) == ["low1", "low2"]


async def test_one_that_has_started_since_is_protected(world: Harness) -> None:
    await world.add(running().phase("Pending")).run_until_idle()
    await preempt(world, [NOTHING], running())
    assert not world.api.list_evicted()
    assert world.reasons()[-1] is Reason.NO_CAPACITY
