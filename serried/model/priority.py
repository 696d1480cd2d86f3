"""PriorityClasses, and which priority a group has by them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A scheduling.k8s.io/v1 PriorityClass; ``is_default`` is ``globalDefault``."""

    name: str
    value: int
    is_default: bool = False
    version: str = ""


def resolve_priority(name: str, classes: Mapping[str, PriorityClass]) -> int | None:
    """The priority of what names this class, "" for none (plugin/pkg/admission/priority); None if there is no such."""
    if name:
        return classes[name].value if name in classes else None
    # As upstream where several are the default: the lowest.
    return min((each.value for each in classes.values() if each.is_default), default=0)
