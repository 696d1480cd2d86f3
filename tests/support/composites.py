"""Builders of CompositePodGroups."""

from typing import Self

from serried.api.group import Composite, decode_composite
from serried.api.names import Disruption
from tests.support.builders import RACK, Builder, describe, require_valid


class CompositeBuilder(Builder):
    """Builds a CompositePodGroup, with the basic policy unless `gang` is called."""

    def value(self) -> Composite:
        """The CompositePodGroup, decoded."""
        return require_valid(decode_composite(self._raw))

    def gang(self, min_group_count: int) -> Self:
        """Set the gang policy with this minimum number of child groups."""
        return self.with_field({"gang": {"minGroupCount": min_group_count}}, "spec", "schedulingPolicy")

    def topology(self, key: str = RACK) -> Self:
        """Require one topology domain of ``key``."""
        return self.with_field([{"key": key}], "spec", "schedulingConstraints", "topology")

    def priority(self, priority: int) -> Self:
        """Set the priority."""
        return self.with_field(priority, "spec", "priority")

    def disruption(self, mode: Disruption) -> Self:
        """Set the disruption mode."""
        return self.with_field({mode.value: {}}, "spec", "disruptionMode")

    def child_of(self, parent: str) -> Self:
        """Set the parent group."""
        return self.with_field(parent, "spec", "parentCompositePodGroupName")


def composite(name: str) -> CompositeBuilder:
    """Start building a basic CompositePodGroup."""
    spec = {
        "workloadRef": {"workloadName": "tree", "templateName": "branch"},
        "schedulingPolicy": {"basic": {}},
    }
    return CompositeBuilder({**describe("CompositePodGroup", name), "spec": spec})
