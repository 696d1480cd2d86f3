"""A gang gets the placement by which it was measured."""

import random

from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.plan.gang import assign, measure
from serried.plan.placement import CLUSTER, PlanState, SearchLevel, StepBudget
from serried.plan.request import PlanRequest, Snapshot
from tests.support.rules import PLAN_RULES

WHOLE = SearchLevel((), ())


def trial_of(seed: int) -> PlanState:
    """A gang of three shapes that needs a mix, on nodes of all sizes."""
    source = random.Random(seed)  # noqa: S311  # no secret
    sizes = [(source.randint(3, 12), source.randint(3, 12)) for _ in range(source.randint(2, 6))]
    nodes = [Node(f"n{i}", {"cpu": cpu, "memory": memory, "pods": 99}) for i, (cpu, memory) in enumerate(sizes)]
    shapes = [Shape((("cpu", source.randint(1, 5)), ("memory", source.randint(1, 5)), ("pods", 1))) for _ in range(3)]
    members = [Pod("ns", f"p{i}", f"u{i}", source.choice(shapes)) for i in range(source.randint(4, 15))]
    return PlanState(
        Snapshot({node.name: node for node in nodes}, {}, rules=PLAN_RULES), PlanRequest(members, len(members))
    )


def test_what_was_measured_is_assigned_though_it_could_not_be_found_again() -> None:
    found_by_mixing = 0
    for seed in range(600):
        state = trial_of(seed)
        before = state.budget.left
        measured = measure(state, WHOLE, CLUSTER)
        found_by_mixing += state.budget.left < before and measured.placed == len(state.ask.members)
        state.budget = StepBudget(0)
        assert len(assign(state, WHOLE, measured)) == measured.placed
    assert found_by_mixing > 5
