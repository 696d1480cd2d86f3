"""Builders of PriorityClasses."""

from typing import Self

from serried.api.priority import PriorityClass, decode_priority_class
from tests.support.builders import Builder, require_valid

_DEFAULT = (True, "globalDefault")


class PriorityClassBuilder(Builder):
    """Builds a PriorityClass that is not the default and has no preemption policy."""

    def value(self) -> PriorityClass:
        """The PriorityClass, decoded."""
        return require_valid(decode_priority_class(self._raw))

    def default(self) -> Self:
        """Make it the default of pods without a class."""
        return self.with_field(*_DEFAULT)

    def never(self) -> Self:
        """Set the preemption policy Never."""
        return self.with_field("Never", "preemptionPolicy")


def priority_class(name: str, value: int) -> PriorityClassBuilder:
    """Start building a PriorityClass."""
    return PriorityClassBuilder({"metadata": {"name": name, "uid": f"priorityclass-{name}"}, "value": value})
