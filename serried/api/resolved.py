"""Replaces the names of topology levels, such as ``rack``, by node labels (`resolve_owner`).

The names stand in a Job or in a parent, i.e. a JobSet or LeaderWorkerSet.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from serried.api.parent import Owner
from serried.api.preference import LEVELS, Preference
from serried.api.topology import LevelTable

Named = TypeVar("Named", bound=Owner)


class Resolved(NamedTuple, Generic[Named]):
    """The result of `resolve_owner`: a Job or parent in which level names are replaced by node labels."""

    owner: Named

    missing: str = ""
    """The level for which no label is known, so that no PodGroups may be created yet; "" if there is none.

    It is the required level. If there is no `LevelTable` yet, the table of the labels for all levels, it is the first
    level that the owner names. In ``owner`` its name is not replaced.
    """

    left_out: tuple[str, ...] = ()
    """The preferred levels for which the cluster has no label. They are removed from ``owner``."""


def resolve_owner(
    owner: Named, table: LevelTable | None, kept: Collection[str] = (), *, has_groups: bool = False
) -> Resolved[Named]:
    """Return a Job or parent with node labels instead of level names, from which its PodGroups can be created.

    For instance ``rack`` becomes ``example.com/rack``. ``table`` says which label stands for a level. With None nothing
    is replaced, because the labels are not known yet. A preferred level without a label is removed, so that a Job also
    runs in a cluster without this level.

    ``has_groups`` is True if the owner's PodGroups exist already, and ``kept`` are the labels in them. These take
    precedence over the table, so that existing PodGroups do not change. For the same reason, a preferred level that
    they lack is removed.
    """
    key = owner.topology_key
    named = [name for name in (key, *(level.key for level in owner.preference.levels)) if name in LEVELS]
    if not named:
        return Resolved(owner)
    if table is None:
        return Resolved(owner, missing=named[0])

    def find(name: str, *, required: bool = False) -> str:
        if name not in LEVELS:
            return name
        found = table.find_label(name, owner.wanted, kept)
        return found if required or not has_groups or found in kept else ""

    label = find(key, required=True) if key is not None else None
    labels = {level.key: find(level.key) for level in owner.preference.levels}
    return Resolved(
        replace(owner, topology_key=label or key, preference=_resolve_preference(owner.preference, labels)),
        missing=key if key is not None and not label else "",
        left_out=tuple(name for name, found in labels.items() if not found),
    )


def _resolve_preference(preference: Preference, labels: Mapping[str, str]) -> Preference:
    """Return a gang's preference (e.g. its preferred topology levels) with labels instead of level names.

    ``labels`` has the label by level, "" for none. Levels without a label are removed. If two levels have the same
    label, only the narrower one stays: of ``rack`` and ``zone`` that is ``rack``.
    """
    found = {labels[level.key]: level for level in reversed(preference.levels) if labels[level.key]}
    levels = tuple(level._replace(key=label) for label, level in reversed(found.items()))
    return replace(preference, levels=levels)
