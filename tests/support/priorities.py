"""Builders of PriorityClasses."""

from typing import Self

from serried.api.priority import PriorityClass, decode_priority_class
from tests.support.builders import Builder, usable

_DEFAULT = (True, "globalDefault")


class PriorityClassBuilder(Builder):
    """A PriorityClass, no default, that says nothing of preemption."""

    def value(self) -> PriorityClass:
        """As Serried sees it."""
        return usable(decode_priority_class(self._raw))

    def default(self) -> Self:
        """What those have that name no class."""
        return self.having(*_DEFAULT)

    def never(self) -> Self:
        """For whose pods no other is evicted."""
        return self.having("Never", "preemptionPolicy")


def priority_class(name: str, value: int) -> PriorityClassBuilder:
    """A PriorityClass."""
    return PriorityClassBuilder({"metadata": {"name": name, "uid": f"priorityclass-{name}"}, "value": value})
