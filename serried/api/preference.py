"""A gang's preferences for its placement: preferred topology levels, packing style, exclusive domains.

They are read from annotations of the PodGroup (`read_preference`), or of its owner, i.e. a Job or parent
(`parse_preference`). In PodGroups of Serried's own CRD, the field ``schedulingConstraints.preferredTopology`` takes
precedence over the annotation.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from serried.api.names import Raw, is_label_key, quote, read_int, read_map, read_name, read_objects, read_text


class Style(StrEnum):
    """The packing style: which nodes in a domain a gang gets, and which domain if it fits in several.

    PACK: few nodes, in the domain with the least free resources. SPREAD: many nodes, in the one with the most.
    """

    PACK = "pack"
    """Use few nodes, in the domain with the least free resources, so that large gangs fit later."""
    SPREAD = "spread"
    """Use many nodes, in the domain with the most free resources, so that a lost node costs few members."""


class Level(NamedTuple):
    """A topology level in one domain of which the gang should run if possible."""

    key: str
    """The key of the node label, or the name of a level in LEVELS."""

    wait: float = 0.0
    """The time in seconds for which the gang waits for a domain of this level before Serried tries the next level."""


@dataclass(frozen=True, slots=True)
class Preference:
    """The preferences of one gang for its placement: topology levels, packing style, and exclusive domains."""

    levels: tuple[Level, ...] = ()
    """The preferred topology levels, the narrowest first; empty if the gang has none."""

    style: Style = Style.PACK

    exclusive: bool = False
    """True if the gang must not share a domain of its required topology key with another exclusive gang."""


NO_PREFERENCE = Preference()

LEVELS = ("host", "nvlink", "rack", "block", "spine", "zone")
"""The names of topology levels, the narrowest first. Each stands for a node label (`serried.api.topology`)."""


def names_levels(topology_key: str | None, preference: Preference) -> bool:
    """Return whether the required or a preferred topology key is a name in LEVELS, such as ``rack``.

    Such a name stands for a node label of the cluster, for instance ``example.com/rack``. All other keys are labels.
    """
    return topology_key in LEVELS or any(level.key in LEVELS for level in preference.levels)


PREFERRED_TOPOLOGY = "scheduling.serried.dev/preferred-topology"
"""Annotation: the preferred levels as label keys, the narrowest first: ``example.com/rack=30s,example.com/row``.

``=30s`` means that the gang waits 30 seconds before Serried tries the next level.
"""

PACKING = "scheduling.serried.dev/packing"
"""Annotation: the packing style, ``pack`` or ``spread``."""

EXCLUSIVE = "scheduling.serried.dev/exclusive"
"""Annotation: ``true`` if no other exclusive gang may use the gang's domain (`Preference.exclusive`), or ``false``."""

MAX_LEVELS = 4
"""The maximum number of preferred levels. It is the maximum depth of a tree of CompositePodGroups (KEP-6012)."""

_LEVEL = re.compile(r"(?P<key>[^=\s]+)(=(?P<count>[0-9]{1,6})(?P<unit>[smh]))?")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_MAX_COUNT = 1_000_000
"""One more than the largest number in a wait, which may have six digits: ``999999s``."""


def read_preference(obj: Raw) -> Preference:
    """Return the preference in the spec and annotations of a PodGroup or Workload.

    If the field preferredTopology is set, the annotation for preferred levels is ignored. Raises ValueError if the
    preference is invalid.
    """
    levels = read_levels(read_map(obj, "spec"))
    said = read_map(read_map(obj, "metadata"), "annotations")
    if levels:
        said = {name: value for name, value in said.items() if name != PREFERRED_TOPOLOGY}
    if problem := find_preference_problem(said):
        raise ValueError(problem)
    preference = parse_preference(said)
    return replace(preference, levels=levels) if levels else preference


def read_levels(spec: Raw) -> tuple[Level, ...]:
    """Return the ``preferredTopology`` in a PodGroup's spec, or in a PodGroup template of a Workload; () if absent.

    Raises ValueError for too many levels, a repeated key, an invalid label key or a negative wait.
    """
    raws = read_objects(read_map(spec, "schedulingConstraints"), "preferredTopology")
    levels = tuple(Level(read_name(raw, "key"), float(read_int(raw, "waitSeconds"))) for raw in raws)
    keys = {level.key for level in levels}
    if len(levels) > MAX_LEVELS or len(keys) < len(levels):
        raise ValueError(f"preferredTopology is not up to {MAX_LEVELS} different keys")
    for level in levels:
        if not is_label_key(level.key) or level.wait < 0:
            raise ValueError(f"preferredTopology has {quote(level.key)} with a wait of {level.wait:g} s")
    return levels


def write_levels(levels: Iterable[Level]) -> list[dict[str, Any]]:
    """Return the value of the field ``preferredTopology`` for these levels."""
    return [{"key": level.key} | ({"waitSeconds": int(level.wait)} if level.wait else {}) for level in levels]


def parse_preference(annotations: Raw) -> Preference:
    """Return the preference in annotations; NO_PREFERENCE if they are invalid (`find_preference_problem`)."""
    topology = annotations.get(PREFERRED_TOPOLOGY)
    packing = annotations.get(PACKING)
    exclusive = annotations.get(EXCLUSIVE) == "true"
    if (topology is None and packing is None and not exclusive) or find_preference_problem(annotations):
        return NO_PREFERENCE
    return Preference(_parse_levels(str(topology or "")), Style(str(packing or Style.PACK)), exclusive)


def find_preference_problem(annotations: Raw) -> str:
    """Return a phrase that says what is invalid in these annotations; "" if nothing is."""
    styles = [style.value for style in Style]
    packing = annotations.get(PACKING)
    if packing is not None and packing not in styles:
        return f"annotation {PACKING} is {quote(packing)}, and must be one of {', '.join(styles)}"
    exclusive = annotations.get(EXCLUSIVE, "false")
    if exclusive not in ("true", "false"):
        return f"annotation {EXCLUSIVE} is {quote(exclusive)}, and must be one of true, false"
    if annotations.get(PREFERRED_TOPOLOGY) is None:
        return ""
    parts = [part.strip() for part in read_text(annotations, PREFERRED_TOPOLOGY).split(",")]
    said = f"annotation {PREFERRED_TOPOLOGY} is {quote(annotations[PREFERRED_TOPOLOGY])}"
    if len(parts) > MAX_LEVELS:
        return f"{said}, and may have {MAX_LEVELS} levels"
    wrong = next((part for part in parts if not _is_level(part)), None)
    if wrong is not None:
        return f"{said}, where {quote(wrong)} is no label key, maybe with a wait such as =30s"
    keys = [part.partition("=")[0] for part in parts]
    return f"{said}, where a level is named twice" if len(set(keys)) < len(keys) else ""


def write_preference(preference: Preference) -> dict[str, str]:
    """Return the annotations for this preference."""
    said: dict[str, str] = {}
    if preference.levels:
        said[PREFERRED_TOPOLOGY] = ",".join(_write_level(level) for level in preference.levels)
    if preference.style is not Style.PACK:
        said[PACKING] = preference.style.value
    if preference.exclusive:
        said[EXCLUSIVE] = "true"
    return said


def _is_level(text: str) -> bool:
    found = _LEVEL.fullmatch(text)
    return found is not None and is_label_key(found["key"])


def _parse_levels(text: str) -> tuple[Level, ...]:
    matches = [_LEVEL.fullmatch(part.strip()) for part in text.split(",") if part.strip()]
    return tuple(Level(found["key"], _seconds(found.groupdict())) for found in matches if found is not None)


def _seconds(found: Mapping[str, str | None]) -> float:
    return float(int(found["count"] or 0) * _SECONDS[found["unit"] or "s"])


def _write_level(level: Level) -> str:
    """Return the text for a level in the annotation PREFERRED_TOPOLOGY, such as ``example.com/rack=30s``.

    The unit is seconds, or a larger one if the number would have more than six digits.
    """
    if not level.wait:
        return level.key
    units = ((count, unit) for unit, seconds in _SECONDS.items() if (count := int(level.wait // seconds)) < _MAX_COUNT)
    count, unit = next(units)
    return f"{level.key}={count}{unit}"
