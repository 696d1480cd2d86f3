"""The labels that stand for the levels which an owner names."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from serried.api.parent import Owner
from serried.api.preference import LEVELS, Preference
from serried.api.topology import LevelTable

Named = TypeVar("Named", bound=Owner)


class Resolved(NamedTuple, Generic[Named]):
    """An owner with labels in place of the levels that it names."""

    owner: Named

    missing: str = ""
    """The level for want of which nothing is made, "" if there is none. The owner still has the name then.

    No label stands for it and it is required, or there is no table and it is the first level named.
    """

    left_out: tuple[str, ...] = ()
    """The preferred levels that no label stands for."""


def resolve_owner(
    owner: Named, table: LevelTable | None, kept: Collection[str] = (), *, has_groups: bool = False
) -> Resolved[Named]:
    """Return an owner as its groups are to be made; ``kept`` are the labels of what has been made for it.

    A preferred level that no label stands for is left out, so that a Job runs where there is no such level. If it
    ``has_groups``, what these were made without stays left out. Without a table the owner stays as it is: which levels
    have labels is not known yet.
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
    """The preference by labels: of two levels that one label stands for, the narrower one."""
    found = {labels[level.key]: level for level in reversed(preference.levels) if labels[level.key]}
    levels = tuple(level._replace(key=label) for label, level in reversed(found.items()))
    return replace(preference, levels=levels)
