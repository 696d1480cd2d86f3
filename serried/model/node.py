"""A node, as far as placement needs it."""

from dataclasses import dataclass, field

from serried.model.resources import Resources
from serried.model.selectors import Labels, Taint


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster. ``version`` is its resourceVersion: equal versions mean an equal object."""

    name: str
    allocatable: Resources
    labels: Labels = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    version: str = ""
