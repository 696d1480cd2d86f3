"""Builders of PodDisruptionBudgets."""

from typing import Self

from serried.api.budget import DisruptionBudget, decode_budget
from tests.support.builders import Builder, usable


class BudgetBuilder(Builder):
    """A PodDisruptionBudget that allows no disruption."""

    def value(self) -> DisruptionBudget:
        """The budget, decoded."""
        return usable(decode_budget(self._raw))

    def selecting(self, **labels: str) -> Self:
        """Select the pods with these labels."""
        return self.having(labels, "spec", "selector", "matchLabels")

    def allowing(self, count: int) -> Self:
        """Set the number of allowed disruptions in the status."""
        return self.having(count, "status", "disruptionsAllowed")

    def freeing_unready(self) -> Self:
        """Always allow the eviction of pods that are not Ready."""
        return self.having("AlwaysAllow", "spec", "unhealthyPodEvictionPolicy")


def budget(name: str) -> BudgetBuilder:
    """Start building a PodDisruptionBudget that selects no pods."""
    return BudgetBuilder({"metadata": {"name": name, "namespace": "default", "uid": f"budget-{name}"}, "spec": {}})
