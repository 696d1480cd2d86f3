"""PriorityClasses (``scheduling.k8s.io/v1``), the priority of a group by its class, and ``preemptionPolicy``."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from serried.api.names import (
    Malformed,
    Raw,
    decode_or_malformed,
    read_flag,
    read_int,
    read_key,
    read_text,
    read_version,
)

HIGHEST_GROUP_PRIORITY = 1_000_000_000
"""The highest priority of a PodGroup; system classes are above it (upstream's HighestUserDefinablePriority)."""


class PreemptionPolicy(StrEnum):
    """The ``preemptionPolicy``: whether pods of lower priority may be evicted for a pod or group."""

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
    """The conflicting priorities of a group: Serried schedules it with ``counts``, but its spec or members have others.

    ``written`` is the priority in the spec if it is another one, ``strays`` the number of members with another one.
    """

    counts: int
    """The priority with which the group is scheduled."""

    priority_class: str
    """The PriorityClass that the group names; "" for none."""

    written: int | None
    """The ``spec.priority`` of the group if Serried schedules it with another one (``counts``); else None."""

    strays: int = 0
    """The number of members whose priority is not ``counts``, that of the group; ``members`` is the number of all.

    ``stray`` is the name of one of them, and ``stray_priority`` its priority.
    """

    members: int = 0
    stray: str = ""
    stray_priority: int = 0


def find_class(name: str, classes: Mapping[str, PriorityClass]) -> PriorityClass | None:
    """Return the PriorityClass of a group that names the class ``name``; for "" return the cluster's default class.

    Return None if there is no such class, or if it is a system class, which a group may not have.
    """
    if name:
        found = classes.get(name)
        return found if found is not None and found.value <= HIGHEST_GROUP_PRIORITY else None
    defaults = (each for each in classes.values() if each.is_default and each.value <= HIGHEST_GROUP_PRIORITY)
    # If several classes are the default, the one with the lowest value counts, as upstream.
    return min(defaults, key=lambda each: each.value, default=None)


def resolve_priority(name: str, classes: Mapping[str, PriorityClass]) -> int | None:
    """Return the priority of a group that names the class ``name``, as the API server resolves it.

    For the name "" it is that of the default class, or 0 without one. Return None if the class does not exist or is a
    system class. Upstream: plugin/pkg/admission/priority.
    """
    found = find_class(name, classes)
    if found is None:
        return None if name else 0
    return found.value


_POLICIES = {policy.value: policy for policy in PreemptionPolicy}


def decode_priority_class(obj: object) -> PriorityClass | Malformed:
    """Decode a PriorityClass; the name is required."""
    return decode_or_malformed("PriorityClass", _decode, obj)


def read_preemption(raw: Raw) -> PreemptionPolicy | None:
    """Return the ``preemptionPolicy`` of a PriorityClass, or of a pod's or group's spec; None if it is not set."""
    return _POLICIES.get(read_text(raw, "preemptionPolicy"))


def _decode(obj: Raw) -> PriorityClass:
    return PriorityClass(
        name=read_key(obj).name,
        value=read_int(obj, "value"),
        is_default=read_flag(obj, "globalDefault"),
        preemption=read_preemption(obj),
        version=read_version(obj),
    )
