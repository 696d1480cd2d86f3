"""Builders of PodDisruptionBudgets."""

from typing import Self

from serried.api.budget import DisruptionBudget, decode_budget
from tests.support.builders import Builder, require_valid


class BudgetBuilder(Builder):
    """A PodDisruptionBudget that allows no disruption."""

    def value(self) -> DisruptionBudget:
        """The budget, decoded."""
        return require_valid(decode_budget(self._raw))

    def selecting(self, **labels: str) -> Self:
        """Select the pods with these labels."""
        return self.with_field(labels, "spec", "selector", "matchLabels")

    def disruptions_allowed(self, count: int) -> Self:
        """Set the number of allowed disruptions in the status."""
        return self.with_field(count, "status", "disruptionsAllowed")

    def always_allow_unready(self) -> Self:
        """Always allow the eviction of pods that are not Ready."""
        return self.with_field("AlwaysAllow", "spec", "unhealthyPodEvictionPolicy")


def budget(name: str) -> BudgetBuilder:
    """Start building a PodDisruptionBudget that selects no pods."""
    return BudgetBuilder({"metadata": {"name": name, "namespace": "default", "uid": f"budget-{name}"}, "spec": {}})
