import pytest

from serried.plan.packing import Bin, Counts, mix
from serried.plan.placement import StepBudget

CPU, MEMORY = {"cpu": 3, "memory": 1, "pods": 1}, {"cpu": 1, "memory": 3, "pods": 1}


def make_bin(name: str, cpu: int, memory: int, slots: Counts = (9, 9)) -> Bin:
    return Bin(name, {"cpu": cpu, "memory": memory, "pods": 9}, {}, slots)


@pytest.mark.parametrize(
    ("wanted", "need", "bins", "found"),
    [
        pytest.param((1, 1), 2, [make_bin("n1", 4, 4)], {"n1": (1, 1)}, id="two kinds share a node"),
        pytest.param(
            (2, 2),
            4,
            [make_bin("n1", 4, 4), make_bin("n2", 4, 4)],
            {"n1": (1, 1), "n2": (1, 1)},
            id="and another, alike",
        ),
        pytest.param((2, 2), 4, [make_bin("n1", 6, 2), make_bin("n2", 2, 5)], None, id="no way"),
        pytest.param(
            (2, 2), 3, [make_bin("n1", 6, 2), make_bin("n2", 2, 5)], {"n1": (2, 0), "n2": (0, 1)}, id="all but one"
        ),
        pytest.param((1, 1), 2, [make_bin("n1", 9, 9, (1, 0))], None, id="a node that takes no member of one kind"),
        pytest.param((1, 1, 1, 1, 1), 1, [make_bin("n1", 9, 9, (1,) * 5)], None, id="too many kinds to try"),
    ],
)
def test_mixes(wanted: Counts, need: int, bins: list[Bin], found: dict[str, Counts] | None) -> None:
    requests = [CPU, MEMORY, CPU, CPU, CPU][: len(wanted)]
    assert mix(wanted, need, requests, bins, StepBudget(1000)) == found


def test_a_budget_ends_it_and_is_shared() -> None:
    bins, budget = [make_bin("n1", 4, 4)], StepBudget(3)
    assert mix((1, 1), 2, [CPU, MEMORY], bins, budget) is not None
    assert mix((1, 1), 2, [CPU, MEMORY], bins * 9, StepBudget(0)) is None
    while mix((1, 1), 2, [CPU, MEMORY], bins, budget) is not None:
        pass
    assert budget.left < 0
