"""Replaces the names of topology levels in an owner, such as ``rack``, by the cluster's node labels."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from serried.api.parent import Owner
from serried.api.preference import LEVELS, Preference
from serried.api.topology import LevelTable

Named = TypeVar("Named", bound=Owner)


class Resolved(NamedTuple, Generic[Named]):
    """An owner whose level names are replaced by node labels."""

    owner: Named

    missing: str = ""
    """The level that could not be resolved, so that no groups may be created yet; "" if there is none.

    It is a required level without a label, or, without a table, the first level that the owner names. It is not
    replaced in ``owner``.
    """

    left_out: tuple[str, ...] = ()
    """The preferred levels without a label. They are removed from ``owner``."""


def resolve_owner(
    owner: Named, table: LevelTable | None, kept: Collection[str] = (), *, has_groups: bool = False
) -> Resolved[Named]:
    """Return an owner with labels instead of level names, from which its groups can be created.

    ``kept`` are the labels in the groups that exist already (``has_groups``): they win over those in the table. A
    preferred level without a label is removed, so that a Job also runs in a cluster without that level; if groups
    exist, a preferred level that they lack stays removed. Without a table nothing is replaced, because it is not known
    yet which levels have labels.
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
    """Return the preference with labels. If two levels have the same label, only the narrower one stays."""
    found = {labels[level.key]: level for level in reversed(preference.levels) if labels[level.key]}
    levels = tuple(level._replace(key=label) for label, level in reversed(found.items()))
    return replace(preference, levels=levels)
