"""Label requirements, node selectors, taints and tolerations as values."""

from collections.abc import Mapping
from dataclasses import dataclass

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One match expression (core/v1 NodeSelectorRequirement): ``key operator values``.

    Operators: In, NotIn, Exists, DoesNotExist, Gt, Lt. An operator that is not known matches nothing.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """All of ``labels`` and all of ``fields`` hold. A term with neither matches nothing (upstream rule)."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint; only the effects NoSchedule and NoExecute keep pods away."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration: an empty key with Exists tolerates all, an empty effect every effect."""

    key: str
    operator: str
    value: str
    effect: str
