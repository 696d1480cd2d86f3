"""PriorityClasses, which priority a group has by them, and whether others may be evicted for it.

PriorityClasses of ``scheduling.k8s.io/v1``, and the ``preemptionPolicy`` that they share with pods and groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from serried.api.names import Malformed, Raw, attempt, read_flag, read_int, read_key, read_text, read_version

HIGHEST_GROUP_PRIORITY = 1_000_000_000
"""The most that a PodGroup may have; classes of the system are above it (upstream's HighestUserDefinablePriority)."""


class PreemptionPolicy(StrEnum):
    """``preemptionPolicy``: whether pods of lower priority may be evicted to make room."""

    LOWER_PRIORITY = "PreemptLowerPriority"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A scheduling.k8s.io/v1 PriorityClass; ``is_default`` is ``globalDefault``."""

    name: str
    value: int
    is_default: bool = False
    preemption: PreemptionPolicy | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class PriorityMismatch:
    """That a group or members of it say another priority than the one that counts."""

    counts: int
    """The priority of the group."""

    priority_class: str
    """The class that the group names, "" for none."""

    written: int | None
    """What ``spec.priority`` of the group says instead; None if it does not."""

    strays: int = 0
    """How many of the ``members`` have another priority, such as the pod ``stray``, which has ``stray_priority``."""

    members: int = 0
    stray: str = ""
    stray_priority: int = 0


def find_class(name: str, classes: Mapping[str, PriorityClass]) -> PriorityClass | None:
    """The class of a group that names this one, "" for none; None if there is none that a group may have."""
    if name:
        found = classes.get(name)
        return found if found is not None and found.value <= HIGHEST_GROUP_PRIORITY else None
    defaults = (each for each in classes.values() if each.is_default and each.value <= HIGHEST_GROUP_PRIORITY)
    # As upstream where several are the default: the lowest.
    return min(defaults, key=lambda each: each.value, default=None)


def resolve_priority(name: str, classes: Mapping[str, PriorityClass]) -> int | None:
    """The priority of a group that names this class, "" for none (plugin/pkg/admission/priority).

    None if there is no such class, or none that a group may have.
    """
    found = find_class(name, classes)
    if found is None:
        return None if name else 0
    return found.value


_POLICIES = {policy.value: policy for policy in PreemptionPolicy}


def decode_priority_class(obj: object) -> PriorityClass | Malformed:
    """A PriorityClass from its JSON object; the name is required."""
    return attempt("PriorityClass", _decode, obj)


def read_preemption(raw: Raw) -> PreemptionPolicy | None:
    """``preemptionPolicy`` of a PriorityClass, or of the spec of a pod or group; None where it is not said."""
    return _POLICIES.get(read_text(raw, "preemptionPolicy"))


def _decode(obj: Raw) -> PriorityClass:
    return PriorityClass(
        name=read_key(obj).name,
        value=read_int(obj, "value"),
        is_default=read_flag(obj, "globalDefault"),
        preemption=read_preemption(obj),
        version=read_version(obj),
    )
