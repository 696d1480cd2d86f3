"""Builders of CompositePodGroups."""

from typing import Self

from serried.api.group import Composite, decode_composite
from serried.api.names import Disruption
from tests.support.builders import RACK, Builder, describe, usable


class CompositeBuilder(Builder):
    """A CompositePodGroup, basic unless it becomes a gang of groups."""

    def value(self) -> Composite:
        """As Serried sees it."""
        return usable(decode_composite(self._raw))

    def gang(self, min_group_count: int) -> Self:
        """All or nothing, with so many of the groups below."""
        return self.having({"gang": {"minGroupCount": min_group_count}}, "spec", "schedulingPolicy")

    def topology(self, key: str = RACK) -> Self:
        """Confined to one domain of ``key``."""
        return self.having([{"key": key}], "spec", "schedulingConstraints", "topology")

    def priority(self, priority: int) -> Self:
        """With a priority."""
        return self.having(priority, "spec", "priority")

    def disruption(self, mode: Disruption) -> Self:
        """With a disruption mode."""
        return self.having({mode.value: {}}, "spec", "disruptionMode")

    def under(self, parent: str) -> Self:
        """Below another one."""
        return self.having(parent, "spec", "parentCompositePodGroupName")


def composite(name: str) -> CompositeBuilder:
    """A basic CompositePodGroup."""
    spec = {
        "workloadRef": {"workloadName": "tree", "templateName": "branch"},
        "schedulingPolicy": {"basic": {}},
    }
    return CompositeBuilder({**describe("CompositePodGroup", name), "spec": spec})
