"""PriorityClasses, and which priority a group has by them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class PreemptionPolicy(StrEnum):
    """Whether others may be evicted for a pod or a group."""

    LOWER = "PreemptLowerPriority"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A scheduling.k8s.io/v1 PriorityClass; ``is_default`` is ``globalDefault``."""

    name: str
    value: int
    is_default: bool = False
    version: str = ""
    preemption: PreemptionPolicy = PreemptionPolicy.LOWER


def resolve_priority(name: str, classes: Mapping[str, PriorityClass]) -> int | None:
    """The priority of what names this class, "" for none (plugin/pkg/admission/priority); None if there is no such."""
    if name:
        return classes[name].value if name in classes else None
    # As upstream where several are the default: the lowest.
    return min((each.value for each in classes.values() if each.is_default), default=0)


def may_preempt(
    of_group: PreemptionPolicy | None, of_class: PreemptionPolicy | None, of_pods: Iterable[PreemptionPolicy]
) -> bool:
    """Whether others may be evicted for a group.

    What the group says itself counts (1.37, gate PodGroupPreemptionPolicy). One that says nothing may have others
    evicted unless its class or a member says Never (resolvePreemptionPolicy in upstream's
    pkg/scheduler/framework/preemption/types.go, which leaves the class to admission).
    """
    if of_group is not None:
        return of_group is PreemptionPolicy.LOWER
    return of_class is not PreemptionPolicy.NEVER and PreemptionPolicy.NEVER not in set(of_pods)
