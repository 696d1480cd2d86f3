"""What a gang would like, beyond what it requires: levels of the topology, and how it is laid out in them.

It is read from annotations of the PodGroup, or of the Job or parent for which that is made. At the fallback level the
field ``schedulingConstraints.preferredTopology`` wins.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from serried.api.names import Raw, is_label_key, quote, read_int, read_map, read_name, read_objects, read_text


class Style(StrEnum):
    """Which nodes of a domain a gang gets, and which domain of several that fit."""

    PACK = "pack"
    """As few nodes as possible, in the tightest domain: large gangs find room afterwards."""
    SPREAD = "spread"
    """As many nodes as possible, in the roomiest domain: a lost node costs few members."""


class Level(NamedTuple):
    """A preferred level of the topology."""

    key: str
    """The label key."""

    wait: float = 0.0
    """How many seconds the gang waits for one domain of the level before it takes a wider one."""


@dataclass(frozen=True, slots=True)
class Preference:
    """What a gang would like."""

    levels: tuple[Level, ...] = ()
    """Preferred levels, the narrowest first."""

    style: Style = Style.PACK

    exclusive: bool = False
    """Whether no domain of the required key is shared with another exclusive gang."""


NO_PREFERENCE = Preference()

LEVELS = ("host", "nvlink", "rack", "block", "spine", "zone")
"""The names that stand for labels of nodes (`serried.api.topology`), the narrowest level first."""


def names_levels(topology_key: str | None, preference: Preference) -> bool:
    """Whether a required or a preferred key is the name of a level."""
    return topology_key in LEVELS or any(level.key in LEVELS for level in preference.levels)


PREFERRED_TOPOLOGY = "scheduling.serried.dev/preferred-topology"
"""Label keys, the narrowest first, separated by commas. With ``key=30s`` wider levels are tried after 30 s."""

PACKING = "scheduling.serried.dev/packing"
"""``pack`` or ``spread``."""

EXCLUSIVE = "scheduling.serried.dev/exclusive"
"""``true`` or ``false``."""

MAX_LEVELS = 4
"""As many as CompositePodGroups may be nested (KEP-6012)."""

_LEVEL = re.compile(r"(?P<key>[^=\s]+)(=(?P<count>[0-9]{1,6})(?P<unit>[smh]))?")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_COUNT_END = 1_000_000
"""Counts are below this number: they have six digits at most."""


def read_preference(obj: Raw) -> Preference:
    """The preference in an object's spec and annotations; raises ValueError for one that makes no sense.

    Where the field is set, the annotation of the same meaning is not read.
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
    """``preferredTopology`` of a PodGroup's spec or of a template, () if absent; raises ValueError if it is wrong."""
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
    """``preferredTopology`` for these levels."""
    return [{"key": level.key} | ({"waitSeconds": int(level.wait)} if level.wait else {}) for level in levels]


def parse_preference(annotations: Raw) -> Preference:
    """The preference in annotations; NO_PREFERENCE if `find_preference_problem` finds something wrong with them."""
    topology = annotations.get(PREFERRED_TOPOLOGY)
    packing = annotations.get(PACKING)
    exclusive = annotations.get(EXCLUSIVE) == "true"
    if (topology is None and packing is None and not exclusive) or find_preference_problem(annotations):
        return NO_PREFERENCE
    return Preference(_parse_levels(str(topology or "")), Style(str(packing or Style.PACK)), exclusive)


def find_preference_problem(annotations: Raw) -> str:
    """What the author has to correct in these annotations, "" if nothing."""
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
    """The annotations for this preference."""
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
    """A level in the smallest unit in which it can be read again: hours may be too many seconds for six digits."""
    if not level.wait:
        return level.key
    units = ((count, unit) for unit, seconds in _SECONDS.items() if (count := int(level.wait // seconds)) < _COUNT_END)
    count, unit = next(units)
    return f"{level.key}={count}{unit}"
