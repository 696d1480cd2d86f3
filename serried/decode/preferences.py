"""A gang's preferences as annotations of its PodGroup, or of the Job or parent for which that is made; both ways."""

import re
from collections.abc import Mapping

from serried.decode.fields import Raw, read_map, read_text
from serried.decode.identity import is_label_key
from serried.model.preference import NO_PREFERENCE, Level, Preference, Style

PREFERRED_TOPOLOGY = "scheduling.serried.dev/preferred-topology"
"""Label keys, the narrowest first, separated by commas. ``key=30s`` waits so long before a wider level is taken."""

PACKING = "scheduling.serried.dev/packing"
"""``pack`` or ``spread``."""

MOST_LEVELS = 4
"""As deep as CompositePodGroups may be nested (KEP-6012)."""

_LEVEL = re.compile(r"(?P<key>[^=\s]+)(=(?P<count>[0-9]{1,6})(?P<unit>[smh]))?")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def read_preference(obj: Raw) -> Preference:
    """The preference that an object's annotations name. ValueError for one that nobody can follow."""
    annotations = read_map(read_map(obj, "metadata"), "annotations")
    if problem := find_preference_problem(annotations):
        raise ValueError(problem)
    return parse_preference(annotations)


def parse_preference(annotations: Raw) -> Preference:
    """The preference in annotations of which `find_preference_problem` finds nothing; none in those that have one."""
    topology, packing = annotations.get(PREFERRED_TOPOLOGY), annotations.get(PACKING)
    if (topology is None and packing is None) or find_preference_problem(annotations):
        return NO_PREFERENCE
    return Preference(_parse_levels(str(topology or "")), Style(str(packing or Style.PACK)))


def find_preference_problem(annotations: Raw) -> str:
    """What an author has to correct, "" if nothing."""
    styles = [style.value for style in Style]
    packing = annotations.get(PACKING)
    if packing is not None and packing not in styles:
        return f"annotation {PACKING} is {packing!r}, and must be one of {', '.join(styles)}"
    if annotations.get(PREFERRED_TOPOLOGY) is None:
        return ""
    parts = [part.strip() for part in read_text(annotations, PREFERRED_TOPOLOGY).split(",")]
    said = f"annotation {PREFERRED_TOPOLOGY} is {annotations[PREFERRED_TOPOLOGY]!r}"
    if len(parts) > MOST_LEVELS:
        return f"{said}, and may have {MOST_LEVELS} levels"
    wrong = next((part for part in parts if not _is_level(part)), None)
    if wrong is not None:
        return f"{said}, where {wrong!r} is no label key, maybe with a wait such as =30s"
    keys = [part.partition("=")[0] for part in parts]
    return f"{said}, where a level is named twice" if len(set(keys)) < len(keys) else ""


def write_preference(preference: Preference) -> dict[str, str]:
    """The annotations that say it."""
    said: dict[str, str] = {}
    if preference.levels:
        said[PREFERRED_TOPOLOGY] = ",".join(_write_level(level) for level in preference.levels)
    if preference.style is not Style.PACK:
        said[PACKING] = preference.style.value
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
    return f"{level.key}={level.wait:.0f}s" if level.wait else level.key
